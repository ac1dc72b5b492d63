"""The backends of ``vitmem validate``: one more is one row. Importing this needs no torch, measuring may."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings

from .measurement import AllocatorMeasurement, Measured
from .null.device import NullDevice

__all__ = ["AUTO", "BACKENDS", "Run"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measurement to make. ``device``, ``force`` and ``timeout_s`` are for backends that start processes."""

    settings: TrainSettings
    device: NullDevice
    force: bool
    timeout_s: float


def _meta(run: Run) -> Measured:
    from .meta import measure

    return measure(run.settings)


def _cpu(run: Run) -> Measured:
    if run.settings.gpus == 1 and run.settings.parallel in {None, "none"}:
        raise NotModelled(f"backend 'cpu' runs several ranks in this version; add --gpus 2, or use --backend {AUTO}")
    from .distributed.backend import measure

    return measure(run.settings, timeout_s=run.timeout_s)


def _null(run: Run) -> Measured:
    from .null.backend import measure

    return measure(run.settings, run.device, force=run.force, timeout_s=run.timeout_s)


def _cuda(run: Run) -> Measured:
    import torch

    from .cuda import OutOfMemory, measure
    from .versions import versions

    try:
        document = {"measured": measure(run.settings).to_dict()}
    except OutOfMemory as error:
        document = {"out_of_memory": error.to_dict()}
    device = torch.cuda.get_device_name()
    return AllocatorMeasurement.of(
        {**document, "versions": versions(run.settings.train)}, backend="cuda", device=device
    )


#: By the name that ``--backend`` takes; those of later versions are None.
BACKENDS: Mapping[str, Callable[[Run], Measured] | None] = {"meta": _meta, "cpu": _cpu, "cuda": _cuda, "null": _null}
#: What ``auto`` is: runs everywhere, and to the byte.
AUTO = "meta"
