"""transformers' BEiT and Data2VecVision: relative position biases of each layer and shared, as scores and as masks."""

from __future__ import annotations

from typing import Any

OWN, SHARED = "microsoft/beit-base-patch16-224", "microsoft/beit-base-patch16-224-pt22k"
D2V_OWN, D2V_SHARED = "facebook/data2vec-vision-base-ft1k", "facebook/data2vec-vision-base"
SMALL: dict[str, Any] = {"dim": 48, "heads": 3, "mlp_ratio": 2.0}

CASES: list[dict[str, Any]] = [
    # precision x attention, a bias of each layer and a shared one
    *({"model": model, "bs": 2, "depth": 2, "precision": precision, "attn": attn}
      for model, precision, attn in [
          (OWN, "fp16", "sdpa"), (OWN, "bf16", "eager"), (SHARED, "bf16", "sdpa"), (SHARED, "fp32", "eager"),
          (D2V_OWN, "bf16", "sdpa"), (D2V_OWN, "fp16", "eager"), (D2V_SHARED, "fp32", "sdpa"),
          (D2V_SHARED, "pure-bf16", "eager"),
      ]),
    # image sizes: rectangles, remainders, 64 patches and the class token, 63 of them (a row of 64 needs no padding)
    *({"model": model, "depth": 2, **SMALL, **settings}
      for model, settings in [
          (OWN, {"res": "96x160", "bs": 3, "precision": "bf16", "loop": "plain"}),
          (OWN, {"res": "144x112", "bs": 1, "precision": "pure-bf16"}),
          (SHARED, {"res": "100x75", "bs": 1, "precision": "fp16", "attn": "eager"}),
          (D2V_OWN, {"res": "144x112", "bs": 2, "precision": "fp16", "loop": "timm"}),
          (D2V_SHARED, {"res": "40x64", "bs": 3, "precision": "bf16", "patch": 8, "num_classes": 10}),
      ]),
    # checkpointing, what is trained, dropouts, loops
    *({"bs": 2, "depth": 3, "res": 96, **SMALL, **settings}
      for settings in [
          {"model": OWN, "grad_checkpointing": True, "precision": "bf16"},
          {"model": SHARED, "grad_checkpointing": True, "checkpoint_layers": 2, "attn": "eager"},
          {"model": D2V_SHARED, "grad_checkpointing": True, "precision": "bf16", "loop": "plain"},
          {"model": OWN, "freeze_layers": 2, "precision": "bf16", "loop": "timm"},
          {"model": SHARED, "freeze_layers": 1, "precision": "fp16"},
          {"model": D2V_SHARED, "train": "linear-probe", "precision": "bf16"},
          {"model": OWN, "train": "linear-probe", "attn": "eager"},
          {"model": OWN, "dropout": 0.1, "attn_dropout": 0.1, "drop_path": 0.0, "attn": "eager", "precision": "bf16"},
          {"model": D2V_OWN, "dropout": 0.1, "attn_dropout": 0.1, "drop_path": 0.3, "precision": "bf16"},
          {"model": SHARED, "accum": 2, "precision": "fp32", "loop": "plain", "zero_grad": "before-forward"},
          # the loss is a mean, and nobody divides it by the number of micro-steps
          {"model": D2V_OWN, "accum": 2, "precision": "fp16"},
      ]),
    # heads that do not divide the width; heads of 10 channels leave the fused kernels
    {"model": OWN, "bs": 2, "depth": 2, "res": 64, "dim": 50, "heads": 3, "mlp_ratio": 2.0, "precision": "fp32"},
    {"model": SHARED, "bs": 2, "depth": 2, "res": 64, "dim": 30, "heads": 3, "mlp_ratio": 2.0, "precision": "bf16"},
]  # fmt: skip
