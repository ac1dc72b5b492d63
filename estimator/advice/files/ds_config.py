"""``ds_config.json`` for ZeRO under the Trainer (deepspeed 0.19.8), ``auto`` where the Trainer fills in its arguments.

``vitmem estimate --deepspeed`` reads the same plan back from it.
"""

from __future__ import annotations

from typing import Any

from ...deepspeed_file import OPTIONS
from ...parallel.zero_config import ZeroConfig
from .order import Order

__all__ = ["NAME", "document"]

NAME = "ds_config.json"
_AUTO = "auto"
#: What only stage 3 reads.
_STAGE_3 = ("stage3", "sub_group")
_TYPES = ("buffer_dtype", "grad_accum_dtype", "param_dtype")


def document(order: Order) -> dict[str, Any]:
    """The whole configuration; what was ``auto`` in the user's own file stays so."""
    config = ZeroConfig.of(order.settings, order.model)
    given = dict(order.settings.zero_options)
    zero: dict[str, Any] = {"stage": config.stage}
    for part in ("optimizer", "param"):
        if getattr(config, f"offload_{part}"):
            zero[f"offload_{part}"] = {"device": "cpu", "pin_memory": config.pin_memory}
    for name in OPTIONS:
        if config.stage == 3 or not name.startswith(_STAGE_3):
            zero[name] = _AUTO if given.get(name) == _AUTO else getattr(config, name)
    found: dict[str, Any] = {
        "train_batch_size": _AUTO,
        "train_micro_batch_size_per_gpu": _AUTO,
        "gradient_accumulation_steps": _AUTO,
        "gradient_clipping": _AUTO,
        "fp16": {"enabled": _AUTO},
        "bf16": {"enabled": _AUTO},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    if types := {name: given[name] for name in _TYPES if name in given}:
        found["data_types"] = types
    if "communication_data_type" in given:
        found["communication_data_type"] = given["communication_data_type"]
    if config.single_group:
        found["optimizer"] = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), _AUTO)}
    return found
