"""The files of a plan: nothing of the user's is replaced, nothing half written, and they say what was estimated."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import vitmem
from vitmem.advice import Change
from vitmem.advice.files import Folder, texts_of, write_plan
from vitmem.cli import main
from vitmem.errors import InvalidRequest, VitmemError
from vitmem.pipeline import estimate_settings
from vitmem.settings import TrainSettings
from written import constants, planned, texts

TINY = "test_vit"
TRAINER = {"train.py", "training_args.json", "launch.sh", "env.sh", "README.md"}
FILES = TRAINER | {"accelerate.yaml"}


def write(folder: Path, *, force: bool = False, **settings: Any) -> Any:
    plan = planned(**settings)
    write_plan(plan, "8GiB", Folder(folder, force=force))
    return plan


#: What training_args.json and ds_config.json say, so that the command need not.
CARRIED = {
    f"--{name}"
    for name in ("bs", "accum", "clip-grad", "label-smoothing", "eval-bs", "eval-accum", "workers", "prefetch")
} | {"--pin-memory", "--no-pin-memory", "--parallel", "--offload", "--loop", "--no-reshard-after-forward"}


def test_the_command_writes_every_file(tmp_path: Path, capsys: Any) -> None:
    words = ["recommend", TINY, "--bs", "4", "--memory", "1GiB", "--no-ladder", "--allow", "alloc-conf"]
    words += ["--write", str(tmp_path / "out")]
    assert main(words) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert main(words) == 2
    assert "add --force" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    assert main([*words, "--force", "--plan", "99"]) == 2


def test_nothing_is_written_where_nothing_fits(tmp_path: Path) -> None:
    words = ["recommend", "vit_base_patch16_224", "--bs", "1", "--memory", "1GiB", "--no-ladder", "--no-lighter"]
    words += ["--allow", "alloc-conf"]
    assert main([*words, "--write", str(tmp_path / "out")]) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(InvalidRequest, match=r"train\.py exist"):
        write(tmp_path)
    assert (tmp_path / "train.py").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"train.py"}
    write(tmp_path, force=True)
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "train.py").symlink_to(victim)
    write(folder, force=True)
    assert victim.read_text() == "mine"
    assert not (folder / "train.py").is_symlink()


@pytest.mark.parametrize("path", ["missing/out", "file"])
def test_a_folder_that_cannot_be_made_is_refused_first(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VitmemError):
        Folder(tmp_path / path, force=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bf16", "accum": 3, "clip_grad": 0.5, "label_smoothing": 0.1, "eval_bs": 3, "eval_accum": 2},
        {"precision": "pure-bf16", "optim": "adamw_torch", "workers": 2, "prefetch": 3, "pin_memory": False},
        {"optim": "sgd-momentum", "ema": True, "train": "lora", "lora_targets": ("qkv", "proj"), "res": (96, 64)},
        {"grad_checkpointing": True, "checkpoint_layers": 1, "alloc_conf": "expandable_segments:True"},
        {"parallel": "zero1", "gpus": 2, "precision": "bf16"},
        {"parallel": "zero2", "gpus": 4, "precision": "fp32", "offload": "optimizer"},
        {"parallel": "zero3", "gpus": 2, "precision": "bf16", "offload": "all", "grad_checkpointing": True},
        {"parallel": "fsdp", "gpus": 2, "precision": "bf16", "offload": "all", "reshard_after_forward": False},
        {"loop": "plain", "mixup": True, "zero_grad": "keep", "grad_checkpointing": True},
        {"loop": "timm", "optim": "adamw_torch", "drop_path": 0.2, "ema": True},
        {"loop": "plain", "bs": 4, "eval_bs": 8},
    ],
    ids=str,
)
def test_the_written_command_estimates_the_same(
    tmp_path: Path, monkeypatch: Any, capsys: Any, settings: dict[str, Any]
) -> None:
    plan = planned(**settings)
    write_plan(plan, "8GiB", Folder(tmp_path / "out", force=False))
    command = next(
        line for line in (tmp_path / "out" / "README.md").read_text().splitlines() if line.startswith("vitmem estimate")
    )
    assert not CARRIED & set(shlex.split(command)) or settings.get("loop"), "the files have to say it"
    monkeypatch.chdir(tmp_path / "out")
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    found, wanted = json.loads(capsys.readouterr().out), vitmem.estimate(**plan.settings).to_dict()
    for part in ("peak", "at_peak", "phases", "host", "verdict"):
        assert found[part] == json.loads(json.dumps(wanted[part]))
    for setting, value in json.loads(json.dumps(wanted["request"])).items():
        if setting not in {"training_args", "deepspeed", "zero_options", "wrap_layers"}:
            assert found["request"][setting] == value, setting


def test_a_deepspeed_file_of_the_users_comes_back() -> None:
    """Sizes that it leaves to the Trainer stay ``auto``; what it does not name is DeepSpeed's own default."""
    own = {"stage": 2, "reduce_bucket_size": "auto", "overlap_comm": True, "round_robin_gradients": True}
    types = {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "bf16"}
    settings = {"model": "google/vit-base-patch16-224", "gpus": 2, "precision": "bf16"}
    plan = planned(**settings, deepspeed={"zero_optimization": own, "optimizer": {"type": "AdamW"}, **types})
    document = json.loads(texts_of(plan, "8GiB")["ds_config.json"])
    zero = document["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["overlap_comm"], zero["reduce_scatter"]) == ("auto", True, True)
    assert "stage3_prefetch_bucket_size" not in zero
    assert {name: document[name] for name in types} == types
    again = vitmem.estimate(**settings, bs=2, memory="8GiB", deepspeed=document)
    assert again.peak == estimate_settings(TrainSettings.from_dict(plan.settings)).peak


def test_the_readme_says_what_to_install() -> None:
    readme = texts(parallel="zero2", gpus=2, precision="bf16")["README.md"]
    assert "pip install torch torchvision timm datasets transformers accelerate deepspeed\nbash launch.sh" in readme
    assert "peft" in texts(train="lora")["README.md"]
    assert "bitsandbytes" in texts(optim="adamw_bnb_8bit")["README.md"]


def test_a_pruned_plan_says_how_its_weights_come_about() -> None:
    written = texts(depth=2, mlp_ratio=2)
    assert "`cut` in train.py prunes its weights" in written["README.md"]
    assert constants(written["train.py"])["BLOCKS"] == ["timm_model.blocks.0", "timm_model.blocks.1"]
    assert len(constants(written["train.py"])["WHOLE_BLOCKS"]) == 6
    assert "begins with random weights" in texts(depth=2, loop="timm")["README.md"]


def test_a_folder_with_quotes_in_its_name_stays_text(tmp_path: Path, monkeypatch: Any) -> None:
    config = tmp_path / 'a """ + \'b\' $model'
    config.mkdir()
    source = (
        '{"model_type": "vit", "image_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}'
    )
    (config / "config.json").write_text(source)
    monkeypatch.chdir(tmp_path)
    written = texts(model=f"./{config.name}")
    assert constants(written["train.py"])["MODEL"] == str(config), "a folder has to be found from anywhere"
    assert json.loads(written["model_config.json"])["hidden_size"] == 32


def test_a_timm_folder_is_its_architecture(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architecture": "test_vit", "model_args": {"img_size": 96}}')
    found = constants(texts(model=str(tmp_path), dropout=0.1)["train.py"])
    assert (found["MODEL"], found["OVERRIDES"]) == ("test_vit", {"img_size": 96, "drop_rate": 0.1})


def test_the_readme_names_buckets_as_the_deepspeed_file_does() -> None:
    plan = planned(model="google/vit-base-patch16-224", gpus=2, parallel="zero2")
    changed = {"parallel": "zero2", "zero_options": (("reduce_bucket_size", "auto"),), "checkpoint_layers": None}
    change = Change(
        setting="parallel",
        from_="ddp",
        to="zero2",
        settings=changed,
        saved_bytes=1,
        relative_time=1.0,
        cost="no time",
        loses="",
        keeps_recipe=True,
    )
    readme = texts_of(dataclasses.replace(plan, changes=(change,)), "8GiB")["README.md"]
    assert "| parallel zero2, reduce_bucket_size auto | 1 B" in readme


def test_a_plan_that_nobody_writes_is_refused(capsys: Any) -> None:
    assert main(["recommend", "test_vit", "--gpu", "t4", "--plan", "2"]) == 2
    assert "add --write DIR" in capsys.readouterr().err


def test_the_script_is_started_with_the_allocator_of_the_plan() -> None:
    assert "    python train.py --data" in texts()["train.py"]
    assert "    bash launch.sh --data" in texts(alloc_conf="expandable_segments:True")["train.py"]
    assert "2 per micro-step, 1 micro-step, 1 GPU." in texts()["README.md"]
