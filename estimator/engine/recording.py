"""From what a block did while it was played to a stretch that its equals can enter."""

from __future__ import annotations

from collections.abc import Sequence

from .log import Call, Entry, Face, NotRepeatable, Start, Take
from .run import Run
from .signature import Parts
from .stretch import Called, Piece, Stretch, Taken

__all__ = ["Recording"]


class Recording:
    """A pass of a block from ``start`` to now, in pieces between the hooks in its ``log``.

    ``places`` are those of the allocations that the block made by itself, with the piece, by their number in the run.
    """

    def __init__(self, run: Run, start: Start, log: Sequence[Entry]) -> None:
        self.run, self.start = run, start
        self.calls = [entry for entry in log if isinstance(entry, Call)]
        begins = [start, *[call.end for call in self.calls]]
        ends = [*[call.begin for call in self.calls], Start.now(run)]
        self.spans = list(zip(begins, ends))
        self.takes: list[list[Take]] = [[]]  # by piece
        for entry in log:
            if isinstance(entry, Call):
                self.takes.append([])
            else:
                self.takes[-1].append(entry)
        self.places: dict[int, tuple[int, int]] = {}
        self.starts: list[int] = []
        for piece, (begin, end) in enumerate(self.spans):
            self.starts.append(len(self.places))
            for i in range(begin.allocation, end.allocation):
                self.places[i] = len(self.places), piece

    def placed(self, face: Face) -> Face:
        """A tensor that was made here by its place."""
        if face.place not in self.places:
            raise NotRepeatable
        return face._replace(place=self.places[face.place][0])

    @property
    def taken(self) -> dict[int, object]:
        """The places of the gradients that leaves took, each with the last leaf that did."""
        return {self.placed(take.grad).place: take.leaf for takes in self.takes for take in takes}

    def stretch(self, row: str, parts: Parts, outside: Sequence[int], forward: Recording | None = None) -> Stretch:
        """What a block of the row ``row`` did; ``outside`` are the allocations of others that it may have freed, and
        ``forward`` its forward pass."""
        run, deaths = self.run, _Deaths(self, outside, forward)
        subjects = {id(subject): i for i, subject in enumerate(parts.subjects)}
        pieces = []
        for i, (begin, end) in enumerate(self.spans):
            allocations = [_made(made, row) for made in run.allocations[begin.allocation : end.allocation]]
            events = deaths.told(i, range(begin.event, end.event))
            first = end.event - len(events)  # what ends with the hook before is the first, and not told
            unknown = [(at - first, num_bytes) for at, num_bytes in run.unknown[begin.unknown : end.unknown]]
            taken = [Taken(_number(subjects, take.leaf), self.placed(take.grad)) for take in self.takes[i]]
            called = None
            if i < len(self.calls):
                deaths.check(self.calls[i])
                called = _called(self.calls[i], _number(subjects, self.calls[i].subject), row)
            pieces.append(Piece(self.starts[i], allocations, events, unknown, taken, called))
        return Stretch(pieces, run.products[self.start.product :], deaths.own, deaths.of_forward, deaths.outside)


class _Deaths:
    """The events of a recording, told so that they are true elsewhere."""

    def __init__(self, made: Recording, outside: Sequence[int], forward: Recording | None) -> None:
        self._made, self._outside = made, outside
        self._forward = {} if forward is None else forward.places
        self._of_forward = 2 * len(made.spans)  # bases
        self._of_outside = self._of_forward + (0 if forward is None else len(forward.spans))
        self._taken = made.taken
        self.own: set[int] = set()
        self.of_forward: set[int] = set()
        self.outside: set[int] = set()

    def told(self, piece: int, span: range) -> list[tuple[int, int]]:
        """The events of a piece."""
        events, made = self._made.run.events, self._made
        found: list[tuple[int, int]] = []
        for at in span:
            event = events[at]
            if event >= 0:
                found.append((made.places[event][0], 2 * piece))
            elif (here := made.places.get(~event)) is None:
                found.append(self._of_others(~event))
            elif here[0] not in self._taken:
                self.own.add(here[0])
                found.append((~here[0], 2 * here[1] + 1))
            elif not self._ends_with_hook(here[0], piece, at):
                raise NotRepeatable
        return found

    def _of_others(self, i: int) -> tuple[int, int]:
        if i in self._forward:
            place, piece = self._forward[i]
            self.of_forward.add(place)
            return ~place, self._of_forward + piece
        if i not in self._outside:
            raise NotRepeatable
        place = self._outside.index(i)
        self.outside.add(place)
        return 0, self._of_outside + place

    def _ends_with_hook(self, place: int, piece: int, at: int) -> bool:
        """Whether a gradient dies because its leaf's hook, which let go of it, is over: it will do so again."""
        if not piece:
            return False
        call = self._made.calls[piece - 1]
        return call.holds and call.subject is self._taken[place] and call.end.event == at

    def check(self, call: Call) -> None:
        """A hook may end gradients that leaves took, and else nothing of the block's."""
        for event in self._made.run.events[call.begin.event : call.end.event]:
            i = ~event
            here = self._made.places.get(i)
            if (here is not None and here[0] not in self._taken) or i in self._forward or i in self._outside:
                raise NotRepeatable


def _number(subjects: dict[int, int], subject: object) -> int:
    if id(subject) not in subjects:
        raise NotRepeatable
    return subjects[id(subject)]


def _made(made: tuple[int, str, str], row: str) -> tuple[int, str, str | None]:
    num_bytes, kind, layer = made
    return num_bytes, kind, _row(layer, row)


def _row(layer: str, row: str) -> str | None:
    """None for the block's own row."""
    if layer.startswith(f"{row}."):
        raise NotRepeatable
    return None if layer == row else layer


def _called(call: Call, subject: int, row: str) -> Called:
    return Called(call.hook, subject, call.args, _row(call.layer, row), call.kind, call.holds)
