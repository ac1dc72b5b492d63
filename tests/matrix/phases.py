"""Evaluations and an epoch's smaller last step, in the three loops."""

from __future__ import annotations

from typing import Any

TIMM, HF = "vit_tiny_patch16_224", "WinKawaks/vit-tiny-patch16-224"

CASES: list[dict[str, Any]] = [
    # batches of an evaluation: one, two, many, a smaller last one
    *({"model": TIMM, "bs": 1, "depth": 1, "loop": loop, "eval_bs": 3, "eval_samples": samples}
      for loop in ("trainer", "plain", "timm") for samples in (1, 6, 19, 60)),
    *({"model": HF, "bs": 1, "depth": 1, "eval_bs": 2, "eval_samples": samples, "eval_accum": accum}
      for samples, accum in [(9, 1), (9, 2), (12, 3), (41, 9), (5, 9)]),
    {"model": HF, "bs": 1, "depth": 1, "eval_bs": 4, "eval_samples": 30, "num_classes": 20_000, "precision": "bf16"},
    {"model": TIMM, "bs": 1, "depth": 1, "eval_bs": 4, "num_classes": 3, "loop": "timm"},
    {"model": "facebook/vit-mae-base", "bs": 1, "depth": 1, "eval_bs": 4, "eval_samples": 30},
    # nothing is dropped in an evaluation, and nothing is recomputed
    {"model": TIMM, "bs": 1, "depth": 2, "loop": "plain", "eval_bs": 4, "dropout": 0.1, "attn": "eager"},
    {"model": TIMM, "bs": 1, "depth": 2, "loop": "timm", "eval_bs": 4, "patch_drop": 0.5, "grad_checkpointing": True},
    {"model": "eva02_tiny_patch14_224", "bs": 1, "depth": 2, "eval_bs": 4, "patch_drop": 0.5},
    {"model": "facebook/dinov2-small", "bs": 1, "depth": 2, "eval_bs": 4, "drop_path": 0.2, "zero_grad": "keep"},
    # an epoch's smaller last step; timm's loader drops it
    *({"model": TIMM, "bs": 4, "depth": 1, "loop": loop, "accum": accum, "train_samples": samples}
      for loop in ("trainer", "plain") for accum, samples in [(1, 41), (2, 14), (3, 47), (3, 3)]),
    {"model": HF, "bs": 4, "depth": 1, "loop": "timm", "train_samples": 41},
    *({"model": TIMM, "bs": 2, "depth": 1, "loop": loop, "accum": accum, "train_samples": samples}
      for loop in ("trainer", "plain") for accum, samples in [(5, 19), (6, 15)]),
    # what the loops add: an average that timm evaluates too, labels that are not mixed, a loss that is smoothed or not
    *({"model": TIMM, "bs": 2, "depth": 1, "loop": loop, "eval_bs": 20, "ema": True}
      for loop in ("trainer", "plain", "timm")),
    *({"model": HF, "bs": 2, "depth": 1, "loop": loop, "eval_bs": 20, "label_smoothing": 0.2, "num_classes": 20_000,
       "precision": precision}
      for loop in ("trainer", "plain", "timm") for precision in ("bf16", "pure-bf16")),
    *({"model": TIMM, "bs": 2, "depth": 1, "loop": loop, "eval_bs": 20, "num_classes": 20_000, "mixup": True}
      for loop in ("plain", "timm")),
    {"model": TIMM, "bs": 4, "depth": 1, "loop": "plain", "mixup": True, "train_samples": 10},
    *({"model": model, "bs": 2, "depth": 1, "loop": loop, "eval_bs": 20, "train": "lora", "lora_dropout": 0.1}
      for model in (TIMM, HF) for loop in ("trainer", "plain", "timm")),
]  # fmt: skip
