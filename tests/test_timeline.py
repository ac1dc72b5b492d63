"""The sweep on hand-made ledgers of a few allocations."""

from __future__ import annotations

from vitmem.ledger import Ledger
from vitmem.timeline import allocated_peak, layer_peaks, phase_summaries, snapshot


def ledger(*events: int, phases: tuple[tuple[str, int], ...] = (("forward", 0),)) -> Ledger:
    """Four allocations: 1000 and 2000 bytes of activations, 512 of workspace, 300 of gradients."""
    return Ledger(
        bytes=(1000, 2000, 512, 300),
        kinds=("activations", "activations", "workspaces", "gradients"),
        layers=("a", "b", "b", "c"),
        events=events,
        phases=phases,
    )


def test_the_peak_is_the_largest_total_not_the_sum():
    # GIVEN one tensor that dies before the next is born
    (summary,) = phase_summaries(ledger(0, ~0, 1))
    # THEN the peak is the larger one, in its layer
    assert summary.tensor_peak.total_bytes == 2000
    assert summary.tensor_peak.layer == "b"
    assert summary.tensor_peak.event == 3
    assert summary.end.total_bytes == 2000


def test_a_workspace_counts_as_allocated_but_not_as_a_tensor():
    (summary,) = phase_summaries(ledger(0, 1, 2, ~2))
    assert summary.tensor_peak.total_bytes == 3000
    assert summary.allocated_peak.total_bytes == 1024 + 2048 + 512
    assert summary.allocated_peak.event == 3
    assert summary.tensor_peak.event == 2


def test_of_two_equal_moments_the_first_is_the_peak():
    (summary,) = phase_summaries(ledger(1, ~1, 1))
    assert summary.tensor_peak.event == 1


def test_a_phase_starts_with_what_the_last_one_left():
    first, second = phase_summaries(ledger(0, 1, ~1, 3, phases=(("forward", 0), ("backward", 3))))
    assert (first.name, first.tensor_peak.total_bytes, first.end.total_bytes) == ("forward", 3000, 1000)
    assert (second.name, second.tensor_peak.total_bytes) == ("backward", 1300)


def test_a_phase_without_a_birth_peaks_at_its_start():
    _, second = phase_summaries(ledger(0, 1, ~1, phases=(("forward", 0), ("optimizer_step", 2))))
    assert second.tensor_peak.total_bytes == 3000
    assert second.tensor_peak.layer == "model"


def test_a_snapshot_adds_up_to_the_allocated_total():
    events = (0, 1, 2, 3)
    kinds = snapshot(ledger(*events), 4)
    assert kinds == {"activations": 3000, "workspaces": 512, "gradients": 300, "rounding": 24 + 48 + 0 + 212}
    (summary,) = phase_summaries(ledger(*events))
    assert sum(kinds.values()) == summary.allocated_peak.total_bytes


def test_the_allocated_peak_alone_is_that_of_the_summaries():
    made = ledger(1, ~1, 0, 2, phases=(("setup", 0), ("forward", 2)))
    assert allocated_peak(made, 1) == phase_summaries(made)[1].allocated_peak.total_bytes == 1024 + 512
    assert allocated_peak(made, 0) == 2048


def test_layer_peaks_count_what_is_alive_at_once():
    made = Ledger(
        bytes=(10, 100, 50, 70),
        kinds=("temporaries", "temporaries", "workspaces", "temporaries"),
        layers=("a", "a", "a", "a"),
        events=(0, 1, ~1, 2, 3),
        phases=(("setup", 0), ("backward", 0)),
    )
    assert layer_peaks(made) == {"a": 10 + 50 + 70}
