"""What the caching allocator said of a run: frozen, and a JSON document. Needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .measurement import MeasuredLayer

__all__ = ["AllocatorMeasurement"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorMeasurement:
    """What PyTorch's caching allocator said of the third step and of the first; ``None`` where memory ran out.

    ``phases`` are those of the third step, and ``first_step``; ``out_of_memory`` has the allocator's ``message`` and
    the ``phase`` and ``step`` (from 0) that it came in.
    """

    backend: str
    allocated_bytes: int | None
    reserved_bytes: int | None
    phases: Mapping[str, int]
    num_alloc_retries: int
    out_of_memory: Mapping[str, Any] | None
    versions: Mapping[str, str]
    device: str
    notes: tuple[str, ...] = ()
    device_bytes: int | None = None
    followed: Mapping[str, Any] | None = None
    growth_bytes_per_step: int | None = None
    driver: str | None = None
    ranks: tuple[Mapping[str, int], ...] = ()

    @classmethod
    def of(
        cls, document: Mapping[str, Any], *, backend: str, device: str, notes: tuple[str, ...] = ()
    ) -> AllocatorMeasurement:
        """From what :mod:`vitmem.validate.cuda` measured or ran out in, as plain values."""
        failed = document.get("out_of_memory")
        seen = document.get("measured", {})
        first = {"first_step": seen["first_step_bytes"]} if seen else {}
        return cls(
            backend=backend,
            allocated_bytes=seen.get("allocated_bytes"),
            reserved_bytes=seen.get("reserved_bytes"),
            phases={**seen.get("phases", {}), **first},
            num_alloc_retries=(failed or seen)["num_alloc_retries"],
            out_of_memory=failed,
            versions=document["versions"],
            device=device,
            notes=(*notes, *seen.get("notes", ())),
            device_bytes=seen.get("device_bytes"),
            followed=seen.get("followed"),
            growth_bytes_per_step=seen.get("growth_bytes_per_step"),
            driver=(failed or seen).get("driver"),
        )

    @property
    def peaks(self) -> Mapping[str, int | None]:
        """Tensors alone are not seen; what the device shows besides is NVML's to say."""
        known = {"allocated_bytes": self.allocated_bytes, "reserved_bytes": self.reserved_bytes}
        return {"tensor_bytes": None, **known, "device_bytes": self.device_bytes}

    @property
    def kinds(self) -> Mapping[str, int]:
        return {} if self.followed is None else self.followed["at_peak"]

    @property
    def phase_figure(self) -> str:
        return "allocated_bytes"

    @property
    def state_bytes(self) -> Mapping[str, int]:
        return {} if self.followed is None else self.followed["states"]

    @property
    def layers(self) -> tuple[MeasuredLayer, ...]:
        return () if self.followed is None else tuple(MeasuredLayer(**row) for row in self.followed["layers"])

    @property
    def _peak_layer(self) -> str | None:
        return None if self.followed is None else self.followed["peak"]["layer"]

    @property
    def ran_out(self) -> bool:
        return self.out_of_memory is not None

    def to_dict(self) -> dict[str, Any]:
        """The ``measurement`` object of the contract as plain values."""
        steady = {name: size for name, size in self.phases.items() if name != "first_step"}
        return {
            "backend": self.backend,
            "peak": {
                **self.peaks,
                "phase": max(steady, key=lambda name: steady[name], default=None),
                "layer": self._peak_layer,
            },
            "at_peak": dict(self.kinds),
            "phases": {name: {"tensor_bytes": None, "allocated_bytes": size} for name, size in self.phases.items()},
            "states": dict(self.state_bytes),
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "growth_bytes_per_step": self.growth_bytes_per_step,
            "driver": self.driver,
            "ranks": [dict(phases) for phases in self.ranks],
            "num_alloc_retries": self.num_alloc_retries,
            "out_of_memory": None if self.out_of_memory is None else dict(self.out_of_memory),
            "versions": dict(self.versions),
            "device": self.device,
            "notes": list(self.notes),
        }
