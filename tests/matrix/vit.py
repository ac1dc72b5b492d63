"""Every feature of the step, on timm's and transformers' Vision Transformers, timm's Swin, and DINOv2."""

from __future__ import annotations

from typing import Any

TIMM, HF = "vit_tiny_patch16_224", "WinKawaks/vit-tiny-patch16-224"
DEIT = "facebook/deit-tiny-distilled-patch16-224"
PRECISIONS = ("fp32", "fp16", "bf16", "pure-fp16", "pure-bf16")

CASES: list[dict[str, Any]] = [
    # precision x attention x library, three blocks
    *({"model": model, "bs": 2, "depth": 3, "precision": precision, "attn": attn}
      for model in (TIMM, HF) for precision in PRECISIONS for attn in ("eager", "sdpa")),
    # resolution x batch, whole models
    *({"model": model, "bs": bs, "res": res, "precision": precision}
      for model, res, bs, precision in [
          (TIMM, "224", 8, "fp16"), (TIMM, "256x128", 5, "bf16"), (TIMM, "384", 2, "fp32"), (TIMM, "100", 3, "fp16"),
          (HF, "224", 8, "fp16"), (HF, "96x160", 5, "bf16"), (HF, "384", 2, "fp32"), (HF, "100", 3, "fp16"),
          (DEIT, "224", 4, "fp16"), (DEIT, "384", 1, "pure-bf16"),
          ("google/vit-base-patch16-224", "224", 1, "fp16"), ("vit_base_patch16_224", "384", 4, "bf16"),
          ("vit_small_patch16_384", "512", 2, "bf16"), ("google/vit-large-patch32-384", "384", 2, "bf16"),
      ]),
    # optimizer x loop
    *({"model": TIMM, "bs": 2, "depth": 2, "optim": optim, "loop": loop, "precision": "bf16"}
      for optim in ("adamw_torch", "adamw_torch_fused", "sgd", "sgd-momentum", "adafactor")
      for loop in ("trainer", "plain")),
    *({"model": model, "bs": 2, "depth": 2, "loop": "timm", "precision": precision}
      for model, precision in [(TIMM, "fp16"), (HF, "bf16"), ("deit_tiny_distilled_patch16_224", "fp32")]),
    # when gradients go, and accumulation
    *({"model": TIMM, "bs": 2, "depth": 2, "loop": loop, "zero_grad": when, "accum": 2}
      for loop in ("trainer", "plain", "timm") for when in ("after-step", "before-backward", "before-forward", "keep")),
    {"model": HF, "bs": 2, "depth": 2, "accum": 5},
    {"model": TIMM, "bs": 2, "depth": 2, "accum": 4, "loop": "timm", "precision": "bf16"},
    # dropouts, checkpointing, what is trained
    {"model": TIMM, "bs": 2, "depth": 3, "dropout": 0.1, "attn_dropout": 0.1, "drop_path": 0.2, "precision": "bf16"},
    {"model": TIMM, "bs": 2, "depth": 3, "attn_dropout": 0.1, "attn": "eager", "patch_drop": 0.4},
    {"model": HF, "bs": 2, "depth": 3, "dropout": 0.1, "attn_dropout": 0.1},
    {"model": HF, "bs": 2, "depth": 3, "dropout": 0.1, "attn_dropout": 0.1, "attn": "eager", "precision": "bf16"},
    {"model": TIMM, "bs": 4, "depth": 4, "grad_checkpointing": True, "precision": "bf16"},
    {"model": TIMM, "bs": 4, "depth": 4, "grad_checkpointing": True, "checkpoint_layers": 2, "attn": "eager"},
    {"model": HF, "bs": 4, "depth": 4, "grad_checkpointing": True, "precision": "pure-bf16"},
    {"model": TIMM, "bs": 4, "depth": 4, "train": "linear-probe"},
    {"model": HF, "bs": 4, "depth": 4, "freeze_layers": 2, "precision": "fp32", "loop": "plain"},
    # overrides of the architecture
    {"model": TIMM, "bs": 3, "dim": 180, "heads": 3, "depth": 2},
    {"model": HF, "bs": 2, "dim": 128, "heads": 4, "depth": 2, "mlp_ratio": 3.0, "patch": 14, "num_classes": 10},
    {"model": TIMM, "bs": 2, "depth": 2, "patch": 7, "precision": "bf16", "loop": "plain"},
    {"model": HF, "bs": 2, "dim": 100, "depth": 1}, {"model": HF, "bs": 2, "dim": 96, "depth": 1, "attn": "eager"},
    # windows: shifted, padded, shrunk to the grid, of several sizes
    *({"model": "swin_tiny_patch4_window7_224", "bs": 2, **settings}
      for settings in [
          {"precision": "bf16"}, {"precision": "fp32", "loop": "plain", "drop_path": 0.0}, {"res": "96", "bs": 1},
          {"res": "256", "loop": "timm"}, {"res": "224x160", "window": 8},
          {"grad_checkpointing": True, "precision": "bf16"},
          {"freeze_layers": 3, "precision": "bf16"}, {"train": "linear-probe"}, {"attn": "sdpa", "precision": "fp32"},
          {"attn": "sdpa", "precision": "bf16", "attn_dropout": 0.1},
          {"grad_checkpointing": True, "checkpoint_layers": 5},
      ]),
    {"model": "swin_s3_tiny_224", "bs": 2, "precision": "pure-bf16", "attn_dropout": 0.1, "dropout": 0.1},
    # position embeddings interpolated in forward, registers, SwiGLU
    *({"bs": 2, "depth": 2, **settings}
      for settings in [
          {"model": "facebook/dinov2-small", "res": "518", "precision": "bf16"},
          {"model": "facebook/dinov2-small", "res": "512x384", "precision": "fp32", "attn": "eager"},
          {"model": "facebook/dinov2-small", "res": "131", "precision": "pure-bf16", "mlp_ratio": 3.0},
          {"model": "facebook/dinov2-base", "res": "224", "drop_path": 0.1, "grad_checkpointing": True},
          {"model": "facebook/dinov2-with-registers-small", "res": "224", "precision": "pure-bf16", "attn": "eager"},
          {"model": "facebook/dinov2-with-registers-giant", "res": "512", "precision": "bf16", "loop": "plain"},
      ]),
    # found by comparing random configurations
    {"model": "swin_tiny_patch4_window7_224", "bs": 2, "attn": "sdpa", "train": "linear-probe"},
    {"model": HF, "bs": 3, "depth": 2, "precision": "fp32", "optim": "sgd", "zero_grad": "before-forward"},
    {"model": "vit_base_patch16_clip_224", "bs": 5, "depth": 2, "loop": "plain", "zero_grad": "before-forward"},
    {"model": "aimv2_1b_patch14_224", "bs": 1, "depth": 2, "precision": "pure-bf16", "optim": "adamw_torch"},
    {"model": "test_vit", "bs": 2, "depth": 1, "optim": "sgd", "patch_drop": 0.25, "freeze_layers": 1},
    {"model": "deit_tiny_distilled_patch16_224", "bs": 3, "depth": 1, "loop": "timm", "accum": 2, "patch_drop": 0.25},
    {"model": "test_vit4", "bs": 3, "depth": 3, "optim": "adamw_torch", "num_classes": 2},
    # one of every kind of block, norm, pool and token
    *({"model": model, "bs": 2, "depth": 2, "precision": precision}
      for model, precision in [
          ("aimv2_1b_patch14_224", "bf16"), ("beit3_base_patch16_224", "fp16"), ("vit_base_patch16_siglip_224", "bf16"),
          ("vit_base_patch16_xp_224", "bf16"), ("vit_base_patch16_rpn_224", "fp16"),
          ("vit_pwee_patch16_reg1_gap_256", "fp32"),
          ("vit_small_patch16_18x2_224", "bf16"), ("vit_giant_patch14_reg4_dinov2", "fp16"),
          ("deit3_small_patch16_224", "bf16"),
          ("vit_base_patch16_clip_quickgelu_224", "bf16"), ("test_vit", "fp16"),
          ("test_vit2", "pure-bf16"), ("test_vit3", "fp32"),
          ("vit_so150m_patch16_reg4_gap_256", "bf16"), ("vit_intern300m_patch14_448", "bf16"),
      ]),
]  # fmt: skip
