"""An exponential moving average of the weights, on the GPU: timm's ``ModelEmaV3`` and torch's ``AveragedModel``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ..engine import Run, Tensor, own_first
from ..step import Step
from ..units import DType

__all__ = ["AveragedModel", "Ema", "MakeEma", "ModelEmaV3"]

#: Elements that ``ModelEmaV3`` rounds at a time (timm 1.0.31, utils/model_ema.py).
_CHUNK = 2**22


class Ema(Protocol):
    """A copy of the model that lives as long as the training."""

    def update(self) -> None:
        """What follows every optimizer step."""


MakeEma = Callable[[Step], Ema]


class ModelEmaV3:
    """timm's ``ModelEmaV3`` (1.0.31, utils/model_ema.py) as train.py makes it: everything in the ``state_dict``.

    The foreach ``lerp`` is in place. bfloat16 averages are rounded stochastically in fp32, chunk by chunk.
    """

    def __init__(self, step: Step) -> None:
        scope = step.scope
        self.copies = _deepcopy(step)
        self._rounded = [
            averaged
            for path, averaged in self.copies.items()
            if averaged.dtype is DType.bfloat16 and (path in scope.parameters or path in scope.persistent)
        ]

    def update(self) -> None:
        for numel in _chunks(self._rounded):
            _round_stochastically(self._rounded[0].run, numel)


class AveragedModel:
    """``AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn())`` of torch 2.14 (optim/swa_utils.py).

    The first update copies the weights; the others are a foreach ``lerp`` in place for each type, told ``n_averaged``,
    which lives on the host, by a copy on the GPU.
    """

    def __init__(self, step: Step) -> None:
        self.copies = _deepcopy(step)
        self._num_lists = len({parameter.dtype for parameter in step.scope.parameters.values()})
        self._run = step.run
        self._updated = False

    def update(self) -> None:
        for _ in range(self._num_lists if self._updated else 0):
            n_averaged = Tensor.empty(self._run, (), DType.int64)
            del n_averaged
        self._updated = True


def _deepcopy(step: Step) -> dict[str, Tensor]:
    """``copy.deepcopy(model)``: a module's own parameters and buffers, then its children.

    A buffer's copy is made around a new storage, by way of a scalar that is dropped (torch/_tensor.py, __deepcopy__).
    """
    scope, run = step.scope, step.run
    copies: dict[str, Tensor] = {}
    outer = run.layer
    for path in own_first(scope):
        source = scope.parameters[path] if path in scope.parameters else scope.buffers[path]
        run.layer = source.storage.layer if source.accumulator is None else source.accumulator.layer
        copies[path] = Tensor.empty(run, source.shape, source.dtype, strides=source.strides, kind="optimizer_state")
        if path in scope.buffers:
            scalar = run.workspace(source.dtype.size)
            del scalar
    run.layer = outer
    return copies


def _chunks(averages: Sequence[Tensor]) -> Iterator[int]:
    """Elements of each chunk: a tensor begins the next one where it would be too much for this."""
    numel = 0
    for averaged in averages:
        if numel and numel + averaged.numel > _CHUNK:
            yield numel
            numel = 0
        numel += averaged.numel
    if numel:
        yield numel


def _round_stochastically(run: Run, numel: int) -> None:
    """``_lerp_stochastic_round_bf16_``: the averages in fp32, the weights side by side, and random bits."""
    averages = Tensor.empty(run, (numel,), DType.bfloat16)
    x = Tensor.empty(run, (numel,), DType.float32)
    del averages
    weights = Tensor.empty(run, (numel,), DType.bfloat16)
    del weights
    bits = Tensor.empty(run, (numel,), DType.float32)  # int32
    del bits, x
