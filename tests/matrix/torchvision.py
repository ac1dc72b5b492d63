"""torchvision's Vision Transformer on ``nn.MultiheadAttention``, and its Swin Transformers of both versions."""

from __future__ import annotations

from typing import Any

VIT, SWIN, SWIN_V2 = "torchvision/vit_b_32", "torchvision/swin_t", "torchvision/swin_v2_t"

CASES: list[dict[str, Any]] = [
    # one model, every precision and loop; its only attention is fused
    *({"model": VIT, "bs": 2, "depth": 2, **settings}
      for settings in [
          {"precision": "fp16"}, {"precision": "bf16", "loop": "plain"}, {"precision": "fp32", "loop": "timm"},
          {"precision": "pure-bf16", "res": "96", "bs": 1}, {"precision": "fp32", "dropout": 0.1, "attn_dropout": 0.1},
          {"precision": "bf16", "dropout": 0.1, "attn_dropout": 0.1, "attn": "sdpa", "patch": 16, "res": "112"},
          {"precision": "bf16", "sdpa_kernel": "math"}, {"sdpa_kernel": "efficient", "loop": "timm", "accum": 2},
          {"precision": "fp32", "dim": 192, "heads": 3, "mlp_ratio": 2.0, "num_classes": 10, "optim": "sgd"},
          {"dim": 96, "heads": 4, "freeze_layers": 1, "loop": "plain"},
          {"train": "linear-probe", "precision": "bf16"},
      ]),
    {"model": "torchvision/vit_h_14", "bs": 3, "depth": 1, "precision": "bf16", "optim": "adamw_torch"},
    # windows: padded, shifted in one direction only, of one token; frozen weights; both versions
    *({"model": model, "bs": 2, "res": "64", **settings}
      for model in (SWIN, SWIN_V2)
      for settings in [
          {"precision": "bf16"}, {"precision": "fp32", "loop": "plain", "drop_path": 0.0, "bs": 1},
          {"precision": "fp16", "res": "100x36", "loop": "timm"},
          {"precision": "pure-fp16", "window": 4, "res": "96x64", "attn": "eager"},
          {"precision": "bf16", "dropout": 0.1, "attn_dropout": 0.1, "optim": "sgd-momentum"},
          {"precision": "bf16", "freeze_layers": 3, "zero_grad": "before-backward"},
          {"train": "linear-probe", "loop": "plain"},
          {"patch": 8, "dim": 48, "mlp_ratio": 3.0, "num_classes": 10, "window": 1, "res": "72"},
      ]),
]  # fmt: skip
