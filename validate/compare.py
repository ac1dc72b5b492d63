"""An estimate against a measurement: by peak, kind, phase, layer. Needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vitmem.result import SCHEMA_VERSION, Estimate

from .measurement import Measured
from .reasons import differences_explained

__all__ = ["DEFAULT_TOLERANCE", "Comparison", "Difference", "compare"]

#: What the formulas are held to: a part in a thousand of the peak.
DEFAULT_TOLERANCE = 0.001

_NOT_TENSORS = ("workspaces", "rounding")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One row: bytes on both sides; ``relative_error`` is signed, and ``None`` where one side does not know."""

    name: str
    estimated_bytes: int | None
    measured_bytes: int | None

    @property
    def relative_error(self) -> float | None:
        """(estimate - measurement) / measurement; against a measured zero only zero is right."""
        if self.estimated_bytes is None or self.measured_bytes is None:
            return None
        if self.measured_bytes == 0:
            return 0.0 if self.estimated_bytes == 0 else float("inf")
        return (self.estimated_bytes - self.measured_bytes) / self.measured_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values; an infinite error becomes ``None``, as JSON has none."""
        error = self.relative_error
        finite = None if error is None or error == float("inf") else error
        return {**dataclasses.asdict(self), "relative_error": finite}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Every figure that both sides know; ``passed`` looks at the peaks, the other rows say where an error is."""

    estimate: Estimate
    measurement: Measured
    tolerance: float
    peaks: tuple[Difference, ...]
    kinds: tuple[Difference, ...]
    phases: tuple[Difference, ...]
    states: tuple[Difference, ...]
    parameters: tuple[Difference, ...]
    saved_activations: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """Whether each measured peak is met within the tolerance; nothing measured is no pass.

        Where memory ran out, or could have, the verdict has to say the same.
        """
        if self.measurement.ran_out:
            return self.fits in ("no", "borderline")
        if self.measurement.ran_out is False and self.fits == "no":
            return False
        known = [row for row in self.peaks if row.relative_error is not None]
        return bool(known) and all(self._is_met(row) for row in known)

    def _is_met(self, row: Difference) -> bool:
        """What the device shows holds the context and NCCL: of them a range is known, not a figure."""
        low, high = self.estimate.peak.device_low_bytes, self.estimate.peak.device_high_bytes
        if row.name == "device_bytes" and low is not None and high is not None:
            return low <= (row.measured_bytes or 0) <= high
        return row.relative_error is not None and abs(row.relative_error) <= self.tolerance

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the sides differ, where it is known."""
        return differences_explained(self.estimate, self.measurement, self.saved_activations)

    @property
    def fits(self) -> str | None:
        """The estimate's verdict, where a GPU or a memory was named."""
        return None if self.estimate.verdict is None else self.estimate.verdict["fits"]

    def to_dict(self) -> dict[str, Any]:
        """The ``validate`` document of the contract."""
        tables = ("kinds", "phases", "states", "parameters", "saved_activations")
        return {
            "schema_version": SCHEMA_VERSION,
            "backend": self.measurement.backend,
            "estimate": self.estimate.to_dict(),
            "measurement": self.measurement.to_dict(),
            "relative_error": {row.name: row.to_dict()["relative_error"] for row in self.peaks},
            "tolerance": self.tolerance,
            "passed": self.passed,
            "reasons": list(self.reasons),
            "differences": {table: [row.to_dict() for row in getattr(self, table)] for table in tables},
        }


def compare(estimate: Estimate, measurement: Measured, tolerance: float = DEFAULT_TOLERANCE) -> Comparison:
    """The rows of both sides by name; a layer or kind that one side lacks counts as zero there."""
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance {tolerance!r} is not a fraction in [0, 1)")
    return Comparison(
        estimate=estimate,
        measurement=measurement,
        tolerance=tolerance,
        peaks=_peaks(estimate, measurement),
        kinds=_kinds(estimate, measurement),
        phases=_phases(estimate, measurement),
        states=_states(estimate, measurement),
        parameters=_layers(estimate, measurement, "parameter_bytes"),
        saved_activations=_layers(estimate, measurement, "saved_activation_bytes"),
    )


def _peaks(estimate: Estimate, measurement: Measured) -> tuple[Difference, ...]:
    return tuple(
        Difference(name=name, estimated_bytes=getattr(estimate.peak, name), measured_bytes=num_bytes)
        for name, num_bytes in measurement.peaks.items()
    )


def _kinds(estimate: Estimate, measurement: Measured) -> tuple[Difference, ...]:
    """Without an allocator the peak is that of the tensors alone: no workspaces, no rounding."""
    if not measurement.kinds:
        return ()
    sees_allocator = measurement.peaks["allocated_bytes"] is not None
    kinds = estimate.at_peak if sees_allocator else estimate.at_tensor_peak
    known = {
        name: num_bytes
        for name, num_bytes in kinds.items()
        if num_bytes is not None and (sees_allocator or name not in _NOT_TENSORS)
    }
    if sees_allocator and "autocast_weights" not in measurement.kinds:  # an allocator knows no operators
        known["activations"] = known.get("activations", 0) + known.pop("autocast_weights", 0)
    return _rows(known, measurement.kinds)


def _phases(estimate: Estimate, measurement: Measured) -> tuple[Difference, ...]:
    known = {name: phase for name, phase in estimate.phases.items() if phase is not None}
    return tuple(
        Difference(
            name=name,
            estimated_bytes=getattr(known[name], measurement.phase_figure) if name in known else None,
            measured_bytes=num_bytes,
        )
        for name, num_bytes in measurement.phases.items()
    )


def _states(estimate: Estimate, measurement: Measured) -> tuple[Difference, ...]:
    measured = measurement.state_bytes
    return tuple(
        Difference(name=name, estimated_bytes=num_bytes, measured_bytes=measured[name])
        for name, num_bytes in dataclasses.asdict(estimate.states).items()
        if name in measured
    )


def _layers(estimate: Estimate, measurement: Measured, field: str) -> tuple[Difference, ...]:
    if not measurement.layers:
        return ()
    if all(getattr(layer, field) is None for layer in measurement.layers):
        return ()
    estimated = {layer.name: getattr(layer, field) for layer in estimate.layers}
    return _rows(estimated, {layer.name: getattr(layer, field) for layer in measurement.layers})


def _rows(estimated: Mapping[str, int | None], measured: Mapping[str, int | None]) -> tuple[Difference, ...]:
    return tuple(
        Difference(name=name, estimated_bytes=estimated.get(name, 0), measured_bytes=measured.get(name, 0))
        for name in dict.fromkeys([*measured, *estimated])
    )
