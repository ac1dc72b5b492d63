"""What the loops do beside forward and backward: clipping, an EMA copy, softened labels, gradients that overlap."""

from __future__ import annotations

from typing import Any

TIMM, HF = "vit_tiny_patch16_224", "WinKawaks/vit-tiny-patch16-224"
LOOPS = ("trainer", "timm", "plain")
PRECISIONS = ("fp32", "fp16", "bf16", "pure-fp16", "pure-bf16")

#: Keeps the classifier's loss in sight: images so small that the logits are not lost among the activations.
LOSS = {"bs": 6, "depth": 1, "res": "32"}

CASES: list[dict[str, Any]] = [
    # losses: of class indices and of dense targets, with and without smoothing
    *({"model": HF, **LOSS, "loop": loop, "precision": precision, "label_smoothing": smoothing}
      for loop in LOOPS for precision in PRECISIONS for smoothing in (0.0, 0.2)),
    *({"model": TIMM, **LOSS, "loop": loop, "precision": precision, "mixup": True, "label_smoothing": smoothing}
      for loop in ("timm", "plain") for precision in PRECISIONS for smoothing in (0.0, 0.1)),
    *({"model": model, **LOSS, "precision": "bf16", "label_smoothing": 0.1, "accum": 3}
      for model in (TIMM, "torchvision/vit_b_16", "facebook/dinov2-small")),
    {"model": TIMM, **LOSS, "bs": 1, "loop": "plain", "mixup": True, "num_classes": 3},
    {"model": HF, **LOSS, "loop": "timm", "precision": "bf16", "mixup": True, "accum": 2, "num_classes": 21843},
    # clipping, with optimizers that take the scale and those that do not
    *({"model": TIMM, "bs": 2, "depth": 1, "loop": loop, "precision": precision, "clip_grad": norm, "optim": optim}
      for loop in LOOPS for precision in ("fp16", "bf16") for norm in (0.0, 1.5)
      for optim in ("adamw_torch_fused", "sgd-momentum")),
    {"model": TIMM, "bs": 2, "depth": 1, "loop": "plain", "precision": "pure-bf16", "clip_grad": 1, "optim": "sgd"},
    {"model": HF, "bs": 2, "depth": 2, "loop": "timm", "clip_grad": 1.0, "freeze_layers": 1, "optim": "adamw_torch"},
    # an EMA copy: of buffers, of frozen layers, of a model with its own loss, in every type
    *({"model": TIMM, "bs": 2, "depth": 2, "loop": loop, "precision": precision, "ema": True}
      for loop in LOOPS for precision in PRECISIONS),
    *({"model": model, "bs": 2, "loop": loop, "precision": precision, "ema": True}
      for model in ("swin_tiny_patch4_window7_224", "torchvision/swin_v2_t", "xcit_nano_12_p16_224")
      for loop, precision in [("timm", "pure-bf16"), ("plain", "fp16")]),
    *({"model": model, "bs": 2, "depth": 2, "loop": loop, "precision": "pure-bf16", "ema": True}
      for model in ("deit_tiny_distilled_patch16_224", "facebook/vit-mae-base") for loop in LOOPS),
    {"model": "facebook/deit-tiny-distilled-patch16-224", "bs": 2, "depth": 2, "ema": True, "label_smoothing": 0.1},
    {"model": "microsoft/swin-tiny-patch4-window7-224", "bs": 2, "loop": "plain", "ema": True, "mixup": True,
     "precision": "bf16"},
    *({"model": TIMM, "bs": 2, "depth": 2, "loop": loop, "ema": True, **frozen}
      for loop in ("trainer", "timm") for frozen in ({"train": "linear-probe"}, {"freeze_layers": 1})),
    # adapters and the weights under them are all copied, and the smoother finds the logits of an adapted model
    *({"model": model, "bs": 2, "train": "lora", "ema": True, "precision": "pure-bf16", **settings}
      for model, settings in [
          (TIMM, {"depth": 2, "loop": "timm"}), (TIMM, {"depth": 2, "loop": "plain", "mixup": True}),
          (HF, {"depth": 2, "loop": "timm", "zero_grad": "keep", "optim": "sgd", "clip_grad": 1.0}),
          (HF, {"depth": 2, "loop": "trainer", "precision": "fp16", "label_smoothing": 0.1}),
          ("swin_tiny_patch4_window7_224", {"loop": "timm"}),
      ]),
    # averages rounded chunk by chunk, while gradients still live
    *({"model": "vit_base_patch16_224", "bs": 1, "depth": 2, "res": "32", "loop": "timm", "precision": "pure-bf16",
       "optim": optim, "ema": True, "zero_grad": when}
      for optim in ("sgd", "adamw_torch_fused") for when in ("after-step", "before-backward", "keep")),
    {"model": "vit_large_patch14_dinov2", "bs": 1, "depth": 1, "loop": "timm", "precision": "pure-bf16", "optim": "sgd",
     "ema": True, "zero_grad": "keep", "res": "56"},
    *({"model": TIMM, **LOSS, "bs": 1, "loop": "plain", "precision": precision, "optim": "sgd", "ema": True,
       "zero_grad": when, "num_classes": 2}
      for precision in ("fp32", "pure-bf16") for when in ("after-step", "keep")),
    # when gradients go x accumulation, with everything else on
    *({"model": TIMM, "bs": 2, "depth": 1, "loop": loop, "zero_grad": when, "accum": accum, "ema": True,
       "clip_grad": 1.0, "precision": precision, "label_smoothing": 0.1, "mixup": loop != "trainer"}
      for loop, precision in (("trainer", "fp16"), ("timm", "bf16"), ("plain", "fp16"))
      for when in ("before-backward", "before-forward", "keep") for accum in (1, 2)),
]  # fmt: skip
