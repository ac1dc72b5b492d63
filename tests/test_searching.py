"""The boundary of what fits is found whatever the guesses are worth."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies
from vitmem.advice.search import Grid, beyond
from vitmem.searching import last_that
from vitmem.settings import TrainSettings


@given(
    boundary=strategies.integers(-1, 300),
    guess=strategies.integers(-10, 400),
    wrong=strategies.integers(-400, 400),
    estimates=strategies.booleans(),
)
def test_the_last_that_fits(boundary: int, guess: int, wrong: int, estimates: bool) -> None:
    tried: list[int] = []

    def fits(place: int) -> bool:
        tried.append(place)
        return place <= boundary

    found = last_that(fits, guess, 0, 300, (lambda place: boundary - place + wrong) if estimates else None)
    assert found == (None if boundary < 0 else boundary)
    assert len(tried) == len(set(tried))
    assert set(tried) <= set(range(301))
    assert len(tried) <= 24
    if estimates and wrong == 0:
        assert len(tried) <= 4


class Sloped(Grid):
    """Four batches and six blocks: a batch takes 10, a checkpointed block gives back 1, and ``room`` fits."""

    def __init__(self, room: int) -> None:
        self.room, self.sizes, self.most, self.last = room, [1, 2, 4, 8], 6, 3

    def fits(self, place: int, layers: int, alloc_conf: str | None = None) -> bool:
        return 10 * place - layers <= self.room

    def at(self, place: int, layers: int, alloc_conf: str | None = None) -> Any:
        return place, layers

    def fitting(self, layers: int, alloc_conf: str | None = None, *, first: int = 0) -> list[int]:
        return [place for place in range(first, 4) if self.fits(place, layers)]

    def fits_whole(self, layers: int, alloc_conf: str | None, *, like: int) -> bool:
        return self.fits(self.last, layers)

    def fewest(self, place: int, alloc_conf: str | None, known: int) -> int:
        return min(layers for layers in range(7) if self.fits(place, layers))


def test_only_what_is_beyond_the_best_is_offered() -> None:
    best = TrainSettings.of("test_vit", bs=4, grad_checkpointing=True, checkpoint_layers=3)  # place 2
    for room, offers in {16: [], 17: [], 18: [(2, 2)], 20: [(2, 0)], 27: [(3, 3)], 30: [(3, 0)]}.items():
        assert beyond(Sloped(room), best, ()).offers == offers


class Apart(Sloped):
    """The whole batch at once takes no more than the smallest."""

    def fits(self, place: int, layers: int, alloc_conf: str | None = None) -> bool:
        return super().fits(0 if place == self.last else place, layers)


def test_the_whole_batch_at_once_is_beyond_what_no_larger_batch_is() -> None:
    best = TrainSettings.of("test_vit", bs=2, grad_checkpointing=True, checkpoint_layers=3)  # place 1
    assert beyond(Apart(8), best, ()).offers == [(3, 0)]
    assert beyond(Sloped(7), best, ()).offers == []
