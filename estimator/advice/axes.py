"""What may be changed to make a training fit, in the order in which an expert would, and what training loses by it.

One more axis is one row of ``AXES``: the settings that go together, their other values, and what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import InvalidRequest, did_you_mean
from ..gpus import GpuRow
from ..settings import TrainSettings

__all__ = ["AXES", "Axis", "allowed_axes", "axis_of"]

Values = Callable[[TrainSettings, GpuRow], list[Any]]

_8BIT = (
    "AdamW's moments in 8 bits, quantised in blocks of 256 (tensors of fewer than 4,096 elements stay in fp32): close "
    "to the 32-bit optimizer in published runs, not equal; needs bitsandbytes"
)
_ADAFACTOR = "second moments factored into rows and columns, no momentum: wants a learning rate of its own"

#: The same update in another implementation, or another optimizer with a smaller state.
_SAME_UPDATE = {"adamw_torch": ["adamw_torch_fused"]}
_SMALLER = {
    "adamw_torch": ["adamw_bnb_8bit", "adafactor"],
    "adamw_torch_fused": ["adamw_bnb_8bit", "adafactor"],
}


class Axis(NamedTuple):
    """``settings`` are the fields that one choice decides; ``values`` gives the first one's other values.

    ``loses`` maps a value (or None: any) to what training loses; without it the axis is set by the search itself.
    """

    name: str
    settings: tuple[str, ...]
    values: Values
    keeps_recipe: bool
    loses: Mapping[Any, str]

    def loss_of(self, value: Any) -> str:
        """What training loses by ``value``."""
        return self.loses.get(value, self.loses.get(None, ""))


def _precisions(settings: TrainSettings, gpu: GpuRow) -> list[str]:
    if settings.precision != "fp32":
        return []
    return ["bf16"] if gpu.capability >= (8, 0) else ["fp16"]


def _pure(settings: TrainSettings, gpu: GpuRow) -> list[str]:
    return ["pure-bf16"] if gpu.capability >= (8, 0) and not settings.precision.startswith("pure") else []


def _none(settings: TrainSettings, gpu: GpuRow) -> list[Any]:
    return []


AXES: tuple[Axis, ...] = (
    Axis(
        "precision",
        ("precision",),
        _precisions,
        True,
        {
            "bf16": "products in 16 bits with fp32's range and 8 significant bits; weights and update stay in fp32",
            "fp16": "products in 16 bits that end at 65,504: the loss is scaled and steps that overflow are skipped; "
            "weights and update stay in fp32",
        },
    ),
    Axis(
        "attn",
        ("attn",),
        lambda settings, gpu: ["sdpa"] if settings.attn in {"auto", "eager"} else [],
        True,
        {None: "nothing: the same attention, its sums in another order"},
    ),
    Axis(
        "grad_checkpointing",
        ("grad_checkpointing", "checkpoint_layers"),
        _none,
        True,
        {None: "nothing but time: the forward pass of the checkpointed blocks runs twice"},
    ),
    Axis(
        "bs",
        ("bs", "accum"),
        _none,
        True,
        {None: "nothing but launches: the gradient is the same up to rounding, no layer looks across the batch"},
    ),
    Axis(
        "optim",
        ("optim",),
        lambda settings, gpu: list(_SAME_UPDATE.get(settings.optim or "", ())),
        True,
        {None: "nothing: the same update in one kernel"},
    ),
    Axis(
        "alloc_conf",
        ("alloc_conf",),
        lambda settings, gpu: [] if settings.alloc_conf else ["expandable_segments:True"],
        True,
        {None: "nothing: the allocator's segments grow in place of being cut up; not on every platform"},
    ),
    Axis(
        "parallel",
        ("parallel",),
        _none,
        True,
        {None: "nothing but communication, whose time is not in the relative step time"},
    ),
    Axis(
        "optim-state",
        ("optim",),
        lambda settings, gpu: list(_SMALLER.get(settings.optim or "", ())),
        False,
        {"adamw_bnb_8bit": _8BIT, "adafactor": _ADAFACTOR},
    ),
    Axis(
        "ema",
        ("ema",),
        lambda settings, gpu: [False] if settings.ema else [],
        False,
        {None: "no averaged weights to evaluate; keep them on the host instead"},
    ),
    Axis(
        "patch_drop",
        ("patch_drop",),
        lambda settings, gpu: [] if settings.patch_drop else [0.25, 0.5],
        False,
        {None: "every step sees a random part of the patches: some accuracy, unless the last epochs train without"},
    ),
    Axis(
        "pure",
        ("precision",),
        _pure,
        False,
        {None: "weights and the optimizer's state in bf16 too: updates under 1/256 of a weight are rounded away"},
    ),
)


def axis_of(setting: str, *, keeps_recipe: bool) -> Axis:
    """The row that decides ``setting``."""
    rows = [axis for axis in AXES if setting in axis.settings]
    return next((axis for axis in rows if axis.keeps_recipe == keeps_recipe), rows[0])


def allowed_axes(allow: tuple[str, ...] | None, forbid: tuple[str, ...]) -> tuple[Axis, ...]:
    """The rows that ``--allow`` and ``--forbid`` leave; names are the flags of the settings, or a row's own."""
    names = {name.replace("_", "-") for axis in AXES for name in (axis.name, *axis.settings)} | {"recipe"}
    given = (*(allow or ()), *forbid)
    for name in given:
        if name.replace("_", "-") not in names:
            hint = did_you_mean(name, names) or f"; there are {', '.join(sorted(names))}"
            raise InvalidRequest(f"cannot allow or forbid {name!r}{hint}")
    return tuple(axis for axis in AXES if (allow is None or _is_named(axis, allow)) and not _is_named(axis, forbid))


def _is_named(axis: Axis, given: tuple[str, ...]) -> bool:
    own = {name.replace("_", "-") for name in (axis.name, *axis.settings)}
    if not axis.keeps_recipe:
        own.add("recipe")
    return any(name.replace("_", "-") in own for name in given)
