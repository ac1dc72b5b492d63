"""``vitmem validate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import DoesNotFit, InvalidRequest, NoFamily, NotModelled, did_you_mean
from ..extra import real_libraries
from .options import SectionedCommand, model_argument, setting_options, settings_of
from .output import emit, json_option, out_options, target_of

if TYPE_CHECKING:
    from ..result import Estimate
    from ..settings import TrainSettings
    from ..validate.compare import Comparison

__all__ = ["command"]

_BACKENDS = ("auto", "meta", "cpu", "cuda", "null")
_AVAILABLE = ("auto", "meta")


@click.command("validate", cls=SectionedCommand)
@model_argument
@setting_options
@click.option("--backend", default="auto", metavar=f"[{'|'.join(_BACKENDS)}]", help="what runs the step; auto is meta")
@click.option(
    "--tolerance", default="0.001", metavar="X", help="largest relative difference that passes  [default: 0.001]"
)
@json_option
@out_options
def command(
    *, model: str | None, backend: str, tolerance: str, as_json: bool, out: str | None, force: bool, **given: Any
) -> int:
    """Run the very same step with the real model and compare it with the estimate.

    The meta backend rehearses the step of the real model without data and without a device.
    Exit codes: 0 passed, 2 bad usage, 3 beyond the tolerance, 4 cannot say.
    """
    target = target_of(out, force)
    allowed = _tolerance(tolerance)
    settings = settings_of(model, given)
    _check_backend(backend)
    from ..pipeline import play_settings
    from ..report.comparison import comparison_report

    try:
        estimate = play_settings(settings)
    except NoFamily as reason:
        raise NotModelled(f"{reason}; its estimate is itself a rehearsal: there is nothing to compare") from reason
    comparison = _compare(settings, estimate, allowed)
    emit(comparison_report(comparison.to_dict()), as_json=as_json, target=target)
    return 0 if comparison.passed else DoesNotFit.exit_code


def _compare(settings: TrainSettings, estimate: Estimate, tolerance: float) -> Comparison:
    with real_libraries("validate runs the real model"):
        from ..validate.compare import compare
        from ..validate.meta import measure

        return compare(estimate, measure(settings), tolerance)


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InvalidRequest(f"tolerance {text!r} is not valid; it must be a fraction in [0, 1), such as 0.001")
    return value


def _check_backend(backend: str) -> None:
    if backend not in _BACKENDS:
        hint = did_you_mean(backend, _BACKENDS) or f"; choose one of {', '.join(_BACKENDS)}"
        raise InvalidRequest(f"backend {backend!r} is unknown{hint}")
    if backend not in _AVAILABLE:
        raise NotModelled(f"backend {backend!r} is not available in this version; use --backend meta")
