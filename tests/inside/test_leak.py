"""The rule for a leak, on made-up figures."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vitmem.validate.inside.leak import MIN_BYTES_PER_STEP, find_leak

MIB = 2**20


def points(figures: list[int]) -> list[tuple[int, int]]:
    return list(enumerate(figures))


def test_growth_is_found_with_its_size_and_its_steps() -> None:
    # GIVEN three steps that warm up, then 1 MiB more in each
    leak = find_leak(points([5 * MIB, 90 * MIB, 100 * MIB, *(100 * MIB + step * MIB for step in range(1, 21))]))
    assert leak is not None
    assert (leak.bytes_per_step, leak.first_step, leak.last_step) == (MIB, 3, 22)


def test_growth_is_found_under_noise_and_spikes() -> None:
    noise = random.Random(0)
    figures = [100 * MIB + 2 * MIB * step + noise.randrange(MIB) for step in range(200)]
    figures[50] += 900 * MIB
    figures[120] -= 90 * MIB  # a smaller last batch
    leak = find_leak(points(figures))
    assert leak is not None
    assert leak.bytes_per_step == pytest.approx(2 * MIB, rel=0.02)


@pytest.mark.parametrize(
    "figures",
    [
        [100 * MIB] * 50,
        [100 * MIB] * 25 + [130 * MIB] * 25,
        [100 * MIB] * 49 + [20 * MIB],
        [100 * MIB + 4 * step for step in range(50)],
        [100 * MIB + step * MIB for step in range(10)],
        [100 * MIB, 200 * MIB] * 25,
        [200 * MIB - step * MIB for step in range(50)],
        [],
    ],
    ids=["flat", "a cache that fills once", "a last batch", "too little", "too few", "in turns", "falling", "none"],
)
def test_no_growth_is_no_leak(figures: list[int]) -> None:
    assert find_leak(points(figures)) is None


@given(st.lists(st.integers(0, 10 * MIB), min_size=12, max_size=300), st.randoms())
def test_what_only_varies_is_no_leak(figures: list[int], shuffled: random.Random) -> None:
    """The same figures in two orders cannot both grow: at most one of an order and its reverse does."""
    there, back = find_leak(points(figures[:3] + figures[3:])), find_leak(points(figures[:3] + figures[:2:-1]))
    assert there is None or back is None


@given(st.integers(MIN_BYTES_PER_STEP, 100 * MIB), st.integers(11, 1000))
def test_steady_growth_is_always_found_to_the_byte(rate: int, num_steps: int) -> None:
    leak = find_leak(points([7 * MIB + rate * step for step in range(num_steps)]))
    assert leak is not None
    assert leak.bytes_per_step == rate
