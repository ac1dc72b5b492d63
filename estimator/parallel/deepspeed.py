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

__all__ = ["DTYPES", "DeepSpeed"]

#: Optimizers whose update is the same on a flat buffer as on its parts.
_ELEMENT_WISE = frozenset({"adamw_torch", "adamw_torch_fused", "adam", "sgd", "sgd-momentum", "sgd-nesterov"})
#: Modules of optimizers that compute in place, as ``--offload`` asks for: accelerate takes DeepSpeedCPUAdam for AdamW.
_ON_CPU = frozenset({"adamw_torch", "adamw_torch_fused"})

#: What DeepSpeed calls types (runtime/config.py, ``DtypeEnum``).
DTYPES = {"fp32": DType.float32, "fp16": DType.float16, "bf16": DType.bfloat16}


def _check_types(settings: TrainSettings) -> None:
    """``data_types`` and ``communication_data_type`` beside the precision."""
    options, model = dict(settings.zero_options), settings.precision.removeprefix("pure-")
    if options.get("param_dtype", model) != model:
        raise InvalidRequest(f"data_types.param_dtype {options['param_dtype']!r} is not the {model} of the precision")
    if options.get("communication_data_type", model) != model:
        raise NotModelled(
            f"communication_data_type {options['communication_data_type']!r} beside {model} copies what is sent, which "
            "is not modelled; leave it out"
        )
    accumulated = options.get("grad_accum_dtype", model)
    if accumulated != model and (settings.parallel == "zero1" or settings.offload != "none" or accumulated != "fp32"):
        raise NotModelled(
            f"data_types.grad_accum_dtype {accumulated!r} beside {model} is modelled for fp32 with ZeRO-2 and 3 "
            "without offload; leave it out"
        )


def _check_stage_3(settings: TrainSettings) -> None:
    if settings.ema:
        raise InvalidRequest(
            "torch's AveragedModel copies ZeRO-3's weights while they are empty, and ends with an error at its second "
            "update; use --zero 2, or leave out --ema"
        )
    if settings.train == "lora":
        raise NotModelled(
            "when ZeRO-3 releases the frozen weights beside adapters, which the backward pass needs, is not modelled; "
            "use --zero 2"
        )


class DeepSpeed(Strategy):
    """One rank. The model is cast, and batches are copied in its type."""

    source = "deepspeed 0.19.8 under Trainer"
    casts_model = True
    updates = True

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self.config = ZeroConfig.of(step.settings, step.plan)
        self.ranks = self.num_parts = step.settings.gpus
        #: The type in which gradients are summed over micro-steps.
        self.sum_dtype = DTYPES[self.config.grad_accum_dtype] if self.config.grad_accum_dtype else step.dtype
        self._micro_step = 0

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
        _check_types(settings)
        if settings.parallel == "zero3":
            _check_stage_3(settings)
        elif settings.offload == "all":
            raise InvalidRequest(
                "ZeRO-1 and ZeRO-2 keep whole weights on every GPU and offload none; use --offload optimizer, or "
                "--zero 3"
            )
        if settings.zero_grad not in {None, "after-step"}:
            raise InvalidRequest("DeepSpeed frees gradients itself; leave out --zero-grad")
        optim = settings.optim or "adamw_torch_fused"
        if optim not in _ELEMENT_WISE or (settings.offload != "none" and optim not in _ON_CPU):
            known = ", ".join(sorted(_ON_CPU if settings.offload != "none" else _ELEMENT_WISE))
            raise NotModelled(f"optim {optim!r} on ZeRO's flat partitions is not modelled; use one of {known}")

    @classmethod
    def buffer_dtype(cls, settings: TrainSettings) -> DType:
        """Buffers stay in fp32 unless ``data_types.buffer_dtype`` says otherwise (runtime/engine.py,
        ``_cast_module_mixed_precision``)."""
        return DTYPES[str(dict(settings.zero_options).get("buffer_dtype", "fp32"))]

    @classmethod
    def warnings(cls, settings: TrainSettings) -> tuple[str, ...]:
        """What surprises people."""
        return (
            "ZeRO divides weights, gradients and optimizer states among GPUs, not activations: "
            "each GPU keeps those of its own batch",
        )

    @property
    def is_boundary(self) -> bool:
        """Whether the step's last micro-step runs."""
        return self._micro_step == len(self.step.micro_steps) - 1

    def count_micro_step(self) -> None:
        """A micro-step has ended."""
        self._micro_step = 0 if self.is_boundary else self._micro_step + 1

    def ordered(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Parameters in the order of ``named_parameters``."""
        scope = self.step.scope
        places = {id(scope.parameters[path]): i for i, path in enumerate(own_first(scope)) if path in scope.parameters}
        return sorted(parameters, key=lambda p: places[id(p)])

    def grouped(self, groups: Sequence[Group]) -> list[Group]:
        """The optimizer's groups, each in the order of ``named_parameters``; those without any are removed."""
        if self.config.single_group:
            groups = [Group(tuple(p for g in groups for p in g.parameters), decayed=groups[0].decayed)]
        return [Group(tuple(self.ordered(g.parameters)), decayed=g.decayed) for g in groups if g.parameters]

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
