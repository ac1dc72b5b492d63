"""``vitmem recommend``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ..errors import DoesNotFit, InvalidRequest
from .options import NUMBER, SectionedCommand, model_argument, setting_options, settings_of
from .output import emit, json_option, out_options, target_of

if TYPE_CHECKING:
    from ..advice import Recommendation
    from ..advice.files import Folder

__all__ = ["command"]


@click.command("recommend", cls=SectionedCommand)
@model_argument
@setting_options
@click.option(
    "--effective-batch", type=NUMBER, metavar="N", help="images per update on all GPUs; else bs x accum x gpus"
)
@click.option("--allow", metavar="NAMES", help="change only these settings: bs,grad-checkpointing,optim,recipe ...")
@click.option("--forbid", metavar="NAMES", help="leave these settings alone; recipe: all that change the update")
@click.option(
    "--plans", "num_plans", type=click.IntRange(1, 100), default=5, metavar="N", show_default=True, help="plans to show"
)
@click.option("--ladder/--no-ladder", default=True, help="what each measure saves and costs for this model")
@click.option("--lighter/--no-lighter", default=None, help="lighter models that fit; if left out, where no plan does")
@click.option("--write", metavar="DIR", help="write a plan as files that are ready to run into DIR")
@click.option(
    "--plan", "rank", type=click.IntRange(1), metavar="N", help="the plan that --write writes; else the first"
)
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
    write: str | None,
    rank: int | None,
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
    folder = _folder(write, rank, force)
    from ..advice import recommend_settings
    from ..report.recommendation import recommendation_report

    found = recommend_settings(
        settings,
        effective_batch=effective_batch,
        allow=_names("allow", allow),
        forbid=_names("forbid", forbid) or (),
        num_plans=num_plans,
        with_ladder=ladder,
        with_lighter=lighter,
    )
    emit(recommendation_report(found), as_json=as_json, target=target)
    if folder is not None and found.plans:
        _write(found, rank or 1, folder)
    return 0 if found.plans else DoesNotFit.exit_code


def _folder(write: str | None, rank: int | None, force: bool) -> Folder | None:
    if write is None and rank is not None:
        raise InvalidRequest(f"plan {rank} is the plan to write; add --write DIR, or --plans {rank} to see as many")
    if write is None:
        return None
    from pathlib import Path

    from ..advice.files import Folder

    if not write.strip():
        raise InvalidRequest("write is empty; name a folder, such as out")

    return Folder(Path(write), force=force)


def _write(found: Recommendation, rank: int, folder: Folder) -> None:
    from ..advice.files import write_plan

    if rank > len(found.plans):
        raise InvalidRequest(f"there is no plan {rank}; {len(found.plans)} are shown, --plans shows more")
    for path in write_plan(found.plans[rank - 1], found.gpu, folder):
        print(f"wrote {path}", file=sys.stderr)


def _names(flag: str, given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = tuple(name.strip() for name in given.split(","))
    if not any(names):
        raise InvalidRequest(f"{flag} is empty; name settings, as bs,grad-checkpointing, or leave --{flag} out")
    if not all(names):
        raise InvalidRequest(f"{flag} {given!r} has an empty name; write names as bs,grad-checkpointing")
    return names
