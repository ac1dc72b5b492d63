"""A schedule as code to paste into a Trainer script."""

from __future__ import annotations

from .files.render import render
from .schedule import Schedule

__all__ = ["callback_text"]


def callback_text(schedule: Schedule) -> str:
    """Functions that run one Trainer per phase and carry weights, optimizer and learning rate on."""
    rows = [f"    ({phase.num_epochs}, {phase.res}, {phase.bs}, {phase.accum})," for phase in schedule.phases]
    return render("phases.py", {"rows": "\n".join(rows)})
