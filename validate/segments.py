"""Tells the tracker where a re-entrant checkpointed segment is run again: transformers checkpoints ``forward`` itself,
so that no module of the block is entered around what the block does between its parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.utils.checkpoint import CheckpointFunction

from .tracker import Tracker

__all__ = ["marked"]


@contextmanager
def marked(tracker: Tracker) -> Iterator[None]:
    """``CheckpointFunction.backward``, announced to the tracker."""
    backward: Any = CheckpointFunction.backward

    def announced(ctx: Any, *args: Any) -> Any:
        tracker.recompute()
        return backward(ctx, *args)

    with mock.patch.object(CheckpointFunction, "backward", staticmethod(announced)):
        yield
