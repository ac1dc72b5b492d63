"""The written Trainer script, run: two steps on the CPU, on images made on the fly."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vitmem
from vitmem.advice.files import Folder, callback_text, write_plan
from vitmem.advice.schedule import schedule_settings
from vitmem.settings import TrainSettings

PIL = pytest.importorskip("PIL.Image")
pytest.importorskip("datasets")

VIT = {"model_type": "vit", "image_size": 32, "patch_size": 16, "hidden_size": 32, "num_hidden_layers": 3,
       "num_attention_heads": 2, "intermediate_size": 64}  # fmt: skip
SWIN = {"model_type": "swin", "image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2],
        "window_size": 4}  # fmt: skip
#: A name of the catalogue, or the config.json of a folder; and what is asked for on top.
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "timm": ("vit_tiny_patch16_224", {"res": 32, "depth": 2, "num_classes": 2}),
    "timm-partly-checkpointed": (
        "vit_tiny_patch16_224",
        {"res": 32, "depth": 3, "grad_checkpointing": True, "checkpoint_layers": 2, "label_smoothing": 0.1},
    ),
    "vit": (VIT, {"precision": "bf16", "grad_checkpointing": True}),
    "swin-partly-checkpointed": (SWIN, {"grad_checkpointing": True, "checkpoint_layers": 3, "precision": "pure-bf16"}),
}


def written(tmp_path: Path, case: str) -> Path:
    model, settings = CASES[case]
    if not isinstance(model, str):
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text(json.dumps(model))
        model = str(tmp_path / "model")
    plan = vitmem.recommend(model, memory="2GiB", effective_batch=4, bs=2, accum=2, forbid=("bs",), **settings)[0]
    assert (plan.settings["bs"], plan.settings["accum"]) == (2, 2)
    write_plan(plan, "2GiB", Folder(tmp_path / "out", force=False))
    return tmp_path / "out" / "train.py"


def image_folder(path: Path) -> Path:
    for name, colour in (("cats", "red"), ("dogs", "blue")):
        (path / name).mkdir(parents=True)
        for number in range(8):
            PIL.new("RGB", (40, 48), colour).save(path / name / f"{number}.png")
    return path


@pytest.mark.parametrize("case", CASES)
def test_the_script_trains_two_steps(tmp_path: Path, case: str) -> None:
    script = written(tmp_path, case)
    words = [str(script), "--max_steps", "2", "--from_scratch", "--workers", "0"]
    if case != "vit":  # one of them on random images
        words += ["--data", str(image_folder(tmp_path / "images"))]
    command = [sys.executable, "-W", "error::FutureWarning:transformers.training_args", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "train_loss" in done.stdout


@pytest.mark.parametrize(
    ("case", "expected"),
    [("timm-partly-checkpointed", [True, True, False]), ("swin-partly-checkpointed", [True, True, True, False])],
)
def test_only_the_first_blocks_are_checkpointed(tmp_path: Path, case: str, expected: list[bool]) -> None:
    script = runpy.run_path(str(written(tmp_path, case)))
    model = script["build"](2, True)
    script["checkpoint_first_blocks"](model)
    blocks = [getattr(model, "timm_model", model).get_submodule(path) for path in script["BLOCKS"]]
    if case.startswith("timm"):
        assert [hasattr(block.forward, "args") for block in blocks] == expected
    else:
        assert [block.gradient_checkpointing for block in blocks] == expected
        stages = model.swin.encoder.layers
        assert [stage.gradient_checkpointing for stage in stages] == [True, False]


def test_the_callback_sets_the_resolution_and_stops_where_the_micro_batch_changes() -> None:
    request = TrainSettings.of("vit_tiny_patch16_224", memory="1200MiB")
    found = schedule_settings(request, resolutions=["96", "224"], epochs=[2, 1], effective_batch=64)
    first, second = found.phases
    assert first.bs != second.bs
    names: dict[str, Any] = {}
    exec(callback_text(found), names)
    dataset = SimpleNamespace(resolution=None)
    callback = names["ProgressiveResolution"](dataset)
    args = SimpleNamespace(per_device_train_batch_size=first.bs, gradient_accumulation_steps=first.accum)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    callback.on_epoch_begin(args, SimpleNamespace(epoch=0), control)
    assert dataset.resolution == (96, 96)
    callback.on_epoch_end(args, SimpleNamespace(epoch=1.0), control)
    assert not control.should_training_stop
    callback.on_epoch_end(args, SimpleNamespace(epoch=2.0), control)
    assert control.should_training_stop
    assert control.should_save
    with pytest.raises(ValueError, match="start it with these arguments"):
        callback.on_epoch_begin(args, SimpleNamespace(epoch=2), control)
