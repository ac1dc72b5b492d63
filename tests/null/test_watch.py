"""The watch of ``vitmem null``: phases by PyTorch's hooks, and a script that sees its own peaks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
SOURCE = Path(__file__).parents[2] / "validate" / "null" / "inject" / "_vitmem_null_watch.py"


class Allocator:
    """What ``memory_stats_as_nested_dict`` reads."""

    def __init__(self):
        self.now = self.peak = 10

    def reach(self, size):
        self.peak = max(self.peak, size)

    def stats(self, _device):
        sizes = {"all": {"current": self.now, "peak": self.peak}}
        return {"allocated_bytes": sizes, "reserved_bytes": sizes, "num_alloc_retries": 1, "num_ooms": 0}

    def reset(self):
        self.peak = self.now


@pytest.fixture
def allocator():
    return Allocator()


@pytest.fixture
def watch(allocator, monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("watch_under_test", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "device_is_used", lambda: True)
    watch = module.Watch(str(tmp_path), last_step=4)
    watch.stats, watch.reset = allocator.stats, allocator.reset
    return watch


def report(watch):
    watch.write()
    return json.loads(Path(watch.path).read_text())


def test_what_comes_after_a_backward_pass_is_the_step_or_the_next_forward_pass(watch, allocator):
    # GIVEN two micro-steps and a step, each part with a peak of its own
    for phase, size in [
        ("backward", 30),
        ("between", 40),
        ("backward", 50),  # the second micro-step's forward pass reached 50
        ("between", 60),
        ("optimizer_step", 70),  # clipping reached 70
    ]:
        allocator.reach(size)
        watch.begin(phase)
    allocator.reach(65)
    watch.stepped()
    # THEN each phase has its own largest moment
    assert report(watch)["steps"][0] == {"forward": 50, "backward": 60, "optimizer_step": 70}


def test_a_script_sees_the_peaks_since_its_own_reset(watch, allocator):
    def seen():
        return watch.seen_stats()["allocated_bytes"]["all"]["peak"]

    allocator.reach(100)
    watch.begin("backward")
    assert (allocator.peak, seen()) == (10, 100)
    watch.seen_reset()
    assert seen() == 10
    allocator.reach(20)
    assert seen() == 20
    assert report(watch)["peak"] == {"allocated_bytes": 100, "reserved_bytes": 100}


def test_steps_from_the_third_on_share_a_row_and_the_last_one_ends_the_script(watch, allocator):
    for size in (20, 30, 50):
        allocator.reach(size)
        watch.stepped()
    allocator.reach(40)
    with pytest.raises(SystemExit) as end:
        watch.stepped()
    assert end.value.code == 0
    assert [step["forward"] for step in report(watch)["steps"]] == [20, 30, 50]
    assert report(watch)["num_steps"] == 4


def test_the_allocators_message_is_found_behind_other_errors(watch):
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried")
        except RuntimeError as error:
            raise ValueError("training failed") from error
    except ValueError as error:
        watch.failed(error)
    assert report(watch)["out_of_memory"] == {"message": "CUDA out of memory. Tried", "phase": "forward", "step": 0}
    watch.message = None
    watch.failed(ValueError("something else"))
    assert report(watch)["out_of_memory"] is None


def test_a_process_that_was_forked_or_used_no_device_reports_nothing(watch, monkeypatch):
    watch.owner = -1
    watch.write()
    assert not Path(watch.path).exists()
