"""From settings to an Estimate: resolve the model, play one steady-state step, read the ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from . import catalog, cpu, families, host, lora, scope
from .collector import paused
from .device import Device, device_of, verdict
from .errors import NoFamily
from .families import Plan
from .generations import Torch, unknown_of
from .loops import with_defaults
from .play import Played, block_peak, play, tensor_peak
from .result import KINDS, Estimate, Layer, ModelInfo, Peak, PhasePeak, Scaling, States
from .scaling import with_larger_batch
from .settings import TrainSettings
from .step import Step
from .timeline import PhaseSummary, allocated_peak, layer_peaks, snapshot

__all__ = ["estimate_of", "estimate_settings", "peak_of", "play_settings", "resolved"]

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


def play_settings(settings: TrainSettings, device: Device | None = None) -> Estimate:
    """:func:`estimate_settings` for the models that a family covers; raises NoFamily for the others.

    ``device``: another than the settings name, such as :data:`vitmem.device.CPU`.
    """
    plan, settings = resolved(settings)
    device = device or device_of(settings)
    if device.gpu.is_cpu:
        scope.check_on_cpu(settings)
    with paused():
        again = device.total_bytes is not None
        played = Played(plan, settings, device.gpu, device.allocator, trains_again=again)
        estimate = estimate_of(plan, settings, device, played)
        played.step.dispose()
    return estimate


def estimate_of(
    plan: Plan, settings: TrainSettings, device: Device, played: Played, slope_bytes: int | None = None
) -> Estimate:
    """What was played of resolved settings as the answer of :func:`play_settings`; ``slope_bytes`` is what one more
    image takes, where another play has told."""
    judged, reserved = verdict(device, played.runs)
    phases = _phases(played)
    return Estimate(
        request=_request(settings, plan, played.step),
        model=_model_info(plan, played.step),
        peak=peak_of(played, device, reserved),
        at_peak=_by_kind(played, played.allocated.event),
        at_tensor_peak=_by_kind(played, played.tensors.event),
        phases=phases,
        states=_states(played),
        scaling=_scaling(played, plan, settings, device, slope_bytes),
        layers=_layers(played),
        host=_host(played, plan, settings),
        verdict=judged,
        assumptions=(
            *(cpu.ASSUMPTIONS if device.gpu.is_cpu else scope.assumptions(settings, plan, device.gpu.capability)),
            *lora.assumptions(settings, plan),
            *plan.assumptions,
        ),
        not_modelled=cpu.NOT_MODELLED if device.gpu.is_cpu else _not_modelled(settings, plan, played),
        warnings=(
            *scope.warnings(settings, plan, device.gpu.capability),
            *lora.warnings(played.step),
            *_advice(played, device),
            *scope.reentrant_warnings(settings, plan, played.step.without_gradient),
            *scope.phase_warnings(phases, played.tensors.total_bytes),
        ),
    )


def resolved(settings: TrainSettings) -> tuple[Plan, TrainSettings]:
    """The model's plan, and settings that leave nothing to choose: the loop's optimizer, the attention that runs."""
    scope.check(settings)
    model = catalog.resolve(settings.model)
    settings = scope.before_sdpa(settings, model.library)
    plan = families.plan(model, settings)
    scope.check_attention(settings, plan)
    scope.check_blocks(settings, plan)
    scope.check_labels(settings, plan)
    settings = dataclasses.replace(with_defaults(lora.resolved(settings, plan)), attn=plan.attn)  # type: ignore[arg-type]
    return plan, settings if plan.head else dataclasses.replace(settings, label_smoothing=0.0)


def _not_modelled(settings: TrainSettings, plan: Plan, played: Played) -> tuple[str, ...]:
    of_version = unknown_of(Torch.parse(settings.torch))
    of_phases = (*played.not_played.lines, *host.not_modelled(settings))
    return (*scope.NOT_MODELLED, *of_phases, *plan.not_modelled, *played.step.optimizer.not_modelled, *of_version)


def _advice(played: Played, device: Device) -> tuple[str, ...]:
    if played.step.settings.parallel in {None, "none"}:
        return ()
    from .parallel.advice import advice

    return advice(played.step, played.allocated.total_bytes, device.allocator)


def _request(settings: TrainSettings, plan: Plan, step: Step) -> Mapping[str, Any]:
    request = {**settings.to_dict(), **plan.resolved}
    request["res"] = list(plan.image_size)
    whole = len(step.model.blocks) == len(plan.blocks)  # else the library's switch takes more than the blocks
    if settings.grad_checkpointing and settings.checkpoint_layers is None and whole:
        request["checkpoint_layers"] = len(plan.blocks)
    if settings.sdpa_kernel == "auto":
        request["sdpa_kernel"] = step.attention_kernel or (None if plan.attn == "eager" else "auto")
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


def peak_of(played: Played, device: Device, reserved: int) -> Peak:
    """The peak of the step that is reported; ``reserved`` is what its run reserves on the device."""
    context = device.context
    return Peak(
        tensor_bytes=played.tensors.total_bytes,
        allocated_bytes=played.allocated.total_bytes,
        reserved_bytes=reserved,
        device_bytes=None if context is None else reserved + context.expected_bytes,
        device_low_bytes=None if context is None else reserved + context.low_bytes,
        device_high_bytes=None if context is None else reserved + context.high_bytes,
        phase=played.tensors.phase,
        layer=played.tensors.layer,
        allocated_phase=played.allocated.phase,
        allocated_layer=played.allocated.layer,
        unknown_workspace_bytes=played.unknown_workspace_bytes,
    )


def _by_kind(played: Played, event: int) -> Mapping[str, int]:
    return dict.fromkeys(KINDS, 0) | snapshot(played.ledger, played.replay.blocks, event, played.alive)


def _phases(played: Played) -> Mapping[str, PhasePeak | None]:
    known: dict[str, PhasePeak | None] = {name: _phase([s for s in played.steady if s.name == name]) for name in PHASES}
    others = {
        "first_step": played.first_step,
        "evaluation": played.evaluation,
        "resume": played.resumption,
        "last_batch": played.last_batch,
    }
    reserved = {name: size for run in played.runs for name, size in run.reserved_by_part().items()}
    return known | {
        name: _phase(summaries, reserved.get(name)) if summaries else None for name, summaries in others.items()
    }


def _phase(summaries: list[PhaseSummary], reserved: int | None = None) -> PhasePeak:
    return PhasePeak(
        tensor_bytes=tensor_peak(summaries).total_bytes,
        allocated_bytes=block_peak(summaries).total_bytes,
        reserved_bytes=reserved,
    )


def _states(played: Played) -> States:
    ends = {summary.name: summary.end for summary in played.steady}
    at_backward = snapshot(played.ledger, played.replay.blocks, ends["backward"].event, played.alive)
    return States(
        parameter_bytes=at_backward.get("parameters", 0),
        buffer_bytes=at_backward.get("buffers", 0),
        gradient_bytes=at_backward.get("gradients", 0),
        optimizer_bytes=at_backward.get("optimizer_state", 0),
        saved_activation_bytes=sum(played.saved_activations.values()),
    )


def _scaling(played: Played, plan: Plan, settings: TrainSettings, device: Device, slope: int | None) -> Scaling:
    """The slope without what the allocator does not split off, which jumps from batch to batch."""
    if slope is None:
        larger = with_larger_batch(played.step, played.ledger)
        if larger is None:
            of_larger = allocated_peak(
                play(plan, dataclasses.replace(settings, bs=settings.bs + 1), device.gpu).run.ledger(), -1
            )
        else:
            of_larger = allocated_peak(larger, -1, played.alive)
        slope = of_larger - allocated_peak(played.ledger, -1, played.alive)
    return Scaling(fixed_bytes=played.allocated.total_bytes - slope * settings.bs, bytes_per_image=slope)


def _host(played: Played, plan: Plan, settings: TrainSettings) -> Mapping[str, int | None]:
    step, ledger = played.step, played.ledger
    parameters, buffers = (
        [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]
        for tensors in (step.scope.parameters, step.scope.buffers)
    )
    own = host.host_bytes(
        settings,
        plan.image_size,
        step.dtype,
        host.weights_of(plan.model.library, settings.loop, parameters, buffers),
        [size for size, kind in zip(ledger.bytes, ledger.kinds) if kind == "optimizer_state"],
        labelled=not step.model.own_loss,
    )
    if settings.parallel not in {None, "none", "ddp"}:  # shards are saved in other files
        own |= {"checkpoint_disk_bytes": None, "saving_bytes": None}
    added = step.strategy.host()
    node = host.of_node(settings, own, added.get("offload_bytes", 0))
    return own | {name: (own[name] or 0) + num_bytes for name, num_bytes in added.items()} | node


def _layers(played: Played) -> tuple[Layer, ...]:
    step, ledger = played.step, played.ledger
    parameters: dict[str, int] = {}
    for tensor in step.scope.parameters.values():
        assert tensor.accumulator is not None
        row = tensor.accumulator.layer
        parameters[row] = parameters.get(row, 0) + tensor.num_bytes
    saved, temporary = played.saved_activations, layer_peaks(ledger, -1)
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
