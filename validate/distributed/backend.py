"""``vitmem validate --backend cpu`` for several GPUs: the ranks are started here, and compared by the most loaded."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any

from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings

from ..measurement import MeasuredLayer
from ..versions import versions
from .launch import measure_ranks

__all__ = ["RanksMeasurement", "measure"]

_NOTES: tuple[str, ...] = (
    "most loaded rank; the host's next batch is counted as well, and what the CPU's kernels save may have another type",
)
_AS_BF16 = "ran in bf16: DeepSpeed and autocast have no fp16 on the CPU; sizes are the same"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RanksMeasurement:
    """The largest total of live storages in each phase of the third step, over all ranks."""

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
    if settings.precision == "fp16":
        settings, notes = dataclasses.replace(settings, precision="bf16"), (*notes, _AS_BF16)
    ranks = measure_ranks(settings, deepspeed=document, timeout_s=timeout_s)
    names = ranks[0]["peaks"]
    return RanksMeasurement(
        phases={name: max(rank["peaks"][name] for rank in ranks) for name in names},
        device=f"{len(ranks)} processes on the CPU",
        versions=versions(settings.train),
        notes=notes,
    )


def _document(settings: TrainSettings, stage: int) -> dict[str, Any]:
    """A DeepSpeed file that asks for the same."""
    options: dict[str, Any] = dict(settings.zero_options)
    options.pop("pin_memory", None)
    document: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
    }
    if options.pop("single_group", False):
        document["optimizer"] = {"type": "AdamW", "params": {"lr": "auto"}}
    return {**document, "zero_optimization": {"stage": stage, **options}}
