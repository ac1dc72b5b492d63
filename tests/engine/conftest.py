"""Which blocks of a model were played."""

from __future__ import annotations

from typing import Any

import pytest
from vitmem.engine import Module


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rows of the blocks that were played in full, in order."""
    rows: list[str] = []
    in_full = Module.play

    def counted(self: Module, args: tuple[Any, ...]) -> Any:
        if self.repeats is not None:
            rows.append(self.layer)
        return in_full(self, args)

    monkeypatch.setattr(Module, "play", counted)
    return rows
