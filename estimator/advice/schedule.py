"""Progressive resolution: phases from small images to large ones, each with the micro-batch that fits it.

The effective batch stays what it is in every phase; a smaller micro-batch takes more accumulation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import DoesNotFit, InvalidRequest
from ..pipeline import resolved
from ..result import SCHEMA_VERSION
from ..settings import TrainSettings, parse_resolution
from ..units import format_bytes
from .plan import Plan, Recommendation
from .recommender import recommend_settings
from .trials import Trials

__all__ = ["Phase", "Schedule", "schedule_settings"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """``first_epoch`` counts from 0; ``relative_epoch_time`` is 1 for an epoch of the first phase; ``changes`` are the
    settings beside ``bs`` and ``accum`` that are not as they were asked for."""

    res: tuple[int, int]
    first_epoch: int
    num_epochs: int
    bs: int
    accum: int
    settings: Mapping[str, Any]
    reserved_bytes: int
    headroom_bytes: int
    relative_epoch_time: float
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """``relative_time`` is that of all epochs, 1 for as many epochs at the last resolution; ``notes`` say where windows
    do not divide a phase's patches."""

    effective_batch: int
    gpu: str
    phases: tuple[Phase, ...]
    relative_time: float
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``vitmem schedule``."""
        from .. import __version__

        head = {"schema_version": SCHEMA_VERSION, "vitmem_version": __version__}
        phases = [{**dataclasses.asdict(phase), "res": list(phase.res)} for phase in self.phases]
        return {**head, **dataclasses.asdict(self), "phases": phases, "notes": list(self.notes)}


def schedule_settings(
    settings: TrainSettings, *, resolutions: Sequence[Any], epochs: Sequence[int], effective_batch: int | None = None
) -> Schedule:
    """The phases, each as the fastest plan that keeps the recipe has it; one engine and one allocator serve them all.

    Raises InvalidRequest where a resolution leaves a remainder over the model's patches, or the library refuses it, and
    DoesNotFit where no plan of a phase does.
    """
    if settings.gpu is None and settings.memory is None:
        raise InvalidRequest("schedule needs what every phase must fit into; add --gpu rtx4090 or --memory 24GiB")
    _check_epochs(resolutions, epochs)
    sizes = [parse_resolution(resolution) for resolution in resolutions]
    for size in sizes:
        _check_size(dataclasses.replace(settings, res=size))
    plans = _plans(settings, sizes, effective_batch)
    trials = Trials(settings)
    seconds = [trials(TrainSettings.from_dict(plan.settings)).seconds for plan in plans]
    phases = tuple(
        Phase(
            res=size,
            first_epoch=sum(epochs[:place]),
            num_epochs=epochs[place],
            bs=plan.settings["bs"],
            accum=plan.settings["accum"],
            settings=plan.settings,
            reserved_bytes=plan.peak.reserved_bytes or 0,
            headroom_bytes=plan.headroom_bytes,
            relative_epoch_time=round(seconds[place] / seconds[0], 3),
            changes=_changed(plan, settings),
        )
        for place, (size, plan) in enumerate(zip(sizes, plans))
    )
    total = sum(count * time for count, time in zip(epochs, seconds)) / (sum(epochs) * seconds[-1])
    return Schedule(
        effective_batch=plans[0].effective_batch,
        gpu=settings.memory or trials.gpu.name if settings.gpu is None else trials.gpu.name,
        phases=phases,
        relative_time=round(total, 3),
        notes=tuple(_notes(settings, sizes)),
    )


def _notes(settings: TrainSettings, sizes: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Sizes at which a stage of a hierarchical model is padded, or its windows shrink: more memory than pixels."""
    for size in sizes:
        plan = resolved(dataclasses.replace(settings, res=size))[0]
        window = plan.resolved.get("window")
        if not window:
            continue
        stages = len({path.rpartition(".blocks.")[0] or path.rpartition(".")[0] for path in plan.blocks})
        whole = plan.patch_size[0] * window * 2 ** (stages - 1)
        if any(side % whole for side in size):
            yield (
                f"{size[0]}x{size[1]}: windows of {window} do not divide the patches of every stage, which are padded "
                f"or take smaller windows; multiples of {whole} are whole"
            )


def _check_epochs(resolutions: Sequence[Any], epochs: Sequence[int]) -> None:
    if not resolutions or not epochs:
        raise InvalidRequest("a schedule needs its resolutions and their epochs, such as --res 224,384 --epochs 60,20")
    if len(resolutions) != len(epochs):
        raise InvalidRequest(f"{len(resolutions)} resolutions need as many numbers of epochs, not {len(epochs)}")
    for count in epochs:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidRequest(f"epochs {count!r} is not valid; it must be a whole number, at least 1")


def _check_size(settings: TrainSettings) -> None:
    """Padding or ignored pixels would make a phase's figures those of another size."""
    plan = resolved(settings)[0]
    for side, step in zip(plan.image_size, plan.patch_size):
        if side % step:
            near = side // step * step
            raise InvalidRequest(
                f"res {plan.image_size[0]}x{plan.image_size[1]} is no multiple of the patch size {step} of "
                f"{plan.model.name}; use {near} or {near + step}"
            )


#: What a training keeps from its first step to its last.
_ENGINE = ("parallel", "offload", "zero_options")


def _plans(settings: TrainSettings, sizes: Sequence[tuple[int, int]], effective_batch: int | None) -> list[Plan]:
    """A plan for each phase: with no engine that divides or moves states where all fit without one, else with what the
    largest of the others needs; and with one allocator."""
    alone = [_found(dataclasses.replace(settings, res=size), effective_batch, *_ENGINE[:2]) for size in sizes]
    missing = [size for size, found in zip(sizes, alone) if not found.plans]
    if missing:
        largest = dataclasses.replace(settings, res=max(missing, key=lambda size: size[0] * size[1]))
        needed = _plan(_found(largest, effective_batch), largest)
        engine = {name: needed.settings[name] for name in _ENGINE}
        settings = TrainSettings.from_dict({**settings.to_dict(), **engine})
    plans = _with_engine(settings, sizes, effective_batch) if missing else [found.plans[0] for found in alone]
    confs = {plan.settings["alloc_conf"] for plan in plans}
    if len(confs) == 1:
        return plans
    conf = max(filter(None, confs))
    return _with_engine(dataclasses.replace(settings, alloc_conf=conf), sizes, effective_batch)


def _with_engine(settings: TrainSettings, sizes: Sequence[tuple[int, int]], effective_batch: int | None) -> list[Plan]:
    phases = [dataclasses.replace(settings, res=size) for size in sizes]
    return [_plan(_found(phase, effective_batch, *_ENGINE[:2]), phase) for phase in phases]


def _found(settings: TrainSettings, effective_batch: int | None, *forbid: str) -> Recommendation:
    return recommend_settings(settings, effective_batch=effective_batch, forbid=("recipe", *forbid), num_plans=1)


def _plan(found: Recommendation, settings: TrainSettings) -> Plan:
    if found.plans:
        return found.plans[0]
    assert found.nearest is not None
    assert settings.res is not None
    size, missing = "x".join(map(str, settings.res)), format_bytes(found.nearest.missing_bytes)
    raise DoesNotFit(
        f"nothing at {size} fits {found.gpu}: {missing} are missing; leave that phase out or see vitmem recommend"
    )


def _changed(plan: Plan, settings: TrainSettings) -> dict[str, Any]:
    """What the plan sets beside the batch that was not asked for."""
    asked = resolved(dataclasses.replace(settings, res=plan.settings["res"], parallel=plan.settings["parallel"]))[1]
    before, aside = asked.to_dict(), {"bs", "accum", "eval_bs", "eval_samples", "zero_options"}
    if settings.parallel is None and plan.settings["parallel"] not in {None, "none", "ddp"}:
        before["parallel"] = None
    return {name: value for name, value in plan.settings.items() if name not in aside and value != before[name]}
