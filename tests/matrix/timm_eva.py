"""timm's Eva: every kind of rotary embedding, attention, block, MLP and pool of its models."""

from __future__ import annotations

from typing import Any

EVA02, ROPE, MIXED = "eva02_tiny_patch14_224", "vit_small_patch16_rope_224", "vit_small_patch16_rope_mixed_224"
DINOV3, PE = "vit_small_patch16_dinov3", "vit_pe_core_tiny_patch16_384"

CASES: list[dict[str, Any]] = [
    # precision x attention
    *({"model": EVA02, "bs": 2, "depth": 2, "precision": precision, "attn": attn}
      for precision in ("fp32", "fp16", "bf16", "pure-bf16") for attn in ("eager", "sdpa")),
    # resolution, batch and loop, for a table that is kept, one that is made, and one that is learnt
    *({"model": model, "bs": bs, "depth": 2, "res": res, "precision": precision, "loop": loop}
      for model, res, bs, precision, loop in [
          (EVA02, "100", 3, "fp16", "plain"), (EVA02, "112x168", 1, "bf16", "timm"),
          (EVA02, "448", 1, "fp32", "trainer"),
          (DINOV3, "256", 3, "bf16", "timm"), (DINOV3, "64x160", 2, "fp16", "plain"),
          (MIXED, "224", 2, "bf16", "plain"), (MIXED, "96x128", 3, "fp32", "timm"),
      ]),
    # dropouts; patch dropout takes each image's own rows of the table
    *({"bs": 2, "depth": 3, "drop_path": 0.2, "attn_dropout": 0.1, "dropout": 0.1, **settings}
      for settings in [
          {"model": EVA02, "patch_drop": 0.5, "precision": "bf16"},
          {"model": DINOV3, "patch_drop": 0.9, "res": "512", "attn": "eager"},
          {"model": MIXED, "patch_drop": 0.25, "precision": "pure-fp16"},
          {"model": "vit_pe_core_gigantic_patch14_448", "bs": 1, "depth": 1, "res": "112", "patch_drop": 0.5},
      ]),
    # checkpointing, and what is trained
    *({"bs": 2, "depth": 3, **settings}
      for settings in [
          {"model": EVA02, "grad_checkpointing": True, "precision": "bf16"},
          {"model": DINOV3, "grad_checkpointing": True, "checkpoint_layers": 1, "attn": "eager"},
          {"model": MIXED, "grad_checkpointing": True, "precision": "pure-bf16", "patch_drop": 0.5},
          {"model": ROPE, "freeze_layers": 2, "precision": "bf16"},
          {"model": MIXED, "freeze_layers": 1, "loop": "plain"},
          {"model": EVA02, "train": "linear-probe"},
          {"model": MIXED, "train": "linear-probe", "precision": "fp32", "patch_drop": 0.5},
      ]),
    # overrides of the architecture
    {"model": EVA02, "bs": 2, "dim": 128, "heads": 4, "depth": 2, "mlp_ratio": 2.5, "patch": 16, "num_classes": 10},
    {"model": PE, "bs": 2, "depth": 2, "heads": 6, "patch": 32, "accum": 2, "optim": "adamw_torch"},
    # fewer heads of keys than of queries, and RMS norms of both
    {"model": "vit_base_patch16_sapiens2", "bs": 1, "res": "64x96", "precision": "bf16"},
    {"model": "vit_base_patch16_sapiens2", "bs": 1, "res": "64", "heads": 24, "grad_checkpointing": True},
    # one of every other kind of block, MLP, norm, position and pool
    *({"model": model, "bs": 1, "depth": 2, "precision": precision}
      for model, precision in [
          ("eva_giant_patch14_224", "bf16"), ("eva02_enormous_patch14_clip_224", "fp16"),
          ("eva02_base_patch14_224", "bf16"), ("eva02_base_patch16_clip_224", "fp16"),
          ("vit_tiny_patch16_dinov3_qkvb", "bf16"), ("vit_small_plus_patch16_dinov3", "fp16"),
          ("vit_small_patch16_lingbot", "bf16"), ("vit_small_patch16_rope_ape_224", "bf16"),
          ("vit_small_patch16_rope_mixed_ape_224", "fp16"), ("vit_medium_patch16_rope_reg1_gap_256", "bf16"),
          (PE, "bf16"), ("vit_pe_spatial_tiny_patch16_512", "fp16"), ("vit_pe_lang_large_patch14_448", "bf16"),
      ]),
]  # fmt: skip
