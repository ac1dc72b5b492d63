"""What a recommendation is: ranked plans that fit, what each changes, and the nearest where none does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..result import SCHEMA_VERSION, Peak

__all__ = ["Change", "LighterModel", "Nearest", "Plan", "Recommendation", "Rung"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting (or several that go together, all in ``settings``) that a plan changes.

    ``saved_bytes`` is what it takes off the peak (before the allocator rounds it up) and ``relative_time`` what it
    makes of the step's time, on top of the changes before it; ``cost`` says the latter in words and ``loses`` what
    training loses by it.
    """

    setting: str
    from_: Any
    to: Any
    settings: Mapping[str, Any]
    saved_bytes: int
    relative_time: float
    cost: str
    loses: str
    keeps_recipe: bool

    def to_dict(self) -> dict[str, Any]:
        """``from`` as the contract spells it."""
        values = dataclasses.asdict(self)
        return {"setting": self.setting, "from": values.pop("from_"), **values}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A configuration that fits. ``settings`` are keywords of ``vitmem.estimate``; ``relative_step_time`` is 1 for the
    fastest plan, by the cost model. ``casts_model``: the engine trains a 16-bit model where autocast was asked for."""

    rank: int
    settings: Mapping[str, Any]
    effective_batch: int
    peak: Peak
    headroom_bytes: int
    relative_step_time: float
    step_flops: int
    keeps_recipe: bool
    changes: tuple[Change, ...]
    casts_model: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The contract's fields."""
        return {**dataclasses.asdict(self), "changes": [change.to_dict() for change in self.changes]}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step of the ladder: what it makes of the peak and of the step's time on top of the rungs before it.

    ``peak_bytes`` is None where the library refuses it or it is not modelled; ``remark`` then says why.
    """

    name: str
    to: str
    peak_bytes: int | None
    saved_bytes: int | None
    relative_time: float | None
    fits: bool | None
    remark: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LighterModel:
    """A model that fits with the request's own settings: one of the catalogue, or with ``changes`` the model that was
    asked for with parts left out, and what its training ``loses`` by that. FLOPs are one optimizer step's."""

    name: str
    changes: Mapping[str, Any]
    loses: str
    num_parameters: int
    step_flops: int
    peak_bytes: int
    headroom_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The settings that come closest, how many bytes they miss beside the largest CUDA context, and the smallest known
    GPU that holds them."""

    settings: Mapping[str, Any]
    peak: Peak
    missing_bytes: int
    gpu: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """``considered`` candidates are played, or decided by one that was: memory grows with the batch and shrinks with
    every checkpointed block. ``request`` is what was asked for, with the whole batch at once."""

    request: Mapping[str, Any]
    effective_batch: int
    gpu: str
    considered: int
    played: int
    fitting: int
    plans: tuple[Plan, ...]
    nearest: Nearest | None
    ladder: tuple[Rung, ...]
    lighter: tuple[LighterModel, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``vitmem recommend``."""
        from .. import __version__

        return {
            "schema_version": SCHEMA_VERSION,
            "vitmem_version": __version__,
            **dataclasses.asdict(self),
            "plans": [plan.to_dict() for plan in self.plans],
            "ladder": [dataclasses.asdict(rung) for rung in self.ladder],
            "lighter": [dataclasses.asdict(model) for model in self.lighter],
            "notes": list(self.notes),
        }
