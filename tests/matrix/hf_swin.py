"""transformers' Swin and Swin v2: windows shifted, padded and shrunk, checkpointing inside checkpointing."""

from __future__ import annotations

from typing import Any

SWIN, V2 = "microsoft/swin-tiny-patch4-window7-224", "microsoft/swinv2-tiny-patch4-window8-256"

CASES: list[dict[str, Any]] = [
    # precision x attention; position biases and shift masks are what the fused kernel gets as its mask
    *({"model": SWIN, "bs": bs, "precision": precision, "attn": attn}
      for precision, attn, bs in [
          ("fp16", "sdpa", 2), ("bf16", "eager", 2), ("fp32", "sdpa", 1), ("pure-bf16", "sdpa", 2),
          ("pure-fp16", "eager", 1),
      ]),
    *({"model": V2, "bs": bs, "precision": precision}
      for precision, bs in [("fp16", 2), ("bf16", 1), ("fp32", 1), ("pure-bf16", 2)]),
    # sizes: rectangles, windows that do not divide the grid, grids of odd sides, a remainder of pixels
    {"model": SWIN, "bs": 2, "res": "240x272", "precision": "bf16", "loop": "plain"},
    {"model": SWIN, "bs": 1, "res": "96x160", "window": 3, "precision": "fp16", "loop": "timm"},
    {"model": SWIN, "bs": 3, "res": "101x86", "patch": 5, "window": 2, "precision": "bf16", "attn": "eager"},
    {"model": V2, "bs": 2, "res": "100x150", "window": 6, "precision": "bf16", "loop": "plain"},
    {"model": V2, "bs": 1, "res": "110x94", "precision": "fp16", "loop": "timm"},
    # checkpointing: blocks inside stages, a part of a stage, whole stages only
    *({"model": SWIN, "bs": 2, "res": "96", "window": 3, "grad_checkpointing": True, **settings}
      for settings in [
          {"precision": "bf16"}, {"precision": "fp32", "checkpoint_layers": 5, "loop": "plain"},
          {"precision": "fp16", "attn": "eager", "checkpoint_layers": 2}, {"precision": "bf16", "freeze_layers": 3},
          {"precision": "pure-bf16", "train": "linear-probe"},
      ]),
    *({"model": V2, "bs": 2, "res": "96", "grad_checkpointing": True, **settings}
      for settings in [
          {"precision": "bf16"}, {"precision": "fp32", "checkpoint_layers": 4},
          {"precision": "fp16", "freeze_layers": 3},
      ]),
    # dropouts, what is trained, accumulation, other widths
    {"model": SWIN, "bs": 2, "res": "96", "window": 3, "dropout": 0.1, "attn_dropout": 0.1, "drop_path": 0.0},
    {"model": SWIN, "bs": 2, "res": "96", "window": 3, "attn_dropout": 0.1, "attn": "eager", "drop_path": 0.3},
    {"model": SWIN, "bs": 2, "res": "96", "window": 3, "freeze_layers": 4, "accum": 2, "precision": "bf16"},
    {"model": SWIN, "bs": 2, "res": "96", "window": 3, "train": "linear-probe", "dim": 48, "num_classes": 10},
    {"model": V2, "bs": 2, "res": "96", "dropout": 0.1, "attn_dropout": 0.2, "drop_path": 0.3, "precision": "bf16"},
    {"model": V2, "bs": 2, "res": "96", "freeze_layers": 5, "accum": 3, "mlp_ratio": 2.5, "precision": "bf16"},
    {"model": V2, "bs": 1, "res": "96", "train": "linear-probe", "precision": "fp32"},
]  # fmt: skip
