"""The layers that families share: parameters with their operator."""

from __future__ import annotations

from collections.abc import Callable

from .. import ops
from ..engine import Module, Scope, Tensor
from ..units import DType

__all__ = [
    "BatchNorm2d",
    "Conv2d",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "LayerScale",
    "Linear",
    "Norm",
    "RmsNorm",
    "drop_path",
]

Norm = Callable[[Scope, int], "LayerNorm | RmsNorm"]


class Linear(Module):
    """``torch.nn.Linear``."""

    def __init__(self, scope: Scope, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__(scope)
        self.weight = scope.parameter("weight", outputs, inputs)
        self.bias = scope.parameter("bias", outputs) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


class LayerNorm(Module):
    """``torch.nn.LayerNorm`` over the last dimension."""

    def __init__(self, scope: Scope, width: int) -> None:
        super().__init__(scope)
        self.weight = scope.parameter("weight", width)
        self.bias = scope.parameter("bias", width)
        scope.layer_norms |= {(scope / "weight").path, (scope / "bias").path}

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias)


class RmsNorm(Module):
    """timm's ``RmsNorm`` on ``F.rms_norm``."""

    def __init__(self, scope: Scope, width: int) -> None:
        super().__init__(scope)
        self.weight = scope.parameter("weight", width)

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight)


class Conv2d(Module):
    """``torch.nn.Conv2d``; unless said, its stride is its kernel: a patch embedding."""

    def __init__(
        self,
        scope: Scope,
        inputs: int,
        outputs: int,
        kernel: tuple[int, int],
        *,
        stride: int | None = None,
        padding: int = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(scope)
        self.weight = scope.parameter("weight", outputs, inputs // groups, *kernel)
        self.bias = scope.parameter("bias", outputs) if bias else None
        self.stride = kernel if stride is None else (stride, stride)
        self.padding = (padding, padding)

    def forward(self, x: Tensor) -> Tensor:
        return ops.conv2d(x, self.weight, self.bias, self.stride, self.padding)


class BatchNorm2d(Module):
    """``torch.nn.BatchNorm2d`` in training: [B, C, H, W], with running statistics."""

    def __init__(self, scope: Scope, channels: int) -> None:
        super().__init__(scope)
        self.weight = scope.parameter("weight", channels)
        self.bias = scope.parameter("bias", channels)
        for name in ("running_mean", "running_var"):
            scope.buffer(name, channels, dtype=scope.run.parameter_dtype, persistent=True)
        scope.buffer("num_batches_tracked", dtype=DType.int64, persistent=True)

    def forward(self, x: Tensor) -> Tensor:
        return ops.batch_norm(x, self.weight, self.bias)


class Dropout(Module):
    """``torch.nn.Dropout`` in training."""

    def __init__(self, scope: Scope, rate: float) -> None:
        super().__init__(scope)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.rate)


class Embedding(Module):
    """``torch.nn.Embedding``: a table [rows, width]."""

    def __init__(self, scope: Scope, rows: int, width: int) -> None:
        super().__init__(scope)
        self.weight = scope.parameter("weight", rows, width)
        scope.embeddings.add((scope / "weight").path)

    def forward(self, index: Tensor) -> Tensor:
        return ops.embedding(self.weight, index)


class LayerScale(Module):
    """``x * gamma``."""

    def __init__(self, scope: Scope, width: int, *, name: str = "gamma") -> None:
        super().__init__(scope)
        self.gamma = scope.parameter(name, width)

    def forward(self, x: Tensor) -> Tensor:
        return ops.mul(x, self.gamma)


def drop_path(x: Tensor, rate: float) -> Tensor:
    """timm's ``drop_path`` in training; nothing at rate 0 (an ``nn.Identity``)."""
    return ops.bernoulli_scale(x) if rate > 0 else x
