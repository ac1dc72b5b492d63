"""ZeRO-3 of deepspeed 0.19.8 (runtime/zero/stage3.py, partitioned_param_coordinator.py) under Trainer.

Every parameter is divided by itself. Whole parameters are gathered ahead of their use, and below
``stage3_max_reuse_distance`` none is let go between forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..engine import Module, Storage, Tensor
from ..engine.autograd import AccumulateGrad
from ..errors import NotModelled
from ..optimizers import Group
from ..units import DType
from .deepspeed import DeepSpeed
from .shards import Gathered, Sharded, sub_groups
from .traffic import Traffic, all_gather, reduce_scatter

if TYPE_CHECKING:
    from ..step import Step

__all__ = ["Zero3"]


class Zero3(DeepSpeed):
    """Weights, gradients and optimizer states are partitioned."""

    assumption = (
        f"{DeepSpeed.source}, stage 3: weights gathered in the forward pass stay until their backward pass, because "
        "stage3_max_reuse_distance is larger than the model; fp32 weights of a part are counted as optimizer state"
    )

    offloads = ("optimizer", "all")

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self._elements = 0
        self._filled: list[Sharded] = []
        self._order: dict[Sharded, int] = {}  # of first use, from the first step
        self._queue: list[Sharded] = []  # in that order
        self._next = 0  # its first that waits
        self._whole: dict[int, Storage] = {}

    def wrap(self, groups: Sequence[Group]) -> None:
        """``DeepSpeedZeroOptimizer_Stage3.__init__``: shards, masters, gradients and one bucket, for good."""
        run, dtype, config = self.step.run, self.step.dtype, self.config
        self._sharded = {
            id(p.accumulator): Sharded(p, self.ranks, persists=persists)
            for p, persists in self._persistence(self.ordered(list(self.step.scope.parameters.values())))
        }
        self._refuse_releases(sum(s.numel for s in self._sharded.values()))
        whole = [([self._sharded[id(p.accumulator)] for p in g.parameters], g.decayed) for g in self.grouped(groups)]
        pairs = [(part, decayed) for group, decayed in whole for part in sub_groups(group, config.sub_group_size)]
        self._groups, self._decayed = [part for part, _ in pairs], [decayed for _, decayed in pairs]
        total = sum(s.share for group in self._groups for s in group)
        device = not config.offload_param
        shards = Tensor.empty(run, (total if device else 0,), dtype, kind="parameters")
        for s in self._sharded.values():  # frozen ones stay apart
            s.shard = shards if s.trains else Tensor.empty(run, (s.share if device else 0,), dtype, kind="parameters")
            self._release(s)
        self._masters: list[Tensor] = []
        if not config.offload_optimizer:
            for group in self._groups:
                numel = sum(s.share for s in group)
                converted = Tensor.empty(run, (numel,), DType.float32)
                self._masters.append(Tensor.empty(run, (numel,), DType.float32, kind="optimizer_state"))
                del converted
        on_device = not config.offload_optimizer
        self._grads = Tensor.empty(run, (total if on_device else 0,), self.sum_dtype, kind="gradients")
        self._inf_or_nan_tracker = Tensor.empty(run, (1,), DType.bool, kind="gradients")
        self._bucket = Tensor.empty(run, (config.reduce_bucket_size,), dtype, kind="communication")
        self._gather_persistent()
        run.grad_hook, run.use_hook = self._ready, self._use
        if any(not s.trains for s in self._sharded.values()):
            run.module_hook = self._around

    def _persistence(self, parameters: Sequence[Tensor]) -> Iterator[tuple[Tensor, bool]]:
        """``mark_persistent_parameters``."""
        config, total = self.config, 0
        for p in parameters:
            persists = p.numel <= config.stage3_param_persistence_threshold
            persists &= p.numel + total <= config.stage3_model_persistence_threshold
            total += p.numel if persists else 0
            yield p, persists

    def _refuse_releases(self, numel: int) -> None:
        """What the distance and the limit of live parameters do only to larger models is not modelled."""
        config = self.config
        for name in ("stage3_max_reuse_distance", "stage3_max_live_parameters"):
            if getattr(config, name) < 2 * numel:
                raise NotModelled(
                    f"{name} {getattr(config, name):,} is less than two passes over {numel:,} weights: what ZeRO-3 "
                    "then releases early is not modelled"
                )

    def _refuse_unseen(self) -> None:
        """A frozen parameter that no module holds by itself would never be gathered here."""
        scope, seen = self.step.scope, {id(s) for s in self._order}
        for name, p in scope.parameters.items():
            s = self._sharded[id(p.accumulator)]
            if not (s.trains or s.persists or id(s) in seen or name in scope.unused):
                raise NotModelled(f"when ZeRO-3 gathers {name}, which is frozen, is not modelled; use --zero 2")

    # whole parameters

    def before_forward(self, *, first: bool) -> None:
        """The queue of the trace begins again, and the first parameters are gathered ahead."""
        self._queue, self._next = list(self._order), 0
        self._prefetch()

    def _around(self, module: Module, begins: bool) -> None:
        """A module's frozen parameters are gathered before its forward pass; nothing asks for them again, so they are
        let go behind it (``__params_to_release``)."""
        for value in vars(module).values():
            if not isinstance(value, Tensor) or value.accumulator is None or value.requires_grad:
                continue
            s = self._sharded[id(value.accumulator)]
            if begins:
                self._use(value.accumulator)
            elif not s.persists:
                self._release(s)

    def _use(self, leaf: AccumulateGrad) -> None:
        """``fetch_sub_module``: gather, wait, and gather what comes next."""
        s = self._sharded[id(leaf)]
        if not s.is_available and s.on_its_way is None:
            self._make_whole(s)
        if s.on_its_way is not None:
            self._wait(s)
        if s not in self._order:
            self._order[s] = len(self._order)
            return
        if self._next <= self._order[s] < len(self._queue):
            self._next = self._order[s] + 1
        self._prefetch()

    def _prefetch(self) -> None:
        budget, numel = self.config.stage3_prefetch_bucket_size, 0
        chosen: list[Sharded] = []
        while self._next < len(self._queue) and numel < budget:
            s = self._queue[self._next]
            self._next += 1
            if not (s.is_available or s.on_its_way):
                chosen.append(s)
                numel += s.numel
        if not chosen:
            return
        flat = None
        if len(chosen) > 1:
            size = (sum(s.padded for s in chosen),)
            flat = Tensor.empty(self.step.run, size, self.step.dtype, kind="communication")
        gathered = Gathered(flat, list(chosen))
        del flat
        for s in chosen:
            s.on_its_way = gathered
            if len(chosen) == 1:
                self._make_whole(s)

    def _wait(self, s: Sharded) -> None:
        """The first wait copies every parameter out of the flat buffer."""
        gathered = s.on_its_way
        assert gathered is not None
        if not gathered.arrived:
            gathered.arrived = True
            for other in gathered.waiting:
                if not other.is_available:
                    self._make_whole(other)
        gathered.waiting.remove(s)
        s.on_its_way = None
        if not gathered.waiting:
            gathered.flat = None

    def _make_whole(self, s: Sharded) -> None:
        run = self.step.run
        outer, run.layer = run.layer, s.leaf.layer
        whole = Tensor.empty(run, (s.padded,), self.step.dtype, kind="parameters")
        run.layer = outer
        s.parameter.storage = whole.storage
        s.is_available = True

    def _release(self, s: Sharded) -> None:
        s.parameter.storage = s.shard.storage
        s.is_available = False

    def _gather_persistent(self) -> None:
        for s in self._sharded.values():
            if s.persists:
                self._make_whole(s)

    # gradients

    def _ready(self, leaf: AccumulateGrad) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads``; the module's parameters go after its backward pass."""
        s, limit = self._sharded[id(leaf)], self.config.reduce_bucket_size
        if self._elements and self._elements + s.numel > limit:
            self._reduce()
        if self._elements + s.numel <= limit:
            leaf.grad = self._bucket.alias(leaf.shape, leaf.strides)
        self._elements += s.numel
        self._filled.append(s)
        if not s.persists:
            self._release(s)

    def _reduce(self) -> None:
        """``reduce_scatter_coalesced``: a copy with the ranks' parts one after another; a lone tensor that needs no
        padding is its own. Then ``partition_grads``."""
        run, parts = self.step.run, None
        if len(self._filled) > 1 or any(s.padded != s.numel for s in self._filled):
            size = (sum(s.padded for s in self._filled),)
            parts = Tensor.empty(run, size, self.step.dtype, kind="communication")
        widened = self.sum_dtype is not self.step.dtype
        sums = [Tensor.empty(run, (s.share,), self.sum_dtype) for s in self._filled if widened]
        if sums:
            parts = None
        for s in self._filled:
            if self.config.offload_optimizer:
                self._to_host(s)
            s.leaf.grad = None
        del parts, sums
        self._filled, self._elements = [], 0

    def _to_host(self, s: Sharded) -> None:
        """``_offload_grad_partition_at_boundary``: the host's sum comes back, its norm is taken in fp64, and what goes
        to the host is fp32."""
        run, dtype, shape = self.step.run, self.step.dtype, (s.share,)
        returned = None if run.kernels.on_cpu else Tensor.empty(run, shape, dtype)
        if self.is_boundary:
            double = Tensor.empty(run, shape, DType.float64)
            del double
            wide = Tensor.empty(run, shape, DType.float32) if dtype is not DType.float32 else None
            del wide
        del returned

    def after_backward(self) -> None:
        """``independent_gradient_partition_epilogue``."""
        self._reduce()
        self.count_micro_step()

    # the update

    def update(self) -> None:
        """``step``: everything is partitioned, the norm is taken in fp64, each group's gradients are flattened, then
        cast; what persists is gathered again."""
        run = self.step.run
        self._refuse_unseen()
        for s in self._sharded.values():
            self._release(s)
        if not self.config.offload_optimizer:
            for s in (s for s in self._sharded.values() if s.trains):
                double = Tensor.empty(run, (s.share,), DType.float64)
                del double
            for group, decayed, master in zip(self._groups, self._decayed, self._masters):
                grad = Tensor.empty(run, (sum(s.share for s in group),), self.sum_dtype)
                if self.sum_dtype is not DType.float32:
                    flat, grad = grad, Tensor.empty(run, grad.shape, DType.float32)
                    del flat
                grad.storage.relabel(kind="gradients")
                self.step.optimizer_step([Group((master,), decayed=decayed)], scaled=False)
                del grad
        self._gather_persistent()

    def traffic(self) -> Traffic:
        """In every micro-step weights are gathered once, as they stay until their backward pass, and gradients are
        divided; what persists is gathered after the update."""
        accum, size, config = self.step.settings.accum, self.step.dtype.size, self.config
        every = size * sum(s.padded for s in self._sharded.values())
        persistent = size * sum(s.padded for s in self._sharded.values() if s.persists)
        passing = accum * (all_gather(every - persistent, self.ranks) + reduce_scatter(every, self.ranks))
        loaded = accum * size if config.offload_param else 0
        return Traffic(
            ranks=self.ranks,
            link_bytes=passing + all_gather(persistent, self.ranks),
            hideable_bytes=passing if config.overlap_comm else 0,
            hiding_share=1.0 if config.overlap_comm else 0.0,
            **self.host_traffic(every // size // self.ranks, to_and_fro=4 * accum + size + loaded),
        )

    def host(self) -> Mapping[str, int]:
        """Of one rank: with ``offload_optimizer`` masters, gradients and states, with ``offload_param`` shards too."""
        config, size = self.config, self.step.dtype.size
        if not config.offload_optimizer:
            return {}
        shares = [sum(s.share for s in group) for group in self._groups]
        frozen = [s.share for s in self._sharded.values() if not s.trains]
        pinned = [*[4 * share for share in shares], size * sum(shares)]
        if config.offload_param:
            pinned += [size * share for share in (*shares, *frozen)]
        return self.host_bytes(pinned, 12 * sum(shares))
