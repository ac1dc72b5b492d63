"""One play of a training step: the clock, the modes, and every allocation with its birth and death."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..ledger import Ledger
from ..units import DType
from .product import Product

if TYPE_CHECKING:
    from ..kernels import Kernels
    from .autograd import AccumulateGrad
    from .checkpoint import Frame
    from .log import Entry
    from .module import Module
    from .tensor import Tensor

__all__ = ["Autocast", "Run", "Storage"]


class Autocast:
    """An active ``torch.autocast``; ``weights`` is its cache, dropped by leaving the context."""

    __slots__ = ("dtype", "weights")

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.weights: dict[int, Tensor] = {}


class Run:
    """The state that torch keeps globally (grad mode, autocast, random-number calls), and the list of events.

    ``events`` holds ``i`` where allocation ``i`` is born and ``~i`` where it dies: its index is the only clock.
    """

    __slots__ = (
        "adapter_dtype",
        "allocations",
        "attention_kernel",
        "autocast",
        "buffer_dtype",
        "caches_casts",
        "events",
        "frame",
        "grad_enabled",
        "grad_hook",
        "handles",
        "in_backward",
        "kernels",
        "kind",
        "layer",
        "log",
        "lt_handles",
        "module_hook",
        "num_gradients",
        "num_segments",
        "parameter_dtype",
        "phases",
        "products",
        "reentrant",
        "releases",
        "sequence",
        "side",
        "steps",
        "stream",
        "training",
        "unknown",
        "use_hook",
    )

    def __init__(self, *, kernels: Kernels, parameter_dtype: DType, buffer_dtype: DType | None = None) -> None:
        self.kernels = kernels
        self.parameter_dtype = parameter_dtype
        self.buffer_dtype = buffer_dtype or parameter_dtype  # of those that a cast of the model reaches
        self.adapter_dtype = DType.float32  # PEFT's own choice
        self.autocast: Autocast | None = None
        self.grad_enabled = True
        self.training = True
        self.caches_casts = True
        self.use_hook: Callable[[AccumulateGrad], None] | None = None  # runs where an operator takes a leaf
        self.grad_hook: Callable[[AccumulateGrad], None] | None = None  # runs after a leaf has taken or added
        self.module_hook: Callable[[Module, bool], None] | None = None  # runs where a module's forward begins and ends
        self.log: list[Entry] | None = None  # what hooks do while a block is played that others repeat
        self.frame: Frame | None = None
        self.reentrant = False  # how segments are checkpointed
        self.num_segments = 0  # re-entrant ones that are running, one inside the other
        self.attention_kernel: str | None = None
        self.sequence = 0  # of the last autograd node
        self.in_backward = False
        self.handles: dict[bool, Storage] = {}  # cuBLAS workspaces: of the main thread, of the autograd thread
        self.lt_handles: dict[bool, Storage] = {}  # cuBLASLt's
        self.kind = "temporaries"
        self.layer = "model"
        self.num_gradients = 0  # that leaves have taken
        self.allocations: list[tuple[int, str, str]] = []  # bytes, kind, layer
        self.events: list[int] = []
        self.stream = 0
        self.side: dict[int, int] = {}  # the allocations of other streams than the main one, with their stream
        self.releases: list[int] = []  # the events before which the allocator gave back what it had cached
        self.phases: list[tuple[str, int]] = []
        self.products: list[Product] = []
        self.steps: list[int] = []  # the phases with which a training step begins
        self.unknown: list[tuple[int, int]] = []  # (events before it, at most so many bytes) a kernel borrows unseen

    def workspace(self, *sizes: int) -> list[Storage]:
        """Memory a CUDA kernel borrows: counted as allocated, not as a tensor. Drop it to free it."""
        if self.kernels.on_cpu:
            return []
        return [Storage(self, num_bytes, "workspaces") for num_bytes in sizes if num_bytes > 0]

    def scratch(self, *sizes: int) -> list[Storage]:
        """Tensors that ATen makes inside an operator, whatever the device: no dispatch shows them, the CPU's profiler
        does."""
        kind = "temporaries" if self.kernels.on_cpu else "workspaces"
        return [Storage(self, num_bytes, kind) for num_bytes in sizes if num_bytes > 0]

    @property
    def autocasts_to_float32(self) -> bool:
        """Whether autocast's lists send normalisations, sums and powers to fp32: the CPU's do not."""
        return self.autocast is not None and not self.kernels.on_cpu

    def unknown_workspace(self, at_most_bytes: int) -> None:
        """A kernel borrows here what nobody can say: it is no allocation, and what it could do to the peak is kept."""
        if self.kernels.on_cpu:
            return
        self.unknown.append((len(self.events), at_most_bytes))

    def use_cublas(self) -> None:
        """The calling thread's workspace, from its first matrix product on and for good."""
        if self.in_backward in self.handles or self.kernels.on_cpu:
            return
        if num_bytes := self.kernels.cublas_workspace_bytes:
            self.handles[self.in_backward] = Storage(self, num_bytes, "workspaces")

    def use_cublas_lt(self) -> list[Storage]:
        """cuBLASLt's own workspace, where it has one: for a call (drop it), or the calling thread's for good."""
        if self.in_backward in self.lt_handles or self.kernels.on_cpu:
            return []
        num_bytes = self.kernels.lt_workspace_bytes
        if not self.kernels.torch.has("lt_workspace_is_kept"):
            return self.workspace(num_bytes)
        if num_bytes:
            self.lt_handles[self.in_backward] = Storage(self, num_bytes, "workspaces")
        return []

    def count_flops(self, out: Storage, flops: int, dtype: DType) -> None:
        """What the kernel that made ``out`` of operands of ``dtype`` computes."""
        recomputed = self.in_backward and self.frame is not None
        self.products.append(Product(flops, dtype, self.layer, recomputed, len(self.phases) - 1, out.id))

    def forget_product(self, out: Storage) -> None:
        """The kernel that makes ``out`` never ran."""
        if self.products and self.products[-1].born == out.id:
            self.products.pop()

    def start_phase(self, name: str, *, kind: str) -> None:
        """From here on allocations belong to phase ``name`` and are of ``kind`` unless they say otherwise."""
        self.kind = kind
        self.phases.append((name, len(self.events)))

    def start_step(self) -> None:
        """The next phase is the first of a training step."""
        self.steps.append(len(self.phases))

    @contextmanager
    def side_stream(self, stream: int = 1) -> Iterator[None]:
        """``torch.cuda.stream(...)``: what is made inside comes from blocks of its own."""
        self.stream = stream
        try:
            yield
        finally:
            self.stream = 0

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """``torch.no_grad()``."""
        before, self.grad_enabled = self.grad_enabled, False
        try:
            yield
        finally:
            self.grad_enabled = before

    @contextmanager
    def evaluation(self, *, inference: bool = False) -> Iterator[None]:
        """``model.eval()`` under ``torch.no_grad()``: nothing is dropped and nothing is saved.

        ``inference``: under ``torch.inference_mode()``, where autocast keeps no copies of weights.
        """
        kernel, self.training, self.caches_casts = self.attention_kernel, False, not inference
        with self.no_grad():
            yield
        self.attention_kernel, self.training, self.caches_casts = kernel, True, True

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache()``."""
        self.releases.append(len(self.events))

    @property
    def modes(self) -> tuple[object, ...]:
        """All that decides what the same call on equal tensors does: another mode belongs here too."""
        autocast = None if self.autocast is None else self.autocast.dtype
        return (
            self.grad_enabled,
            autocast,
            self.kind,
            self.stream,
            self.in_backward,
            self.training,
            self.caches_casts,
            *self.has_handles,
        )

    @property
    def has_handles(self) -> tuple[bool, bool]:
        """Whether the calling thread has its workspaces of cuBLAS and of cuBLASLt."""
        return self.in_backward in self.handles, self.in_backward in self.lt_handles

    @property
    def num_handles(self) -> int:
        """Workspaces that stay for good."""
        return len(self.handles) + len(self.lt_handles)

    def took_attention(self, kernel: str | None) -> None:
        """A kernel ran behind ``scaled_dot_product_attention``; several are a mixture, which is ``auto``."""
        if kernel is not None:
            self.attention_kernel = kernel if self.attention_kernel in {None, kernel} else "auto"

    def ledger(self) -> Ledger:
        """What happened so far, frozen."""
        sizes, kinds, layers = zip(*self.allocations)
        return Ledger(
            bytes=sizes,
            kinds=kinds,
            layers=layers,
            events=tuple(self.events),
            phases=tuple(self.phases),
            steps=tuple(self.steps),
            side=dict(self.side),
            releases=tuple(self.releases),
        )


class Storage:
    """A block of device memory; its death is logged when the last tensor that shows it is dropped."""

    __slots__ = ("id", "num_bytes", "run")

    def __init__(self, run: Run, num_bytes: int, kind: str | None = None) -> None:
        self.run = run
        self.num_bytes = num_bytes
        self.id = born = len(run.allocations)
        run.allocations.append((num_bytes, kind or run.kind, run.layer))
        run.events.append(born)
        if run.stream:
            run.side[born] = run.stream

    @property
    def layer(self) -> str:
        """The row of the per-layer table that was running when it was made."""
        return self.run.allocations[self.id][2]

    def relabel(self, *, kind: str | None = None, num_bytes: int | None = None) -> None:
        """Say afterwards what it is for, or that it was never made (0 bytes)."""
        old_bytes, old_kind, layer = self.run.allocations[self.id]
        self.run.allocations[self.id] = (old_bytes if num_bytes is None else num_bytes, kind or old_kind, layer)

    @classmethod
    def entered(cls, run: Run, number: int) -> Storage:
        """The block behind allocation ``number``, whose birth is written down already."""
        storage = cls.__new__(cls)
        storage.run, storage.id, storage.num_bytes = run, number, run.allocations[number][0]
        return storage

    def forget(self) -> None:
        """Its death is written down already."""
        self.run = _NOWHERE

    def __del__(self) -> None:
        self.run.events.append(~self.id)


class _Nowhere(Run):
    """Where nothing is written down."""

    def __init__(self) -> None:
        self.events = deque(maxlen=0)  # type: ignore[assignment]


_NOWHERE = _Nowhere()
