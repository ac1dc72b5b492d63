"""``vitmem schedule``."""

from __future__ import annotations

from typing import Any

import click

from ..errors import InvalidRequest
from ..units import parse_number
from .options import NUMBER, SectionedCommand, model_argument, setting_options, values_of
from .output import emit, json_option, out_options, target_of

__all__ = ["command"]


@click.command("schedule", cls=SectionedCommand)
@model_argument
@setting_options
@click.option("--epochs", metavar="N,N", help="epochs of each resolution of --res")
@click.option(
    "--effective-batch", type=NUMBER, metavar="N", help="images per update on all GPUs; else bs x accum x gpus"
)
@click.option("--callback", is_flag=True, help="print code to paste into a Trainer script, and nothing else")
@json_option
@out_options
def command(
    *,
    model: str | None,
    epochs: str | None,
    effective_batch: int | None,
    callback: bool,
    as_json: bool,
    out: str | None,
    force: bool,
    **given: Any,
) -> None:
    """Progressive resolution: the micro-batch and the accumulation that fit each phase, and what it all takes.

    vitmem schedule vit_base_patch16_224 --res 224,288,384 --epochs 60,20,10 --effective-batch 256 --gpu rtx4090

    Exit codes: 0 done, 2 bad usage, 3 a phase does not fit, 4 cannot say.
    """
    target = target_of(out, force)
    if callback and (as_json or out):
        flag = "json" if as_json else "out"
        raise InvalidRequest(
            f"--callback prints code and nothing else; leave out --{flag}, and redirect it into a file"
        )
    values = values_of(model, given)
    resolutions = [size for size in str(values.pop("res", "")).split(",") if size.strip()]
    from ..advice.schedule import schedule_settings
    from ..report.schedule import schedule_report
    from ..settings import TrainSettings

    counts = [_count(text) for text in (epochs or "").split(",") if text.strip()]
    settings = TrainSettings.of(**values)
    found = schedule_settings(settings, resolutions=resolutions, epochs=counts, effective_batch=effective_batch)
    if callback:
        from ..advice.phases import callback_text

        click.echo(callback_text(found), nl=False)
        return
    emit(schedule_report(found), as_json=as_json, target=target)


def _count(text: str) -> int:
    count = parse_number(text.strip())
    if not isinstance(count, int):
        raise InvalidRequest(f"epochs {text!r} is not a whole number; write them as 60,20,10")
    return count
