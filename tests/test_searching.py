"""The boundary of what fits is found whatever the guesses are worth."""

from __future__ import annotations

from hypothesis import given, strategies
from vitmem.searching import last_that


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
