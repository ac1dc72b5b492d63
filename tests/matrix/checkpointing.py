"""Checkpointing, re-entrant and not: families, precisions, loops, a part of the blocks, dropouts, frozen parts."""

from __future__ import annotations

from typing import Any

VIT, TIMM_SWIN, CAIT, XCIT = (
    "vit_base_patch16_224", "swin_tiny_patch4_window7_224", "cait_xxs24_224", "xcit_nano_12_p16_224",
)  # fmt: skip
HF, SWIN, V2 = (
    "google/vit-base-patch16-224", "microsoft/swin-tiny-patch4-window7-224",
    "microsoft/swinv2-tiny-patch4-window8-256",
)  # fmt: skip
DINOV3, BEIT, DATA2VEC = (
    "facebook/dinov3-vits16-pretrain-lvd1689m", "microsoft/beit-base-patch16-224", "facebook/data2vec-vision-base",
)  # fmt: skip
SMALL = {"bs": 2, "res": "96", "window": 3}

REENTRANT: list[dict[str, Any]] = [
    {**case, "grad_checkpointing": True, "checkpoint_reentrant": True}
    for case in [
        # precision x loop
        *({"model": VIT, "bs": 3, "depth": 3, "precision": precision, "loop": loop}
          for precision, loop in [
              ("fp16", "timm"), ("bf16", "plain"), ("fp32", "trainer"), ("pure-bf16", "timm"), ("pure-fp16", "plain"),
          ]),
        *({"model": HF, "bs": 3, "depth": 3, "precision": precision, "loop": loop}
          for precision, loop in [
              ("fp16", "trainer"), ("bf16", "timm"), ("fp32", "plain"), ("pure-bf16", "trainer"), ("fp16", "plain"),
          ]),
        # a part of the blocks, accumulation, dropouts
        *({"model": model, "bs": 2, "depth": 4, **settings}
          for model in (VIT, HF)
          for settings in [
              {"checkpoint_layers": 2, "precision": "bf16", "attn": "eager"},
              {"checkpoint_layers": 3, "precision": "fp16", "accum": 3, "loop": "plain"},
              {"dropout": 0.1, "attn_dropout": 0.1, "precision": "bf16", "loop": "timm"},
              {"attn_dropout": 0.1, "attn": "eager", "precision": "fp32", "accum": 2},
          ]),
        {"model": VIT, "bs": 2, "depth": 3, "drop_path": 0.2, "patch_drop": 0.5, "precision": "bf16", "loop": "timm"},
        {"model": VIT, "bs": 2, "depth": 3, "optim": "sgd", "zero_grad": "after-step", "loop": "plain", "ema": True},
        # frozen: the checkpointed blocks are, or nothing in front of them is trained and they get no gradient
        *({"model": model, "bs": 2, "depth": 3, **settings}
          for model in (VIT, HF)
          for settings in [
              {"freeze_layers": 2, "checkpoint_layers": 2, "precision": "bf16"},
              {"freeze_layers": 1, "precision": "fp16"},
              {"train": "linear-probe", "precision": "bf16", "loop": "plain"},
              {"train": "lora", "precision": "bf16", "accum": 2},
          ]),
        {"model": VIT, "bs": 2, "depth": 3, "train": "lora", "lora_targets": "all-linear", "precision": "bf16"},
        {"model": HF, "bs": 2, "depth": 3, "train": "lora", "checkpoint_layers": 2, "precision": "pure-bf16"},
        # stages, with blocks checkpointed inside them; a stage's copy that nobody uses has a gradient of zeros
        *({"model": SWIN, **SMALL, **settings}
          for settings in [
              {"precision": "bf16"}, {"precision": "fp16", "attn": "eager"}, {"precision": "fp32", "loop": "plain"},
              {"precision": "bf16", "checkpoint_layers": 5, "accum": 2}, {"precision": "fp16", "freeze_layers": 3},
              {"precision": "pure-bf16", "dropout": 0.1, "attn_dropout": 0.1, "loop": "timm"},
              {"precision": "bf16", "checkpoint_layers": 2, "drop_path": 0.3}, {"train": "lora", "precision": "bf16"},
          ]),
        *({"model": V2, "bs": 2, "res": "96", **settings}
          for settings in [
              {"precision": "bf16"}, {"precision": "fp16", "checkpoint_layers": 4, "loop": "plain"},
              {"precision": "fp32", "freeze_layers": 3}, {"precision": "bf16", "dropout": 0.1, "accum": 2},
          ]),
        *({"model": TIMM_SWIN, "bs": 1, **settings}
          for settings in [
              {"precision": "bf16", "drop_path": 0.1, "loop": "timm"}, {"precision": "fp16", "checkpoint_layers": 3},
              {"precision": "fp32", "attn": "sdpa", "loop": "plain"},
          ]),
        {"model": "swinv2_tiny_window8_256", "bs": 1, "res": "64", "precision": "fp16", "loop": "timm"},
        {"model": "swinv2_cr_tiny_224", "bs": 1, "precision": "bf16", "loop": "timm"},
        # other blocks: batch norm inside, class tokens of their own, arguments that are bound to the function
        *({"model": model, "bs": 2, "depth": 3, **settings}
          for model in (CAIT, XCIT)
          for settings in [{"precision": "bf16", "loop": "timm"}, {"precision": "fp16", "checkpoint_layers": 2}]),
        *({"model": DINOV3, "bs": 2, "depth": 3, **settings}
          for settings in [
              {"precision": "bf16"}, {"precision": "fp16", "loop": "plain"}, {"precision": "fp32", "loop": "timm"},
              {"precision": "bf16", "checkpoint_layers": 1, "accum": 2, "loop": "plain"},
          ]),
        *({"model": BEIT, "bs": 2, "depth": 3, **settings}
          for settings in [{"precision": "bf16"}, {"precision": "fp16", "attn": "eager", "loop": "plain"}]),
        *({"model": DATA2VEC, "bs": 2, "depth": 3, **settings}
          for settings in [{"precision": "bf16"}, {"precision": "fp16", "loop": "plain"}]),
        *({"model": model, "bs": 2, "depth": 2, "precision": precision}
          for model, precision in [
              ("facebook/deit-base-patch16-224", "fp16"), ("facebook/dinov2-base", "bf16"),
              ("facebook/dinov2-with-registers-base", "fp16"), ("facebook/vit-mae-base", "bf16"),
              ("facebook/vit-msn-base", "fp16"), ("openai/clip-vit-base-patch32", "bf16"),
              ("google/siglip-base-patch16-224", "fp32"), ("facebook/deit-base-distilled-patch16-224", "fp16"),
          ]),
    ]
]  # fmt: skip

#: Under autocast, all blocks and a part of them, where a family's own module has no such case.
PLAIN: list[dict[str, Any]] = [
    {"model": model, "bs": 2, "grad_checkpointing": True, **settings}
    for model, settings in [
        ("openai/clip-vit-base-patch32", {"depth": 2, "precision": "bf16"}),
        ("google/siglip-base-patch16-224", {"depth": 2, "precision": "fp16"}),
        ("facebook/vit-mae-base", {"depth": 2, "precision": "fp16"}),
        (DATA2VEC, {"depth": 3, "precision": "fp16", "checkpoint_layers": 1}),
        (HF, {"depth": 4, "precision": "fp16", "checkpoint_layers": 3}),
        ("facebook/dinov2-base", {"depth": 3, "precision": "bf16", "checkpoint_layers": 1}),
        ("facebook/dinov2-with-registers-base", {"depth": 3, "precision": "bf16"}),
        ("facebook/dinov2-with-registers-base", {"depth": 3, "precision": "fp16", "checkpoint_layers": 2}),
        ("facebook/vit-msn-base", {"depth": 3, "precision": "bf16", "checkpoint_layers": 1}),
        ("facebook/deit-base-distilled-patch16-224", {"depth": 3, "precision": "bf16"}),
        ("facebook/deit-base-distilled-patch16-224", {"depth": 3, "precision": "fp16", "checkpoint_layers": 1}),
        (V2, {"res": "96", "precision": "bf16", "checkpoint_layers": 4}),
    ]
]

CASES = REENTRANT + PLAIN
