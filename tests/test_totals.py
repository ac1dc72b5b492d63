"""The sweep in C against the one in Python."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vitmem import totals

in_c = pytest.importorskip("vitmem._totals", reason="installed without a C compiler")
KINDS = ("activations", "temporaries", "workspaces", "rounding")


@settings(max_examples=300, deadline=None)
@given(
    made=st.lists(st.tuples(st.integers(0, 2**40), st.sampled_from(KINDS)), min_size=1, max_size=40),
    dies_after=st.lists(st.none() | st.integers(0, 30), min_size=40, max_size=40),
    cuts=st.lists(st.integers(0, 80), max_size=5),
    unit=st.sampled_from([1, 512]),
    without=st.frozensets(st.sampled_from(KINDS)),
)
def test_both_find_the_same(made, dies_after, cuts, unit, without):
    moments = [(2 * i, i) for i in range(len(made))]
    moments += [(2 * (i + late) + 1, ~i) for i, late in zip(range(len(made)), dies_after) if late is not None]
    events = tuple(event for _, event in sorted(moments))
    start, *stops = sorted({min(cut, len(events)) for cut in cuts} | {len(events)})
    before = in_c.living(events, 0, start, [])
    assert before == totals.living(events, 0, start, [])
    assert in_c.living(events, start, len(events), before) == totals.living(events, 0, len(events), [])
    what = events, [size for size, _ in made], before, start, stops, unit, [kind for _, kind in made], without
    assert not stops or in_c.peaks(*what) == totals.peaks(*what)


def test_the_first_of_equal_moments_is_the_peak_and_a_part_begins_where_the_last_ended():
    events, sizes, kinds = (0, ~0, 1, ~1), (700, 700), ("activations",) * 2
    for peaks in (in_c.peaks, totals.peaks):
        assert peaks(events, sizes, [], 0, [1, 4], 1, kinds, ()) == [(700, 1, 700), (700, 1, 0)]
        assert peaks(events, sizes, [0], 1, [2, 4], 512, kinds, ()) == [(1024, 1, 0), (1024, 3, 0)]


def test_what_63_bits_do_not_hold_overflows_in_c_alone():
    for sizes in ((2**63, 1), (2**61, 1), (2**60, 2**60)):
        what = (0, 1), sizes, [], 0, [2], 1, ("activations",) * 2, ()
        with pytest.raises(OverflowError):
            in_c.peaks(*what)
        assert totals.peaks(*what)[0][0] == sum(sizes)


def test_numbers_and_values_of_a_wrong_kind_are_errors_and_no_crash():
    kinds = ("activations",)
    for events, alive, stops in (((1,), [], [1]), ((0,), [1], [1]), ((0,), [], [2])):
        with pytest.raises(IndexError):
            in_c.peaks(events, (1,), alive, 0, stops, 1, kinds, ())
    for events, sizes, alive in ((("a",), (1,), []), ((0,), ("a",), []), ((0,), (1,), ["a"]), ((0,), 3, [])):
        with pytest.raises(TypeError):
            in_c.peaks(events, sizes, alive, 0, [1], 1, kinds, ())
    with pytest.raises(TypeError):
        in_c.living(("a",), 0, 1, [])
    with pytest.raises(IndexError):
        in_c.living((0,), 0, 2, [])
