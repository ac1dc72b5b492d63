"""The replayed allocator against recordings of PyTorch's own (``scripts/record_allocator.py``), step by step."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vitmem.allocator import AllocatorConfig, CachingAllocator, OutOfMemory
from vitmem.allocator import Player as Installed
from vitmem.allocator.player import Player as InPython

RECORDS = sorted((Path(__file__).parent / "data" / "allocator").glob("*.json"))
MIB = 2**20


def config_of(record):
    options = dict(option.split(":") for option in record["alloc_conf"].split(",") if option)
    split = options.get("max_split_size_mb")
    return AllocatorConfig(
        expandable_segments=options.get("expandable_segments") == "True",
        max_split_size=None if split is None else int(split) * MIB,
        device_bytes=record["device_bytes"],
        capacity=record["device_bytes"],  # recorded where nothing else takes memory
    )


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_every_operation_allocates_and_reserves_what_torch_does(path):
    record = json.loads(path.read_text())
    allocator, living = CachingAllocator(config_of(record)), {}
    for number, (*done, allocated, reserved) in enumerate(record["trace"]):
        if len(done) == 1:
            allocator.free(living.pop(-1 - done[0]))
        elif done == [0, 0]:
            allocator.release_cached()
        elif done[1] == -1:
            with pytest.raises(OutOfMemory):
                allocator.malloc(done[0])
        else:
            living[done[1]] = allocator.malloc(done[0])
        assert (allocator.allocated, allocator.reserved) == (allocated, reserved), (number, done)
    assert allocator.num_retries == record["num_alloc_retries"]


def events_of(trace):
    """The requests of a recording, and its events up to each moment at which it gave back what it had cached."""
    requests, numbers, stretches, reserved = [], {}, [[]], 0
    for *done, _, reserved_then in trace:
        reserved = reserved_then
        if len(done) == 1:
            stretches[-1].append(~numbers.pop(-1 - done[0]))
        elif done == [0, 0]:
            stretches.append([])
        else:
            numbers[done[1]] = len(requests)
            stretches[-1].append(len(requests))
            requests.append(done[0])
            if done[1] == -1:
                break  # it ran out of memory
    return requests, stretches, reserved


def test_the_allocator_in_c_is_installed_where_there_is_a_compiler():
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    assert Installed is not InPython


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.stem)
def test_the_player_reserves_what_torch_does(path):
    record = json.loads(path.read_text())
    requests, stretches, reserved = events_of(record["trace"])
    player = Installed(requests, {}, **dataclasses.asdict(config_of(record)))
    for number, events in enumerate(stretches):
        if number:
            player.release_cached()
        failed = player.play(events)
    assert player.reserved == reserved
    assert (failed is None) == all(done[1] != -1 for done in record["trace"] if len(done) == 4)


SIZES = st.sampled_from(
    [
        0,
        1,
        512,
        513,
        MIB - 512,
        MIB,
        MIB + 1,
        3 * MIB,
        10 * MIB,
        19 * MIB,
        20 * MIB,
        30 * MIB,
        45 * MIB,
        64 * MIB,
        84 * MIB,
        2**45,
    ]
)


@settings(max_examples=600, deadline=None)
@given(
    requests=st.lists(st.tuples(SIZES, st.sampled_from([0, 0, 0, 1])), min_size=1, max_size=60),
    dies_after=st.lists(st.integers(0, 30), min_size=60, max_size=60),
    releases=st.sets(st.integers(0, 120), max_size=3),
    config=st.builds(
        AllocatorConfig,
        expandable_segments=st.booleans(),
        max_split_size=st.sampled_from([None, None, 21 * MIB, 64 * MIB]),
        device_bytes=st.sampled_from([50 * MIB + 513, 2**34]),
        capacity=st.sampled_from([None, 60 * MIB, 200 * MIB, 200 * MIB + 511]),
    ),
)
def test_the_player_in_c_does_what_the_one_in_python_does(requests, dies_after, releases, config):
    moments = [(2 * i, i) for i in range(len(requests))]
    moments += [(2 * (i + late) + 1, ~i) for i, late in zip(range(len(requests)), dies_after) if late]
    sizes, side = [size for size, _ in requests], {i: stream for i, (_, stream) in enumerate(requests) if stream}
    both = [made(sizes, side, **dataclasses.asdict(config)) for made in (Installed, InPython)]
    for number, (_, event) in enumerate(sorted(moments)):
        if number in releases:
            for player in both:
                player.release_cached()
        one, other = (outcome_of(player, event) for player in both)
        assert one == other
        if one[0] is OverflowError:
            break


def outcome_of(player, event):
    """What a player says of an event, and all that can be seen of it afterwards."""
    try:
        failed = player.play([event])
    except OverflowError:
        return (OverflowError,)
    return failed, player.reserved, player.max_reserved, player.num_retries, player.sizes


@pytest.mark.parametrize("made", [Installed, InPython])
def test_what_no_machine_has_overflows(made):
    options = dataclasses.asdict(AllocatorConfig())
    with pytest.raises(OverflowError):
        made([2**80], {}, **options).play([0])
    with pytest.raises(OverflowError):
        made([2**56] * 3, {}, **options).play([0, 1, 2])


@pytest.mark.skipif(Installed is InPython, reason="no C compiler")
def test_events_and_options_of_a_wrong_kind_are_errors_and_no_crash():
    options = dataclasses.asdict(AllocatorConfig())
    with pytest.raises(IndexError):
        Installed([1], {}, **options).play([1])
    with pytest.raises(IndexError):
        Installed([1], {3: 1}, **options)
    for wrong in ({"requests": ["a"]}, {"side": {0: []}}, {"requests": 3}, {"side": None}, {"capacity": "8"}):
        with pytest.raises((TypeError, AttributeError)):
            Installed(**{"requests": [1], "side": {}, **options, **wrong})
    with pytest.raises(TypeError):
        Installed([1], {}, **options).play(["a"])


def test_the_recordings_cover_what_they_are_named_after():
    out_of_memory = [json.loads(path.read_text()) for path in RECORDS if "out_of_memory" in path.stem]
    assert len(out_of_memory) == 3
    for record in out_of_memory:
        assert record["num_alloc_retries"] > 0
        assert any(done[1] == -1 for done in record["trace"] if len(done) == 4)


def test_a_small_request_takes_a_small_segment_and_a_medium_one_twenty_mebibytes():
    allocator = CachingAllocator()
    steps = [(1, 512, 2), (MIB + 1, MIB + 1024, 22), (10 * MIB, 11 * MIB + 1024, 22), (12 * MIB, 23 * MIB + 1024, 34)]
    for size, allocated, reserved in steps:  # 10 MiB fit into the rest of the 20 MiB, 12 get their own segment
        allocator.malloc(size)
        assert (allocator.allocated, allocator.reserved) == (allocated, reserved * MIB)


def test_a_remainder_of_a_mebibyte_or_less_is_not_split_off():
    # GIVEN a cached segment of 20 MiB and a request that leaves exactly 1 MiB of it
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(20 * MIB))
    # THEN the request gets the whole of it, and one that leaves more does not
    block = allocator.malloc(19 * MIB)
    assert block.size == 20 * MIB
    allocator.free(block)
    assert allocator.malloc(19 * MIB - 512).size == 19 * MIB - 512


def test_an_expandable_segment_is_as_long_as_the_longest_request_where_nothing_limits_it():
    allocator = CachingAllocator(AllocatorConfig(expandable_segments=True, device_bytes=100 * MIB))
    assert allocator.malloc(2 * 2**30).size == allocator.reserved - 12 * MIB == 2 * 2**30  # pages of 20 MiB


@pytest.mark.parametrize("made", [Installed, InPython])
@pytest.mark.parametrize(("cached", "reserved"), [(82, 82), (84, 148)])
def test_an_oversized_block_is_wasted_on_no_request_that_is_twenty_mebibytes_smaller(made, cached, reserved):
    options = dataclasses.asdict(AllocatorConfig(max_split_size=64 * MIB))
    player = made([cached * MIB, 64 * MIB], {}, **options)
    assert player.play([0, ~0, 1]) is None
    assert player.reserved == reserved * MIB
