"""PEFT's wrappers around a layer (peft 0.21.2): ``ModulesToSaveWrapper``, and the forward of ``lora.Linear``."""

from __future__ import annotations

from collections.abc import Callable

from .. import ops
from ..engine import Module, Part, Scope, Tensor, call_hook
from ..ops import to

__all__ = ["Adapter", "Wrappable", "places"]

Product = Callable[[Tensor, Tensor], Tensor]


def places(scope: Scope, kind: str) -> tuple[Scope, ...]:
    """Where a layer's own parameters go, in order; the layer computes with the last."""
    lora = scope.lora
    if lora is not None and lora.copies(scope):
        return scope / "original_module", scope / "modules_to_save" / "default"
    return (scope / "base_layer" if lora is not None and lora.adapts(scope, kind) else scope,)


class Adapter(Part):
    """``lora_B(lora_A(dropout(x))) * scaling``: two matrices in fp32 whatever the layer's own type is
    (``autocast_adapter_dtype``). They count as unused until they have run once."""

    apart = frozenset({"down", "up", "idle", "unused"})  # the layer's own product, and names

    def __init__(self, scope: Scope, a: tuple[int, ...], b: tuple[int, ...], down: Product, up: Product) -> None:
        assert scope.lora is not None
        self.dropout = scope.lora.dropout
        self.down, self.up = down, up
        self.a, self.b = (
            (scope / name / "default").parameter("weight", *shape, dtype=scope.run.adapter_dtype)
            for name, shape in (("lora_A", a), ("lora_B", b))
        )
        names = {(scope / name / "default" / "weight").path for name in ("lora_A", "lora_B")} if scope.used else set()
        scope.unused |= names
        self.idle, self.unused = names, scope.unused

    def count_as_used(self) -> None:
        """It runs."""
        if self.idle:
            self.unused -= self.idle
            self.idle = set()

    def __call__(self, x: Tensor) -> Tensor:
        call_hook(x.run, Adapter.count_as_used, self)
        return ops.mul(self.up(self.down(ops.dropout(x, self.dropout), self.a), self.b), 1.0)


class Wrappable(Module):
    """A layer that PEFT can wrap: ``product`` is its own forward."""

    adapter: Adapter | None = None

    def product(self, x: Tensor) -> Tensor:
        """The layer's own ``forward``."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        result = self.product(x)
        if self.adapter is None:
            return result
        dtype = result.dtype
        x = to(x, self.adapter.a.dtype)
        result = ops.add(result, self.adapter(x))
        return to(result, dtype)
