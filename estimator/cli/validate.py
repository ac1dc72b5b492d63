"""``vitmem validate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ..errors import DoesNotFit, InvalidRequest, NoFamily, NotModelled, did_you_mean
from ..extra import real_libraries
from ..generations import Torch
from ..validate.backends import AUTO, BACKENDS, Run
from .null_device import null_device, null_options
from .options import SectionedCommand, model_argument, setting_options, settings_of
from .output import emit, json_option, out_options, target_of

if TYPE_CHECKING:
    from ..report.files import Target
    from ..result import Estimate
    from ..settings import TrainSettings
    from ..validate.measurement import Measured

__all__ = ["command"]

_NAMES = ("auto", *BACKENDS)
#: Ranks run on the CPU, whose kernels are not the GPU's.
_ALONE, _BETWEEN_RANKS = 0.001, 0.02


@click.command("validate", cls=SectionedCommand)
@model_argument
@setting_options
@click.option("--backend", default="auto", metavar=f"[{'|'.join(_NAMES)}]", help=f"what runs the step; auto is {AUTO}")
@click.option(
    "--tolerance", metavar="X", help="largest relative difference that passes  [default: 0.001; between ranks 0.02]"
)
@null_options
@click.option("--corpus", is_flag=True, help="replay the measurements that ship with vitmem instead")
@json_option
@out_options
def command(
    *,
    model: str | None,
    backend: str,
    tolerance: str | None,
    cudnn_workspace: str,
    timeout: float,
    corpus: bool,
    as_json: bool,
    out: str | None,
    force: bool,
    **given: Any,
) -> int:
    """Run the very same step with the real model and compare it with the estimate.

    The meta backend rehearses the step of the real model without data and without a device. The null backend runs it in
    PyTorch's CUDA build on the GPU that --gpu names and that need not be there (--force: also beside a real one); cuda
    runs it on a real one. With --gpus 2 the cpu backend starts the ranks of --parallel itself, under Trainer. With
    --corpus nothing runs: every stored measurement is compared with its estimate.
    Exit codes: 0 passed, 2 bad usage, 3 beyond the tolerance, 4 cannot say.
    """
    target = target_of(out, force)
    if corpus:
        return _corpus(model, given, as_json=as_json, target=target)
    settings = settings_of(model, given)
    allowed = _tolerance(tolerance, between_ranks=settings.gpus > 1)
    measure = _backend(backend)
    from ..report.comparison import comparison_report

    estimate = _estimate(settings)
    device = null_device(settings.gpu, settings.memory, cudnn_workspace)
    run = Run(settings=settings, device=device, force=force, timeout_s=timeout)
    with real_libraries("validate runs the real model"):
        from ..validate.compare import compare

        comparison = compare(estimate, measure(run), allowed)
    emit(comparison_report(comparison.to_dict()), as_json=as_json, target=target)
    return 0 if comparison.passed and not comparison.measurement.ran_out else DoesNotFit.exit_code


def _estimate(settings: TrainSettings) -> Estimate:
    """What the backend's figures are compared with."""
    from ..pipeline import play_settings

    if not Torch.parse(settings.torch).is_newest:
        raise NotModelled(f"a backend runs the torch that is installed; leave out --torch {settings.torch}")
    try:
        return play_settings(settings)
    except NoFamily as reason:
        raise NotModelled(f"{reason}; its estimate is itself a rehearsal: there is nothing to compare") from reason


def _corpus(model: str | None, given: Mapping[str, Any], *, as_json: bool, target: Target | None) -> int:
    asked = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if model is not None or asked:
        raise InvalidRequest(f"--corpus replays settings of its own; leave out {', '.join(asked) or model}")
    from ..report.corpus import corpus_report
    from ..validate.corpus import replay

    replayed = replay()
    emit(corpus_report(replayed.to_dict()), as_json=as_json, target=target)
    return 0 if replayed.passed else DoesNotFit.exit_code


def _tolerance(text: str | None, *, between_ranks: bool) -> float:
    if text is None:
        return _BETWEEN_RANKS if between_ranks else _ALONE
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InvalidRequest(f"tolerance {text!r} is not valid; it must be a fraction in [0, 1), such as 0.001")
    return value


def _backend(name: str) -> Callable[[Run], Measured]:
    if name not in _NAMES:
        hint = did_you_mean(name, _NAMES) or f"; choose one of {', '.join(_NAMES)}"
        raise InvalidRequest(f"backend {name!r} is unknown{hint}")
    measure = BACKENDS[AUTO if name == "auto" else name]
    if measure is None:
        raise NotModelled(f"backend {name!r} is not available in this version; use --backend {AUTO}")
    return measure
