"""A GPU's memory at an interval, until the process ends, the time is up, or Ctrl-C. Needs no torch."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from vitmem.errors import InvalidRequest, VitmemError
from vitmem.result import SCHEMA_VERSION

from .nvml import Gpu, Reading

__all__ = ["Followed", "Sample", "Table", "follow"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """``seconds`` since the start; ``process_bytes`` is the followed process's, None where there is none or the driver
    does not say."""

    seconds: float
    used_bytes: int
    process_bytes: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What was seen; ``process_peaks`` are the largest figures by process id, in bytes."""

    gpu: Gpu
    pid: int | None
    interval_s: float
    total_bytes: int
    samples: Sequence[Sample]
    process_peaks: dict[int, int]
    ended_by: str

    @property
    def peak(self) -> Sample:
        """The first sample with the most in use: by the process where one is followed, else on the GPU."""
        return max(self.samples, key=lambda sample: _figure(sample, self.pid))

    def to_dict(self) -> dict[str, Any]:
        """The document of ``vitmem monitor --json``."""
        peak, last = self.peak, self.samples[-1]
        processes = sorted(self.process_peaks.items(), key=lambda item: -item[1])
        return {
            "schema_version": SCHEMA_VERSION,
            "gpu": {"index": self.gpu.index, "name": self.gpu.name, "total_bytes": self.total_bytes},
            "driver": self.gpu.driver,
            "pid": self.pid,
            "interval_s": self.interval_s,
            "duration_s": last.seconds,
            "num_samples": len(self.samples),
            "ended_by": self.ended_by,
            "first": _moment(self.samples[0]),
            "last": _moment(last),
            "peak": {
                **_moment(peak),
                "device_bytes": max(sample.used_bytes for sample in self.samples),
                "process_bytes": max(
                    (sample.process_bytes for sample in self.samples if sample.process_bytes is not None), default=None
                ),
            },
            "processes": [{"pid": pid, "peak_bytes": size} for pid, size in processes],
            "notes": list(self._notes()),
        }

    def _notes(self) -> Iterator[str]:
        yield (
            f"read every {self.interval_s:g} s: what came and went in between is not seen. PyTorch's allocator keeps "
            "what it has reserved, so that its peak stays"
        )
        if self.pid is not None and all(sample.process_bytes is None for sample in self.samples):
            yield (
                f"the driver never named process {self.pid}: it used no GPU here, or in a container, where process ids "
                "are not the driver's"
            )


class Table:
    """A CSV file that grows by a row per sample, so that nothing is lost when the machine is."""

    def __init__(self, path: Path, *, force: bool) -> None:
        try:
            self._file: TextIO = path.open("w" if force else "x", encoding="utf-8", newline="")
        except FileExistsError as error:
            raise InvalidRequest(f"csv {str(path)!r} exists; choose another name or add --force") from error
        except OSError as error:
            raise InvalidRequest(f"csv {str(path)!r} cannot be written: {error.strerror}") from error
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(("seconds", "device_bytes", "process_bytes"))

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *reason: object) -> None:
        self._file.close()

    def add(self, sample: Sample) -> None:
        """One row; an empty cell is a figure that is not known."""
        try:
            self._writer.writerow((f"{sample.seconds:.3f}", sample.used_bytes, sample.process_bytes))
            self._file.flush()
        except OSError as error:
            raise VitmemError(f"cannot write {self._file.name!r}: {error.strerror}") from error


def follow(
    gpu: Gpu,
    *,
    pid: int | None,
    interval_s: float,
    duration_s: float,
    seen: Callable[[Sample, Reading], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Followed:
    """Sample until ``pid`` has ended, ``duration_s`` (0: no limit) is over, or a KeyboardInterrupt."""
    begin, samples, peaks, ended_by = clock(), list[Sample](), dict[int, int](), "interrupt"
    total = gpu.read().total_bytes
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            sample, reading = _sample(gpu, pid, clock() - begin)
            samples.append(sample)
            for process, size in reading.processes.items():
                peaks[process] = max(peaks.get(process, 0), size or 0)
            seen(sample, reading)
            if pid is not None and not _runs(pid):
                ended_by = "process"
                break
            if duration_s and sample.seconds + interval_s > duration_s:
                ended_by = "duration"
                break
            sleep(max(begin + len(samples) * interval_s - clock(), 0.0))
    if not samples:
        samples.append(_sample(gpu, pid, 0.0)[0])
    return Followed(
        gpu=gpu,
        pid=pid,
        interval_s=interval_s,
        total_bytes=total,
        samples=samples,
        process_peaks=peaks,
        ended_by=ended_by,
    )


def _sample(gpu: Gpu, pid: int | None, seconds: float) -> tuple[Sample, Reading]:
    reading = gpu.read()
    process = None if pid is None else reading.processes.get(pid)
    return Sample(seconds=seconds, used_bytes=reading.used_bytes, process_bytes=process), reading


def _figure(sample: Sample, pid: int | None) -> tuple[int, int]:
    return (0 if pid is None else sample.process_bytes or 0, sample.used_bytes)


def _moment(sample: Sample) -> dict[str, Any]:
    return {
        "seconds": round(sample.seconds, 3),
        "device_bytes": sample.used_bytes,
        "process_bytes": sample.process_bytes,
    }


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True
