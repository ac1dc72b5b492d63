"""The options of DeepSpeed's ``zero_optimization`` that decide memory (deepspeed 0.19.8, runtime/zero/config.py)."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest

if TYPE_CHECKING:
    from ..families import Plan
    from ..settings import TrainSettings

__all__ = ["AUTO", "ZeroConfig", "hidden_size"]

AUTO = "auto"
STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ZeroConfig:
    """Sizes are in elements, as DeepSpeed counts them; the defaults are DeepSpeed's own."""

    stage: int
    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool = False
    reduce_scatter: bool = True
    round_robin_gradients: bool = False
    offload_optimizer: bool = False
    offload_param: bool = False
    pin_memory: bool = True
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    stage3_model_persistence_threshold: int = sys.maxsize
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_max_reuse_distance: int = 1_000_000_000
    sub_group_size: int = 1_000_000_000
    #: With an optimizer in its own file DeepSpeed gets all parameters as one group.
    single_group: bool = False
    #: Types by DeepSpeed's names; None: the model's.
    buffer_dtype: str = "fp32"
    param_dtype: str | None = None
    grad_accum_dtype: str | None = None
    communication_data_type: str | None = None
    #: The rank to follow; None: the most loaded.
    rank: int | None = None

    @classmethod
    def of(cls, settings: TrainSettings, plan: Plan) -> ZeroConfig:
        """What the settings and the user's JSON ask for, with ``auto`` filled in as Trainer does."""
        stage = STAGES[settings.parallel or ""]
        options: dict[str, Any] = {"overlap_comm": stage == 3, **dict(settings.zero_options)}
        if any(value == AUTO for value in options.values()):
            width = hidden_size(settings, plan)
            filled = {
                "reduce_bucket_size": width * width,
                "stage3_prefetch_bucket_size": int(0.9 * width * width),
                "stage3_param_persistence_threshold": 10 * width,
            }
            options = {name: filled[name] if value == AUTO else value for name, value in options.items()}
        if settings.offload != "none":
            options["offload_optimizer"] = True
        if settings.offload == "all":
            options["offload_param"] = True
        return cls(stage=stage, **options)


def hidden_size(settings: TrainSettings, plan: Plan) -> int:
    """What Trainer fills ``auto`` from: the config's ``hidden_size`` (transformers 5.24, integrations/deepspeed.py).

    Swin's is the width of its last stage.
    """
    config = plan.model.config
    if plan.model.library == "transformers":
        if "embed_dim" in config:
            return int((settings.dim or config["embed_dim"]) * 2 ** (len(config["depths"]) - 1))
        if "hidden_size" in config:
            return int(settings.dim or config["hidden_size"])
    raise InvalidRequest(
        f"{plan.model.name} has no hidden_size of its own for the auto values of the DeepSpeed file; give numbers"
    )
