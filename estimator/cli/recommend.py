"""``vitmem recommend``."""

from __future__ import annotations

from typing import Any

import click

from ..errors import DoesNotFit
from .options import SectionedCommand, model_argument, setting_options, settings_of
from .output import emit, json_option, out_options, target_of

__all__ = ["command"]


@click.command("recommend", cls=SectionedCommand)
@model_argument
@setting_options
@click.option("--effective-batch", type=int, metavar="N", help="images per update on all GPUs; else bs x accum x gpus")
@click.option("--allow", metavar="NAMES", help="change only these settings: bs,grad-checkpointing,optim,recipe ...")
@click.option("--forbid", metavar="NAMES", help="leave these settings alone; recipe: all that change the update")
@click.option("--plans", "num_plans", type=click.IntRange(1, 100), default=5, show_default=True, help="plans to show")
@click.option("--ladder/--no-ladder", default=True, help="what each measure saves and costs for this model")
@click.option("--lighter/--no-lighter", default=None, help="lighter models that fit; if left out, where no plan does")
@json_option
@out_options
def command(
    *,
    model: str | None,
    effective_batch: int | None,
    allow: str | None,
    forbid: str | None,
    num_plans: int,
    ladder: bool,
    lighter: bool | None,
    as_json: bool,
    out: str | None,
    force: bool,
    **given: Any,
) -> int:
    """Ranked configurations that fit a GPU and keep the effective batch, with what each changes, saves and costs.

    Exit codes: 0 done, 2 bad usage, 3 nothing fits (the nearest is shown), 4 cannot say.
    """
    target = target_of(out, force)
    settings = settings_of(model, given)
    from ..advice import recommend_settings
    from ..report.recommendation import recommendation_report

    found = recommend_settings(
        settings,
        effective_batch=effective_batch,
        allow=_names(allow),
        forbid=_names(forbid) or (),
        num_plans=num_plans,
        with_ladder=ladder,
        with_lighter=lighter,
    )
    emit(recommendation_report(found), as_json=as_json, target=target)
    return 0 if found.plans else DoesNotFit.exit_code


def _names(given: str | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(name.strip() for name in given.split(",") if name.strip())
