"""The files for a plain PyTorch loop."""

from __future__ import annotations

from collections.abc import Mapping

from . import building
from .launch import env_sh, launch_sh
from .library import model_config
from .optimizers import ON_CPU, made
from .order import Order
from .readme import readme
from .render import script

__all__ = ["texts"]

_AUTOCAST = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}


def texts(order: Order) -> Mapping[str, str]:
    """Every file by name."""
    config = {"model_config.json": model_config(order)} if order.library == "transformers" else {}
    return {
        "train.py": _script(order),
        **config,
        "launch.sh": launch_sh(order),
        "env.sh": env_sh(order),
        "README.md": readme(order, ["--loop", "plain"], {"loop": "plain"}),
    }


def _script(order: Order) -> str:
    settings = order.settings
    own = made(settings.optim or "")
    on_cpu = own if settings.optim in ON_CPU or not own.package else made("adamw_torch")
    constants = {
        **building.constants(order),
        "MICRO_BATCH": repr(settings.bs),
        "ACCUMULATION": repr(settings.accum),
        "EVAL_BATCH": repr(settings.eval_bs),
        "AUTOCAST": _AUTOCAST.get(settings.precision, "None"),
        "OPTIMIZER": own.text,
        "OPTIMIZER_ON_CPU": on_cpu.text,
        "ZERO_GRAD": repr(settings.zero_grad),
        "CLIP_GRAD": repr(settings.clip_grad),
        "LABEL_SMOOTHING": repr(settings.label_smoothing or 0.0),
        "DROP_LAST": repr(settings.train_samples is None),
        "PREFETCH": repr(settings.prefetch),
        "PIN_MEMORY": repr(settings.pin_memory),
    }
    mixup = ["mixup"] if settings.mixup else []
    values = {**building.values(order), "collate": "mixed" if mixup else "collate"}
    averages = "plain_ema" if settings.ema else "plain_no_ema"
    return script(
        [*building.fragments(order), *mixup, averages, "plain"], constants, values, modules=[own.module, on_cpu.module]
    )
