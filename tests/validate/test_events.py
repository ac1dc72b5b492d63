"""The sweep, on streams of a few allocations made by hand."""

from __future__ import annotations

from vitmem.validate.events import Allocation, Span, kinds_at, live_at, peak_within


def stream():
    """10 for good, 5 from 2 to 4, 7 from 5 on."""
    return [
        Allocation(bytes=10, kind="parameters", layer="a", op="built", born=1),
        Allocation(bytes=5, kind="temporaries", layer="b", op="mm", born=2, dies=4),
        Allocation(bytes=7, kind="activations", layer="c", op="mm", born=5),
    ]


def test_what_dies_at_a_tick_is_no_longer_there():
    assert [live_at(stream(), tick) for tick in range(6)] == [0, 10, 15, 15, 10, 17]


def test_kinds_add_up_to_the_total():
    assert kinds_at(stream(), 3) == {"parameters": 10, "temporaries": 5}


def test_a_span_sees_what_was_alive_when_it_began():
    moment = peak_within(stream(), Span(phase="forward", begins=2, ends=4))
    assert (moment.tick, moment.bytes, moment.newest) == (2, 15, None)


def test_the_peak_is_the_first_of_the_largest_moments():
    moment = peak_within(stream(), Span(phase="forward", begins=0, ends=9))
    assert (moment.tick, moment.bytes) == (5, 17)
    assert moment.newest is not None
    assert moment.newest.layer == "c"
