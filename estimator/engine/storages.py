"""Many blocks of device memory behind one object: what a list of tensors is, where nobody asks for its items."""

from __future__ import annotations

from collections.abc import Sequence

from .run import Run

__all__ = ["Storages"]


class Storages:
    """Blocks of ``sizes`` bytes that are made one after the other; they die together, the last first, as a list's items
    do. ``layers``: the row of each, None for the one that is running."""

    __slots__ = ("first", "run", "stop")

    def __init__(self, run: Run, sizes: Sequence[int], kind: str | None = None, layers: Sequence[str] | None = None):
        kind, layers = kind or run.kind, layers or [run.layer] * len(sizes)
        self.run, self.first = run, len(run.allocations)
        run.allocations += [(num_bytes, kind, layer) for num_bytes, layer in zip(sizes, layers)]
        self.stop = len(run.allocations)
        run.events += range(self.first, self.stop)
        if run.stream:
            run.side.update(dict.fromkeys(range(self.first, self.stop), run.stream))

    def __len__(self) -> int:
        return self.stop - self.first

    def __del__(self) -> None:
        self.run.events += range(~self.stop + 1, ~self.first + 1)
