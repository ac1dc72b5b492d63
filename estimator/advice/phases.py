"""A schedule as code to paste into a script for the Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import NotModelled
from ..families import Plan as ModelPlan
from ..pipeline import resolved
from ..settings import TrainSettings
from .files.building import literal
from .files.launch import ALLOCATOR_VARIABLES
from .files.order import trained_blocks
from .files.render import body_of, imports_of, one_line, render
from .schedule import Phase, Schedule

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
    model = resolved(first)[0]
    rows = [
        f"    ({phase.num_epochs}, {phase.res}, {phase.bs}, {phase.accum}, {_checkpointed(phase.settings)!r}),"
        for phase in schedule.phases
    ]
    text = render(
        "phases.py",
        {
            "about": one_line(_about(first, schedule.effective_batch)),
            "environment": "".join(_environment(first)),
            "rows": "\n".join(rows),
            "patch": model.patch_size[0],
            "resampled": body_of("resampled"),
            **_partial(first, model, schedule.phases),
        },
    )
    return text.rstrip() + "\n"


def _about(settings: TrainSettings, effective_batch: int) -> str:
    """What the code leaves to the script that it is pasted into."""
    gpus = f"{settings.gpus} GPUs ({settings.parallel})" if settings.gpus > 1 else "1 GPU"
    attention = "" if settings.attn == "auto" else f", {settings.attn} attention"
    kind = f"{settings.model}, {settings.precision}, {settings.optim}{attention}"
    return f"{kind}, {effective_batch} images per update on {gpus}"


def _environment(settings: TrainSettings) -> Iterator[str]:
    """The allocator is set before anything is on the GPU."""
    if not settings.alloc_conf:
        return
    yield "import os\n\n"
    for name in ALLOCATOR_VARIABLES:
        yield f"os.environ[{name!r}] = {settings.alloc_conf!r}  # before anything is on the GPU\n"
    yield "\n"


def _checkpointed(settings: Any) -> bool | int:
    """All, none, or how many of the first blocks."""
    if not settings["grad_checkpointing"]:
        return False
    return True if settings["checkpoint_layers"] is None else int(settings["checkpoint_layers"])


def _partial(first: TrainSettings, model: ModelPlan, phases: tuple[Phase, ...]) -> dict[str, str]:
    """What checkpointing some of the blocks takes, which no argument of the Trainer says."""
    if all(isinstance(_checkpointed(phase.settings), bool) for phase in phases):
        return {"imports": "", "constants": "", "partial": "", "prepared": "build(size)"}
    name = f"checkpoint_{model.model.library}"
    constants = {"BLOCKS": literal(trained_blocks(first, model)), "CHECKPOINT_LAYERS": "0  # each phase has its own"}
    if model.model.library == "transformers":
        constants["REENTRANT"] = repr(first.checkpoint_reentrant)
    return {
        "imports": imports_of(name),
        "constants": "".join(f"{constant} = {text}\n" for constant, text in constants.items()),
        "partial": "\n\n" + "\n\n".join(body_of(part) for part in ("phases_checkpoint", name)),
        "prepared": "prepared(build(size), checkpointed)",
    }
