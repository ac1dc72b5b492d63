"""LoRA by PEFT's conventions: families, precisions, loops, checkpointing, dropout, rank, targets, frozen blocks.

Where the library hands a layer's weight to ``F.linear`` itself (timm's BEiT, EVA and SwinV2, torchvision's Swin,
``nn.MultiheadAttention``'s output) the adapter exists and is never run.
"""

from __future__ import annotations

from typing import Any

TIMM, HF = "vit_tiny_patch16_224", "WinKawaks/vit-tiny-patch16-224"
SWIN, HF_SWIN = "swin_tiny_patch4_window7_224", "microsoft/swin-tiny-patch4-window7-224"
DINO, REGISTERS = "facebook/dinov2-small", "facebook/dinov2-with-registers-giant"
DINOV3 = "facebook/dinov3-vits16-pretrain-lvd1689m"
BEIT, DATA2VEC = "microsoft/beit-base-patch16-224", "facebook/data2vec-vision-base"
SIGLIP, CLIP = "google/siglip-base-patch16-224", "openai/clip-vit-base-patch32"
XCIT = "xcit_nano_12_p8_224"
ALL = "all-linear"
PRECISIONS = ("fp32", "fp16", "bf16", "pure-fp16", "pure-bf16")

CASES: list[dict[str, Any]] = [
    {"train": "lora", **settings} for settings in [
        # precision x library: adapters are fp32, also beside 16-bit weights
        *({"model": model, "bs": 2, "depth": 2, "precision": precision} for model in (TIMM, HF)
          for precision in PRECISIONS),
        # loop x accumulation x gradients that stay
        *({"model": model, "bs": 2, "depth": 2, "precision": "bf16", "loop": loop, "accum": 2}
          for model in (TIMM, HF) for loop in ("trainer", "plain", "timm")),
        {"model": TIMM, "bs": 2, "depth": 2, "zero_grad": "keep", "accum": 2, "loop": "plain"},
        {"model": HF, "bs": 2, "depth": 2, "zero_grad": "before-forward", "precision": "fp32"},
        # rank, dropout, what is adapted: linear layers, the patch embedding's convolution among ``proj``
        {"model": TIMM, "bs": 2, "depth": 2, "lora_rank": 1}, {"model": HF, "bs": 2, "depth": 2, "lora_rank": 64},
        *({"model": model, "bs": 2, "depth": 2, "lora_dropout": 0.1, "precision": precision, "lora_targets": chosen}
          for model, precision, chosen in [
              (TIMM, "fp16", ALL), (HF, "bf16", ALL), (TIMM, "pure-bf16", "qkv,proj"), (HF, "fp32", "o_proj,fc2")]),
        {"model": TIMM, "bs": 2, "depth": 2, "lora_targets": "qkv,proj", "precision": "bf16", "loop": "timm"},
        {"model": TIMM, "bs": 2, "depth": 2, "lora_targets": "blocks.1.attn.qkv,mlp.fc1", "attn": "eager"},
        {"model": HF, "bs": 2, "depth": 2, "lora_targets": "projection", "precision": "pure-fp16", "lora_dropout": 0.2},
        # checkpointing: the blocks before the first adapter, and all of them
        {"model": TIMM, "bs": 2, "depth": 3, "grad_checkpointing": True, "precision": "bf16", "lora_targets": ALL},
        {"model": HF, "bs": 2, "depth": 3, "grad_checkpointing": True, "lora_dropout": 0.1},
        {"model": HF, "bs": 2, "depth": 3, "grad_checkpointing": True, "checkpoint_layers": 2, "precision": "fp32"},
        {"model": TIMM, "bs": 2, "depth": 3, "grad_checkpointing": True, "freeze_layers": 1, "precision": "pure-bf16"},
        {"model": HF_SWIN, "bs": 1, "grad_checkpointing": True, "lora_targets": ALL, "precision": "bf16"},
        # frozen blocks get no adapter
        {"model": TIMM, "bs": 2, "depth": 3, "freeze_layers": 2, "precision": "bf16"},
        {"model": TIMM, "bs": 2, "depth": 2, "freeze_layers": 0, "lora_targets": "proj"},
        {"model": HF, "bs": 2, "depth": 3, "freeze_layers": 1, "loop": "plain", "lora_targets": ALL},
        {"model": SWIN, "bs": 1, "freeze_layers": 5, "precision": "bf16"},
        # optimizers: states of two types, state for what is never updated, the step of all groups
        *({"model": HF, "bs": 2, "depth": 2, "precision": "pure-bf16", "optim": optim, "loop": loop}
          for optim, loop in [("adamw_torch", "trainer"), ("adagrad", "plain"), ("adafactor", "trainer")]),
        *({"model": TIMM, "bs": 1, "depth": 1, "precision": "pure-bf16", "optim": optim, "loop": "timm",
           "lora_targets": "qkv,proj"}
          for optim in ("lion", "nadam", "rmsprop", "adagrad", "adamax", "sgd-nesterov", "adam")),
        # families
        *({"model": model, "bs": 1, **({} if "swin" in model else {"depth": 2}), **settings}
          for model, settings in [
              (SWIN, {"precision": "bf16", "lora_dropout": 0.1, "lora_targets": "qkv,reduction"}),
              (SWIN, {"lora_targets": ALL, "loop": "timm", "grad_checkpointing": True}),
              ("swinv2_tiny_window8_256", {}), ("swinv2_tiny_window8_256", {"lora_targets": ALL, "precision": "bf16"}),
              ("swinv2_cr_tiny_ns_224", {"lora_targets": ALL}),
              ("beit_base_patch16_224", {"precision": "bf16"}), ("beitv2_base_patch16_224", {"lora_targets": ALL}),
              ("eva02_tiny_patch14_224", {"lora_targets": ALL}), ("eva02_base_patch14_448", {"precision": "bf16"}),
              ("cait_xxs24_224", {"lora_targets": ALL, "precision": "fp32"}),
              (XCIT, {"lora_targets": ALL}), (XCIT, {"lora_targets": "token_projection,qkv", "precision": "bf16"}),
              (XCIT, {"lora_targets": "conv1", "lora_rank": 128}),
              ("vit_relpos_base_patch16_224", {"lora_targets": ALL, "drop_path": 0.1}),
              ("vit_base_patch16_xp_224", {"lora_targets": ALL}),
              ("deit_tiny_distilled_patch16_224", {"lora_targets": ALL, "loop": "timm"}),
              ("vit_base_patch16_siglip_224", {"lora_targets": ALL, "patch_drop": 0.25}),
              ("aimv2_1b_patch14_224", {"lora_targets": ALL}),
              (DINO, {"res": "518", "precision": "bf16"}), (DINO, {"lora_targets": ALL, "precision": "pure-bf16"}),
              (REGISTERS, {"lora_targets": ALL}),
              (DINOV3, {"precision": "bf16", "loop": "plain"}), (DINOV3, {"lora_targets": ALL}),
              (BEIT, {"precision": "bf16"}), (BEIT, {"lora_targets": ALL, "grad_checkpointing": True}),
              (DATA2VEC, {"lora_targets": ALL}), (DATA2VEC, {"loop": "plain"}),
              (HF_SWIN, {"precision": "fp32"}), (HF_SWIN, {"freeze_layers": 3, "attn": "eager"}),
              ("microsoft/swinv2-tiny-patch4-window8-256", {"lora_targets": ALL, "precision": "bf16"}),
              ("microsoft/swinv2-tiny-patch4-window8-256", {"grad_checkpointing": True}),
              # odd grids: the padded copy lives to the end of the merging, which the recomputation stops in
              ("microsoft/swinv2-tiny-patch4-window8-256", {"grad_checkpointing": True, "res": "130"}),
              (SIGLIP, {"precision": "bf16"}), (SIGLIP, {"lora_targets": ALL, "loop": "timm"}),
              (CLIP, {"lora_targets": ALL, "precision": "pure-fp16"}), (CLIP, {"lora_dropout": 0.1}),
              ("facebook/deit-tiny-distilled-patch16-224", {"lora_targets": ALL}),
              ("facebook/vit-msn-base", {"precision": "bf16"}),
              ("facebook/vit-mae-base", {}), ("facebook/vit-mae-base", {"lora_targets": ALL, "loop": "plain"}),
              ("torchvision/vit_b_16", {"lora_targets": "mlp.0,mlp.3", "precision": "bf16"}),
              ("torchvision/vit_b_16", {"lora_targets": ALL, "loop": "plain"}),
              ("torchvision/swin_t", {}), ("torchvision/swin_t", {"lora_targets": ALL, "loop": "timm"}),
              ("torchvision/swin_v2_t", {"lora_targets": "features.0.0,mlp.0", "precision": "bf16"}),
              ("torchvision/swin_v2_t", {"lora_targets": ALL}),
          ]),
    ]
]  # fmt: skip
