"""Every optimizer whose package is a dependency of the rehearsal, in every loop: foreach, fused, and per parameter."""

from __future__ import annotations

from typing import Any

TIMM, HF = "vit_tiny_patch16_224", "WinKawaks/vit-tiny-patch16-224"
FOREACH = ("adamw_torch", "sgd-momentum", "adagrad", "rmsprop", "adam", "nadam", "radam", "adamax", "adafactor", "lion")

CASES: list[dict[str, Any]] = [
    *({"model": TIMM, "bs": 2, "depth": 1, "precision": precision, "loop": loop, "optim": optim}
      for optim in (*FOREACH, "adamw_torch_fused", "sgd", "sgd-nesterov")
      for precision, loop in [("fp32", "plain"), ("pure-bf16", "trainer")]),
    # weight decay: on a copy of the gradients, or in place; the scaler's scalars
    *({"model": TIMM, "bs": 1, "depth": 1, "precision": "fp16", "loop": "timm", "optim": optim}
      for optim in (*FOREACH, "adamw_torch_fused")),
    {"model": TIMM, "bs": 1, "depth": 1, "precision": "fp16", "loop": "plain", "optim": "adamw_torch_fused"},
    # parameters without gradients: Adagrad's state is made for all that it is handed
    *({"model": HF, "bs": 2, "depth": 2, "precision": "bf16", "loop": loop, "optim": optim, "freeze_layers": 1}
      for optim in ("adagrad", "nadam") for loop in ("plain", "trainer")),
    {"model": TIMM, "bs": 2, "depth": 1, "train": "linear-probe", "optim": "adagrad", "loop": "timm"},
    {"model": TIMM, "bs": 2, "depth": 1, "train": "linear-probe", "optim": "adafactor", "loop": "trainer"},
    # parameters that the loss does not depend on, tables of embeddings, gradients that stay
    {"model": "facebook/dinov2-small", "bs": 1, "depth": 1, "optim": "adagrad", "loop": "plain"},
    {"model": "google/siglip-base-patch16-224", "bs": 1, "depth": 1, "optim": "rmsprop", "precision": "bf16"},
    {"model": TIMM, "bs": 2, "depth": 1, "optim": "adafactor", "zero_grad": "keep", "accum": 2, "precision": "bf16"},
    # so many 16-bit elements that Lion takes them in parts
    {"model": "vit_base_patch16_224", "bs": 1, "depth": 2, "precision": "pure-bf16", "loop": "plain", "optim": "lion"},
    {"model": "swin_tiny_patch4_window7_224", "bs": 1, "precision": "fp16", "loop": "timm", "optim": "adafactor"},
]  # fmt: skip
