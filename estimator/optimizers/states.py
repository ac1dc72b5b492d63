"""The state of an optimizer: made parameter by parameter, the first time that each is asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from ..engine.run import Run
from ..engine.storages import Storages
from ..engine.tensor import Tensor
from .row import Kept, Optimizer

__all__ = ["States"]


class States:
    """Makes what ``Optimizer.kept`` says, and keeps it for good; ``embeddings`` are identities of some parameters."""

    def __init__(self, run: Run, optimizer: Optimizer, embeddings: Collection[int] = ()) -> None:
        self._run = run
        self._optimizer = optimizer
        self._embeddings = embeddings
        self._made: list[Storages] = []
        self._added: dict[int, list[Tensor]] = {}  # by parameter
        self._shared: set[str] = set()
        self._kept: dict[object, tuple[Kept, ...]] = {}

    def __call__(self, parameter: Tensor) -> list[Tensor]:
        """See to it that the state of a parameter is there; a step adds to the list what it makes anew each time."""
        if id(parameter) not in self._added:
            self.all((parameter,))
        return self._added[id(parameter)]

    def all(self, parameters: Sequence[Tensor]) -> None:
        """See to it that the states of all of these are there, made one after the other."""
        added, sizes, layers = self._added, list[int](), list[str]()
        for key, parameter in {id(p): p for p in parameters if id(p) not in added}.items():
            added[key] = []
            own = [prod(kept.shape) * kept.dtype.size for kept in self._missing(parameter)]
            sizes += own
            layers += [parameter.storage.layer] * len(own)
        if sizes:
            self._made.append(Storages(self._run, sizes, "optimizer_state", layers))

    def _missing(self, parameter: Tensor) -> Sequence[Kept]:
        row, is_table = self._optimizer, id(parameter) in self._embeddings
        like = parameter.shape, parameter.dtype, is_table
        if (kept := self._kept.get(like)) is None:
            of = row.kept_of_embedding if is_table and row.kept_of_embedding else row.kept
            kept = self._kept[like] = of(parameter.shape, parameter.dtype)
        if not any(one.shared for one in kept):
            return kept
        missing = [one for one in kept if one.shared not in self._shared]
        self._shared.update([one.shared for one in kept if one.shared])
        return missing
