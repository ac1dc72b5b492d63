"""timm's BEiT and BEiT v2: bias tables of the blocks, class token in the window, qkv bias made of three."""

from __future__ import annotations

from typing import Any

__all__ = ["CASES"]

BEIT, V2 = "beit_base_patch16_224", "beitv2_base_patch16_224"

CASES: list[dict[str, Any]] = [
    # precision x attention
    *({"model": BEIT, "bs": 2, "depth": 2, "precision": precision, "attn": attn}
      for precision in ("fp32", "fp16", "bf16", "pure-bf16") for attn in ("eager", "sdpa")),
    # the bias table and its index follow the grid; rows of the mask that are aligned and that are not
    *({"model": model, "bs": bs, "depth": 2, "res": res, "precision": precision, **settings}
      for model, bs, res, precision, settings in [
          (V2, 3, "112x64", "fp16", {"loop": "plain"}), (V2, 1, "100x250", "bf16", {"loop": "timm"}),
          (BEIT, 2, "128", "pure-fp16", {"patch": 14}), ("beit_large_patch16_512", 1, "512", "bf16", {"loop": "plain"}),
          ("beit_large_patch16_384", 1, "384", "fp16", {"attn": "eager"}),
      ]),
    # dropouts, checkpointing, what is trained
    {"model": BEIT, "bs": 2, "depth": 2, "dropout": 0.1, "attn_dropout": 0.1, "drop_path": 0.2, "precision": "bf16"},
    {"model": V2, "bs": 2, "depth": 2, "attn": "eager", "attn_dropout": 0.1, "drop_path": 0.2, "loop": "timm"},
    {"model": BEIT, "bs": 2, "depth": 3, "grad_checkpointing": True, "precision": "bf16"},
    {"model": V2, "bs": 2, "depth": 3, "grad_checkpointing": True, "checkpoint_layers": 1, "loop": "plain"},
    {"model": BEIT, "bs": 2, "depth": 3, "freeze_layers": 2, "precision": "bf16", "loop": "timm"},
    {"model": BEIT, "bs": 2, "depth": 2, "train": "linear-probe", "res": "96x160"},
    # sizes; heads of 15 and of 12 channels leave the math kernel, with a mask that is trained
    {"model": V2, "bs": 2, "depth": 2, "dim": 192, "heads": 3, "mlp_ratio": 3.0, "num_classes": 10, "loop": "plain"},
    {"model": BEIT, "bs": 2, "depth": 2, "dim": 180, "heads": 12, "attn_dropout": 0.1, "precision": "fp32"},
    {"model": BEIT, "bs": 2, "depth": 2, "dim": 144, "heads": 12, "grad_checkpointing": True, "precision": "bf16"},
]  # fmt: skip
