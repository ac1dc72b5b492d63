"""What a run or a rehearsal of the real training step showed: frozen, and a JSON document both ways. Needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["Measured", "MeasuredLayer", "MeasuredStates", "Measurement"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayer:
    """One row of the per-layer table; ``name`` follows :func:`vitmem.validate.layers.layer_of`.

    ``peak_bytes`` is the largest total while the layer ran; None: this backend does not see the figure.
    """

    name: str
    parameter_bytes: int
    saved_activation_bytes: int | None
    peak_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStates:
    """What persists through the third step, and the live totals at the ends of its phases."""

    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    saved_activation_bytes: int
    autocast_weight_bytes: int
    end_of_forward_bytes: int
    end_of_backward_bytes: int
    end_of_step_bytes: int


class Measured(Protocol):
    """What a comparison asks of a measurement. ``None`` and empty tables: this backend does not see the figure."""

    @property
    def backend(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def peaks(self) -> Mapping[str, int | None]: ...
    @property
    def kinds(self) -> Mapping[str, int]: ...
    @property
    def phase_figure(self) -> str: ...
    @property
    def phases(self) -> Mapping[str, int]: ...
    @property
    def state_bytes(self) -> Mapping[str, int]: ...
    @property
    def layers(self) -> tuple[MeasuredLayer, ...]: ...
    @property
    def ran_out(self) -> bool | None: ...
    def to_dict(self) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The third training step, in bytes of live tensor storages.

    ``allocated_bytes`` and ``reserved_bytes`` are ``None`` where the backend has no allocator (the meta device).
    ``at_peak`` maps kinds of :data:`vitmem.result.KINDS` to bytes and adds up to ``peak_bytes``.
    """

    backend: str
    peak_bytes: int
    peak_phase: str
    peak_layer: str
    at_peak: Mapping[str, int]
    phases: Mapping[str, int]
    states: MeasuredStates
    layers: tuple[MeasuredLayer, ...]
    num_parameters: int
    num_trainable_parameters: int
    versions: Mapping[str, str]
    device: str
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def peaks(self) -> Mapping[str, int | None]:
        """The contract's peaks by name."""
        return {
            "tensor_bytes": self.peak_bytes,
            "allocated_bytes": self.allocated_bytes,
            "reserved_bytes": self.reserved_bytes,
            "device_bytes": self.device_bytes,
        }

    @property
    def kinds(self) -> Mapping[str, int]:
        return self.at_peak

    @property
    def phase_figure(self) -> str:
        return "tensor_bytes"

    @property
    def state_bytes(self) -> Mapping[str, int]:
        return dataclasses.asdict(self.states)

    @property
    def ran_out(self) -> None:
        """There is no capacity that could run out."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """The ``measurement`` object of the contract as plain values."""
        return {
            "backend": self.backend,
            "peak": {**self.peaks, "phase": self.peak_phase, "layer": self.peak_layer},
            "at_peak": dict(self.at_peak),
            "phases": {name: {"tensor_bytes": num_bytes} for name, num_bytes in self.phases.items()},
            "states": dataclasses.asdict(self.states),
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "num_parameters": self.num_parameters,
            "num_trainable_parameters": self.num_trainable_parameters,
            "versions": dict(self.versions),
            "device": self.device,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Measurement:
        """The inverse of :meth:`to_dict`."""
        peak = document["peak"]
        return cls(
            backend=document["backend"],
            peak_bytes=peak["tensor_bytes"],
            allocated_bytes=peak["allocated_bytes"],
            reserved_bytes=peak["reserved_bytes"],
            device_bytes=peak["device_bytes"],
            peak_phase=peak["phase"],
            peak_layer=peak["layer"],
            at_peak=dict(document["at_peak"]),
            phases={name: phase["tensor_bytes"] for name, phase in document["phases"].items()},
            states=MeasuredStates(**document["states"]),
            layers=tuple(MeasuredLayer(**layer) for layer in document["layers"]),
            num_parameters=document["num_parameters"],
            num_trainable_parameters=document["num_trainable_parameters"],
            versions=dict(document["versions"]),
            device=document["device"],
            notes=tuple(document["notes"]),
        )
