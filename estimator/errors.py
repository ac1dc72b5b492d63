"""One class per way to fail. The exit code lives on the class; the CLI turns it into a status once."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["DoesNotFit", "InvalidRequest", "NoFamily", "NotModelled", "UnknownName", "VitmemError", "did_you_mean"]


class VitmemError(Exception):
    """Anything the program refuses to do; ``str(error)`` is one or two lines for a person."""

    exit_code: int = 1


class InvalidRequest(VitmemError, ValueError):
    """The request is wrong: an unknown value, or a combination that the real library refuses."""

    exit_code = 2


class UnknownName(InvalidRequest):
    """A model, GPU or optimizer name that is not known."""


class DoesNotFit(VitmemError):
    """The answer is known and it is no: over capacity, or a validation beyond its tolerance."""

    exit_code = 3


class NotModelled(VitmemError):
    """A valid request outside what is modelled: no number is better than a plausible one."""

    exit_code = 4


class NoFamily(NotModelled):
    """A model that no family file covers; its library can build it, so that it can be rehearsed instead."""


def did_you_mean(name: str, known: Iterable[str], *, limit: int = 3) -> str:
    """A suffix such as ``"; did you mean vit_base_patch16_224?"``, empty when nothing is close."""
    import difflib  # only a misspelt name pays for it

    by_folded = {candidate.casefold(): candidate for candidate in known}
    begun = [candidate for candidate in by_folded if name and candidate.startswith(name.casefold())]
    matches = begun[:limit] or difflib.get_close_matches(name.casefold(), list(by_folded), n=limit, cutoff=0.6)
    if not matches:
        return ""
    return f"; did you mean {', '.join(by_folded[match] for match in matches)}?"
