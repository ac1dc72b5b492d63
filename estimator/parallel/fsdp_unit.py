"""What one call of ``fully_shard`` manages (torch 2.14, distributed/fsdp/_fully_shard/): parameters gathered together.

``Unit`` is ``FSDPState`` and its ``FSDPParamGroup``, ``Shared`` is ``FSDPCommContext``. A parameter keeps its storage,
which is emptied and filled again; buffers for communication come from streams of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ..engine import Module, Resizable, Run, Storage, Tensor, call_hook, record, record_all
from ..engine.autocast import to
from ..engine.autograd import AccumulateGrad
from ..units import DType
from .fsdp_copies import chunk_cat_bytes, split_with_sizes_copy_bytes

if TYPE_CHECKING:
    from ..engine.tensor import Shape

__all__ = ["Policy", "Sharded", "Shared", "Unit"]

#: Streams beside the main one.
COPY_IN, REDUCE_SCATTER = 1, 2
Grads = list["Tensor | None"]


class Policy:
    """``MixedPrecisionPolicy`` and ``OffloadPolicy``: ``kept`` is the type of shards and gradients at rest.

    ``computed`` is that of whole parameters and ``reduced`` that of gradients on their way. ``offloads``: shards and
    gradients are in host memory.
    """

    def __init__(self, *, ranks: int, kept: DType, computed: DType, reduced: DType, offloads: bool) -> None:
        self.ranks, self.kept, self.computed, self.reduced = ranks, kept, computed, reduced
        self.offloads = offloads

    @property
    def casts(self) -> bool:
        """Whether whole parameters have another type than their shards."""
        return self.kept is not self.computed


class Shared:
    """What the units of a model share: buffers of which the last is kept, and the order of the forward pass."""

    def __init__(self, run: Run, policy: Policy) -> None:
        self.run, self.policy = run, policy
        self.copied_out: Tensor | None = None  # the buffer of the last gather, in the forward pass
        self.reduce_input: Tensor | None = None
        self.order: list[Unit] = []
        self.reduces = True


class Sharded:
    """A parameter, its rows on the first rank (no other has more), and the memory of the whole of it, padded.

    All of that counts as parameters, as torch counts it (distributed/_tools/fsdp2_mem_tracker.py, ``UNSHARDED_PARAM``).
    """

    def __init__(self, parameter: Tensor, shared: Shared) -> None:
        assert parameter.accumulator is not None
        run, policy = shared.run, shared.policy
        self.parameter, self.leaf = parameter, parameter.accumulator
        self.numel = prod(self.share_of(parameter.shape, policy.ranks))
        row = parameter.storage.layer
        outer, run.layer = run.layer, row
        shape = self.share_of(parameter.shape, policy.ranks)
        self.shard = Tensor.empty(run, shape, policy.kept, kind="parameters")
        if policy.offloads:
            self.shard.storage = Storage(run, 0, "parameters")
        run.layer = outer
        self.shard.requires_grad = parameter.requires_grad
        self.shard.accumulator = AccumulateGrad(self.shard)
        self.memory = Resizable(run, self.numel * policy.ranks * policy.computed.size, "parameters", row)
        parameter.storage = self.memory
        parameter.dtype = policy.kept

    @staticmethod
    def share_of(shape: Shape, ranks: int) -> Shape:
        """Dimension 0 is divided, rounded up: a parameter of one row has a whole row on every rank."""
        rows, *rest = shape
        return (-(-rows // ranks), *rest)


class Unit:
    """Modules whose parameters are gathered before their forward and backward passes, and let go after them.

    ``reshards`` False: they stay from the forward to the end of the backward pass.
    """

    def __init__(self, shared: Shared, parameters: Sequence[Sharded], *, reshards: bool, is_root: bool = False) -> None:
        self.shared, self.run, self.policy = shared, shared.run, shared.policy
        self.parameters, self.reshards, self.is_root = parameters, reshards, is_root
        self.is_whole = False
        self.gathered: Tensor | None = None  # arrived and not yet copied out
        self.recomputes = False  # between its pre-backward and the end of the whole backward pass
        self.phase = ""
        self.indices: list[int] = []

    # the forward pass

    def around(self, module: Module, args: tuple[Any, ...]) -> Any:
        """A call of a module between its hooks; a checkpointed one is recomputed without them."""
        args = self.cast(args)
        if self.recomputes:
            call_hook(self.run, Unit.make_whole, self)
            return module.forward(*args)
        call_hook(self.run, Unit.pre_forward, self)
        return self.post_forward(module.forward(*self._watched(args)))

    def cast(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """``cast_forward_inputs``."""
        if not self.policy.casts:
            return args
        return tuple(
            [to(x, self.policy.computed) if isinstance(x, Tensor) and x.dtype.is_floating else x for x in args]
        )

    def pre_forward(self) -> None:
        """Gather and copy out; what the gather before it arrived in goes only now."""
        self.phase = "forward"
        self.make_whole()

    def _watched(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """``RegisterPostBackwardFunction``: the backward pass of the module ends where gradients leave it."""
        found = [x for x in args if isinstance(x, Tensor) and x.requires_grad]
        if not found or not self.run.grad_enabled:
            return args
        views = [x.alias(x.shape, x.strides) for x in found]
        record_all(tuple(views), tuple(found), self._handed_on_last)
        del found
        return tuple([views.pop(0) if isinstance(x, Tensor) and x.requires_grad else x for x in args])

    def _handed_on_last(self, saved: tuple[Tensor, ...], grads: Grads) -> tuple[Tensor | None, ...]:
        call_hook(self.run, Unit.post_backward, self)
        return tuple(grads)

    def post_forward(self, output: Any) -> Any:
        """Parameters go, and the backward pass of the module begins with the first gradient of an output."""
        call_hook(self.run, Unit.end_forward, self)
        output = self._hooked(output)
        if self.is_root:
            self.shared.copied_out = None
        return output

    def end_forward(self) -> None:
        """Parameters go, and the unit has its place in the order of the forward pass."""
        if self.reshards:
            self.reshard()
        self.indices.append(len(self.shared.order))
        self.shared.order.append(self)
        self.phase = ""

    def _hooked(self, output: Any) -> Any:
        if isinstance(output, tuple):
            return tuple([self._hooked(x) for x in output])
        if not (isinstance(output, Tensor) and output.requires_grad and self.run.grad_enabled):
            return output
        same = Tensor(output.storage, output.shape, output.strides, output.dtype)
        same.is_view = output.is_view
        return record(same, (output,), self._handed_on_first)

    def _handed_on_first(self, saved: tuple[Tensor, ...], grads: Grads) -> tuple[Tensor | None, ...]:
        call_hook(self.run, Unit.pre_backward, self)
        return tuple(grads)

    # whole parameters

    def make_whole(self) -> None:
        """Gather and copy out."""
        self.unshard()
        self.wait()

    def unshard(self) -> None:
        """``foreach_all_gather``: cast or copied to one flat buffer, then gathered into the whole one."""
        if self.gathered is not None or self.is_whole or not self.parameters:
            return
        policy, numels = self.policy, [s.numel for s in self.parameters]
        with self.run.side_stream(COPY_IN):
            if policy.offloads:
                inputs = [to(self._buffer(numel, policy.kept), policy.computed) for numel in numels]
            else:
                inputs = [self._buffer(sum(numels), policy.computed)] if policy.casts else []
            self.gathered = self._buffer(sum(numels) * policy.ranks, policy.computed)
            while inputs:
                inputs.pop()

    def wait(self) -> None:
        """``wait_for_unshard``: every parameter is copied out of the buffer."""
        if self.gathered is None:
            return
        policy, shared = self.policy, self.shared
        before = None
        if self.phase == "forward":
            before, shared.copied_out = shared.copied_out, None
        for s in self.parameters:
            s.memory.take()
            s.parameter.dtype = policy.computed
        sizes = [s.numel * policy.computed.size for s in self.parameters]
        tables = self.run.workspace(split_with_sizes_copy_bytes(sizes, policy.ranks, self.run.kernels.gpu))
        del tables
        self.is_whole = True
        if self.phase == "forward":
            shared.copied_out = self.gathered
        self.gathered = None
        del before

    def reshard(self) -> None:
        """``to_sharded``."""
        if not self.is_whole:
            return
        self.is_whole = False
        for s in self.parameters:
            s.memory.give_back()
            s.parameter.dtype = self.policy.kept

    # the backward pass

    def pre_backward(self) -> None:
        """Gather unless that was done ahead, and gather ahead what comes next."""
        self.recomputes = True
        if self.phase == "backward":
            return
        self.phase = "backward"
        self.make_whole()
        if self.indices:
            index = self.indices.pop()
            if index > 0:
                self.shared.order[index - 1].unshard()

    def post_backward(self) -> None:
        """Parameters go, the buffer of the reduction before is let go, gradients are reduced."""
        self.phase = "done"
        shared = self.shared
        if not shared.reduces:
            self.reshard()
            return
        owners = [s for s in self.parameters if s.leaf.grad is not None]
        grads = [s.leaf.grad for s in owners]
        for s in owners:
            s.leaf.grad = None
        self.reshard()
        shared.reduce_input = None
        if grads:
            self._reduce(owners, grads)

    def _reduce(self, owners: Sequence[Sharded], grads: list[Tensor | None]) -> None:
        """``foreach_reduce``: the loop's name holds the last gradient to the end."""
        policy, last = self.policy, grads[-1]
        numels = [s.numel for s in owners]
        reduce_input = self._buffer(sum(numels) * policy.ranks, policy.reduced)
        tables = self.run.workspace(chunk_cat_bytes([numel * policy.reduced.size for numel in numels]))
        del tables
        while grads:  # list.clear() begins at the end
            grads.pop()
        with self.run.side_stream(REDUCE_SCATTER):
            flat = Tensor.empty(self.run, (sum(numels),), policy.reduced, kind="gradients")
            if policy.reduced is not policy.kept:
                flat.storage.relabel(kind="communication")
                flat = to(flat, policy.kept, kind="gradients")
        for s in () if policy.offloads else owners:
            assert s.shard.accumulator is not None
            if s.shard.accumulator.grad is None:  # else added in place
                s.shard.accumulator.grad = flat.alias(s.shard.shape, s.shard.strides)
        self.shared.reduce_input = reduce_input
        del last

    def _buffer(self, numel: int, dtype: DType) -> Tensor:
        return Tensor.empty(self.run, (numel,), dtype, kind="communication")

    def end(self) -> None:
        """``_root_post_backward_final_callback``: whose inputs need no gradient is reduced only now."""
        if self.phase != "done":
            self.post_backward()
        self.phase, self.recomputes, self.gathered = "", False, None
        self.indices.clear()
