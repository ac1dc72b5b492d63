"""timm's ViT with relative positions: an MLP over log-scaled offsets, of each block or of the model."""

from __future__ import annotations

from typing import Any

__all__ = ["CASES"]

OWN, SHARED, POST = (
    "vit_relpos_small_patch16_224", "vit_srelpos_small_patch16_224", "vit_relpos_base_patch32_plus_rpn_256"
)  # fmt: skip

CASES: list[dict[str, Any]] = [
    # precision x attention
    *({"model": model, "bs": 2, "depth": 2, "precision": precision, "attn": attn}
      for model, precision in [(OWN, "fp32"), (SHARED, "fp16"), (OWN, "bf16"), (SHARED, "pure-bf16")]
      for attn in ("eager", "sdpa")),
    # one of every kind of block, norm, token and pool
    *({"model": model, "bs": 2, "depth": 2, "precision": precision, "loop": loop}
      for model, precision, loop in [
          ("test_vit_relpos", "fp16", "trainer"), (POST, "bf16", "plain"),
          ("vit_relpos_base_patch16_plus_240", "fp16", "timm"), ("vit_relpos_base_patch16_clsgap_224", "fp32", "plain"),
          ("vit_relpos_medium_patch16_cls_224", "bf16", "timm"),
      ]),
    # other grids
    {"model": OWN, "bs": 3, "depth": 2, "res": "112x64", "loop": "plain"},
    {"model": SHARED, "bs": 1, "depth": 2, "res": "100x250", "precision": "bf16", "attn": "eager"},
    {"model": "vit_relpos_base_patch16_cls_224", "bs": 2, "depth": 2, "res": "130x200", "patch": 14, "attn": "eager"},
    # dropouts, checkpointing, what is trained
    {"model": OWN, "bs": 2, "depth": 2, "dropout": 0.1, "attn_dropout": 0.1, "drop_path": 0.2, "precision": "bf16"},
    {"model": POST, "bs": 2, "depth": 2, "attn": "eager", "attn_dropout": 0.1, "drop_path": 0.2, "loop": "timm"},
    {"model": OWN, "bs": 2, "depth": 3, "grad_checkpointing": True, "precision": "bf16"},
    {"model": SHARED, "bs": 2, "depth": 3, "grad_checkpointing": True, "precision": "bf16", "loop": "plain"},
    {"model": SHARED, "bs": 2, "depth": 3, "grad_checkpointing": True, "checkpoint_layers": 1, "attn": "eager"},
    {"model": SHARED, "bs": 2, "depth": 3, "freeze_layers": 2, "precision": "bf16", "loop": "timm"},
    {"model": OWN, "bs": 2, "depth": 2, "train": "linear-probe"},
    # a frozen weight on a residual that is laid out by channel: bmm repeats the weight
    {"model": POST, "bs": 4, "depth": 3, "freeze_layers": 3, "precision": "bf16", "loop": "plain", "optim": "sgd"},
    # the step's largest moment is the fetch of its batches
    {"model": "vit_relpos_base_patch16_cls_224", "bs": 3, "depth": 1, "res": "56x156", "patch": 32, "accum": 3,
     "freeze_layers": 1, "num_classes": 100, "zero_grad": "before-forward", "optim": "sgd", "precision": "fp32"},
]  # fmt: skip
