"""transformers' DINOv3 ViT under a linear classifier: rotary positions of every image size, registers, gated MLP."""

from __future__ import annotations

from typing import Any

PLAIN, GATED = "facebook/dinov3-vits16-pretrain-lvd1689m", "facebook/dinov3-vits16plus-pretrain-lvd1689m"

CASES: list[dict[str, Any]] = [
    # precision x attention
    *({"model": model, "bs": 2, "depth": 2, "precision": precision, "attn": attn}
      for model, precision, attn in [
          (PLAIN, "fp16", "sdpa"), (PLAIN, "bf16", "eager"), (PLAIN, "fp32", "sdpa"), (GATED, "fp32", "eager"),
          (GATED, "bf16", "sdpa"), (GATED, "pure-bf16", "eager"), (GATED, "pure-fp16", "sdpa"),
      ]),
    # image sizes: the configuration's own is not used
    *({"model": PLAIN, "bs": bs, "depth": 2, "res": res, "precision": precision, "loop": loop}
      for res, bs, precision, loop in [
          ("512", 1, "bf16", "plain"), ("96x160", 3, "fp16", "trainer"), ("100x75", 2, "bf16", "timm"),
      ]),
    # no bias in queries, keys and values
    {"model": "facebook/dinov3-vit7b16-pretrain-lvd1689m", "bs": 1, "depth": 1, "dim": 256, "heads": 4,
     "mlp_ratio": 2.0, "precision": "bf16"},
    # checkpointing, what is trained, dropouts, accumulation
    *({"bs": 2, "depth": 3, "res": 96, **settings}
      for settings in [
          {"model": PLAIN, "grad_checkpointing": True, "precision": "bf16"},
          {"model": GATED, "grad_checkpointing": True, "checkpoint_layers": 1, "attn": "eager"},
          {"model": PLAIN, "freeze_layers": 2, "precision": "bf16", "loop": "plain"},
          {"model": PLAIN, "train": "linear-probe", "precision": "fp16"},
          {"model": GATED, "drop_path": 0.2, "attn_dropout": 0.1, "precision": "bf16"},
          # the layer holds the attention weights, dropped out and wider than what is saved
          {"model": PLAIN, "attn_dropout": 0.1, "attn": "eager", "precision": "bf16", "num_classes": 2,
           "dim": 96, "heads": 6, "mlp_ratio": 1.0, "loop": "plain"},
          {"model": PLAIN, "accum": 2, "patch": 32, "num_classes": 10, "precision": "bf16"},
      ]),
]  # fmt: skip
