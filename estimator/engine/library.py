"""What blocks did in earlier runs of this process: where a model is estimated again and again, few blocks are played.

What a block does depends on its signature, on the state in which a pass of it begins (``state.py``), and on what holds
for a whole run: its ``context``, a value made of frozen ones. What was used and turned out wrong is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .stretch import Backward, Forward

__all__ = ["Known", "Library", "clear"]

#: So many states are kept, of all kinds of blocks together, and each kind counts as one more: some 30 MB.
_MOST_STATES = 256


class Known:
    """The passes of a kind of blocks, by the number of the state in which they began."""

    def __init__(self) -> None:
        self.states: dict[Any, int] = {}
        self.forwards: dict[int, Forward] = {}
        self.backwards: dict[Any, Backward] = {}


_kept: OrderedDict[Hashable, Known] = OrderedDict()  # what was used last is last


def clear() -> None:
    """What blocks did so far is not used any more."""
    _kept.clear()


class Library:
    """What a run may use of the runs before; ``was_used``: something of theirs was handed out."""

    def __init__(self, context: Hashable) -> None:
        self.was_used = False
        self._context = context
        self._handed_out: list[Hashable] = []

    def known(self, signature: Hashable) -> Known:
        """The passes of blocks of a signature, to be used and to be added to."""
        key = self._context, signature
        known = _kept.get(key)
        if known is None or len(known.states) > _MOST_STATES:
            known = _kept[key] = Known()
        self.was_used |= bool(known.forwards)
        self._handed_out.append(key)
        _kept.move_to_end(key)
        while len(_kept) > 1 and sum(1 + len(one.states) for one in _kept.values()) > _MOST_STATES:
            _kept.popitem(last=False)
        return known

    def forget(self) -> None:
        """Drop what was handed out."""
        for key in self._handed_out:
            _kept.pop(key, None)
        self._handed_out, self.was_used = [], False
