"""``vitmem sweep``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidRequest, NotModelled
from ..units import parse_number
from .options import SectionedCommand, model_argument, setting_options, values_of
from .output import emit, json_option, out_options, target_of

if TYPE_CHECKING:
    from ..report.files import Target
    from ..sweep import Sweep

__all__ = ["command"]

#: Settings whose values are text, though they look like numbers, and those whose single value may hold commas.
_TEXTS = frozenset({"torch", "memory"})
_NEVER_A_LIST = frozenset({"alloc_conf", "lora_targets", "training_args", "deepspeed", "wrap_layers"})


@click.command("sweep", cls=SectionedCommand)
@model_argument
@setting_options
@json_option
@out_options
def command(*, model: str | None, as_json: bool, out: str | None, force: bool, **given: Any) -> int:
    """A grid: every option takes several values with commas between, and each combination is estimated.

    vitmem sweep vit_base_patch16_224 --res 224,384,512 --bs 8,16,32 --precision fp32,bf16 --gpu rtx4090

    --out also takes .png and .svg: a heat map over the last two settings, drawn by matplotlib.

    Exit codes: 0 done, 2 bad usage, 4 cannot say.
    """
    from ..validate.heat_map import SUFFIXES, check

    target = target_of(out, force, SUFFIXES)
    if "," in str(given.get("zero")):  # short for values of --parallel
        given["parallel"] = ",".join(f"zero{stage.strip()}" for stage in given.pop("zero").split(","))
    fixed, axes = _split(values_of(model, given))
    from ..sweep import sweep_settings

    draws = target is not None and target.suffix in SUFFIXES
    if draws:
        check(axes)
    sweep = sweep_settings(fixed, axes)
    if target is not None and draws:
        _draw(sweep, target)
    _show(sweep, as_json=as_json, target=None if draws else target)
    return 0 if any(row.estimate is not None for row in sweep.rows) else NotModelled.exit_code


def _draw(sweep: Sweep, target: Target) -> None:
    from ..validate.heat_map import heat_map

    target.save(heat_map(sweep, target.suffix))
    print(f"wrote {target.path}", file=sys.stderr)


def _show(sweep: Sweep, *, as_json: bool, target: Target | None) -> None:
    from ..report.sweep import sweep_report

    emit(sweep_report(sweep), as_json=as_json, target=target)


def _split(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    lists = {name: _items(name, value) for name, value in values.items() if _is_list(name, value)}
    return {name: value for name, value in values.items() if name not in lists}, lists


def _is_list(name: str, value: Any) -> bool:
    return name not in _NEVER_A_LIST and isinstance(value, str) and "," in value


def _items(name: str, value: str) -> list[Any]:
    items = [item.strip() for item in value.split(",")]
    if not all(items):
        raise InvalidRequest(f"{value!r} has an empty value between its commas")
    return [item if name in _TEXTS else parse_number(item) for item in dict.fromkeys(items)]
