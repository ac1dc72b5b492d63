"""``vitmem solve``."""

from __future__ import annotations

from typing import Any

import click

from .options import SectionedCommand, model_argument, setting_options, settings_of
from .output import emit, json_option, out_options, target_of

__all__ = ["command"]


@click.command("solve", cls=SectionedCommand)
@click.argument("what", metavar="bs|res|gpu")
@model_argument
@setting_options
@json_option
@out_options
def command(*, what: str, model: str | None, as_json: bool, out: str | None, force: bool, **given: Any) -> None:
    """The largest batch (bs), the largest resolution (res) or the smallest known GPU (gpu) that fits, all else fixed.

    bs and res need --gpu or --memory. What fits only with a small CUDA context does not count as fitting.
    Exit codes: 0 done, 2 bad usage, 3 nothing fits, 4 cannot say.
    """
    target = target_of(out, force)
    settings = settings_of(model, given)
    from ..report.solution import solution_report
    from ..solver import solve_settings

    emit(solution_report(solve_settings(what, settings)), as_json=as_json, target=target)
