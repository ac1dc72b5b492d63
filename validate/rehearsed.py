"""The rehearsal of a real model as an Estimate: for the models that the estimator has no family for.

Live tensors are known to the byte. What only an allocator or a kernel knows (rounding, workspaces) is ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping

from vitmem.result import KINDS, Estimate, Layer, ModelInfo, Peak, PhasePeak, States
from vitmem.settings import TrainSettings

from .measurement import Measurement
from .meta import Rehearsal, rehearse

__all__ = ["estimate"]

#: What a rehearsal on the meta device cannot show.
_UNSEEN = ("workspaces", "rounding")

_PHASES = ("forward", "backward", "optimizer_step", "first_step", "evaluation", "resume", "last_batch")

_NOT_MODELLED = (
    "allocated, reserved and device memory: rounding, kernels' workspaces, the caching allocator, the CUDA context",
    "what cuDNN keeps between forward and backward, such as a batch norm's reserve",
    "resuming from a checkpoint",
)


def estimate(settings: TrainSettings, reason: str) -> Estimate:
    """The third step of the real model as an Estimate; ``reason`` says why the estimator did not answer."""
    rehearsal = rehearse(settings)
    measured = rehearsal.measurement
    at_peak = _kinds(measured)
    return Estimate(
        request={**settings.to_dict(), **rehearsal.resolved, "res": list(rehearsal.image_size)},
        model=_model_info(settings, rehearsal),
        peak=_peak(measured),
        at_peak=at_peak,
        at_tensor_peak=at_peak,
        phases=_phases(measured),
        states=_states(measured),
        scaling=None,
        layers=_layers(measured),
        host=None,
        verdict=None,
        assumptions=(_provenance(rehearsal), *measured.notes),
        not_modelled=_NOT_MODELLED,
        warnings=(f"{reason}: the real model was rehearsed instead, and only tensors are known",),
    )


def _provenance(rehearsal: Rehearsal) -> str:
    versions = rehearsal.measurement.versions
    used = ", ".join(f"{name} {versions[name]}" for name in dict.fromkeys(("torch", rehearsal.library)))
    return f"the real {rehearsal.class_name} on the meta device, third step ({used})"


def _model_info(settings: TrainSettings, rehearsal: Rehearsal) -> ModelInfo:
    measured = rehearsal.measurement
    return ModelInfo(
        name=settings.model,
        library=rehearsal.library,
        family=rehearsal.class_name,
        num_parameters=measured.num_parameters,
        num_trainable_parameters=measured.num_trainable_parameters,
        num_tokens=None,
        image_size=rehearsal.image_size,
    )


def _peak(measured: Measurement) -> Peak:
    return Peak(
        tensor_bytes=measured.peak_bytes,
        allocated_bytes=None,
        reserved_bytes=None,
        device_bytes=None,
        device_low_bytes=None,
        device_high_bytes=None,
        phase=measured.peak_phase,
        layer=measured.peak_layer,
        allocated_phase=None,
        allocated_layer=None,
    )


def _kinds(measured: Measurement) -> Mapping[str, int | None]:
    return {kind: None if kind in _UNSEEN else measured.at_peak.get(kind, 0) for kind in KINDS}


def _phases(measured: Measurement) -> Mapping[str, PhasePeak | None]:
    known = {name: PhasePeak(tensor_bytes=size, allocated_bytes=None) for name, size in measured.phases.items()}
    return dict.fromkeys(_PHASES) | known


def _states(measured: Measurement) -> States:
    states = measured.states
    return States(
        parameter_bytes=states.parameter_bytes,
        buffer_bytes=states.buffer_bytes,
        gradient_bytes=states.gradient_bytes,
        optimizer_bytes=states.optimizer_bytes,
        saved_activation_bytes=states.saved_activation_bytes,
    )


def _layers(measured: Measurement) -> tuple[Layer, ...]:
    return tuple(
        Layer(
            name=row.name,
            parameter_bytes=row.parameter_bytes,
            saved_activation_bytes=row.saved_activation_bytes or 0,
            peak_temporary_bytes=None,
        )
        for row in measured.layers
    )
