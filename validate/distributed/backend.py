"""``vitmem validate --backend cpu`` for several GPUs: the ranks are started here, and compared by the most loaded."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings
from vitmem.units import format_bytes

from ..allocator_measurement import AllocatorMeasurement
from ..measurement import MeasuredLayer
from ..versions import versions
from .launch import measure_own_rank, measure_ranks
from .world import World

__all__ = ["RanksMeasurement", "measure", "most_loaded"]

_NOTES: tuple[str, ...] = ("most loaded rank of real kernels on one thread each; gloo's own buffers are not seen",)
_SAME = 0.999
_EVALUATED = frozenset({"ddp", "zero1", "zero2"})
_AS_BF16 = "ran in bf16: accelerate switches autocast to fp16 off on the CPU; sizes are the same"
PHASES = ("forward", "backward", "optimizer_step")
#: Before the loss is scaled by more than fp16 holds, DeepSpeed leaves steps out and halves the scale.
_FP16 = {"enabled": "auto", "initial_scale_power": 4}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RanksMeasurement:
    """The largest total of live storages in each phase of a steady step, on the rank with the highest peak."""

    phases: Mapping[str, int]
    device: str
    versions: Mapping[str, str]
    notes: tuple[str, ...]
    backend: str = "cpu"
    phase_figure: str = "tensor_bytes"
    layers: tuple[MeasuredLayer, ...] = ()
    ran_out: bool | None = None
    ranks: tuple[Mapping[str, int], ...] = ()

    @property
    def peaks(self) -> Mapping[str, int | None]:
        """There is no caching allocator on the CPU."""
        unseen = dict.fromkeys(("allocated_bytes", "reserved_bytes", "device_bytes"))
        return {"tensor_bytes": max(self.phases.values()), **unseen}

    @property
    def kinds(self) -> Mapping[str, int]:
        return {}

    @property
    def state_bytes(self) -> Mapping[str, int]:
        return {}

    def to_dict(self) -> dict[str, Any]:
        """The ``measurement`` object of the contract as plain values."""
        highest = max(self.phases, key=lambda name: self.phases[name])
        return {
            "backend": self.backend,
            "peak": {**self.peaks, "phase": highest, "layer": None},
            "at_peak": {},
            "phases": {name: {"tensor_bytes": num_bytes} for name, num_bytes in self.phases.items()},
            "layers": [],
            "ranks": [dict(phases) for phases in self.ranks],
            "versions": dict(self.versions),
            "device": self.device,
            "notes": list(self.notes),
        }


def measure(
    settings: TrainSettings,
    *,
    timeout_s: float,
    on_gpu: bool = False,
    memory_bytes: int | None = None,
    world: World | None = None,
    **extra: Any,
) -> RanksMeasurement | AllocatorMeasurement:
    """Steps of the real engine, one process for each GPU; raises where one of them fails.

    The processes are started here, or are there already: ``world`` is this one's place among them. ``on_gpu``: each has
    a GPU, of which it takes ``memory_bytes`` at most, and the allocator is the witness; else they share the CPU.
    """
    engine = settings.parallel or "ddp"
    _refuse(settings, engine, on_gpu=on_gpu)
    document = _document(settings, int(engine.removeprefix("zero"))) if engine.startswith("zero") else None
    notes = () if on_gpu else _NOTES
    if settings.precision == "fp16" and document is None and not on_gpu:
        settings, notes = dataclasses.replace(settings, precision="bf16"), (*notes, _AS_BF16)
    asked: dict[str, Any] = {"deepspeed": document, "on_gpu": on_gpu, "memory_bytes": memory_bytes}
    asked |= {"fsdp": _fsdp(settings) if engine == "fsdp" else None, **_evaluation(settings, engine), **extra}
    if world is None:
        ranks = measure_ranks(settings, timeout_s=timeout_s, **asked)
    else:
        ranks = measure_own_rank(settings, world, timeout_s=timeout_s, **asked)
    if on_gpu:
        return _of_allocators(settings, ranks)
    by_rank = [rank["peaks"] for rank in ranks]
    phases = most_loaded(by_rank)
    return RanksMeasurement(
        phases=phases,
        device=f"{len(ranks)} processes on the CPU",
        versions=versions(settings.train),
        notes=(*notes, _shown(by_rank, phases)),
        ranks=tuple(by_rank),
    )


def _refuse(settings: TrainSettings, engine: str, *, on_gpu: bool) -> None:
    if settings.loop != "trainer":
        raise NotModelled(f"the ranks train under Trainer; leave out --loop {settings.loop}")
    if settings.offload != "none" and not on_gpu:
        raise NotModelled("a run on the CPU cannot tell the device's memory from the host's; leave out --offload")
    if engine.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        raise NotModelled("ZeRO is run by DeepSpeed, which is not installed: pip install 'vitmem[deepspeed]'")


def _of_allocators(settings: TrainSettings, ranks: Sequence[Mapping[str, Any]]) -> AllocatorMeasurement:
    """The most loaded rank's figures, or that one ran out of memory."""
    seen = versions(settings.train)
    failed = ranks[0].get("out_of_memory")
    if failed is not None:
        where = f"rank {failed['rank']} of {settings.gpus} ran out of memory"
        document = {"out_of_memory": {**failed, "driver": None}, "versions": seen}
        return AllocatorMeasurement.of(document, backend="cuda", device=f"{settings.gpus} GPUs", notes=(where,))
    by_rank = [rank["peaks"] for rank in ranks]
    phases = most_loaded(by_rank)
    shown = ranks[by_rank.index(phases)]
    steady = {name: size for name, size in phases.items() if name in PHASES}
    measured = {**shown, "allocated_bytes": max(steady.values()), "phases": phases}
    measured["reserved_bytes"] = max(rank["reserved_bytes"] for rank in ranks)
    document = {"measured": measured, "versions": seen}
    found = AllocatorMeasurement.of(
        document, backend="cuda", device=shown.get("device", "a GPU"), notes=(_shown(by_rank, phases),)
    )
    return dataclasses.replace(found, ranks=tuple(by_rank))


def _shown(by_rank: Sequence[Mapping[str, int]], phases: Mapping[str, int]) -> str:
    """Which rank the figures are of, and the peaks of all."""
    peaks = ", ".join(format_bytes(max(peaks.values())) for peaks in by_rank)
    which = f"rank {by_rank.index(phases)} of {len(by_rank)}, the most loaded"
    return f"the figures are of {which}; the peaks by rank: {peaks}"


def _evaluation(settings: TrainSettings, engine: str) -> dict[str, int]:
    """The images of an evaluation behind the third step, where the estimate knows one: three batches of each rank."""
    if engine not in _EVALUATED:
        return {}
    return {"eval_samples": settings.eval_samples or 3 * (settings.eval_bs or 8) * settings.gpus}


def most_loaded(ranks: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """The phases of the rank with the highest peak; of those with the same but for padding, which need most."""
    highest = max(max(peaks.values()) for peaks in ranks)
    return max(
        (peaks for peaks in ranks if max(peaks.values()) >= _SAME * highest), key=lambda peaks: sum(peaks.values())
    )


def _fsdp(settings: TrainSettings) -> dict[str, Any]:
    """``fsdp_config``."""
    reshards = settings.reshard_after_forward
    return {"version": 2, **({} if reshards is None else {"reshard_after_forward": reshards})}


def _document(settings: TrainSettings, stage: int) -> dict[str, Any]:
    """A DeepSpeed file that asks for the same."""
    options: dict[str, Any] = dict(settings.zero_options)
    options.pop("pin_memory", None)
    document: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        settings.precision: _FP16 if settings.precision == "fp16" else {"enabled": "auto"},
    }
    if settings.precision == "fp32":
        del document["fp32"]
    if options.pop("single_group", False):
        document["optimizer"] = {"type": "AdamW", "params": {"lr": "auto"}}
    pinned = {"device": "cpu", "pin_memory": bool(dict(settings.zero_options).get("pin_memory"))}
    for part, offloads in (("optimizer", ("optimizer", "all")), ("param", ("all",))):
        if settings.offload in offloads:
            options[f"offload_{part}"] = pinned
    return {**document, "zero_optimization": {"stage": stage, **options}}
