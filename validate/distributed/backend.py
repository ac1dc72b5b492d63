"""``vitmem validate --backend cpu`` for several GPUs: the ranks are started here, and compared by the most loaded."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings

from ..measurement import MeasuredLayer
from ..versions import versions
from .launch import measure_ranks

__all__ = ["RanksMeasurement", "measure", "most_loaded"]

_NOTES: tuple[str, ...] = ("most loaded rank of real kernels on one thread each; gloo's own buffers are not seen",)
_SAME = 0.999
_EVALUATED = frozenset({"ddp", "zero1", "zero2"})
_AS_BF16 = "ran in bf16: accelerate switches autocast to fp16 off on the CPU; sizes are the same"
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
            "versions": dict(self.versions),
            "device": self.device,
            "notes": list(self.notes),
        }


def measure(settings: TrainSettings, *, timeout_s: float) -> RanksMeasurement:
    """Three steps of the real engine in as many processes as there are GPUs; raises where one of them fails."""
    engine = settings.parallel or "ddp"
    if settings.loop != "trainer":
        raise NotModelled(f"the ranks train under Trainer; leave out --loop {settings.loop}")
    if settings.offload != "none":
        raise NotModelled("a run on the CPU cannot tell the device's memory from the host's; leave out --offload")
    document = None
    if engine.startswith("zero"):
        if importlib.util.find_spec("deepspeed") is None:
            raise NotModelled("ZeRO is run by DeepSpeed, which is not installed: pip install 'vitmem[deepspeed]'")
        document = _document(settings, int(engine.removeprefix("zero")))
    notes = _NOTES
    if settings.precision == "fp16" and document is None:
        settings, notes = dataclasses.replace(settings, precision="bf16"), (*notes, _AS_BF16)
    ranks = measure_ranks(settings, deepspeed=document, timeout_s=timeout_s, **_evaluation(settings, engine))
    return RanksMeasurement(
        phases=most_loaded([rank["peaks"] for rank in ranks]),
        device=f"{len(ranks)} processes on the CPU",
        versions=versions(settings.train),
        notes=notes,
    )


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
    return {**document, "zero_optimization": {"stage": stage, **options}}
