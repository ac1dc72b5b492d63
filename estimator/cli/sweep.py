"""``vitmem sweep``."""

from __future__ import annotations

from typing import Any

import click

from .options import SectionedCommand, model_argument, setting_options, values_of
from .output import emit, json_option, out_options, target_of

__all__ = ["command"]

#: Settings whose single value may hold commas.
_NEVER_A_LIST = frozenset({"alloc_conf", "lora_targets", "training_args", "deepspeed"})


@click.command("sweep", cls=SectionedCommand)
@model_argument
@setting_options
@json_option
@out_options
def command(*, model: str | None, as_json: bool, out: str | None, force: bool, **given: Any) -> None:
    """A grid: every option takes several values with commas between, and each combination is estimated.

    vitmem sweep vit_base_patch16_224 --res 224,384,512 --bs 8,16,32 --precision fp32,bf16 --gpu rtx4090

    Exit codes: 0 done, 2 bad usage, 4 cannot say.
    """
    target = target_of(out, force)
    fixed, axes = _split(values_of(model, given))
    from ..report.sweep import sweep_report
    from ..sweep import sweep_settings

    emit(sweep_report(sweep_settings(fixed, axes)), as_json=as_json, target=target)


def _split(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    lists = {name: _items(value) for name, value in values.items() if _is_list(name, value)}
    return {name: value for name, value in values.items() if name not in lists}, lists


def _is_list(name: str, value: Any) -> bool:
    return name not in _NEVER_A_LIST and isinstance(value, str) and "," in value


def _items(value: str) -> list[Any]:
    return [_number(item.strip()) for item in value.split(",") if item.strip()]


def _number(text: str) -> Any:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
