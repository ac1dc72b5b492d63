"""transformers' CLIP and SigLIP classifiers: vision towers with pooled tokens that the loss does not use."""

from __future__ import annotations

from typing import Any

CLIP, SIGLIP = "openai/clip-vit-base-patch32", "google/siglip-base-patch16-224"

CASES: list[dict[str, Any]] = [
    {"model": model, "bs": 2, "depth": 2, **settings}
    for model in (CLIP, SIGLIP)
    for settings in [
        {"precision": "bf16"},
        {"precision": "fp16", "attn": "eager", "res": "100", "accum": 2},
        {"precision": "fp32", "loop": "plain", "bs": 1, "res": "256"},
        {"precision": "pure-bf16", "loop": "timm", "attn": "eager", "bs": 3},
        {"precision": "fp32", "attn": "eager", "grad_checkpointing": True, "num_classes": 10},
        {"precision": "bf16", "grad_checkpointing": True, "checkpoint_layers": 1, "attn_dropout": 0.1},
        {"precision": "fp16", "attn": "eager", "attn_dropout": 0.1, "loop": "plain", "patch": 14},
        {"train": "linear-probe", "precision": "fp32"},
        {"freeze_layers": 1, "precision": "bf16", "loop": "plain"},
        {"dim": 60, "heads": 5, "mlp_ratio": 3.0, "precision": "bf16"},
    ]
] + [
    {"model": "openai/clip-vit-large-patch14-336", "bs": 1, "depth": 1, "precision": "pure-fp16"},
    {"model": "google/siglip-so400m-patch14-384", "bs": 1, "depth": 1, "precision": "fp16"},  # heads of width 72
]  # fmt: skip
