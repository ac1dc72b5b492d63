"""ZeRO-1 and ZeRO-2 of deepspeed 0.19.8 (runtime/zero/stage_1_and_2.py) under Trainer, line by line.

The model is cast and trains without autocast; weights live in one flat buffer for each parameter group, of which a
rank updates its part in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..engine import Tensor
from ..engine.autograd import AccumulateGrad
from ..optimizers import Group
from ..units import DType
from .deepspeed import DeepSpeed
from .partitions import FlatGroup, Place, candidates, candidates_behind, round_robin, sent_together
from .rivals import most_loaded
from .traffic import OF_BACKWARD, Traffic, all_gather, all_reduce

if TYPE_CHECKING:
    from ..step import Step

__all__ = ["Zero1", "Zero2"]


class ZeroOneTwo(DeepSpeed):
    """What the first two stages share."""

    partitions_gradients: bool

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self._buckets: list[Tensor] = []  # two with overlap_comm
        self._filled: list[Place] = []
        self._elements = 0
        self._current = 0
        self._large: list[Place] = []
        self._part: Tensor | None = None  # the gradients of the parameters that this rank updates
        self._kept: list[Tensor] = []  # the same, summed over micro-steps
        self._averaged: list[list[Tensor]] = []
        self._sums: dict[int, Tensor] = {}

    def wrap(self, groups: Sequence[Group]) -> None:
        """``DeepSpeedZeroOptimizer.__init__``: flat weights, the rank's part in fp32, and zeros for a moment."""
        run, dtype = self.step.run, self.step.dtype
        self.groups = [FlatGroup(self._laid_out(g), self.ranks, decayed=g.decayed) for g in self.grouped(groups)]
        self.rank = self._most_loaded()
        self._masters: list[Tensor] = []
        for group in self.groups:
            self.flatten(group.parameters, Tensor.empty(run, (group.numel,), dtype, kind="parameters"))
            part = Tensor.empty(run, (group.part,), dtype, kind="temporaries")
            if dtype is DType.float32 or self.config.offload_optimizer:
                master = part
            else:
                master = Tensor.empty(run, (group.part,), DType.float32, kind="optimizer_state")
            part.storage.relabel(kind="optimizer_state" if master is part else None)
            self._masters.append(master)
            del part, master
        self._places: dict[int, Place] = {}
        for group in self.groups:
            owned = group.owned(self.rank)
            for index, p in enumerate(group.parameters):
                self._places[id(p.accumulator)] = Place(p, group, index, owned.get(index, 0))
        if self.config.offload_optimizer:
            self._masters = []
            largest = max(place.numel for place in self._places.values())
            self._staging = Tensor.empty(run, (largest,), dtype, kind="communication")
        else:
            zeros = [Tensor.empty(run, (group.part,), DType.float32) for group in self.groups]
            del zeros
        run.grad_hook = self._ready

    def _laid_out(self, group: Group) -> Sequence[Tensor]:
        if self.config.round_robin_gradients:
            return round_robin(group.parameters, self.ranks)
        return group.parameters

    def _most_loaded(self) -> int:
        """Without overlap stage 1 goes through the parameters in order, while all other gradients are there. Who may
        be the most loaded is played."""
        config = self.config
        if config.rank is not None:
            return config.rank
        if self.partitions_gradients or config.overlap_comm:
            ordered = self.ordered(list(self.step.trained.values()))
            ranks = candidates(self.groups, {id(p): place for place, p in enumerate(ordered)})
        else:
            bucket, size = config.reduce_bucket_size, self.step.dtype.size
            ranks = candidates_behind(self.groups, bucket, size, on_host=config.offload_optimizer)
        return ranks[0] if len(ranks) == 1 else most_loaded(self.step, ranks)

    # a gradient is there

    def _ready(self, leaf: AccumulateGrad) -> None:
        """``grad_handling_hook``; without overlap stage 1 needs to hear of the first gradient alone."""
        self._set_up_buckets()
        if self.partitions_gradients or (self.config.overlap_comm and self.is_boundary):
            self._put(self._places[id(leaf)])
        elif not self.config.overlap_comm:
            self.step.run.grad_hook = None

    def _set_up_buckets(self) -> None:
        """``setup_buckets``: of their full size, whatever the model's."""
        if self._buckets:
            return
        run, size, self._current = self.step.run, (self.config.reduce_bucket_size,), 0
        for _ in range(1 + self.config.overlap_comm):
            self._buckets.append(Tensor.empty(run, size, self.step.dtype, kind="communication"))

    def _put(self, place: Place) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads``: a gradient larger than a bucket stays where it is."""
        if self._elements + place.numel > self.config.reduce_bucket_size:
            self._reduce()
            self._current = (self._current + 1) % len(self._buckets)
        if place.numel <= self.config.reduce_bucket_size:
            place.show(self._buckets[self._current])
        self._elements += place.numel
        self._filled.append(place)

    def _reduce(self) -> None:
        """``reduce_ipg_grads``."""
        if self.config.reduce_scatter:
            self._copy_slices()
        for place in self._filled:
            if place.owned:
                self._keep(place)
            elif self.partitions_gradients:
                place.leaf.grad = None
        self._filled, self._elements = [], 0

    def _copy_slices(self) -> None:
        """``average_tensor``: several slices are copied into one to be summed."""
        if self._widens:
            for place in self._filled:
                if place.owned:
                    self._sum_of(place.group)
        for together in sent_together(
            self._filled, self.config.reduce_bucket_size, self.rank if self._widens else None
        ):
            self._copied(together)

    def _copied(self, slices: Sequence[tuple[int, int]]) -> None:
        run, flat = self.step.run, None
        if len(slices) > 1:
            size = (sum(numel for _, numel in slices),)
            flat = Tensor.empty(run, size, self.step.dtype, kind="communication")
        for rank, numel in slices:
            if self._widens and rank == self.rank:
                wide = Tensor.empty(run, (numel,), self.sum_dtype)
                del wide
        del flat

    @property
    def _widens(self) -> bool:
        """Whether gradients are summed in another type than they come in: in the rank's part alone."""
        return self.sum_dtype is not self.step.dtype

    def _sum_of(self, group: FlatGroup) -> Tensor:
        """``_get_compact_grad_partition_buffer``: from the first gradient to the update."""
        if id(group) not in self._sums:
            self._sums[id(group)] = Tensor.empty(self.step.run, (group.part,), self.sum_dtype, kind="gradients")
        return self._sums[id(group)]

    def _keep(self, place: Place) -> None:
        """``copy_grads_in_partition``: room for all parameters that the rank has a part of, whole, at the first."""
        run, dtype = self.step.run, self.step.dtype
        if self._widens:
            return
        if self.config.offload_optimizer:
            if self.is_boundary:
                double = Tensor.empty(run, (place.owned,), DType.float64)
                del double
                wide = Tensor.empty(run, (place.owned,), DType.float32) if dtype is not DType.float32 else None
                del wide
                place.leaf.grad = None
            return
        if self._part is None:
            numel = sum(p.numel for p in self._places.values() if p.owned)
            self._part = Tensor.empty(run, (numel,), dtype, kind="gradients")
        place.show(self._part)

    # a backward pass has ended

    def after_backward(self) -> None:
        """Stage 2 reduces in every micro-step, stage 1 in the last."""
        boundary, self.step.run.grad_hook = self.is_boundary, self._ready
        if self.partitions_gradients or boundary:
            waited = not (self.partitions_gradients or self.config.overlap_comm)
            for place in [p for p in self._places.values() if waited and p.leaf.grad is not None]:
                self._put(place)
            self._end_of_backward(boundary)
        self.count_micro_step()

    def _end_of_backward(self, boundary: bool) -> None:
        """``independent_gradient_partition_epilogue``."""
        self._reduce()
        if self._widens:
            for group in self.groups:
                self._sum_of(group)
        elif not self.config.offload_optimizer:
            self._average(boundary)
        self._buckets = []
        self._part = None
        for place in self._places.values():
            place.leaf.grad = None

    def _average(self, boundary: bool) -> None:
        """Gradients are added to those of the micro-steps before, and zeros stand for those that nobody made."""
        run, dtype = self.step.run, self.step.dtype
        missing = [p for p in self._places.values() if p.owned and p.leaf.grad is None]
        zeros = [Tensor.empty(run, p.shape, dtype, kind="gradients") for p in missing]
        found = ([self._part] if self._part is not None else []) + zeros
        self._kept = self._kept or found
        del found, zeros
        if not boundary:
            return
        for group in self.groups:
            parts = [self._kept[0]] * len(group.owned(self.rank))
            if padding := group.padding(self.rank):
                parts.append(Tensor.empty(run, (padding,), dtype, kind="gradients"))
            self._averaged.append(parts)
        self._averaged[-1] += self._kept[1:]
        self._kept = []

    # the update

    def update(self) -> None:
        """``step``: the norm in fp64, then for each group its gradients in one, in fp32, and the optimizer."""
        run = self.step.run
        if self.config.offload_optimizer:
            return
        norms = []
        for group in self.groups:
            for numel in group.owned(self.rank).values():
                double = Tensor.empty(run, (numel,), DType.float64)
                norms.append(Tensor.empty(run, (), DType.float64))
                del double
        del norms
        for i, group in enumerate(self.groups):
            grad = self._flat(i)
            if self.sum_dtype is not DType.float32:
                flat, grad = grad, Tensor.empty(run, (group.part,), DType.float32)
                del flat
            grad.storage.relabel(kind="gradients")
            if self._averaged:
                self._averaged[i] = []
            self.step.optimizer_step([Group((self._masters[i],), decayed=group.decayed)], scaled=False)
            del grad
        self._averaged = []

    def _flat(self, i: int) -> Tensor:
        """The gradients of a group in one."""
        if self._widens:
            return self._sums.pop(id(self.groups[i]))
        parts = self._averaged[i]
        return parts[0] if len(parts) == 1 else Tensor.empty(self.step.run, (self.groups[i].part,), self.step.dtype)

    def traffic(self) -> Traffic:
        """Gradients are summed whole (``allreduce_and_scatter``), by stage 1 in the last micro-step, by stage 2 in
        every one; then each rank's new weights are gathered. Copies to the host have fp32's size."""
        accum, size = self.step.settings.accum, self.step.dtype.size
        whole = sum(group.numel for group in self.groups)
        times = accum if self.partitions_gradients else 1
        summed = times * all_reduce(size * whole, self.ranks)
        hides = self.config.overlap_comm
        return Traffic(
            ranks=self.ranks,
            link_bytes=summed + all_gather(size * whole, self.ranks),
            hideable_bytes=summed if hides else 0,
            hiding_share=OF_BACKWARD * times / accum if hides else 0.0,
            **self.host_traffic(whole // self.ranks, to_and_fro=2 * 4 + 2 * size * (times - 1)),
        )

    def host(self) -> Mapping[str, int]:
        """Of one rank, with ``offload_optimizer``: pinned buffers are rounded up to a power of two."""
        if not self.config.offload_optimizer:
            return {}
        size = self.step.dtype.size
        pinned = [max(p.numel for p in self._places.values()) * size]
        for group in self.groups:
            pinned += [4 * group.part, 4 * group.part, size * group.part]
        if self.step.settings.accum > 1 and self.partitions_gradients:
            pinned += [size * place.numel for place in self._places.values() if place.owned]
        return self.host_bytes(pinned, 8 * sum(group.part for group in self.groups))


class Zero1(ZeroOneTwo):
    """Optimizer states are partitioned; gradients are whole until the last micro-step has ended."""

    partitions_gradients = False
    assumption = f"{DeepSpeed.source}, stage 1: fp32 weights and optimizer states of a part, counted as optimizer state"


class Zero2(ZeroOneTwo):
    """Gradients are partitioned as well, as soon as a bucket is full."""

    partitions_gradients = True
    offloads = ("optimizer",)
    assumption = f"{DeepSpeed.source}, stage 2: fp32 weights and optimizer states of a part, counted as optimizer state"
