"""A schedule as code to paste into a script for the Trainer."""

from __future__ import annotations

from ..errors import NotModelled
from ..pipeline import resolved
from ..settings import TrainSettings
from .files.render import body_of, render
from .schedule import Schedule

__all__ = ["callback_text"]


def callback_text(schedule: Schedule) -> str:
    """Functions that run one Trainer per phase, each with its own micro-batch, and carry the training's state on.

    Raises NotModelled where the state is not the Trainer's own to carry.
    """
    first = TrainSettings.from_dict(schedule.phases[0].settings)
    if first.loop != "trainer":
        raise NotModelled(f"--callback is for the Trainer; leave it out, or --loop {first.loop}")
    if str(first.parallel).startswith(("zero", "fsdp")):
        raise NotModelled(
            f"--callback carries the optimizer's state from phase to phase, which {first.parallel} keeps in shards; "
            "leave it out, or use --parallel ddp"
        )
    rows = [f"    ({phase.num_epochs}, {phase.res}, {phase.bs}, {phase.accum})," for phase in schedule.phases]
    return render(
        "phases.py",
        {"rows": "\n".join(rows), "patch": resolved(first)[0].patch_size[0], "resampled": body_of("resampled")},
    )
