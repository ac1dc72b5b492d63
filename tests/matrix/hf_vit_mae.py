"""transformers' MAE, which masks patches and computes its own loss without labels, and MSN's classifier."""

from __future__ import annotations

from typing import Any

MAE, MSN = "facebook/vit-mae-base", "facebook/vit-msn-small"

CASES: list[dict[str, Any]] = [
    *({"model": MAE, "bs": 2, "depth": 2, **settings}
      for settings in [
          {"precision": "bf16"},
          {"precision": "fp16", "attn": "eager", "accum": 2},
          {"precision": "fp32", "loop": "plain", "bs": 1, "res": "96"},
          {"precision": "pure-bf16", "loop": "timm", "attn": "eager"},
          {"precision": "bf16", "loop": "timm", "accum": 2, "bs": 3, "res": "112"},
          {"precision": "fp16", "loop": "plain", "accum": 2, "zero_grad": "before-backward"},
          {"precision": "fp32", "grad_checkpointing": True},
          {"precision": "bf16", "grad_checkpointing": True, "checkpoint_layers": 4},  # two of the decoder's
          {"precision": "bf16", "freeze_layers": 3, "loop": "plain"},
          {"precision": "fp16", "dropout": 0.1, "attn_dropout": 0.1, "attn": "eager", "res": "64"},
          {"precision": "bf16", "dim": 60, "heads": 5, "mlp_ratio": 3.0, "patch": 28},
      ]),
    {"model": "facebook/vit-mae-huge", "bs": 1, "depth": 1, "precision": "pure-fp16"},
    *({"model": MSN, "bs": 2, "depth": 2, **settings}
      for settings in [
          {"precision": "bf16"},
          {"precision": "fp16", "attn": "eager", "res": "96x160", "accum": 2},
          {"precision": "fp32", "loop": "plain", "bs": 1, "res": "100"},
          {"precision": "pure-bf16", "loop": "timm", "attn": "eager", "bs": 3},
          {"precision": "fp32", "grad_checkpointing": True, "checkpoint_layers": 1},
          {"precision": "bf16", "grad_checkpointing": True, "dropout": 0.1, "attn_dropout": 0.1},
          {"train": "linear-probe"},
          {"freeze_layers": 1, "precision": "bf16", "num_classes": 10},
      ]),
    {"model": "facebook/vit-msn-large-7", "bs": 1, "depth": 1, "res": "112", "precision": "fp16"},  # dropout 0.1
]  # fmt: skip
