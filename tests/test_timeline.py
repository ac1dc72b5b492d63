"""The sweep on hand-made ledgers of a few allocations."""

from __future__ import annotations

from vitmem.allocator import AllocatorConfig, rounded
from vitmem.ledger import Ledger, with_last_step_again
from vitmem.replay import replay
from vitmem.timeline import allocated_peak, layer_peaks, phase_summaries, raised_peak, snapshot

BLOCKS = (1024, 2048, 512, 512)


def ledger(*events: int, phases: tuple[tuple[str, int], ...] = (("forward", 0),), steps=(0,)) -> Ledger:
    """Four allocations: 1000 and 2000 bytes of activations, 512 of workspace, 300 of gradients."""
    return Ledger(
        bytes=(1000, 2000, 512, 300),
        kinds=("activations", "activations", "workspaces", "gradients"),
        layers=("a", "b", "b", "c"),
        events=events,
        phases=phases,
        steps=steps,
    )


def test_the_peak_is_the_largest_total_not_the_sum():
    # GIVEN one tensor that dies before the next is born
    (summary,) = phase_summaries(ledger(0, ~0, 1), BLOCKS)
    # THEN the peak is the larger one, in its layer
    assert summary.tensor_peak.total_bytes == 2000
    assert summary.tensor_peak.layer == "b"
    assert summary.tensor_peak.event == 3
    assert summary.end.total_bytes == 2000


def test_a_workspace_counts_as_allocated_but_not_as_a_tensor():
    (summary,) = phase_summaries(ledger(0, 1, 2, ~2), BLOCKS)
    assert summary.tensor_peak.total_bytes == 3000
    assert summary.allocated_peak.total_bytes == 1024 + 2048 + 512
    assert summary.allocated_peak.event == 3
    assert summary.tensor_peak.event == 2


def test_what_is_borrowed_unseen_raises_the_peak_only_where_it_reaches_above_it():
    played = ledger(0, 1, ~1, 2)  # 1024, 3072, 1024, 1536 bytes
    assert raised_peak(played, 0, [(1, 2048), (3, 2048), (4, 512)]) == 0
    assert raised_peak(played, 0, [(1, 2048), (4, 2048)]) == 512


def test_of_two_equal_moments_the_first_is_the_peak():
    (summary,) = phase_summaries(ledger(1, ~1, 1), BLOCKS)
    assert summary.tensor_peak.event == 1


def test_a_phase_starts_with_what_the_last_one_left():
    first, second = phase_summaries(ledger(0, 1, ~1, 3, phases=(("forward", 0), ("backward", 3))), BLOCKS)
    assert (first.name, first.tensor_peak.total_bytes, first.end.total_bytes) == ("forward", 3000, 1000)
    assert (second.name, second.tensor_peak.total_bytes) == ("backward", 1300)


def test_a_phase_without_a_birth_peaks_at_its_start():
    _, second = phase_summaries(ledger(0, 1, ~1, phases=(("forward", 0), ("optimizer_step", 2))), BLOCKS)
    assert second.tensor_peak.total_bytes == 3000
    assert second.tensor_peak.layer == "model"


def test_a_snapshot_adds_up_to_the_allocated_total():
    events = (0, 1, 2, 3)
    kinds = snapshot(ledger(*events), BLOCKS, 4)
    assert kinds == {"activations": 3000, "workspaces": 512, "gradients": 300, "rounding": 24 + 48 + 0 + 212}
    (summary,) = phase_summaries(ledger(*events), BLOCKS)
    assert sum(kinds.values()) == summary.allocated_peak.total_bytes


def test_the_allocated_peak_alone_is_that_of_the_summaries():
    made = ledger(1, ~1, 0, 2, phases=(("setup", 0), ("forward", 2)), steps=(0, 1))
    assert allocated_peak(made, 1) == phase_summaries(made, BLOCKS)[1].allocated_peak.total_bytes == 1024 + 512
    assert allocated_peak(made, 0) == 2048


def test_blocks_may_be_larger_than_their_requests():
    (summary,) = phase_summaries(ledger(0, 1), (1024, 4096, 512, 512))
    assert summary.allocated_peak.total_bytes == 1024 + 4096
    assert snapshot(ledger(0, 1), (1024, 4096, 512, 512), 2)["rounding"] == 24 + 2096


def test_layer_peaks_count_what_is_alive_at_once():
    made = Ledger(
        bytes=(10, 100, 50, 70),
        kinds=("temporaries", "temporaries", "workspaces", "temporaries"),
        layers=("a", "a", "a", "a"),
        events=(0, 1, ~1, 2, 3),
        phases=(("setup", 0), ("backward", 0)),
        steps=(1,),
    )
    assert layer_peaks(made, 0) == {"a": 10 + 50 + 70}


def two_steps():
    """A parameter; a step that makes optimizer state and leaves a loss; a step that rebinds the loss."""
    return Ledger(
        bytes=(400, 8, 800, 64, 8, 64),
        kinds=("parameters", "activations", "optimizer_state", "temporaries", "activations", "temporaries"),
        layers=("a",) * 6,
        events=(0, 1, 3, ~3, 2, 4, ~1, 5, ~5),
        phases=(("setup", 0), ("forward", 1), ("forward", 5)),
        steps=(1, 2),
    )


def test_the_last_step_again_frees_what_the_one_before_left():
    # GIVEN a second step (allocations 4 and 5) that frees the first step's loss, allocation 1
    again = with_last_step_again(two_steps())
    # THEN the third makes 6 and 7 and frees the second's loss, 4
    assert again.events[9:] == (6, ~4, 7, ~7)
    assert again.bytes[6:] == (8, 64)
    assert (again.steps, again.phases[3]) == ((1, 2, 3), ("forward", 9))
    assert list(again.step_phases(-1)) == [3]


def test_a_third_step_has_the_peaks_of_the_second():
    again = with_last_step_again(two_steps())
    summaries = phase_summaries(again, [rounded(size) for size in again.bytes])
    assert summaries[3].tensor_peak.total_bytes == summaries[2].tensor_peak.total_bytes == 400 + 8 + 800 + 64
    assert summaries[3].allocated_peak.total_bytes == 512 * 3 + 1024


def test_an_empty_allocation_takes_no_block_and_a_replay_gives_each_its_own():
    made = ledger(0, 1, ~0, 2)
    replayed = replay(made._replace(bytes=(0, 2000, 512, 300)))
    assert replayed.blocks == (0, 2048, 512, 0)
    assert (replayed.reserved_bytes, replayed.failed, replayed.num_retries) == (2 * 2**20, None, 0)


def test_a_replay_stops_where_memory_runs_out():
    made = ledger(0, 1, 3)._replace(bytes=(2**20, 3 * 2**20, 512, 300))
    replayed = replay(made, AllocatorConfig(capacity=4 * 2**20))
    assert (replayed.failed, replayed.num_retries) == (1, 1)
