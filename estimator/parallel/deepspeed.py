"""What all stages of ZeRO share: DeepSpeed's engine as Trainer sets it up (deepspeed 0.19.8, accelerate 1.15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..engine import Tensor, own_first
from ..errors import InvalidRequest, NotModelled
from ..optimizers import Group
from ..units import DType
from .strategy import Strategy, refuse_together
from .zero_config import ZeroConfig

if TYPE_CHECKING:
    from ..settings import TrainSettings
    from ..step import Step

__all__ = ["DeepSpeed"]

#: Optimizers whose update is the same on a flat buffer as on its parts.
_ELEMENT_WISE = frozenset({"adamw_torch", "adamw_torch_fused", "adam", "sgd", "sgd-momentum", "sgd-nesterov"})
#: Modules of optimizers that compute in place, as ``--offload`` asks for: accelerate takes DeepSpeedCPUAdam for AdamW.
_ON_CPU = frozenset({"adamw_torch", "adamw_torch_fused"})

#: A setting, the value that is modelled with ZeRO, and what another one asks for.
_ONLY = (
    ("ema", False, "an EMA of partitioned weights"),
    ("train", "full", "ZeRO with a part of the model trained"),
    ("freeze_layers", None, "ZeRO with frozen layers"),
)


class DeepSpeed(Strategy):
    """One rank. The model is cast, and batches are copied in its type."""

    source = "deepspeed 0.19.8 under Trainer"
    casts_model = True
    shares_blocks = False
    updates = True

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self.config = ZeroConfig.of(step.settings, step.plan)
        self.ranks = self.num_parts = step.settings.gpus

    @classmethod
    def check(cls, settings: TrainSettings) -> None:
        """DeepSpeed runs under Trainer only; what changes its buffers in another way is refused."""
        refuse_together(settings)
        if settings.loop != "trainer":
            raise NotModelled(f"ZeRO is modelled under Trainer; leave out --loop {settings.loop}")
        if settings.precision.startswith("pure"):
            raise InvalidRequest(
                f"DeepSpeed casts the model by itself; use --precision {settings.precision.removeprefix('pure-')}"
            )
        for name, modelled, what in _ONLY:
            if getattr(settings, name) != modelled:
                raise NotModelled(f"{what} is not modelled; leave out --{name.replace('_', '-')}")
        if settings.zero_grad not in {None, "after-step"}:
            raise InvalidRequest("DeepSpeed frees gradients itself; leave out --zero-grad")
        optim = settings.optim or "adamw_torch_fused"
        if optim not in _ELEMENT_WISE or (settings.offload != "none" and optim not in _ON_CPU):
            known = ", ".join(sorted(_ON_CPU if settings.offload != "none" else _ELEMENT_WISE))
            raise NotModelled(f"optim {optim!r} on ZeRO's flat partitions is not modelled; use one of {known}")

    @classmethod
    def warnings(cls, settings: TrainSettings) -> tuple[str, ...]:
        """What surprises people."""
        return (
            "ZeRO divides weights, gradients and optimizer states among GPUs, not activations: "
            "each GPU keeps those of its own batch",
        )

    def ordered(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Parameters in the order of ``named_parameters``."""
        scope = self.step.scope
        places = {id(scope.parameters[path]): i for i, path in enumerate(own_first(scope)) if path in scope.parameters}
        return sorted(parameters, key=lambda p: places[id(p)])

    def grouped(self, groups: Sequence[Group]) -> list[Group]:
        """The optimizer's groups, each in the order of ``named_parameters``."""
        if self.config.single_group:
            groups = [Group(tuple(p for g in groups for p in g.parameters), decayed=groups[0].decayed)]
        return [Group(tuple(self.ordered(g.parameters)), decayed=g.decayed) for g in groups]

    def flatten(self, parameters: Sequence[Tensor], flat: Tensor) -> None:
        """Parameters become views of ``flat``."""
        for p in parameters:
            p.storage = flat.storage

    def prepared(self, images: Tensor) -> Tensor:
        """``Trainer._prepare_input``: floats in the model's type, by a copy; the batch stays for the step."""
        if self.step.dtype is DType.float32:
            return images
        return Tensor.empty(images.run, images.shape, self.step.dtype, kind="inputs")

    def host_traffic(self, part: int, *, to_and_fro: int) -> dict[str, int]:
        """With ``offload_optimizer``: so many bytes go to and fro for each element of a ``part``, and Adam on the CPU
        reads weight, gradient and two moments and writes all but the gradient, in fp32, and the 16-bit weight."""
        if not self.config.offload_optimizer:
            return {}
        on_host = 4 * (4 + 3) + (2 if self.step.dtype is not DType.float32 else 0)
        return {"host_link_bytes": part * to_and_fro, "host_memory_bytes": part * self.ranks * on_host}

    def host_bytes(self, pinned: Sequence[int], pageable: int) -> Mapping[str, int]:
        """``offload_bytes`` of a rank: torch's host allocator hands out powers of two (CachingHostAllocator.h)."""
        taken = sum(1 << (size - 1).bit_length() if self.config.pin_memory else size for size in pinned if size)
        return {"pinned_bytes": taken if self.config.pin_memory else 0, "offload_bytes": taken + pageable}
