"""A Recommendation as a report: the plans, what the best one changes, and the ladder of this model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..result import Peak
from ..units import format_bytes
from .settings import named_settings
from .tables import Cell, Column, Notes, Report, Table

__all__ = ["recommendation_report"]


class Changed(Protocol):
    """What a report shows of a change."""

    @property
    def setting(self) -> str: ...
    @property
    def from_(self) -> Any: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def saved_bytes(self) -> int: ...
    @property
    def cost(self) -> str: ...
    @property
    def loses(self) -> str: ...


class Ranked(Protocol):
    """What a report shows of a plan."""

    @property
    def rank(self) -> int: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def peak(self) -> Peak: ...
    @property
    def headroom_bytes(self) -> int: ...
    @property
    def relative_step_time(self) -> float: ...
    @property
    def keeps_recipe(self) -> bool: ...
    @property
    def casts_model(self) -> bool: ...
    @property
    def changes(self) -> Sequence[Changed]: ...


class Step(Protocol):
    """What a report shows of a rung."""

    @property
    def name(self) -> str: ...
    @property
    def to(self) -> str: ...
    @property
    def peak_bytes(self) -> int | None: ...
    @property
    def saved_bytes(self) -> int | None: ...
    @property
    def relative_time(self) -> float | None: ...
    @property
    def fits(self) -> bool | None: ...
    @property
    def remark(self) -> str: ...


class Model(Protocol):
    """What a report shows of a lighter model."""

    @property
    def name(self) -> str: ...
    @property
    def changes(self) -> Mapping[str, Any]: ...
    @property
    def loses(self) -> str: ...
    @property
    def num_parameters(self) -> int: ...
    @property
    def step_flops(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def headroom_bytes(self) -> int: ...


class Near(Protocol):
    """What a report shows where nothing fits."""

    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def peak(self) -> Peak: ...
    @property
    def missing_bytes(self) -> int: ...
    @property
    def gpu(self) -> str | None: ...


class Recommended(Protocol):
    """What a report shows of a recommendation."""

    @property
    def request(self) -> Mapping[str, Any]: ...
    @property
    def effective_batch(self) -> int: ...
    @property
    def gpu(self) -> str: ...
    @property
    def considered(self) -> int: ...
    @property
    def played(self) -> int: ...
    @property
    def fitting(self) -> int: ...
    @property
    def plans(self) -> Sequence[Ranked]: ...
    @property
    def nearest(self) -> Near | None: ...
    @property
    def ladder(self) -> Sequence[Step]: ...
    @property
    def lighter(self) -> Sequence[Model]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    def to_dict(self) -> dict[str, Any]: ...


def recommendation_report(found: Recommended) -> Report:
    """Plans first; then the way to each, and what every measure does to this model."""
    tables = [_plans(found.plans)] if found.plans else []
    tables += [_changes(plan) for plan in found.plans[:1] if plan.changes]
    if found.ladder:
        tables.append(_ladder(found.ladder))
    if found.lighter:
        tables.append(_lighter(found.lighter))
    return Report(
        headline=_headline(found),
        subtitle=(
            f"{found.considered} candidates considered ({found.played} played), {found.fitting} fit. Asked for: "
            f"{_line(found.request)}.",
        ),
        tables=tuple(tables),
        notes=(
            Notes(title="What training loses", lines=tuple(_losses(found.plans))),
            Notes(title="Pruned models", lines=tuple(f"{_named(m)[8:]}: {m.loses}" for m in found.lighter if m.loses)),
            Notes(title="Remarks", lines=tuple(_remarks(found.ladder))),
            Notes(title="Assumptions", lines=tuple(found.notes)),
        ),
        document=found.to_dict(),
    )


def _headline(found: Recommended) -> str:
    if found.plans:
        best = found.plans[0]
        todo = "as asked" if not best.changes else ", ".join(_change(change) for change in best.changes)
        return f"{found.request['model']} with {found.effective_batch} images per update on {found.gpu}: {todo}."
    near = found.nearest
    assert near is not None
    holds = f"{near.gpu} holds it" if near.gpu else "no known GPU holds it"
    missing = format_bytes(near.missing_bytes)
    beside = [name for name in ("eval_bs",) if near.settings[name] != found.request[name]]
    return f"Nothing fits {found.gpu}: the nearest ({_line(near.settings, beside)}) misses {missing}; {holds}."


#: Settings that tell plans apart where these differ in them.
_BESIDE = ("attn", "sdpa_kernel", "ema", "eval_bs")


def _line(settings: Mapping[str, Any], beside: Sequence[str] = ()) -> str:
    parts = [f"{settings['bs']} x {settings['accum']}", settings["precision"], settings["optim"]]
    parts += [named_settings({name: settings[name]}) for name in beside]
    if settings["grad_checkpointing"]:
        count = settings["checkpoint_layers"]
        parts.append("checkpointing" if count is None else f"{count} block{'s' * (count > 1)} checkpointed")
    if settings["alloc_conf"]:
        parts.append("expandable segments" if "expandable" in settings["alloc_conf"] else settings["alloc_conf"])
    if settings["gpus"] > 1:
        parts.append(f"{settings['gpus']} GPUs ({settings['parallel']})")
    elif settings["parallel"] not in {None, "none"}:
        parts.append(settings["parallel"])
    if settings["offload"] != "none":
        parts.append("all offloaded" if settings["offload"] == "all" else "optimizer offloaded")
    if settings["patch_drop"]:
        parts.append(f"patch-drop {settings['patch_drop']:g}")
    return ", ".join(str(part) for part in parts)


def _plans(plans: Sequence[Ranked]) -> Table:
    columns = (
        Column(name="plan"),
        Column(name="reserved", kind="bytes"),
        Column(name="headroom", kind="bytes"),
        Column(name="time"),
        Column(name="recipe"),
    )
    beside = [name for name in _BESIDE if len({str(plan.settings[name]) for plan in plans}) > 1]
    rows = tuple(
        (
            f"{plan.rank}  {_line(plan.settings, beside)}",
            plan.peak.reserved_bytes,
            plan.headroom_bytes,
            f"{plan.relative_step_time:.2f}",
            ("cast" if plan.casts_model else "kept") if plan.keeps_recipe else "changed",
        )
        for plan in plans
    )
    note = "Time: of an optimizer step, relative to the fastest plan; the recipe is what an update computes."
    if any(plan.keeps_recipe and plan.casts_model for plan in plans):
        note += " Cast: kept, but for norms and losses in 16 bits, where autocast has fp32; such plans come after."
    return Table(name="plans", title="Plans that fit", columns=columns, rows=rows, note=note)


def _changes(plan: Ranked) -> Table:
    columns = (Column(name="change"), Column(name="saves", kind="bytes"), Column(name="costs"))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (_change(change), change.saved_bytes, change.cost) for change in plan.changes
    )
    return Table(name=f"plan {plan.rank}", title=f"What plan {plan.rank} changes", columns=columns, rows=rows)


def _change(change: Changed) -> str:
    return named_settings(change.settings)


def _remarks(rungs: Sequence[Step]) -> Iterable[str]:
    """Each once: rungs of one name share reasons."""
    return dict.fromkeys(f"{rung.name}: {rung.remark}" for rung in rungs if rung.remark)


def _losses(plans: Sequence[Ranked]) -> list[str]:
    """Each once: plans share changes."""
    named = {(change.setting, change.loses): None for plan in plans for change in plan.changes if change.loses}
    return [f"{setting.replace('_', '-')}: {loses}" for setting, loses in named]


def _ladder(rungs: Sequence[Step]) -> Table:
    columns = (
        Column(name="rung"),
        Column(name="peak", kind="bytes"),
        Column(name="saves", kind="signed_bytes"),
        Column(name="time"),
        Column(name="fits"),
    )
    rows = tuple(
        (
            f"{rung.name}: {rung.to}" if rung.to else rung.name,
            rung.peak_bytes,
            rung.saved_bytes,
            None if rung.relative_time is None else f"x {rung.relative_time:.2f}",
            None if rung.fits is None else "yes" if rung.fits else "no",
        )
        for rung in rungs
    )
    note = "Each on the one above; from divided states or offload on, each alone on the micro-batch."
    return Table(name="ladder", title="The ladder", columns=columns, rows=rows, note=note, unknown="-")


def _named(model: Model) -> str:
    """A pruned model by what is changed of the one that was asked for."""
    flags = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in model.changes.items())
    return f"pruned: {flags}" if flags else model.name


def _lighter(models: Sequence[Model]) -> Table:
    columns = (
        Column(name="model"),
        Column(name="parameters", kind="count"),
        Column(name="TFLOPs"),
        Column(name="peak", kind="bytes"),
        Column(name="headroom", kind="bytes"),
    )
    rows = tuple(
        (_named(model), model.num_parameters, f"{model.step_flops / 1e12:,.1f}", model.peak_bytes, model.headroom_bytes)
        for model in models
    )
    return Table(
        name="lighter",
        title="Lighter models that fit as asked",
        columns=columns,
        rows=rows,
        note="TFLOPs: 10**12 operations of one optimizer step on one GPU.",
    )
