"""Why an estimate and a measurement differ, where it is known. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vitmem.result import Estimate
from vitmem.units import format_bytes

from .measurement import Measured

if TYPE_CHECKING:
    from .compare import Difference

__all__ = ["differences_explained"]

_NUM_LAYERS = 3


def differences_explained(estimate: Estimate, measurement: Measured, layers: Sequence[Difference]) -> tuple[str, ...]:
    """One line for each cause: an operator's layer, a workspace, fragmentation, the context."""
    return (
        *_layers(layers),
        *_workspace(estimate, measurement),
        *_fragmentation(estimate, measurement),
        *_context(estimate, measurement),
    )


def _layers(layers: Sequence[Difference]) -> Iterator[str]:
    """Those whose saved activations differ most: where an operator is not what the estimate takes it for."""
    off = [(abs(gap), row.name, gap) for row in layers if (gap := _gap(row.estimated_bytes, row.measured_bytes))]
    worst = sorted(off, key=lambda entry: -entry[0])[:_NUM_LAYERS]
    if worst and worst[0][0] > 1024:  # below are scalars of the host
        named = ", ".join(f"{name} ({_signed(gap)})" for _, name, gap in worst)
        yield f"saved activations differ in {len(off)} layers, most in {named}: an operator there is another"


def _workspace(estimate: Estimate, measurement: Measured) -> Iterator[str]:
    gap = _gap(estimate.peak.allocated_bytes, measurement.peaks["allocated_bytes"])
    bound = estimate.peak.unknown_workspace_bytes
    if gap is not None and bound is not None and gap < 0 <= gap + bound and bound:
        yield (
            f"allocated: {_signed(gap)}, which cuDNN's workspaces explain; nobody knows them beforehand, at the peak "
            f"they are at most {format_bytes(bound)}"
        )


def _fragmentation(estimate: Estimate, measurement: Measured) -> Iterator[str]:
    allocated = _gap(estimate.peak.allocated_bytes, measurement.peaks["allocated_bytes"])
    reserved = _gap(estimate.peak.reserved_bytes, measurement.peaks["reserved_bytes"])
    if reserved and reserved != allocated:
        yield f"reserved: {_signed(reserved)}, fragmentation: blocks were cached and split in another order"


def _context(estimate: Estimate, measurement: Measured) -> Iterator[str]:
    """The device's figure less what is reserved is the context, on both sides."""
    measured, reserved = measurement.peaks["device_bytes"], measurement.peaks["reserved_bytes"]
    if measured is None or reserved is None or estimate.peak.device_bytes is None:
        return
    assert estimate.peak.reserved_bytes is not None
    ours = estimate.peak.device_bytes - estimate.peak.reserved_bytes
    if ours != measured - reserved:
        yield (
            f"device: the CUDA context with its kernels takes {format_bytes(measured - reserved)} here, "
            f"{format_bytes(ours)} were expected"
        )


def _gap(estimated: int | None, measured: int | None) -> int | None:
    return None if estimated is None or measured is None else estimated - measured


def _signed(num_bytes: int) -> str:
    return f"{'+' if num_bytes > 0 else '-'}{format_bytes(abs(num_bytes))}"
