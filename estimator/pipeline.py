"""From settings to an Estimate: resolve the model, play one steady-state step, read the ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from . import catalog, families, scope
from .errors import NoFamily
from .families import Plan
from .kernels import Kernels
from .ledger import Ledger
from .loops import LOOPS, with_defaults
from .result import KINDS, Estimate, Layer, ModelInfo, Peak, PhasePeak, Scaling, States
from .settings import TrainSettings
from .step import Step
from .timeline import PhaseSummary, allocated_peak, layer_peaks, phase_summaries, snapshot

__all__ = ["Played", "estimate_settings", "play_settings", "resolved"]

PHASES = ("forward", "backward", "optimizer_step")


def estimate_settings(settings: TrainSettings) -> Estimate:
    """The memory of one steady-state training step; raises a VitmemError where no honest answer exists.

    A model that no family covers is rehearsed instead, where its library is installed.
    """
    try:
        return play_settings(settings)
    except NoFamily as reason:
        from .fallback import rehearsed

        return rehearsed(settings, reason)


def play_settings(settings: TrainSettings) -> Estimate:
    """:func:`estimate_settings` for the models that a family covers; raises NoFamily for the others."""
    plan, settings = resolved(settings)
    played = Played(plan, settings)
    return Estimate(
        request=_request(settings, plan, played.step),
        model=_model_info(plan, played.step),
        peak=_peak(played),
        at_peak=_by_kind(played.ledger, played.allocated.event),
        at_tensor_peak=_by_kind(played.ledger, played.tensors.event),
        phases=_phases(played.summaries),
        states=_states(played),
        scaling=_scaling(played, plan, settings),
        layers=_layers(played),
        host=None,
        verdict=None,
        assumptions=(*scope.assumptions(settings, plan), *plan.assumptions),
        not_modelled=scope.NOT_MODELLED,
        warnings=scope.warnings(settings, plan),
    )


class Played:
    """One step with its ledger and the two moments that matter."""

    def __init__(self, plan: Plan, settings: TrainSettings) -> None:
        self.step, before = _play(plan, settings)
        self.ledger = self.step.run.ledger()
        self.summaries = phase_summaries(self.ledger)[before:]
        self.saved_activations = self.step.saved_activations(self.ledger)
        self.tensors = max((s.tensor_peak for s in self.summaries), key=lambda moment: moment.total_bytes)
        self.allocated = max((s.allocated_peak for s in self.summaries), key=lambda moment: moment.total_bytes)


def _play(plan: Plan, settings: TrainSettings) -> tuple[Step, int]:
    """A steady-state step, and how many phases of its ledger come before it."""
    loop = LOOPS[settings.loop]
    step = Step(plan, settings, Kernels(sdpa_kernel=settings.sdpa_kernel))
    step.make_optimizer_state()
    loop.carry(step)
    if settings.zero_grad != "after-step":
        loop.play(step)  # a step before, for the gradients that it leaves behind
    before = len(step.run.phases)
    loop.play(step)
    return step, before


def resolved(settings: TrainSettings) -> tuple[Plan, TrainSettings]:
    """The model's plan, and settings that leave nothing to choose: the loop's optimizer, the attention that runs."""
    scope.check(settings)
    plan = families.plan(catalog.resolve(settings.model), settings)
    scope.check_blocks(settings, plan)
    return plan, dataclasses.replace(with_defaults(settings), attn=plan.attn)  # type: ignore[arg-type]


def _request(settings: TrainSettings, plan: Plan, step: Step) -> Mapping[str, Any]:
    request = {**settings.to_dict(), **plan.resolved}
    request["res"] = list(plan.image_size)
    if settings.grad_checkpointing and settings.checkpoint_layers is None:
        request["checkpoint_layers"] = len(plan.blocks)
    if settings.sdpa_kernel == "auto":
        request["sdpa_kernel"] = step.attention_kernel or "auto"
    return request


def _model_info(plan: Plan, step: Step) -> ModelInfo:
    model = plan.model
    return ModelInfo(
        name=model.name,
        library=model.library,
        family=model.family,
        num_parameters=sum(p.numel for p in step.scope.parameters.values()),
        num_trainable_parameters=sum(p.numel for p in step.trained.values()),
        num_tokens=plan.num_tokens,
        image_size=plan.image_size,
    )


def _peak(played: Played) -> Peak:
    return Peak(
        tensor_bytes=played.tensors.total_bytes,
        allocated_bytes=played.allocated.total_bytes,
        reserved_bytes=None,
        device_bytes=None,
        device_low_bytes=None,
        device_high_bytes=None,
        phase=played.tensors.phase,
        layer=played.tensors.layer,
        allocated_phase=played.allocated.phase,
        allocated_layer=played.allocated.layer,
    )


def _by_kind(ledger: Ledger, event: int) -> Mapping[str, int]:
    return dict.fromkeys(KINDS, 0) | snapshot(ledger, event)


def _phases(summaries: list[PhaseSummary]) -> Mapping[str, PhasePeak | None]:
    phases: dict[str, PhasePeak | None] = {}
    for name in PHASES:
        own = [summary for summary in summaries if summary.name == name]
        phases[name] = PhasePeak(
            tensor_bytes=max(summary.tensor_peak.total_bytes for summary in own),
            allocated_bytes=max(summary.allocated_peak.total_bytes for summary in own),
        )
    return {**phases, "first_step": None, "evaluation": None, "resume": None}


def _states(played: Played) -> States:
    ends = {summary.name: summary.end for summary in played.summaries}
    at_backward = snapshot(played.ledger, ends["backward"].event)
    return States(
        parameter_bytes=at_backward.get("parameters", 0),
        buffer_bytes=at_backward.get("buffers", 0),
        gradient_bytes=at_backward.get("gradients", 0),
        optimizer_bytes=at_backward.get("optimizer_state", 0),
        saved_activation_bytes=sum(played.saved_activations.values()),
    )


def _scaling(played: Played, plan: Plan, settings: TrainSettings) -> Scaling:
    larger, before = _play(plan, dataclasses.replace(settings, bs=settings.bs + 1))
    slope = allocated_peak(larger.run.ledger(), before) - played.allocated.total_bytes
    return Scaling(fixed_bytes=played.allocated.total_bytes - slope * settings.bs, bytes_per_image=slope)


def _layers(played: Played) -> tuple[Layer, ...]:
    step, ledger = played.step, played.ledger
    parameters: dict[str, int] = {}
    for tensor in step.scope.parameters.values():
        row = ledger.layers[tensor.storage.id]
        parameters[row] = parameters.get(row, 0) + tensor.num_bytes
    saved, temporary = played.saved_activations, layer_peaks(ledger)
    rows = dict.fromkeys((*ledger.layers,))
    return tuple(
        Layer(
            name=row,
            parameter_bytes=parameters.get(row, 0),
            saved_activation_bytes=saved.get(row, 0),
            peak_temporary_bytes=temporary.get(row, 0),
        )
        for row in rows
        if row in parameters or row in saved or row in temporary
    )
