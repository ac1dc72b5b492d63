"""The state of an optimizer: made parameter by parameter, the first time that each is asked for."""

from __future__ import annotations

from collections.abc import Collection

from ..engine.run import Run
from ..engine.tensor import Tensor
from .row import Kept, Optimizer

__all__ = ["States"]


class States:
    """Called with a parameter: its state, in the order of ``Optimizer.kept``; ``embeddings`` are identities of some."""

    def __init__(self, run: Run, optimizer: Optimizer, embeddings: Collection[int] = ()) -> None:
        self._run = run
        self._optimizer = optimizer
        self._embeddings = embeddings
        self._of: dict[int, list[Tensor]] = {}
        self._shared: dict[str, Tensor] = {}

    def __call__(self, parameter: Tensor) -> list[Tensor]:
        key = id(parameter)
        if key not in self._of:
            row, run = self._optimizer, self._run
            kept = row.kept_of_embedding if key in self._embeddings and row.kept_of_embedding else row.kept
            outer, run.layer = run.layer, parameter.storage.layer
            self._of[key] = [self._made(wanted) for wanted in kept(parameter.shape, parameter.dtype)]
            run.layer = outer
        return self._of[key]

    def _made(self, wanted: Kept) -> Tensor:
        if wanted.shared in self._shared:
            return self._shared[wanted.shared]
        tensor = Tensor.empty(self._run, wanted.shape, wanted.dtype, kind="optimizer_state")
        if wanted.shared:
            self._shared[wanted.shared] = tensor
        return tensor
