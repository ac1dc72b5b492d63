"""timm's XCiT: attention between channels, convolutions with batch normalisation, patches of 8 and of 16 pixels."""

from __future__ import annotations

from typing import Any

#: Without and with a norm of all tokens in the class attention.
NANO, TINY = "xcit_nano_12_p16_224", "xcit_tiny_12_p16_224"

CASES: list[dict[str, Any]] = [
    {"bs": 2, "depth": 1, **settings}
    for settings in [
        {"model": NANO},
        {"model": NANO, "precision": "bf16", "attn": "eager"},
        {"model": NANO, "precision": "fp32", "attn": "sdpa", "loop": "plain"},
        {"model": NANO, "precision": "bf16", "attn": "sdpa", "attn_dropout": 0.1},
        {"model": NANO, "precision": "pure-bf16", "loop": "timm", "res": "96x160", "bs": 1},
        {"model": NANO, "precision": "pure-fp16", "res": "64x100", "bs": 3},
        {"model": NANO, "depth": 3, "precision": "bf16", "grad_checkpointing": True},
        {"model": NANO, "depth": 3, "grad_checkpointing": True, "checkpoint_layers": 2, "drop_path": 0.1},
        {"model": NANO, "depth": 2, "freeze_layers": 1, "precision": "fp32"},
        {"model": NANO, "train": "linear-probe", "precision": "bf16"},
        {"model": TINY, "depth": 2, "dropout": 0.1, "attn_dropout": 0.1, "drop_path": 0.2},
        {"model": TINY, "dim": 96, "heads": 3, "mlp_ratio": 3.0, "num_classes": 10, "accum": 2, "precision": "bf16"},
        {"model": "xcit_nano_12_p8_224", "precision": "bf16", "loop": "timm"},
        {"model": "xcit_small_24_p16_384", "bs": 1},
    ]
]
