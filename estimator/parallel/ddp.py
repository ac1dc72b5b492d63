"""``DistributedDataParallel`` of torch 2.14 (nn/parallel/distributed.py, csrc/distributed/c10d/reducer.cpp)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from sys import maxsize
from typing import TYPE_CHECKING

from ..engine import Tensor, own_first, record_all
from ..errors import InvalidRequest
from ..units import DType
from .strategy import Strategy
from .traffic import OF_BACKWARD, Traffic, all_reduce

if TYPE_CHECKING:
    from ..optimizers import Group
    from ..settings import TrainSettings

__all__ = ["DDP", "buckets_of"]

#: ``kDefaultFirstBucketBytes`` and ``kDefaultBucketBytesCap`` (reducer.hpp), and DDP's ``broadcast_bucket_size``.
FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20
BROADCAST_BYTES = 250 * 2**20
#: Broadcasts in flight (csrc/distributed/c10d/comm.cpp, ``broadcast_coalesced``).
MAX_IN_FLIGHT = 2


def finds_unused(settings: TrainSettings) -> bool:
    """``find_unused_parameters``: Trainer sets it unless it checkpoints a model of its own library, which PEFT's is not
    (transformers 5.24, trainer.py); timm's train.py and torch leave it off."""
    if settings.ddp_find_unused_parameters is not None:
        return settings.ddp_find_unused_parameters
    return settings.loop == "trainer" and (settings.train == "lora" or not settings.grad_checkpointing)


def bucket_limits(settings: TrainSettings) -> list[int]:
    """``_BucketCapacityConfig``, in bytes: the first bucket is smaller unless ``bucket_cap_mb`` is given. accelerate
    does not hand on its own default of 25 (``KwargsHandler.to_kwargs``)."""
    given = settings.ddp_bucket_cap_mb
    if given is None or (settings.loop == "trainer" and given * 2**20 == BUCKET_BYTES):
        return [FIRST_BUCKET_BYTES, BUCKET_BYTES]
    return [given * 2**20]


def buckets_of(tensors: Iterable[Tensor], limits: Sequence[int]) -> list[tuple[DType, int]]:
    """``compute_bucket_assignment_by_size``: (type, elements) of each bucket, in the order in which they are full.

    A bucket is closed by the tensor that reaches its limit; the last limit holds for all that follow. Each type has
    buckets of its own.
    """
    full: list[tuple[DType, int]] = []
    filling: dict[DType, int] = {}
    closed: dict[DType, int] = {}
    for tensor in tensors:
        dtype = tensor.dtype
        filling[dtype] = filling.get(dtype, 0) + tensor.numel
        if filling[dtype] * dtype.size >= limits[min(closed.get(dtype, 0), len(limits) - 1)]:
            full.append((dtype, filling.pop(dtype)))
            closed[dtype] = closed.get(dtype, 0) + 1
    return full + list(filling.items())


def _handed_on(saved: tuple[Tensor, ...], grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    return tuple(grads)


class DDP(Strategy):
    """``gradient_as_bucket_view`` is off wherever nobody sets it: the buckets are a second copy of the gradients."""

    assumption = "torch 2.14 DistributedDataParallel: gradients are copied to buckets that are never freed"

    @classmethod
    def warnings(cls, settings: TrainSettings) -> tuple[str, ...]:
        """None."""
        return ()

    def wrap(self, groups: Sequence[Group]) -> None:
        """The first rank's parameters and buffers are broadcast, then the reducer makes its buckets.

        Without a search for unused parameters all go into one until the first backward pass tells their order.
        """
        step, scope = self.step, self.step.scope
        paths = list(own_first(scope))
        parameters = [scope.parameters[path] for path in paths if path in scope.parameters]
        self._module_buffers = [scope.buffers[path] for path in paths if path in scope.buffers]
        self._trained = [p for p in parameters if p.requires_grad]
        self._finds_unused = finds_unused(step.settings)
        if step.updated_never and not self._finds_unused:
            raise InvalidRequest(
                f"DDP ends the second step with an error: no gradient comes to {', '.join(step.updated_never)}, and "
                "find_unused_parameters is off; add --ddp-find-unused-parameters, or use --zero 1"
            )
        self.num_steps = 2 if self._finds_unused else 3  # the second makes other buckets
        self._order: list[Tensor] = []
        self._rebuilt = False
        self._broadcast([*parameters, *self._module_buffers])
        limits = bucket_limits(step.settings) if self._finds_unused else [maxsize]
        self._buckets = self._made(buckets_of(self._trained, limits)[::-1])
        self._used_map = Tensor.empty(step.run, (len(self._trained),), DType.float32, kind="communication")  # int32

    def before_forward(self, *, first: bool) -> None:
        """Buckets are made again in the order of the first gradients; buffers are broadcast after a step that
        synchronised."""
        if self._order and not self._finds_unused:
            self._buckets = []
            self._buckets = self._made(buckets_of(self._order, bucket_limits(self.step.settings)))
            self._order = []
            self._rebuilt = True
        if first:
            self._broadcast(self._module_buffers)

    def outputs(self, *outputs: Tensor) -> tuple[Tensor, ...]:
        """``_DDPSink`` clones all outputs where unused parameters are searched for; those without a graph stay."""
        if not self._finds_unused:
            return outputs
        clones = tuple([Tensor.empty(x.run, x.shape, x.dtype, strides=x.strides) for x in outputs])
        record_all(clones, outputs, _handed_on)
        return tuple([clone if x.requires_grad else x for x, clone in zip(outputs, clones)])

    def after_backward(self) -> None:
        """The order in which gradients became ready, once."""
        if self._finds_unused or self._rebuilt or self._order:
            return
        ready = [(p.accumulator.rank, p) for p in self._trained if p.accumulator]
        self._order = [p for _, p in sorted(ready, key=lambda item: item[0])]

    def traffic(self) -> Traffic:
        """All gradients are summed once, bucket by bucket beside the last micro-step's backward pass."""
        settings = self.step.settings
        sent = all_reduce(sum(p.num_bytes for p in self._trained), settings.gpus)
        share = OF_BACKWARD / settings.accum
        return Traffic(ranks=settings.gpus, link_bytes=sent, hideable_bytes=sent, hiding_share=share)

    def _made(self, buckets: Iterable[tuple[DType, int]]) -> list[Tensor]:
        run = self.step.run
        return [Tensor.empty(run, (numel,), dtype, kind="communication") for dtype, numel in buckets]

    def _broadcast(self, tensors: Sequence[Tensor]) -> None:
        """``broadcast_coalesced``: flat copies, of which two live at once."""
        in_flight: deque[list[Tensor]] = deque()
        for bucket in buckets_of(tensors, [BROADCAST_BYTES]):
            if len(in_flight) >= MAX_IN_FLIGHT:
                in_flight.popleft()
            in_flight.append(self._made([bucket]))
