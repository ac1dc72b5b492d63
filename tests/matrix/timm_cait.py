"""timm's CaiT: talking heads, class attention, and both sizes of its patches' grid."""

from __future__ import annotations

from typing import Any

CAIT = "cait_xxs24_224"

CASES: list[dict[str, Any]] = [
    {"model": CAIT, **settings}
    for settings in [
        {"bs": 2, "depth": 2},
        {"bs": 2, "depth": 2, "precision": "bf16", "attn": "eager"},
        {"bs": 3, "depth": 2, "precision": "fp32", "attn": "sdpa", "loop": "plain"},
        {"bs": 1, "depth": 1, "precision": "pure-bf16", "loop": "timm", "res": "96x160"},
        {"bs": 2, "depth": 2, "precision": "pure-fp16", "attn": "eager", "res": "100"},
        {"bs": 2, "depth": 4, "precision": "bf16", "grad_checkpointing": True},
        {"bs": 2, "depth": 4, "grad_checkpointing": True, "checkpoint_layers": 2, "drop_path": 0.1},
        {"bs": 2, "depth": 3, "freeze_layers": 2, "precision": "fp32"},
        {"bs": 2, "depth": 2, "train": "linear-probe", "precision": "bf16"},
        {"bs": 2, "depth": 2, "dropout": 0.1, "attn_dropout": 0.1, "drop_path": 0.2, "precision": "bf16"},
        {"bs": 2, "depth": 2, "dim": 96, "heads": 3, "mlp_ratio": 3.0, "patch": 32, "num_classes": 10, "accum": 2},
    ]
] + [{"model": "cait_xs24_384", "bs": 1, "depth": 1, "precision": "bf16", "loop": "timm"}]
