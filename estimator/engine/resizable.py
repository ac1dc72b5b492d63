"""Memory that comes and goes behind one and the same storage: ``untyped_storage().resize_``."""

from __future__ import annotations

from .run import Run, Storage

__all__ = ["Resizable"]


class Resizable(Storage):
    """Tensors go on showing it while its memory is given back and taken again. It has none at first."""

    __slots__ = ("is_there", "kind", "row")

    def __init__(self, run: Run, num_bytes: int, kind: str, row: str) -> None:
        self.run, self.num_bytes, self.kind, self.row = run, num_bytes, kind, row
        self.id, self.is_there = -1, False

    @property
    def layer(self) -> str:
        """The row of the per-layer table that it belongs to."""
        return self.row

    def take(self) -> None:
        """Allocate; nothing where it is there already."""
        if self.is_there:
            return
        run, self.is_there = self.run, True
        outer, run.layer = run.layer, self.row
        super().__init__(run, self.num_bytes, self.kind)
        run.layer = outer

    def give_back(self) -> None:
        """Free; nothing where it is gone already."""
        if self.is_there:
            self.is_there = False
            self.run.events.append(~self.id)

    def __del__(self) -> None:
        self.give_back()
