"""An optimizer's name as the class and the arguments that the loops are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import NotModelled

__all__ = ["MADE_FOR_TRAINER", "ON_CPU", "TIMM", "Made", "made"]


class Made(NamedTuple):
    """``module`` has the class ``name``, made with ``arguments``; ``package`` is what pip installs for it."""

    module: str
    name: str
    arguments: str = "{}"
    package: str = ""

    @property
    def text(self) -> str:
        """As a Python expression."""
        return f"({self.module}.{self.name}, {self.arguments})"


_TORCH = "torch.optim"
_BNB = ("bitsandbytes.optim", "bitsandbytes")
#: Optimizers as their constructor; torch takes its foreach implementation on CUDA where nobody says.
_MADE = {
    "adamw_torch": Made(_TORCH, "AdamW"),
    "adamw_torch_fused": Made(_TORCH, "AdamW", "{'fused': True}"),
    "sgd": Made(_TORCH, "SGD"),
    "sgd-momentum": Made(_TORCH, "SGD", "{'momentum': 0.9}"),
    "sgd-nesterov": Made(_TORCH, "SGD", "{'momentum': 0.9, 'nesterov': True}"),
    "adagrad": Made(_TORCH, "Adagrad"),
    "rmsprop": Made(_TORCH, "RMSprop"),
    "adam": Made(_TORCH, "Adam"),
    "nadam": Made(_TORCH, "NAdam"),
    "radam": Made(_TORCH, "RAdam"),
    "adamax": Made(_TORCH, "Adamax"),
    "adafactor": Made("transformers", "Adafactor", "{'scale_parameter': False, 'relative_step': False}"),
    "lion": Made("timm.optim", "Lion", "{'foreach': True}"),
    "adamw_bnb_8bit": Made(_BNB[0], "AdamW8bit", package=_BNB[1]),
    "adamw_8bit": Made(_BNB[0], "AdamW8bit", package=_BNB[1]),
    "lion_32bit": Made(_BNB[0], "Lion32bit", package=_BNB[1]),
    "lion_8bit": Made(_BNB[0], "Lion8bit", package=_BNB[1]),
}
#: Optimizers that are no name of Trainer's ``optim`` (transformers 5.24, training_args.py, ``OptimizerNames``).
MADE_FOR_TRAINER = frozenset({"sgd-momentum", "sgd-nesterov", "adam", "nadam", "radam", "adamax", "lion"})
#: Names of Trainer's ``optim`` that run on a CPU as well, without a package of their own.
ON_CPU = frozenset({"adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop", "adafactor"})

#: timm's ``--opt`` with what else says the same (timm 1.0.31, optim/_optim_factory.py).
TIMM: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"opt": "momentum", "momentum": 0.0},
    "sgd-momentum": {"opt": "momentum", "momentum": 0.9},
    "sgd-nesterov": {"opt": "sgd", "momentum": 0.9},
    "adamw_torch": {"opt": "adamw"},
    "adamw_torch_fused": {"opt": "adamw", "opt_kwargs": {"fused": True}},
    "adam": {"opt": "adam"},
    "nadam": {"opt": "nadam"},
    "radam": {"opt": "radam"},
    "adamax": {"opt": "adamax"},
    "adagrad": {"opt": "adagrad"},
    "lion": {"opt": "lion"},
    "adamw_bnb_8bit": {"opt": "bnbadamw8bit"},
}


def made(name: str) -> Made:
    """The row of ``name``; raises NotModelled where no script can make it."""
    if name not in _MADE:
        raise NotModelled(f"--write cannot make the optimizer {name!r} in this loop; use one of {', '.join(_MADE)}")
    return _MADE[name]
