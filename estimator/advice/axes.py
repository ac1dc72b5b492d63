"""What may be changed to make a training fit, in the order in which an expert would, and what training loses by it.

One more axis is one row of ``AXES``: the settings that go together, their other values, and what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import InvalidRequest, did_you_mean
from ..families import Plan
from ..gpus import GpuRow
from ..parallel import STRATEGIES, casts_model, strategy_of
from ..parallel.buckets import bucket_options
from ..settings import TrainSettings

__all__ = ["AXES", "Axis", "Known", "allowed_axes", "axis_named"]


class Known(NamedTuple):
    """What a choice of values may look at besides the settings."""

    gpu: GpuRow
    plan: Plan
    largest_parameter: int


#: The fields that each other value of an axis sets.
Values = Callable[[TrainSettings, Known], list[dict[str, Any]]]

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
    """``settings`` are the fields that one choice decides, the first of which names it.

    ``loses`` maps a value of that (or None: any) to what training loses. What ``makes_room`` and keeps the recipe is
    worth its change only where something else then fits; without ``values`` the axis is set by the search itself.
    """

    name: str
    settings: tuple[str, ...]
    values: Values
    keeps_recipe: bool
    loses: Mapping[Any, str]
    makes_room: bool = False
    also_loses: Callable[[TrainSettings], Iterator[str]] = lambda settings: iter(())

    def loss_of(self, settings: TrainSettings) -> str:
        """What training loses by the value of ``settings``."""
        value = getattr(settings, self.settings[0])
        return "; ".join((*filter(None, [self.loses.get(value, self.loses.get(None, ""))]), *self.also_loses(settings)))


def _precisions(settings: TrainSettings, known: Known) -> list[dict[str, Any]]:
    """Autocast in the type that the GPU has units for."""
    low = "bf16" if known.gpu.capability >= (8, 0) else "fp16"
    return (
        _each("precision", low) if settings.precision == "fp32" or (settings.precision, low) == ("bf16", "fp16") else []
    )


def _pure(settings: TrainSettings, known: Known) -> list[dict[str, Any]]:
    has_bf16 = known.gpu.capability >= (8, 0)
    return _each("precision", "pure-bf16") if has_bf16 and not settings.precision.startswith("pure") else []


def _attentions(settings: TrainSettings, known: Known) -> list[dict[str, Any]]:
    """The fused one, with whichever kernel PyTorch takes."""
    kernel = {"sdpa_kernel": "auto"} if settings.sdpa_kernel != "auto" else {}
    if settings.attn not in {"auto", "eager"}:
        return [kernel] if kernel else []
    return [{"attn": "sdpa", **kernel}]


def _engines(settings: TrainSettings, known: Known) -> list[dict[str, Any]]:
    """All that divide states, each with buckets of a sensible size."""
    return [
        {"parallel": name, "zero_options": bucket_options(name, settings, known.plan, known.largest_parameter)}
        for name, strategy in STRATEGIES.items()
        if name not in {"none", "ddp", settings.parallel} and settings.gpus >= strategy.min_gpus
    ]


def _offloads(settings: TrainSettings, known: Known) -> list[dict[str, Any]]:
    return _each("offload", *strategy_of(settings).offloads) if settings.offload == "none" else []


def _each(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{name: value} for value in values]


def _none(settings: TrainSettings, known: Known) -> list[dict[str, Any]]:
    return []


#: What GPUs exchange, and what each has of its own.
_DIVIDED = {
    "ddp": "nothing but communication",
    "zero1": "communication; each GPU updates a part",
    "zero2": "communication in every micro-step; each GPU keeps a part of the gradients",
    "zero3": "the most communication: weights are gathered when they are needed",
    "fsdp": "communication: weights are gathered when they are needed",
}


def _engine_loses(settings: TrainSettings) -> Iterator[str]:
    if settings.gpus > 1:
        yield _DIVIDED.get(settings.parallel or "", "communication")
    else:
        yield "one GPU divides nothing: the engine is there for its offload"
    if casts_model(settings):
        yield (
            "the model itself is in 16 bits, its norms, residuals and losses too, and gradients add up in 16 bits, "
            "without autocast: they are rounded about twice as much; the update stays in fp32"
        )


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
        ("attn", "sdpa_kernel"),
        _attentions,
        True,
        {None: "nothing: the same attention, its sums in another order"},
    ),
    Axis(
        "grad_checkpointing",
        ("grad_checkpointing", "checkpoint_layers"),
        _none,
        True,
        {None: "nothing but time: the forward pass of the checkpointed blocks runs twice"},
        makes_room=True,
    ),
    Axis(
        "bs",
        ("bs", "accum"),
        _none,
        True,
        {None: "nothing but launches: the gradient is the same up to rounding, no layer looks across the batch"},
        makes_room=True,
    ),
    Axis(
        "optim",
        ("optim",),
        lambda settings, known: _each("optim", *_SAME_UPDATE.get(settings.optim or "", ())),
        True,
        {"adamw_torch_fused": "nothing: the same update in one kernel"},
    ),
    Axis(
        "alloc_conf",
        ("alloc_conf",),
        lambda settings, known: [] if settings.alloc_conf else _each("alloc_conf", "expandable_segments:True"),
        True,
        {None: "nothing: the allocator's segments grow in place of being cut up; not on every platform"},
        makes_room=True,
    ),
    Axis(
        "parallel",
        ("parallel", "zero_options"),
        _engines,
        True,
        {None: ""},
        makes_room=True,
        also_loses=_engine_loses,
    ),
    Axis(
        "offload",
        ("offload",),
        _offloads,
        True,
        {
            "optimizer": "time: the update runs on the CPU (DeepSpeedCPUAdam, which is compiled on first use)",
            "all": "time: the update runs on the CPU, and weights come over PCI Express in every pass",
        },
        makes_room=True,
    ),
    Axis(
        "eval_bs",
        ("eval_bs",),
        _none,
        True,
        {None: "nothing: an evaluation takes more batches"},
        makes_room=True,
    ),
    Axis(
        "optim-state",
        ("optim",),
        lambda settings, known: _each("optim", *_SMALLER.get(settings.optim or "", ())),
        False,
        {"adamw_bnb_8bit": _8BIT, "adafactor": _ADAFACTOR},
    ),
    Axis(
        "ema",
        ("ema",),
        lambda settings, known: _each("ema", False) if settings.ema else [],
        False,
        {None: "no averaged weights to evaluate; keep them on the host instead"},
    ),
    Axis(
        "patch_drop",
        ("patch_drop",),
        lambda settings, known: [] if settings.patch_drop else _each("patch_drop", 0.25, 0.5),
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


def axis_named(name: str) -> Axis:
    """The row of this name."""
    return next(axis for axis in AXES if axis.name == name)


def allowed_axes(allow: Sequence[str] | None, forbid: Sequence[str]) -> tuple[Axis, ...]:
    """The rows that ``allow`` and ``forbid`` leave; names are the flags of the settings, or a row's own."""
    names = {name.replace("_", "-") for axis in AXES for name in (axis.name, *axis.settings)} | {"recipe"}
    names -= {"zero-options"}
    for flag, given in (("allow", allow), ("forbid", forbid)):
        _check(flag, given, names)
    both = {name.replace("_", "-") for name in allow or ()} & {name.replace("_", "-") for name in forbid}
    if both:
        raise InvalidRequest(f"{', '.join(sorted(both))} cannot be allowed and forbidden; leave one of them out")
    return tuple(axis for axis in AXES if (allow is None or _is_named(axis, allow)) and not _is_named(axis, forbid))


def _check(flag: str, given: Sequence[str] | None, names: set[str]) -> None:
    if given is None:
        return
    known = ", ".join(sorted(names))
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise InvalidRequest(f"{flag} {given!r} is not a list of names; write it as ({given!r},)")
    if flag == "allow" and not given:
        raise InvalidRequest(f"allow names nothing, so that nothing could change; there are {known}")
    for name in given:
        if name.replace("_", "-") not in names:
            hint = did_you_mean(name, names) or f"; there are {known}"
            raise InvalidRequest(f"cannot {flag} {name!r}{hint}")


def _is_named(axis: Axis, given: Sequence[str]) -> bool:
    own = {name.replace("_", "-") for name in (axis.name, *axis.settings)}
    if not axis.keeps_recipe:
        own.add("recipe")
    return any(name.replace("_", "-") in own for name in given)
