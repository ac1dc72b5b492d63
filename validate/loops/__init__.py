"""Three training loops, written name by name as their sources are: a name that is bound keeps its tensor alive.

The contract fixes the details that the sources leave open.
"""

from __future__ import annotations

from collections.abc import Callable

from .job import STEPS, Job, Recorder
from .plain import run_plain
from .timm import run_timm
from .trainer import run_trainer

__all__ = ["LOOPS", "STEPS", "Job", "Recorder"]

LOOPS: dict[str, Callable[[Job, Recorder], None]] = {"trainer": run_trainer, "plain": run_plain, "timm": run_timm}
