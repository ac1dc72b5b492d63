"""NVML through nvidia-ml-py: what a GPU holds, and which process how much of it. Needs no torch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from vitmem.errors import InvalidRequest, NotModelled

__all__ = ["Gpu", "Reading", "chosen", "opened"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One moment of a GPU in bytes; ``processes`` are by process id, ``None`` where the driver does not say.

    ``used_bytes`` counts every process and what the driver keeps for itself.
    """

    used_bytes: int
    total_bytes: int
    processes: dict[int, int | None]


class Gpu:
    """One GPU of the machine by its NVML index, which CUDA_VISIBLE_DEVICES does not change."""

    def __init__(self, library: Any, index: int) -> None:
        self._library = library
        self._handle = library.nvmlDeviceGetHandleByIndex(index)
        self.index = index
        self.name = _text(library.nvmlDeviceGetName(self._handle))
        self.driver = _text(library.nvmlSystemGetDriverVersion())

    def read(self) -> Reading:
        """The memory now. A MIG slice or an old driver may not list its processes; then none are."""
        memory = self._library.nvmlDeviceGetMemoryInfo(self._handle)
        return Reading(used_bytes=int(memory.used), total_bytes=int(memory.total), processes=self._processes())

    def _processes(self) -> dict[int, int | None]:
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            with contextlib.suppress(self._library.NVMLError):
                for process in getattr(self._library, f"nvmlDeviceGet{kind}RunningProcesses")(self._handle):
                    used = process.usedGpuMemory
                    found[int(process.pid)] = None if used is None else int(used)
        return found


@contextlib.contextmanager
def opened(library: Any = None) -> Iterator[list[Gpu]]:
    """The machine's GPUs; raises NotModelled where there is no driver, or no nvidia-ml-py to ask it with."""
    library = _library() if library is None else library
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise NotModelled(
            f"no NVIDIA driver answers on this machine ({error}); monitor follows a real GPU: run it where the "
            "training runs, or see what a script would take with `vitmem null -- CMD`"
        ) from error
    try:
        yield [Gpu(library, index) for index in range(library.nvmlDeviceGetCount())]
    except library.NVMLError as error:
        raise NotModelled(f"the NVIDIA driver does not say: {error}") from error
    finally:
        with contextlib.suppress(library.NVMLError):
            library.nvmlShutdown()


def chosen(gpus: list[Gpu], index: int | None, pid: int | None) -> Gpu:
    """The GPU of that index; without one the GPU that ``pid`` uses most of, else the first."""
    if not gpus:
        raise NotModelled("the NVIDIA driver shows no GPU to this process; monitor follows a real GPU")
    if index is not None:
        if index >= len(gpus):
            known = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in gpus)
            raise InvalidRequest(f"no GPU {index} on this machine; there is {known}")
        return gpus[index]
    return gpus[0] if pid is None else max(gpus, key=lambda gpu: gpu.read().processes.get(pid) or -1)


def _library() -> Any:
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise NotModelled("monitor asks the driver through nvidia-ml-py; pip install 'vitmem[monitor]'") from error
    return pynvml


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
