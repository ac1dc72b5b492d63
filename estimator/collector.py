"""Python's cyclic garbage collector, out of the way of plays: they make objects by the ten thousand and leave no cycles
behind (:meth:`vitmem.step.Step.dispose`), but it would go through all of them again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused"]


@contextmanager
def paused() -> Iterator[None]:
    """No collection inside; afterwards as before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
