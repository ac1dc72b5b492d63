"""Written plans, executed: what they train is what was estimated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vitmem.advice.files import Folder, write_plan
from vitmem.cli import main
from vitmem.pipeline import estimate_settings
from vitmem.settings import TrainSettings

pytest.importorskip("transformers")
pytest.importorskip("datasets")

from written import CONFIGS, OFFLINE, planned, settings_in

RUNNER = Path(__file__).with_name("written_runs.py")
SWIN = {"model": "swin_tiny_patch4_window7_224", "res": 64, "window": 4, "dim": 24}
#: Settings by name; ``hf`` stands for a folder with that family's configuration.
TRAINER: dict[str, dict[str, Any]] = {
    "timm": {"precision": "fp32"},
    "timm-swin": {**SWIN, "precision": "bf16"},
    "timm-lora": {"train": "lora", "precision": "fp32"},
    "timm-swin-lora": {**SWIN, "train": "lora", "precision": "fp32"},
    "timm-frozen": {"freeze_layers": 2, "precision": "fp32"},
    "timm-pruned": {"depth": 2, "mlp_ratio": 2, "precision": "fp32"},
    "timm-eager": {"attn": "eager", "drop_path": 0.1, "patch_drop": 0.25, "precision": "fp32"},
    "timm-momentum": {"optim": "sgd-momentum", "precision": "fp32"},
    "vit": {"hf": "vit", "precision": "bf16", "accum": 2},
    "vit-pure": {"hf": "vit", "precision": "pure-bf16"},
    "vit-pruned": {"hf": "vit", "depth": 2, "heads": 4, "mlp_ratio": 1, "precision": "fp32"},
    "vit-adafactor": {"hf": "vit", "optim": "adafactor", "clip_grad": 0.5, "label_smoothing": 0.1, "precision": "fp32"},
    "deit-probe": {"hf": "deit", "train": "linear-probe", "precision": "fp32"},
    "dinov2-lora": {"hf": "dinov2", "res": 48, "train": "lora", "lora_rank": 4, "precision": "fp32"},
    "beit": {"hf": "beit", "drop_path": 0.2, "precision": "bf16"},
    "swin": {"hf": "swin", "grad_checkpointing": True, "precision": "bf16"},
    "swin-lora": {"hf": "swin", "train": "lora", "grad_checkpointing": True, "precision": "fp32"},
    "swinv2": {"hf": "swinv2", "dropout": 0.1, "attn_dropout": 0.1, "precision": "fp32"},
}
#: What preflight reads from no Trainer: the script has to run, and to train as many parameters as were estimated.
UNREAD: dict[str, dict[str, Any]] = {
    "timm-frozen-lora": {"train": "lora", "freeze_layers": 1, "lora_targets": "all-linear", "precision": "fp32"},
    "timm-ema": {"ema": True, "precision": "bf16"},
    "timm-lion": {"optim": "lion", "precision": "fp32"},
    "timm-kernel": {"sdpa_kernel": "math", "precision": "fp32"},
    "timm-reentrant": {"grad_checkpointing": True, "checkpoint_reentrant": True, "precision": "fp32"},
    "timm-first-blocks": {"grad_checkpointing": True, "checkpoint_layers": 2, "precision": "fp32"},
    "vit-first-blocks": {"hf": "vit", "grad_checkpointing": True, "checkpoint_layers": 2, "precision": "fp32"},
    "swin-first-blocks": {"hf": "swin", "grad_checkpointing": True, "checkpoint_layers": 1, "precision": "fp32"},
    "bitsandbytes": {"hf": "vit", "optim": "adamw_bnb_8bit", "precision": "fp32"},
    "loader": {"workers": 1, "prefetch": 3, "pin_memory": False, "eval_bs": 4, "eval_samples": 8, "train_samples": 10},
    "torchvision": {"model": "torchvision/vit_b_16", "res": 32, "dropout": 0.1, "precision": "bf16"},
    "torchvision-probe": {"model": "torchvision/swin_t", "res": 64, "train": "linear-probe", "precision": "fp32"},
}
PLAIN: dict[str, dict[str, Any]] = {
    "timm": {"precision": "bf16", "accum": 2},
    "swin": {"hf": "swin", "ema": True, "mixup": True, "label_smoothing": 0.1, "clip_grad": 1.0},
    "torchvision": {
        "model": "torchvision/vit_b_16",
        "res": 32,
        "precision": "pure-bf16",
        "zero_grad": "before-backward",
    },
    "lora": {"train": "lora", "grad_checkpointing": True, "zero_grad": "keep", "optim": "adamw_torch_fused"},
    "probe": {"hf": "vit", "train": "linear-probe", "grad_checkpointing": True, "checkpoint_layers": 1},
    "frozen": {"hf": "vit", "freeze_layers": 1, "optim": "sgd-nesterov", "sdpa_kernel": "efficient"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every script two steps long, in one process."""
    folder = tmp_path_factory.mktemp("plans")
    cases, plans = {}, {}
    loops = {"trainer": {**TRAINER, **UNREAD}, "plain": PLAIN}
    for loop, table in loops.items():
        for name, given in table.items():
            plan = planned(loop=loop, **settings_in(folder, given))
            write_plan(plan, "8GiB", Folder(folder / f"{loop}-{name}", force=False))
            cases[f"{loop}-{name}"] = [str(folder / f"{loop}-{name}"), ["--max_steps", "2"]]
            plans[f"{loop}-{name}"] = plan
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, str(RUNNER), str(folder / "cases.json"), str(folder / "out.json")]
    done = subprocess.run(command, env=OFFLINE, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((folder / "out.json").read_text())
    return {name: {**found[name], "settings": plans[name].settings} for name in cases}


def estimated(settings: dict[str, Any]) -> Any:
    return estimate_settings(TrainSettings.from_dict(settings))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINER)
def test_preflight_of_the_script_is_the_plan(runs: dict[str, Any], name: str) -> None:
    run = runs[f"trainer-{name}"]
    assert "error" not in run, run["error"]
    assert run["preflight"] == estimated(run["settings"]).peak.tensor_bytes, run
    assert (run["steps"], len(run["evaluated"])) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNREAD)
def test_the_script_trains_what_was_estimated(runs: dict[str, Any], name: str) -> None:
    run = runs[f"trainer-{name}"]
    assert "error" not in run, run["error"]
    assert run["trainable"] == estimated(run["settings"]).model.num_trainable_parameters
    assert (run["steps"], len(run["evaluated"])) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "calls"), [("vit-first-blocks", 2), ("swin-first-blocks", 3), ("timm-first-blocks", 2)]
)
def test_only_the_first_blocks_are_checkpointed(runs: dict[str, Any], name: str, calls: int) -> None:
    """Two steps; timm's partial checkpointing also wraps the three batches of the evaluation. A stage of Swin that
    holds checkpointed blocks only is checkpointed as a whole too, and its recomputation checkpoints them again."""
    run = runs[f"trainer-{name}"]
    assert run["checkpointed"] == calls * (5 if name.startswith("timm") else 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_script_runs(runs: dict[str, Any], name: str) -> None:
    assert "error" not in runs[f"plain-{name}"], runs[f"plain-{name}"]["error"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder in the layout of datasets' ``imagefolder``."""
    from PIL import Image

    for part, count in (("train", 4), ("validation", 1)):
        for label in ("cat", "dog"):
            (tmp_path / "images" / part / label).mkdir(parents=True)
            for number in range(count):
                colour = (40 * number, 200 if label == "dog" else 20, 90)
                Image.new("RGB", (40, 36), colour).save(tmp_path / "images" / part / label / f"{number}.png")
    return tmp_path / "images"


def test_a_recommended_plan_trains_on_a_folder_of_images(tmp_path: Path, images: Path) -> None:
    model = settings_in(tmp_path, {"hf": "vit"})["model"]
    words = ["recommend", model, "--bs", "2", "--memory", "4GiB", "--allow", "alloc-conf", "--no-ladder"]
    assert main([*words, "--write", str(tmp_path / "out")]) == 0
    words = ["train.py", "--max_steps", "2", "--data", str(images), "--from_scratch"]
    environment = {**OFFLINE, "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path / "out", env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'train_runtime'" in done.stdout
    assert "'eval_loss'" in done.stdout
    config = json.loads((tmp_path / "out" / "checkpoints" / "checkpoint-2" / "config.json").read_text())
    assert (config["hidden_size"], config["label2id"]) == (32, {"cat": 0, "dog": 1})


@pytest.mark.slow
def test_deepspeed_takes_the_file_as_the_trainer_fills_it(tmp_path: Path) -> None:
    """Every ``auto`` is filled from the arguments that are written beside it, and DeepSpeed reads the rest."""
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    plan = planned(parallel="zero3", offload="all", gpus=1, precision="bf16", accum=3, clip_grad=0.5)
    write_plan(plan, "8GiB", Folder(tmp_path / "out", force=False))
    fields = json.loads((tmp_path / "out" / "training_args.json").read_text())
    arguments = TrainingArguments(**fields, output_dir=str(tmp_path), use_cpu=True)
    config = HfTrainerDeepSpeedConfig(str(tmp_path / "out" / "ds_config.json"))
    config.trainer_config_process(arguments)
    assert "auto" not in json.dumps(config.config)
    read = DeepSpeedConfig(config.config)
    assert (read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps) == (2, 3)
    assert read.gradient_clipping == 0.5
    assert read.bfloat16_config.enabled
    assert read.zero_config.stage == 3
    assert read.zero_config.offload_param.device == "cpu"


@pytest.fixture
def timms_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script sets of timm's global switches in this process is put back."""
    from timm.layers import config

    for name in ("_USE_FUSED_ATTN", "_USE_REENTRANT_CKPT"):
        monkeypatch.setattr(config, name, getattr(config, name))


@pytest.mark.usefixtures("timms_switches")
def test_pruned_weights_are_those_that_matter_most(tmp_path: Path) -> None:
    """``cut`` keeps the first and the last block, and the units that were made large."""
    import runpy

    import timm
    import torch

    write_plan(planned(depth=2, mlp_ratio=1, loop="plain"), "8GiB", Folder(tmp_path / "out", force=False))
    written = runpy.run_path(str(tmp_path / "out" / "train.py"))
    whole, small = timm.create_model("test_vit", num_classes=1000), written["build"](10, True)
    chosen = list(range(3, 3 + small.blocks[1].mlp.fc1.out_features))
    with torch.no_grad():
        whole.blocks[-1].mlp.fc1.weight[chosen] += 10
    weights = written["cut"](whole.state_dict(), small)
    small.load_state_dict(weights)
    assert torch.equal(weights["blocks.0.attn.qkv.weight"], whole.blocks[0].attn.qkv.weight)
    assert torch.equal(weights["blocks.1.attn.qkv.weight"], whole.blocks[-1].attn.qkv.weight)
    assert torch.equal(weights["blocks.1.mlp.fc1.weight"], whole.blocks[-1].mlp.fc1.weight[chosen])
    assert torch.equal(weights["blocks.1.mlp.fc2.weight"], whole.blocks[-1].mlp.fc2.weight[:, chosen])
    assert weights["head.weight"].shape == (10, 64)
    with pytest.raises(SystemExit, match="add --from_scratch"):
        written["cut"](timm.create_model("test_vit", img_size=96).state_dict(), small)


@pytest.mark.slow
@pytest.mark.usefixtures("timms_switches")
def test_published_positions_are_resampled_and_published_blocks_are_cut(tmp_path: Path, monkeypatch: Any) -> None:
    """A folder with weights stands for the hub."""
    import runpy
    import warnings

    import torch
    import transformers

    config = transformers.ViTConfig(**CONFIGS["vit"])
    published = transformers.ViTForImageClassification(config)
    published.save_pretrained(tmp_path / "vit")
    given = {"model": str(tmp_path / "vit"), "res": 48, "depth": 2, "mlp_ratio": 1, "precision": "fp32"}
    write_plan(planned(**given), "8GiB", Folder(tmp_path / "out", force=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = runpy.run_path(str(tmp_path / "out" / "train.py"))["build"](10, False)
    before, after = (m.vit.embeddings.position_embeddings for m in (published, model))
    assert after.shape == (1, 37, 32)
    assert torch.equal(after[:, 0], before[:, 0])
    flat = torch.nn.functional.interpolate(
        before[:, 1:].reshape(1, 4, 4, 32).permute(0, 3, 1, 2), (6, 6), mode="bicubic"
    )
    assert torch.allclose(after[:, 1:], flat.permute(0, 2, 3, 1).reshape(1, 36, 32))
    kept = [published.vit.layers[place] for place in (0, 2)]
    for layer, source in zip(model.vit.layers, kept):
        assert torch.equal(layer.attention.q_proj.weight, source.attention.q_proj.weight)
