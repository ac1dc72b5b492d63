"""Progressive resolution: every phase fits, keeps the effective batch, and is a size that the model takes whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
import vitmem
from vitmem.advice.schedule import schedule_settings
from vitmem.cli import main
from vitmem.errors import DoesNotFit, InvalidRequest
from vitmem.settings import TrainSettings

TINY = "vit_tiny_patch16_224"


def request(**settings: Any) -> TrainSettings:
    return TrainSettings.of(**{"model": TINY, "memory": "1200MiB", **settings})


def test_every_phase_fits_and_keeps_the_effective_batch() -> None:
    found = schedule_settings(request(), resolutions=["96", "160", "224"], epochs=[3, 2, 1], effective_batch=64)
    assert [phase.first_epoch for phase in found.phases] == [0, 3, 5]
    for phase in found.phases:
        assert phase.bs * phase.accum == 64
        verdict = vitmem.estimate(**phase.settings).verdict
        assert verdict is not None
        assert (verdict["fits"], verdict["headroom_bytes"]) == ("yes", phase.headroom_bytes)
    times = [phase.relative_epoch_time for phase in found.phases]
    assert times == sorted(times)
    assert times[0] == 1
    assert found.relative_time == pytest.approx((3 * times[0] + 2 * times[1] + times[2]) / (6 * times[2]), rel=0.01)


def test_what_cannot_be_scheduled_is_said() -> None:
    with pytest.raises(InvalidRequest, match="use 224 or 240"):
        schedule_settings(request(), resolutions=["230"], epochs=[1])
    with pytest.raises(InvalidRequest, match="2 resolutions need as many"):
        schedule_settings(request(), resolutions=["96", "224"], epochs=[1])
    with pytest.raises(InvalidRequest, match="window"):
        schedule_settings(request(model="microsoft/swin-tiny-patch4-window7-224"), resolutions=["32"], epochs=[1])
    with pytest.raises(DoesNotFit, match="nothing at 1024x1024 fits 720MiB"):
        schedule_settings(request(memory="720MiB"), resolutions=["1024"], epochs=[1])


def test_the_command_and_the_callback_to_paste(capsys: Any) -> None:
    words = ["schedule", TINY, "--res", "96,224", "--epochs", "2,1", "--effective-batch", "32", "--memory", "1200MiB"]
    assert main([*words, "--json"]) == 0
    phases = json.loads(capsys.readouterr().out)["phases"]
    assert [phase["res"] for phase in phases] == [[96, 96], [224, 224]]
    assert main([*words, "--callback"]) == 0
    pasted = capsys.readouterr().out
    blocks = [p["settings"]["grad_checkpointing"] and p["settings"]["checkpoint_layers"] for p in phases]
    rows = [f"({p['num_epochs']}, {tuple(p['res'])}, {p['bs']}, {p['accum']}, {b})," for p, b in zip(phases, blocks)]
    assert all(row in pasted for row in rows)
    compile(pasted, "callback.py", "exec")
    assert main(["schedule", TINY, "--res", "96", "--epochs", "two", "--memory", "1GiB"]) == 2


def test_windows_that_do_not_divide_are_said() -> None:
    model = "microsoft/swin-tiny-patch4-window7-224"
    asked = request(model=model, memory="8GiB")
    found = schedule_settings(asked, resolutions=["224", "256"], epochs=[1, 1], effective_batch=4)
    assert [note.partition(":")[0] for note in found.notes] == ["256x256"]
    assert "multiples of 224" in found.notes[0]


WITH_BLOCKS = ["--res", "224,768", "--epochs", "2,1", "--effective-batch", "2", "--memory", "1100MiB"]


def test_what_a_phase_sets_beside_its_batch_is_shown_and_in_the_code(capsys: Any) -> None:
    assert main(["schedule", TINY, *WITH_BLOCKS, "--json"]) == 0
    first, last = json.loads(capsys.readouterr().out)["phases"]
    blocks = last["settings"]["checkpoint_layers"]
    assert first["changes"] == {}
    assert last["changes"] == {"grad_checkpointing": True, "checkpoint_layers": blocks}
    assert main(["schedule", TINY, *WITH_BLOCKS]) == 0
    assert f"768x768: grad-checkpointing on, checkpoint-layers {blocks}" in capsys.readouterr().out
    assert main(["schedule", TINY, *WITH_BLOCKS, "--callback"]) == 0
    pasted = capsys.readouterr().out
    assert f"(1, (768, 768), 2, 1, {blocks})," in pasted
    assert "def checkpoint_first_blocks" in pasted
    compile(pasted, "callback.py", "exec")


@pytest.mark.parametrize(
    ("memory", "engine", "offload"), [("2250MiB", "zero2", "optimizer"), ("2400MiB", "none", "none")]
)
def test_one_engine_and_one_allocator_serve_all_phases(memory: str, engine: str, offload: str) -> None:
    """The large images need them; alone the small ones would not."""
    asked = request(model="vit_base_patch16_224", memory=memory, eval_bs=1)
    found = schedule_settings(asked, resolutions=["64", "512"], epochs=[1, 1], effective_batch=2)
    for phase in found.phases:
        assert phase.settings["parallel"] == engine
        assert phase.settings["offload"] == phase.changes.get("offload", "none") == offload
        assert phase.settings["alloc_conf"] == phase.changes["alloc_conf"] == "expandable_segments:True"
        verdict = vitmem.estimate(**phase.settings).verdict
        assert verdict is not None
        assert verdict["fits"] == "yes"
    alone = schedule_settings(asked, resolutions=["64"], epochs=[1], effective_batch=2)
    assert alone.phases[0].settings["offload"] == "none"
    assert "grad_checkpointing" not in found.phases[0].changes


@pytest.mark.parametrize("more", [["--json"], ["--out", "phases.json"]])
def test_code_is_not_printed_beside_something_else(more: list[str], capsys: Any) -> None:
    assert main(["schedule", TINY, *WITH_BLOCKS, "--callback", *more]) == 2
    assert "leave out" in capsys.readouterr().err
