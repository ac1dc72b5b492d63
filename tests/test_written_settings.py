"""Every setting of a plan is in a file of it, or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vitmem.advice.files.render import render
from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings
from written import texts

#: What each setting has to leave in the files: a file and a text in it, by the loop.
SAID = [
    ({"alloc_conf": "expandable_segments:True"}, "env.sh", "export PYTORCH_ALLOC_CONF=expandable_segments:True"),
    ({"sdpa_kernel": "math"}, "train.py", "SDPBackend.MATH"),
    ({"attn": "eager"}, "train.py", "set_fused_attn(enable=False"),
    ({"train": "linear-probe"}, "train.py", "model = train_head_only(model)"),
    ({"freeze_layers": 1}, "train.py", "model = freeze(model)"),
    ({"train": "lora", "lora_rank": 3}, "train.py", "'r': 3"),
    ({"ema": True}, "train.py", "callbacks=[AverageWeights()]"),
    ({"optim": "sgd-momentum"}, "train.py", "OPTIMIZER = (torch.optim.SGD, {'momentum': 0.9})"),
    ({"optim": "adafactor"}, "training_args.json", '"optim": "adafactor"'),
    ({"clip_grad": 0.5}, "training_args.json", '"max_grad_norm": 0.5'),
    ({"label_smoothing": 0.1}, "training_args.json", '"label_smoothing_factor": 0.1'),
    ({"eval_bs": 3, "eval_accum": 2}, "training_args.json", '"eval_accumulation_steps": 2'),
    ({"train_samples": 7}, "training_args.json", '"dataloader_drop_last": false'),
    ({"workers": 2, "prefetch": 3}, "training_args.json", '"dataloader_prefetch_factor": 3'),
    ({"pin_memory": False}, "training_args.json", '"dataloader_pin_memory": false'),
    ({"grad_checkpointing": True}, "training_args.json", '"activation_checkpointing": true'),
    ({"grad_checkpointing": True, "checkpoint_reentrant": True}, "train.py", "set_reentrant_ckpt(True)"),
    ({"grad_checkpointing": True, "checkpoint_layers": 1}, "train.py", "CHECKPOINT_LAYERS = 1"),
    ({"precision": "pure-bf16"}, "train.py", "WEIGHTS = torch.bfloat16"),
    ({"drop_path": 0.1, "patch_drop": 0.25}, "train.py", "'drop_path_rate': 0.1, 'patch_drop_rate': 0.25"),
    ({"gpus": 2}, "accelerate.yaml", "num_processes: 2"),
    ({"parallel": "ddp"}, "launch.sh", "torchrun --standalone --nproc_per_node 1"),
    ({"gpus": 2, "ddp_bucket_cap_mb": 50}, "training_args.json", '"ddp_bucket_cap_mb": 50'),
    (
        {"gpus": 2, "ddp_find_unused_parameters": False},
        "training_args.json",
        '"ddp_find_unused_parameters": false',
    ),
    ({"parallel": "zero2", "gpus": 4}, "launch.sh", "deepspeed --num_gpus 4 --no_local_rank"),
    ({"parallel": "fsdp", "gpus": 2}, "accelerate.yaml", "fsdp_transformer_layer_cls_to_wrap: Block"),
    ({"parallel": "fsdp", "gpus": 2, "wrap_layers": "Block"}, "training_args.json", '"fsdp": true'),
    (
        {"parallel": "fsdp", "gpus": 2, "reshard_after_forward": False},
        "accelerate.yaml",
        "reshard_after_forward: false",
    ),
    ({"parallel": "fsdp", "gpus": 2, "offload": "all"}, "training_args.json", '"cpu_offload": true'),
    ({"model": "torchvision/vit_b_16", "res": 32}, "train.py", "OVERRIDES = {'image_size': 32}"),
    ({"model": "google/siglip-base-patch16-224", "res": 256}, "train.py", "OVERRIDES = {'image_size': 256}"),
    ({"model": "google/vit-base-patch16-224", "mlp_ratio": 2}, "train.py", "'intermediate_size': 1536"),
    ({"loop": "plain", "zero_grad": "keep"}, "train.py", "ZERO_GRAD = 'keep'"),
    ({"loop": "plain", "mixup": True}, "train.py", "collate_fn=mixed if trains"),
    ({"loop": "plain", "ema": True}, "train.py", "AveragedModel(model, multi_avg_fn"),
    ({"loop": "plain", "gpus": 2}, "launch.sh", "torchrun --standalone --nproc_per_node 2"),
    ({"loop": "plain", "grad_checkpointing": True}, "train.py", "model = checkpoint_blocks(model)"),
    ({"loop": "timm", "attn": "eager"}, "env.sh", "export TIMM_FUSED_ATTN=0"),
    ({"loop": "timm", "mixup": True}, "args.yaml", "mixup: 0.8"),
    ({"loop": "timm", "optim": "adamw_torch_fused"}, "args.yaml", 'opt_kwargs: {"fused": true}'),
    ({"loop": "timm", "res": (96, 64)}, "args.yaml", "input_size: [3, 96, 64]"),
    ({"loop": "timm", "precision": "pure-bf16"}, "args.yaml", 'model_dtype: "bfloat16"'),
    ({"loop": "timm", "ema": True, "gpus": 2}, "args.yaml", "model_ema: true"),
]


@pytest.mark.parametrize(("settings", "name", "text"), SAID, ids=[f"{name}-{given}" for given, name, _ in SAID])
def test_every_setting_is_in_a_file(settings: dict[str, Any], name: str, text: str) -> None:
    assert text in texts(**settings)[name]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"zero_grad": "keep"}, "the Trainer frees gradients"),
        ({"model": "facebook/vit-mae-base"}, "no classes"),
        ({"model": "facebook/dinov3-vits16-pretrain-lvd1689m"}, "no image classifier"),
        ({"model": "torchvision/vit_b_16", "res": 32, "depth": 2}, "takes no depth"),
        ({"gpus": 2, "parallel": "none"}, "--parallel ddp"),
        ({"torch": "2.1"}, "2.6 or newer"),
        ({"loop": "timm", "freeze_layers": 1}, "trains the whole model"),
        ({"loop": "timm", "sdpa_kernel": "math"}, "leaves the kernel to PyTorch"),
        ({"loop": "timm", "grad_checkpointing": True, "checkpoint_layers": 1}, "checkpoints every block"),
        ({"loop": "timm", "model": "google/vit-base-patch16-224"}, "trains models of timm"),
        ({"loop": "timm", "optim": "adafactor"}, "cannot name the optimizer"),
        ({"loop": "plain", "optim": "schedule_free_adamw"}, "cannot make the optimizer"),
    ],
    ids=str,
)
def test_what_no_file_can_say_is_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(NotModelled, match=match):
        texts(**settings)


TIMM_RECIPES = [given for given, name, _ in SAID if given.get("loop") == "timm"]


@pytest.mark.parametrize(
    "given", [*TIMM_RECIPES, {"loop": "timm", "dropout": 0.1, "clip_grad": 1.0, "depth": 2}], ids=str
)
def test_timms_train_py_knows_every_argument(given: dict[str, Any]) -> None:
    """Its parser takes any name from the file, and ignores those that it does not know."""
    known = json.loads((Path(__file__).parent / "data" / "timm_train_arguments.json").read_text())["arguments"]
    lines = texts(**given)["args.yaml"].splitlines()
    assert {line.partition(":")[0] for line in lines if not line.startswith("#")} <= set(known)


def test_every_setting_has_a_place() -> None:
    """A setting that is new has to be put into the files, refused, or named here as one that they need not say."""
    said_by_another = {
        "model",
        "gpu",
        "memory",
        "training_args",
        "deepspeed",
        "notes",
        "compile",
        "torch",
        "eval_samples",
    }
    tested = {name for settings, *_ in SAID for name in settings} | said_by_another
    tested |= {
        "res",
        "bs",
        "accum",
        "patch",
        "window",
        "dim",
        "depth",
        "heads",
        "num_classes",
        "dropout",
        "attn_dropout",
    }
    tested |= {"lora_dropout", "lora_targets", "offload", "zero_options", "eval_accum"}
    assert set(TrainSettings().to_dict()) | {"notes"} == tested | {"notes"}


def test_images_are_normalised_as_those_that_the_weights_saw(tmp_path: Path) -> None:
    """ImageNet's own for Swin, halves for ViT: each library says it for the model at hand."""
    pytest.importorskip("torchvision")
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    means = {
        ("timm", "swin_tiny_patch4_window7_224"): (0.485, 0.456, 0.406),
        ("timm", "vit_tiny_patch16_224"): (0.5, 0.5, 0.5),
        ("torchvision", "swin_t"): (0.485, 0.456, 0.406),
        ("transformers", str(tmp_path)): (0.1, 0.2, 0.3),
    }
    for (library, model), mean in means.items():
        names: dict[str, Any] = {"MODEL": model}
        exec(render(f"pixels_{library}.py", {}), names)
        assert names["mean_and_std"](from_scratch=False)[0] == mean
        assert names["mean_and_std"](from_scratch=True) == ((0.5,) * 3, (0.5,) * 3)
    assert "v2.Normalize(*mean_and_std(from_scratch))" in texts(model="swin_tiny_patch4_window7_224")["train.py"]
