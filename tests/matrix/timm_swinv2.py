"""timm's two Swin V2 families: cosine attention, position bias by an MLP, norms at the end of each branch."""

from __future__ import annotations

from typing import Any

V2, CR = "swinv2_tiny_window8_256", "swinv2_cr_tiny_224"

CASES: list[dict[str, Any]] = [
    # precision x loop; stochastic depth is V2's default and not V2Cr's
    *({"model": model, "bs": 2, "res": "128", "precision": precision, "loop": loop}
      for model in (V2, CR)
      for precision, loop in [
          ("fp32", "plain"), ("fp16", "trainer"), ("bf16", "timm"), ("pure-bf16", "trainer"),
      ]),
    *({"model": model, "bs": 1, "precision": "bf16", **settings}
      for model in (V2, CR)
      for settings in [
          # windows: shifted, padded, shrunk to the grid, of one token; merging an odd grid
          {"res": "96x160", "window": 6}, {"res": "100x52", "bs": 3, "loop": "plain"}, {"res": "64", "window": 1},
          {"res": "96", "bs": 2, "patch": 2, "dim": 48, "mlp_ratio": 2.0, "num_classes": 10},
          # checkpointing; a block without stochastic depth ends in a layer norm, which is made again
          {"res": "64", "grad_checkpointing": True, "drop_path": 0.0}, {"res": "64", "grad_checkpointing": True,
           "checkpoint_layers": 5, "drop_path": 0.2, "precision": "fp16", "loop": "timm"},
          # what is trained
          {"res": "64", "freeze_layers": 3, "precision": "fp16"}, {"res": "64", "train": "linear-probe", "bs": 2},
          # dropouts, accumulation
          {"res": "64", "attn": "eager", "dropout": 0.1, "attn_dropout": 0.1, "drop_path": 0.1, "precision": "fp16"},
          {"res": "64", "accum": 2, "zero_grad": "before-forward", "optim": "sgd"},
      ]),
    # windows larger than the pretraining's
    {"model": "swinv2_tiny_window16_256", "bs": 1, "precision": "fp16"},
    # norms on the main branch: at the end of each stage, every sixth block
    {"model": "swinv2_cr_tiny_ns_224", "bs": 2, "precision": "bf16", "loop": "plain"},
    {"model": "swinv2_cr_huge_224", "bs": 1, "res": "64", "precision": "pure-bf16", "optim": "sgd"},
    # found by comparing random configurations: a grid of one column, whose gradient keeps another order
    {"model": V2, "bs": 1, "res": "32x160", "window": 2, "precision": "pure-bf16", "loop": "plain"},
]  # fmt: skip
