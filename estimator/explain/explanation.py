"""A text in, an :class:`Explanation` out: the first message of PyTorch's allocator, else the row that explains most."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import NotModelled
from ..result import SCHEMA_VERSION
from ..units import format_bytes
from .cause import advice_of, cause_of, notes_of, summary_of
from .message import OutOfMemory, find_messages
from .phase import NAMES, phase_before
from .symptoms import SYMPTOMS, Symptom

__all__ = ["Advice", "Explanation", "explain"]

_LONGEST_EVIDENCE = 300


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A setting to change: an option of vitmem, an argument of the Trainer, or an environment variable."""

    setting: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """``kind`` is ``cuda_allocator`` or the kind of a symptom; ``figures`` are bytes, ``None`` where not said.

    ``evidence`` is (line number from 1, the line); ``also`` are other kinds that the text shows.
    """

    kind: str
    where: str
    cause: str
    summary: str
    phase: str | None
    figures: Mapping[str, Any] | None
    evidence: tuple[int, str]
    num_messages: int
    also: tuple[str, ...]
    advice: tuple[Advice, ...]
    next: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The document of ``vitmem explain --json``."""
        document = dataclasses.asdict(self)
        line, text = self.evidence
        document["evidence"] = {"line": line, "text": text}
        document["phase_name"] = None if self.phase is None else NAMES[self.phase]
        for name in ("also", "next", "notes", "advice"):
            document[name] = list(document[name])
        return {"schema_version": SCHEMA_VERSION, **document}


def explain(text: str) -> Explanation:
    """What ``text`` says; raises NotModelled where it shows no lack of memory."""
    messages = find_messages(text)
    seen = [(symptom, match) for symptom in SYMPTOMS if (match := symptom.pattern.search(text)) is not None]
    told = [message for message in messages if message.requested_bytes is not None or message.is_preempted]
    if told:
        return _of_message(text, told, [symptom.kind for symptom, _ in seen if symptom.kind != "cuda"])
    if seen:
        symptom, match = seen[0]
        return _of_symptom(text, symptom, match.start(), [other.kind for other, _ in seen[1:]])
    raise NotModelled(
        "the text shows no lack of memory that is known; paste the whole error with its traceback, such as the lines "
        "from 'Traceback' to 'CUDA out of memory. Tried to allocate ...'"
    )


def _of_message(text: str, messages: list[OutOfMemory], also: Iterable[str]) -> Explanation:
    message = messages[0]
    cause, phase = cause_of(message), phase_before(text, message.start)
    notes = [*notes_of(message)]
    if len(messages) > 1:
        notes.insert(0, f"the first of {len(messages)} such messages: later ones often follow from it")
    figures = dataclasses.asdict(message)
    del figures["start"]
    figures["others"] = [{"pid": pid, "bytes": size} for pid, size in message.others]
    figures["unexplained_bytes"] = message.unexplained_bytes
    return Explanation(
        kind="cuda_allocator",
        where="gpu",
        cause=cause,
        summary=summary_of(message, cause),
        phase=phase,
        figures=figures,
        evidence=_evidence(text, message.start),
        num_messages=len(messages),
        also=tuple(also),
        advice=tuple(Advice(setting=setting, text=what) for setting, what in advice_of(message, cause, phase)),
        next=_next(message, cause),
        notes=tuple(notes),
    )


def _of_symptom(text: str, symptom: Symptom, place: int, also: Iterable[str]) -> Explanation:
    return Explanation(
        kind=symptom.kind,
        where=symptom.where,
        cause=symptom.kind,
        summary=symptom.summary,
        phase=phase_before(text, place) if symptom.where == "gpu" else None,
        figures=None,
        evidence=_evidence(text, place),
        num_messages=1,
        also=tuple(also),
        advice=tuple(Advice(setting=setting, text=what) for setting, what in symptom.advice),
        next=_next(None, symptom.kind) if symptom.where == "gpu" else ("vitmem monitor",),
        notes=(),
    )


def _next(message: OutOfMemory | None, cause: str) -> tuple[str, ...]:
    """Command lines to go on with; MODEL, N and SIZE stand for the user's own."""
    size = "SIZE"
    if message is not None and message.total_bytes:
        size = format_bytes(max(message.total_bytes - message.others_bytes, 1)).replace(" ", "")
    more = " --alloc-conf expandable_segments:True" if cause == "fragmentation" else ""
    commands = (
        f"vitmem estimate MODEL --bs N --memory {size}{more}",
        f"vitmem solve bs MODEL --memory {size}{more}",
    )
    if cause in {"other_processes", "refused", "cuda", "nccl"}:
        index = "" if message is None or message.gpu is None else f" --gpu {message.gpu}"
        return (f"vitmem monitor{index}", *commands)
    return commands


def _evidence(text: str, place: int) -> tuple[int, str]:
    begins = text.rfind("\n", 0, place) + 1
    ends = text.find("\n", place)
    line = text[begins : ends if ends >= 0 else len(text)]
    return text.count("\n", 0, place) + 1, line.strip()[:_LONGEST_EVIDENCE]
