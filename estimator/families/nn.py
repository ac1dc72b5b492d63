"""The layers that families share: parameters with their operator."""

from __future__ import annotations

from collections.abc import Callable

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest
from ..units import DType
from ._lora import Adapter, Wrappable, places

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


class Linear(Wrappable):
    """``torch.nn.Linear``."""

    def __init__(self, scope: Scope, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__(scope)
        for place in places(scope, "Linear"):
            self.weight = place.parameter("weight", outputs, inputs)
            self.bias = place.parameter("bias", outputs) if bias else None
        if (lora := scope.lora) and lora.adapts(scope, "Linear"):
            self.adapter = Adapter(scope, (lora.rank, inputs), (outputs, lora.rank), ops.linear, ops.linear)

    def product(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


class LayerNorm(Module):
    """``torch.nn.LayerNorm`` over the last dimension."""

    def __init__(self, scope: Scope, width: int) -> None:
        super().__init__(scope)
        self.weight = scope.parameter("weight", width)
        self.bias = scope.parameter("bias", width)
        scope.layer_norms |= {scope.path_of("weight"), scope.path_of("bias")}

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias)


class RmsNorm(Module):
    """timm's ``RmsNorm`` on ``F.rms_norm``."""

    def __init__(self, scope: Scope, width: int) -> None:
        super().__init__(scope)
        self.weight = scope.parameter("weight", width)

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight)


class Conv2d(Wrappable):
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
        for place in places(scope, "Conv2d"):
            self.weight = place.parameter("weight", outputs, inputs // groups, *kernel)
            self.bias = place.parameter("bias", outputs) if bias else None
        self.stride = kernel if stride is None else (stride, stride)
        self.padding = (padding, padding)
        if (lora := scope.lora) and lora.adapts(scope, "Conv2d"):
            if lora.rank % groups:
                raise InvalidRequest(
                    f"PEFT adapts {scope.path}, a convolution in {groups} groups, with a multiple of them as rank "
                    f"only; lora_rank is {lora.rank}"
                )
            a, b = (lora.rank, inputs, *kernel), (outputs, lora.rank // groups, 1, 1)
            self.adapter = Adapter(scope, a, b, self._convolved, lambda x, weight: ops.conv2d(x, weight, None, (1, 1)))

    def _convolved(self, x: Tensor, weight: Tensor) -> Tensor:
        return ops.conv2d(x, weight, None, self.stride, self.padding)

    def product(self, x: Tensor) -> Tensor:
        return ops.conv2d(x, self.weight, self.bias, self.stride, self.padding)


class BatchNorm2d(Module):
    """``torch.nn.BatchNorm2d`` in training: [B, C, H, W], with running statistics."""

    def __init__(self, scope: Scope, channels: int) -> None:
        super().__init__(scope)
        self.weight = scope.parameter("weight", channels)
        self.bias = scope.parameter("bias", channels)
        for name in ("running_mean", "running_var"):
            scope.buffer(name, channels, dtype=scope.run.buffer_dtype, persistent=True)
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
        scope.embeddings.add(scope.path_of("weight"))

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
