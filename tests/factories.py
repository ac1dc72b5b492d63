"""Hand-made values of the contract for tests of what comes after the engine."""

from __future__ import annotations

from typing import Any

from vitmem.result import KINDS, Estimate, Layer, ModelInfo, Peak, PhasePeak, Scaling, States
from vitmem.settings import TrainSettings

MIB = 2**20


def make_layers(depth: int = 12) -> tuple[Layer, ...]:
    """An embedding, ``depth`` equal blocks, a norm and a head."""

    def row(name: str, parameter_bytes: int, saved: int, temporary: int) -> Layer:
        return Layer(
            name=name,
            parameter_bytes=parameter_bytes,
            saved_activation_bytes=saved,
            peak_temporary_bytes=temporary,
        )

    blocks = (row(f"vit.layers.{place}", 27 * MIB, 250 * MIB, 96 * MIB) for place in range(depth))
    return (
        row("vit.embeddings", 5 * MIB, 12 * MIB, 24 * MIB),
        *blocks,
        row("vit.layernorm", 6144, 24 * MIB, 0),
        row("classifier", 3 * MIB, 4096, 1 * MIB),
    )


def make_model() -> ModelInfo:
    """ViT-B at 512 px."""
    return ModelInfo(
        name="google/vit-base-patch16-224",
        library="transformers",
        family="hf_vit",
        num_parameters=87_201_256,
        num_trainable_parameters=87_201_256,
        num_tokens=1025,
        image_size=(512, 512),
    )


def make_peak(tensor_bytes: int, allocated_bytes: int) -> Peak:
    """A peak of which only two figures are known."""
    return Peak(
        tensor_bytes=tensor_bytes,
        allocated_bytes=allocated_bytes,
        reserved_bytes=None,
        device_bytes=None,
        device_low_bytes=None,
        device_high_bytes=None,
        phase="backward",
        layer="vit.layers.11",
        allocated_phase="backward",
        allocated_layer="vit.layers.11",
    )


def make_phases(tensors: int, allocated: int) -> dict[str, PhasePeak | None]:
    """The backward pass is the largest; two phases are not known."""
    state = 660 * MIB
    return {
        "forward": PhasePeak(tensor_bytes=tensors - MIB, allocated_bytes=allocated - MIB),
        "backward": PhasePeak(tensor_bytes=tensors, allocated_bytes=allocated),
        "optimizer_step": PhasePeak(tensor_bytes=1400 * MIB, allocated_bytes=1401 * MIB),
        "first_step": PhasePeak(tensor_bytes=tensors - state, allocated_bytes=allocated - state),
        "evaluation": None,
        "resume": None,
    }


AT_PEAK = dict.fromkeys(KINDS, 0) | {
    "parameters": 330 * MIB,
    "optimizer_state": 660 * MIB,
    "activations": 3000 * MIB,
    "inputs": 24 * MIB,
    "autocast_weights": 165 * MIB,
    "workspaces": 33 * MIB,
    "rounding": 12345,
}

STATES = States(
    parameter_bytes=330 * MIB,
    buffer_bytes=0,
    gradient_bytes=330 * MIB,
    optimizer_bytes=660 * MIB,
    saved_activation_bytes=3000 * MIB,
)


def make_estimate(**changes: Any) -> Estimate:
    """A plausible estimate whose kinds add up to the allocated peak; ``changes`` replace whole fields."""
    allocated = sum(AT_PEAK.values())
    tensors = allocated - AT_PEAK["workspaces"] - AT_PEAK["rounding"]
    fields: dict[str, Any] = {
        "request": TrainSettings.of(res=512).to_dict() | {"optim": "adamw_torch_fused", "attn": "sdpa"},
        "model": make_model(),
        "peak": make_peak(tensors, allocated),
        "at_peak": AT_PEAK,
        "at_tensor_peak": AT_PEAK | {"workspaces": 0, "rounding": 0},
        "phases": make_phases(tensors, allocated),
        "states": STATES,
        "scaling": Scaling(fixed_bytes=1200 * MIB, bytes_per_image=379 * MIB),
        "layers": make_layers(),
        "host": None,
        "verdict": None,
        "assumptions": ("The input images are 3-channel fp32 tensors as the image processor of the model makes them.",),
        "not_modelled": ("reserved and device memory", "evaluation", "resume"),
        "warnings": (),
    }
    return Estimate(**(fields | changes))


def make_comparison_document(*, difference: int = 0, tolerance: float = 0.001) -> dict[str, Any]:
    """The JSON of ``vitmem validate`` whose measured peak is ``difference`` bytes below the estimate."""
    estimate = make_estimate().to_dict()
    peak = dict(estimate["peak"])
    measured = {"tensor_bytes": peak["tensor_bytes"] - difference, "phase": "backward", "layer": "vit.layers.11"}
    at_peak = estimate["at_peak"] | {"activations": estimate["at_peak"]["activations"] - difference}
    error = difference / measured["tensor_bytes"]
    names = ("allocated_bytes", "reserved_bytes", "device_bytes")
    return {
        "backend": "meta",
        "estimate": estimate,
        "measurement": {
            "peak": measured | dict.fromkeys(names),
            "at_peak": at_peak | {"workspaces": None, "rounding": None},
            "phases": {name: phase for name, phase in estimate["phases"].items() if phase is not None},
            "layers": [{k: row[k] for k in ("name", "saved_activation_bytes")} for row in estimate["layers"]],
            "versions": {"torch": "2.14.1", "transformers": "5.24.0"},
            "device": "meta",
        },
        "relative_error": {"tensor_bytes": error} | dict.fromkeys(names),
        "tolerance": tolerance,
        "passed": abs(error) <= tolerance,
    }
