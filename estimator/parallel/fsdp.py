"""FSDP2 of torch 2.14 (``fully_shard``): each unit's parameters are gathered for its passes and divided between them.

Under Trainer accelerate 1.15 shards the model, in a plain loop ``fully_shard(block)`` for every block and then
``fully_shard(model)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from ..engine import Tensor
from ..errors import InvalidRequest, NotModelled
from ..optimizers import torch_optim
from ..units import DType
from .fsdp_unit import Policy, Sharded, Shared, Unit
from .fsdp_wrapping import modules_of, wrapped
from .strategy import Strategy, refuse_together
from .traffic import Traffic, all_gather, reduce_scatter

if TYPE_CHECKING:
    from ..optimizers import Group
    from ..settings import TrainSettings
    from ..step import Step

__all__ = ["FSDP"]


#: Numbers that Adam on the host reads and writes for each weight: weight, gradient and two moments, all but one back.
_ADAM_ON_HOST = 4 + 3
#: Optimizers of torch whose update of shards is the one of whole tensors.
_MODELLED = frozenset(torch_optim.ROWS) - {"adagrad"}


class FSDP(Strategy):
    """The first rank: no other holds more."""

    assumption = (
        "torch 2.14 fully_shard: under Trainer as accelerate 1.15 does it (blocks, input embeddings, last "
        "normalisation, the rest; parameters, gradients and outputs in 16 bits without autocast), in a plain loop for "
        "every block and then the model, 16 bits by MixedPrecisionPolicy(param_dtype, reduce_dtype=float32) in place "
        "of autocast"
    )
    casts_model = True
    divides_gradients = True
    min_gpus = 2
    offloads = ("all",)

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        settings = step.settings
        kept = DType.float32 if settings.precision in {"bf16", "fp16"} else step.dtype
        self.policy = Policy(
            ranks=settings.gpus,
            kept=kept,
            computed=step.dtype,
            reduced=step.dtype if settings.loop == "trainer" else kept,
            offloads=settings.offload == "all",
        )
        self.shared = Shared(step.run, self.policy)
        self.units: list[Unit] = []
        self._shards: dict[int, Tensor] = {}
        self._micro_step = 0
        self._num_items: object = None
        self._cast_items: object = None

    @classmethod
    def check(cls, settings: TrainSettings) -> None:
        """What it cannot do, and what is not modelled with it."""
        refuse_together(settings)
        if settings.gpus < cls.min_gpus:
            raise InvalidRequest("FSDP divides a model among GPUs; add --gpus 2 or more")
        if settings.loop == "timm":
            raise NotModelled("timm's train.py has no FSDP; use --loop plain or trainer")
        if settings.loop != "trainer" and settings.wrap_layers is not None:
            raise InvalidRequest(
                "wrap_layers is what Trainer hands accelerate; leave it out: a plain loop wraps blocks"
            )
        if settings.offload == "optimizer":
            raise InvalidRequest("FSDP offloads weights, gradients and optimizer states together; use --offload all")
        if settings.train_samples is not None:
            raise NotModelled("an epoch's last step with FSDP is not modelled; leave out --train-samples")
        if settings.ema:
            raise NotModelled("an EMA of shards is not modelled; leave out --ema")
        if settings.loop == "trainer" and settings.train == "lora":
            raise NotModelled("how accelerate shards adapters was not looked at; use --loop plain with --train lora")
        if settings.train == "lora" and settings.precision.startswith("pure"):
            raise NotModelled("adapters stay in fp32 beside 16-bit weights, which FSDP gathers as bytes: not modelled")
        if settings.optim is not None and settings.optim not in _MODELLED:
            known = ", ".join(sorted(_MODELLED))
            raise NotModelled(f"optim {settings.optim!r} on shards is not modelled; use one of {known}")

    @classmethod
    def warnings(cls, settings: TrainSettings) -> tuple[str, ...]:
        """What surprises people."""
        return (
            "FSDP divides weights, gradients and optimizer states among GPUs, not activations: "
            "each GPU keeps those of its own batch",
        )

    def wrap(self, groups: Sequence[Group]) -> None:
        """Units are made one by one: a unit's parameters reach the GPU whole, are divided, and go."""
        step = self.step
        plan = wrapped(step.settings, step.plan)
        found = {module.path: module for module in modules_of(step.model)}
        order = {storage: i for i, storage in enumerate(step.scope.moving_order())}
        ordered = sorted(step.scope.parameters.items(), key=lambda item: order[item[1].storage.id])
        remaining = dict(ordered)
        for p in remaining.values():
            p.storage.relabel(num_bytes=0)  # the model waits in host memory
        self._refuse_buffers()
        if not found.keys() >= set(plan.paths):
            raise NotModelled(f"FSDP with {step.plan.model.name} was not looked at: which of its modules are blocks")
        for path in plan.paths:
            mine = [name for name in remaining if name.startswith(f"{path}.")]
            unit = self._unit(
                [remaining.pop(name) for name in mine],
                reshards=path not in plan.whole and step.settings.reshard_after_forward is not False,
            )
            found[path].around = unit.around
        self.root = self._unit(list(remaining.values()), reshards=False, is_root=True)
        if step.settings.loop != "trainer":
            step.model.around = self.root.around
        self.units = [self.root, *self.units[:-1]]

    def _refuse_buffers(self) -> None:
        """``MixedPrecisionPolicy`` casts parameters and arguments, no buffers."""
        found = [path for path, buffer in self.step.scope.buffers.items() if buffer.dtype.is_floating]
        if self.policy.casts and found:
            raise NotModelled(
                f"FSDP's mixed precision leaves buffers in fp32 ({found[0]}): what a forward pass makes of both types "
                "was not looked at, and timm's Swin ends with 'expected scalar type Float but found BFloat16'; use "
                "--precision fp32 or pure-bf16"
            )

    def _unit(self, parameters: Sequence[Tensor], *, reshards: bool, is_root: bool = False) -> Unit:
        run = self.step.run
        whole = [Tensor.empty(run, p.shape, self.policy.kept, kind="parameters") for p in parameters]
        sharded = [Sharded(p, self.shared) for p in parameters]
        del whole
        self._shards |= {id(s.parameter): s.shard for s in sharded}
        unit = Unit(self.shared, sharded, reshards=reshards, is_root=is_root)
        self.units.append(unit)
        return unit

    def leaf(self, parameter: Tensor) -> Tensor:
        """The optimizer gets the shards."""
        return self._shards.get(id(parameter), parameter)

    def clip_grad_norm(self, grads: Sequence[Tensor]) -> Tensor:
        """Of the norms of the shards."""
        if self.policy.offloads:
            return Tensor.empty(self.step.run, (0,), self.policy.kept)
        return super().clip_grad_norm(grads)

    @property
    def updates_on_host(self) -> bool:
        """With ``CPUOffloadPolicy``."""
        return self.policy.offloads

    def before_forward(self, *, first: bool) -> None:
        """Under Trainer gradients of all micro-steps but the last stay whole (accelerate's ``no_sync``)."""
        self._micro_step = 1 if first else self._micro_step + 1
        if self.step.settings.loop == "trainer":
            self.shared.reduces = self._micro_step == len(self.step.micro_steps)

    def prepared(self, images: Tensor) -> Tensor:
        """The root's own hook before the forward pass: it casts all that the model is handed."""
        (images,) = self.root.cast((images,))
        names, casts = self.step.names, self.policy.casts and self.step.model.takes_loss_kwargs
        if casts and names.get("num_items") is not None:
            self._num_items = names["num_items"]
            names["num_items"] = Tensor.empty(images.run, (), self.policy.computed, kind="inputs")
        self.root.pre_forward()
        return images

    def outputs(self, *outputs: Tensor) -> tuple[Tensor, ...]:
        """The root's own hook behind the forward pass."""
        output: tuple[Tensor, ...] = self.root.post_forward(outputs)
        if self._num_items is not None:
            names = self.step.names
            if self.step.settings.grad_checkpointing:  # every block was handed it, to be recomputed with
                self._cast_items = names["num_items"]
            names["num_items"], self._num_items = self._num_items, None
        return output

    def after_backward(self) -> None:
        """``_root_post_backward_final_callback``."""
        for unit in self.units:
            unit.end()
        self.shared.order.clear()
        self.shared.reduce_input = self._cast_items = None

    def traffic(self) -> Traffic:
        """Units are gathered ahead of their passes, again for the backward pass where they were let go, and reduced in
        every micro-step that divides gradients; each gather brings offloaded shards to the GPU first."""
        accum, policy = self.step.settings.accum, self.policy
        shares = [(sum(s.numel for s in unit.parameters), 1 + unit.reshards) for unit in self.units]
        gathered = accum * sum(share * times for share, times in shares)
        trained = sum(p.numel for p in self._shards.values() if p.requires_grad)
        reduced = trained * (1 if self.step.settings.loop == "trainer" else accum)
        passing = all_gather(gathered * policy.ranks * policy.computed.size, policy.ranks)
        passing += reduce_scatter(reduced * policy.ranks * policy.reduced.size, policy.ranks)
        on_host = policy.kept.size if policy.offloads else 0
        return Traffic(
            ranks=policy.ranks,
            link_bytes=passing,
            hideable_bytes=passing,
            hiding_share=1.0,
            host_link_bytes=on_host * (gathered + reduced),
            host_memory_bytes=on_host * trained * policy.ranks * _ADAM_ON_HOST,
        )

    def host(self) -> Mapping[str, int]:
        """With ``CPUOffloadPolicy``: pinned shards, gradients in pinned memory, the optimizer's state.

        torch's host allocator hands out powers of two (aten/src/ATen/core/CachingHostAllocator.h).
        """
        if not self.policy.offloads:
            return {}
        step, size = self.step, self.policy.kept.size
        shards = list(self._shards.values())
        pinned = sum(1 << (size * p.numel - 1).bit_length() for p in shards)
        pinned += sum(1 << (size * p.numel - 1).bit_length() for p in shards if p.requires_grad)
        state = sum(
            kept.dtype.size * prod(kept.shape)
            for p in shards
            if p.requires_grad
            for kept in step.optimizer.kept(p.shape, p.dtype)
        )
        return {"pinned_bytes": pinned, "offload_bytes": pinned + state}
