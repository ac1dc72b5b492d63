"""A plan as files that are ready to run: a script or a loop's arguments, configurations, a launcher, a README."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..plan import Plan
from . import plain, timm_loop, trainer
from .folder import Folder
from .order import Order
from .refusals import refuse

__all__ = ["Folder", "texts_of", "write_plan"]

#: Every file of a plan, by the loop that it is for.
LOOPS: Mapping[str, Callable[[Order], Mapping[str, str]]] = {
    "trainer": trainer.texts,
    "timm": timm_loop.texts,
    "plain": plain.texts,
}


def write_plan(plan: Plan, gpu: str, folder: Folder) -> list[Path]:
    """Write every file of ``plan``; each appears whole or not at all.

    Raises NotModelled for a setting that no file can say: none is dropped.
    """
    return folder.write(texts_of(plan, gpu))


def texts_of(plan: Plan, gpu: str) -> Mapping[str, str]:
    """The files' texts by name."""
    order = Order(plan, gpu)
    refuse(order)
    return LOOPS[order.settings.loop](order)
