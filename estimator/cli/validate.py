"""``vitmem validate``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..errors import DoesNotFit, InvalidRequest, NoFamily, NotModelled, UnknownName, VitmemError, did_you_mean
from ..extra import real_libraries
from ..generations import Torch
from ..validate.backends import BACKENDS, RANKS, RANKS_ON_GPUS, Backend, Run, auto
from ..validate.distributed.world import RankFailed, World, launched
from .null_device import DEFAULT_GPU, null_device, null_options
from .options import SectionedCommand, model_argument, setting_options, settings_of
from .output import emit, json_option, out_options, target_of

if TYPE_CHECKING:
    from ..report.files import Target
    from ..result import Estimate
    from ..settings import TrainSettings
    from ..validate.compare import Comparison
    from ..validate.measurement import Measured

__all__ = ["command"]

_NAMES = ("auto", *BACKENDS)
_OF_RANKS = {"cpu": RANKS, "cuda": RANKS_ON_GPUS}
_OF_BACKENDS = ("tolerance", "cudnn_workspace", "timeout", "steps", "history", "save")


@click.command("validate", cls=SectionedCommand)
@model_argument
@setting_options
@click.option(
    "--backend",
    default="auto",
    metavar=f"[{'|'.join(_NAMES)}]",
    help="what runs the step; auto is cuda where there is a device, else meta",
)
@click.option(
    "--tolerance",
    metavar="X",
    help="largest relative difference that passes  [default: 0.001, on the CPU 0.01, between ranks 0.02]",
)
@click.option(
    "--steps",
    type=click.IntRange(min=3, max=1000),
    default=5,
    metavar="N",
    help="steps of the cuda backend; from 5 on growth from step to step is reported  [default: 5]",
)
@click.option("--history", metavar="FILE", help="the allocator's history of the cuda backend, for memory_viz")
@click.option("--save", metavar="FILE", help="the measurement as a row of a file that --corpus replays (cuda, null)")
@null_options
@click.option(
    "--corpus",
    is_flag=False,
    flag_value="",
    metavar="[PATH]",
    help="replay the measurements that ship with vitmem instead, or those in a file that --save wrote, or a folder",
)
@json_option
@out_options
def command(
    *,
    model: str | None,
    backend: str,
    corpus: str | None,
    as_json: bool,
    out: str | None,
    force: bool,
    **given: Any,
) -> int:
    """Run the very same step with the real model and compare it with the estimate.

    The meta backend rehearses the step of the real model without data and without a device; cpu runs it in host memory,
    and the estimate follows the CPU's rules. With --gpus 2 cpu and cuda start the ranks of --parallel, under Trainer;
    under torchrun, accelerate launch or deepspeed they are there, and the first one speaks. The null backend
    runs it in PyTorch's CUDA build on the GPU that --gpu names and that need not be there (--force: also beside a real
    one); cuda runs it on a real one, --memory makes that smaller. With --corpus nothing runs: every stored measurement
    is compared with its estimate. Exit codes: 0 passed, 2 bad usage, 3 beyond the tolerance, 4 cannot say.
    """
    target = target_of(out, force)
    own = {name: given.pop(name) for name in _OF_BACKENDS}
    if corpus is not None:
        return _corpus(corpus, model, given, as_json=as_json, target=target)
    tolerance = None if own["tolerance"] is None else _tolerance(own["tolerance"])
    world = launched()
    try:
        settings = settings_of(model, given)
        if world is not None:
            settings = world.settled(settings, gpus=given["gpus"])
        comparison = _compared(settings, _backend(backend, settings), tolerance, own, force=force, world=world)
    except VitmemError as error:
        if world is None or world.rank == 0 or isinstance(error, RankFailed):
            raise
        return error.exit_code
    from ..report.comparison import comparison_report

    ran_out = comparison.measurement.ran_out
    if world is None or world.rank == 0 or ran_out:
        emit(comparison_report(comparison.to_dict()), as_json=as_json, target=target)
    return 0 if comparison.passed and not ran_out else DoesNotFit.exit_code


def _compared(
    settings: TrainSettings,
    chosen: Backend,
    tolerance: float | None,
    own: Mapping[str, Any],
    *,
    force: bool,
    world: World | None,
) -> Comparison:
    _check(own, chosen)
    settings = _with_installed_torch(settings)
    estimate = _estimate(settings, on_host=chosen.host)
    run = Run(
        settings=settings,
        device=null_device(settings.gpu, settings.memory, own["cudnn_workspace"]),
        force=force,
        timeout_s=own["timeout"],
        num_steps=own["steps"],
        history=own["history"],
        world=world,
    )
    with real_libraries("validate runs the real model"):
        from ..validate.compare import compare

        measurement = chosen.measure(run)
    here = _on_this_gpu(settings, measurement)
    if here is not settings:
        estimate = _estimate(here, on_host=False)
    if own["save"] is not None and (world is None or world.rank == 0):
        _save(own["save"], here, measurement)
    return compare(estimate, measurement, chosen.tolerance if tolerance is None else tolerance)


def _with_installed_torch(settings: TrainSettings) -> TrainSettings:
    """The estimate is for the torch that runs the step."""
    from importlib import metadata

    try:
        installed = Torch.nearest(metadata.version("torch"))
    except metadata.PackageNotFoundError:  # said when the backend is run
        return settings
    asked = Torch.parse(settings.torch)
    if not asked.is_newest and asked != installed:
        raise NotModelled(
            f"a backend runs the torch that is installed ({installed.label}); leave out --torch {settings.torch}"
        )
    return dataclasses.replace(settings, torch=installed.label)


def _check(own: Mapping[str, Any], chosen: Backend) -> None:
    """What other backends have nothing to say to."""
    if own["save"] is not None and not chosen.has_allocator:
        raise InvalidRequest("--save keeps what an allocator said; use --backend cuda or null")
    if own["history"] is not None and chosen is not BACKENDS["cuda"]:
        raise InvalidRequest("--history is the allocator's of one process on a GPU; use --backend cuda without --gpus")


def _on_this_gpu(settings: TrainSettings, measurement: Measured) -> TrainSettings:
    """With the GPU that it ran on, where none was named and this one is known."""
    if measurement.backend != "cuda" or settings.gpu is not None:
        return settings
    from ..gpus import find

    try:
        return dataclasses.replace(settings, gpu=find(measurement.device).name)
    except UnknownName:
        return settings


def _save(save: str, settings: TrainSettings, measurement: Measured) -> None:
    from pathlib import Path

    from ..validate.saved import append_row, row_of

    document = measurement.to_dict()
    append_row(Path(save), settings.gpu or DEFAULT_GPU, document, row_of(settings, document))


def _estimate(settings: TrainSettings, *, on_host: bool) -> Estimate:
    """What the backend's figures are compared with."""
    from ..device import CPU
    from ..pipeline import play_settings

    if on_host and (settings.gpu or settings.memory):
        raise InvalidRequest("the cpu backend says nothing about a GPU; leave out --gpu and --memory")
    try:
        return play_settings(settings, CPU) if on_host else play_settings(settings)
    except NoFamily as reason:
        raise NotModelled(f"{reason}; its estimate is itself a rehearsal: there is nothing to compare") from reason


def _corpus(source: str, model: str | None, given: Mapping[str, Any], *, as_json: bool, target: Target | None) -> int:
    asked = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if model is not None or asked:
        raise InvalidRequest(f"--corpus replays settings of its own; leave out {', '.join(asked) or model}")
    from pathlib import Path

    from ..report.corpus import corpus_report
    from ..validate.corpus import replay

    replayed = replay(Path(source) if source else None)
    emit(corpus_report(replayed.to_dict()), as_json=as_json, target=target)
    return 0 if replayed.passed else DoesNotFit.exit_code


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InvalidRequest(f"tolerance {text!r} is not valid; it must be a fraction in [0, 1), such as 0.001")
    return value


def _backend(name: str, settings: TrainSettings) -> Backend:
    if name not in _NAMES:
        hint = did_you_mean(name, _NAMES) or f"; choose one of {', '.join(_NAMES)}"
        raise InvalidRequest(f"backend {name!r} is unknown{hint}")
    if name == "auto":
        with real_libraries("validate runs the real model"):
            name = auto()
    alone = settings.gpus == 1 and settings.parallel in {None, "none"}
    if alone or settings.parallel in BACKENDS[name].first_rank_of:
        return BACKENDS[name]
    if name in _OF_RANKS:
        return _OF_RANKS[name]
    raise NotModelled(
        f"the {name} backend runs one process; --backend cpu starts the ranks of {_engine(settings)} on the CPU, "
        "--backend cuda one on each GPU"
    )


def _engine(settings: TrainSettings) -> str:
    return f"--gpus {settings.gpus} --parallel {settings.parallel or 'ddp'}"
