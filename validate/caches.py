"""Tensors that libraries keep in ``functools.lru_cache`` outlive the model: each rehearsal makes them again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

__all__ = ["forget_cached_tensors"]


def forget_cached_tensors(model: nn.Module) -> None:
    """Empties the caches of the Python modules that define the parts of ``model``, as a new process finds them.

    transformers wraps them: DINOv3's patch coordinates are in a cache that only a closure can reach
    (transformers 5.24, pytorch_utils.py, ``compile_compatible_method_lru_cache``).
    """
    for name in {type(module).__module__ for module in model.modules()}:
        if name in sys.modules and not name.startswith("torch."):
            for clear in _clearers(sys.modules[name]):
                clear()


def _clearers(source: ModuleType) -> Iterator[Callable[[], None]]:
    values = list(vars(source).values())
    classes = [value for value in values if isinstance(value, type) and value.__module__ == source.__name__]
    for value in (*values, *(value for owner in classes for value in vars(owner).values())):
        for candidate in (value, *_closed_over(value)):
            if callable(clear := getattr(candidate, "cache_clear", None)):
                yield clear


def _closed_over(value: Any) -> list[Any]:
    function = getattr(value, "__func__", value)
    cells = (function.__closure__ or ()) if isinstance(function, FunctionType) else ()
    return [cell.cell_contents for cell in cells]
