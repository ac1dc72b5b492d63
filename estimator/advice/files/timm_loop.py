"""The files for timm's ``train.py`` (1.0.31), which is no part of the package: the user has a clone of timm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...errors import NotModelled
from .launch import env_sh, launch_sh
from .library import LIBRARIES
from .optimizers import TIMM
from .order import Order
from .readme import readme

__all__ = ["arguments", "texts"]

#: Overrides that train.py has an option for, and hands on to the model whether it was given or not.
_OPTIONS = {"drop_rate": "drop", "drop_path_rate": "drop_path"}
#: Strengths of DeiT's recipe; any others take the same memory.
_MIXUP = {"mixup": 0.8, "cutmix": 1.0}


def texts(order: Order) -> Mapping[str, str]:
    """Every file by name."""
    lines = [f"{name}: {json.dumps(value)}" for name, value in arguments(order).items()]
    return {
        "args.yaml": "\n".join(["# timm's train.py --config args.yaml", *lines, ""]),
        "launch.sh": launch_sh(order),
        "env.sh": env_sh(order),
        "README.md": readme(order, ["--loop", "timm"], {"loop": "timm"}),
    }


def arguments(order: Order) -> dict[str, Any]:
    """Arguments of ``train.py`` by name."""
    settings = order.settings
    own = TIMM.get(settings.optim or "")
    if own is None:
        raise NotModelled(
            f"--write cannot name the optimizer {settings.optim!r} to timm's train.py; use one of {', '.join(TIMM)}"
        )
    overrides = LIBRARIES["timm"].overrides(order, settings)
    options = {theirs: overrides.pop(ours) for ours, theirs in _OPTIONS.items() if ours in overrides}
    height, width = order.model.image_size
    return {
        "model": order.timm_model[0],
        "num_classes": settings.num_classes,
        "pretrained": order.whole is None,
        "input_size": [3, height, width],
        **({"model_kwargs": overrides} if overrides else {}),
        **options,
        "batch_size": settings.bs,
        "grad_accum_steps": settings.accum,
        "validation_batch_size": settings.eval_bs,
        **_precision(settings.precision),
        "grad_checkpointing": settings.grad_checkpointing,
        **own,
        **({"clip_grad": settings.clip_grad} if settings.clip_grad else {}),
        "smoothing": settings.label_smoothing,
        **(_MIXUP if settings.mixup else {}),
        "model_ema": settings.ema,
        "workers": settings.workers,
        "pin_mem": settings.pin_memory,
    }


def _precision(precision: str) -> dict[str, Any]:
    """Autocast, or the type of the whole model."""
    name = {"fp16": "float16", "bf16": "bfloat16"}.get(precision.removeprefix("pure-"))
    if name is None:
        return {"amp": False}
    return {"amp": False, "model_dtype": name} if precision.startswith("pure") else {"amp": True, "amp_dtype": name}
