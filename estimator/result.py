"""What an estimate is: frozen values that mirror the JSON of the contract, field by field."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["KINDS", "SCHEMA_VERSION", "Estimate", "Layer", "ModelInfo", "Peak", "PhasePeak", "Scaling", "States"]

SCHEMA_VERSION = 1

#: What a byte on the GPU is for. Kinds add up to the allocated total at every moment.
KINDS = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer_state",
    "activations",
    "temporaries",
    "inputs",
    "autocast_weights",
    "workspaces",
    "communication",
    "rounding",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model as its library builds it; ``image_size`` is (height, width) in pixels.

    A rehearsed model has its class for a family, and no number of tokens that is known.
    """

    name: str
    library: str
    family: str
    num_parameters: int
    num_trainable_parameters: int
    num_tokens: int | None
    image_size: tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The largest moments of a steady-state step. ``None`` where this version does not know the figure.

    ``phase`` and ``layer`` are where ``tensor_bytes`` is reached; workspaces can move the allocated peak elsewhere.
    ``unknown_workspace_bytes`` is the most by which what cuDNN borrows could raise ``allocated_bytes``.
    """

    tensor_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    device_bytes: int | None
    device_low_bytes: int | None
    device_high_bytes: int | None
    phase: str
    layer: str
    allocated_phase: str | None
    allocated_layer: str | None
    unknown_workspace_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """The largest moment of one phase, and the most that was reserved up to its end, where it is one of several."""

    tensor_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """What persists, and the activations that the forward pass leaves for the backward pass."""

    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    saved_activation_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The allocated peak as a straight line near this batch size."""

    fixed_bytes: int
    bytes_per_image: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One row of the per-layer table; ``name`` is the module's path in its library."""

    name: str
    parameter_bytes: int
    saved_activation_bytes: int
    peak_temporary_bytes: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Everything that ``vitmem estimate`` knows about one configuration; all bytes are per GPU.

    ``at_peak`` adds up to the allocated peak; where that is not known, its known kinds add up to the tensors' peak.
    """

    request: Mapping[str, Any]
    model: ModelInfo
    peak: Peak
    at_peak: Mapping[str, int | None]
    at_tensor_peak: Mapping[str, int | None]
    phases: Mapping[str, PhasePeak | None]
    states: States
    scaling: Scaling | None
    layers: tuple[Layer, ...]
    host: Mapping[str, int | None] | None
    verdict: Mapping[str, Any] | None
    assumptions: tuple[str, ...]
    not_modelled: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the contract as plain values."""
        from . import __version__

        document = dataclasses.asdict(self)
        document["model"]["image_size"] = list(self.model.image_size)
        head = {"schema_version": SCHEMA_VERSION, "vitmem_version": __version__}
        return {**head, **{name: _plain(value) for name, value in document.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value
