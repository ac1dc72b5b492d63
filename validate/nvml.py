"""NVML through nvidia-ml-py: what a GPU holds, and which process how much of it. Needs no torch.

The one reader of NVML: ``vitmem monitor`` follows a GPU by it, a measurement asks what its own process takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from vitmem.errors import InvalidRequest, NotModelled

__all__ = ["DeviceUse", "Gpu", "Reading", "chosen", "device_use", "opened", "process_ids"]


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
        self.uuid = _text(library.nvmlDeviceGetUUID(self._handle))
        self.driver = _text(library.nvmlSystemGetDriverVersion())

    def read(self) -> Reading:
        """The memory now. A MIG slice or an old driver may not list its processes; then none are."""
        memory = self._library.nvmlDeviceGetMemoryInfo(self._handle)
        return Reading(used_bytes=int(memory.used), total_bytes=int(memory.total), processes=self.processes())

    def processes(self) -> dict[int, int | None]:
        """Bytes by process id."""
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            with contextlib.suppress(*_refusals(self._library)):
                for process in getattr(self._library, f"nvmlDeviceGet{kind}RunningProcesses")(self._handle):
                    used = process.usedGpuMemory
                    found[int(process.pid)] = None if used is None else int(used)
        return found

    def process_name(self, pid: int) -> str:
        """The program's, without its folder; of a process that this one may not see, as in a container, none."""
        try:
            return os.path.basename(_text(self._library.nvmlSystemGetProcessName(pid)))
        except self._library.NVMLError:
            return "a process"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """``own_bytes`` is None where NVML does not tell (Windows); ``others`` are (name, pid, bytes)."""

    driver: str
    own_bytes: int | None
    others: tuple[tuple[str, int, int | None], ...]


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
    return gpus[0] if pid is None else max(gpus, key=lambda gpu: gpu.processes().get(pid) or -1)


def process_ids() -> frozenset[int]:
    """Who uses a GPU of this machine; nobody where NVML is not there."""
    try:
        with opened() as gpus:
            return frozenset(pid for gpu in gpus for pid in gpu.processes())
    except NotModelled:
        return frozenset()


def device_use(uuid: str, before: frozenset[int]) -> DeviceUse | None:
    """What this process takes of the GPU of that UUID, and who else is on it; None where NVML is not there, refuses, or
    does not list it (a MIG slice).

    ``before`` are :func:`process_ids` of before this process used it: in a container NVML counts processes as the host
    does, and the one that came since is this one.
    """
    try:
        with opened() as gpus:
            gpu = next((gpu for gpu in gpus if gpu.uuid.removeprefix("GPU-") == uuid), None)
            if gpu is None:
                return None
            running = gpu.processes()
            came = [os.getpid()] if os.getpid() in running else [pid for pid in running if pid not in before]
            own = came[0] if len(came) == 1 else None
            others = tuple((gpu.process_name(pid), pid, used) for pid, used in running.items() if pid != own)
            return DeviceUse(driver=gpu.driver, own_bytes=None if own is None else running[own], others=others)
    except NotModelled:
        return None


def _library() -> Any:
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise NotModelled("monitor asks the driver through nvidia-ml-py; pip install 'vitmem[monitor]'") from error
    return pynvml


def _refusals(library: Any) -> tuple[type[Exception], ...]:
    """What it raises: not NVMLError where the driver is older than nvidia-ml-py and has an older function."""
    return library.NVMLError, getattr(library, "NVMLLibraryMismatchError", library.NVMLError)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
