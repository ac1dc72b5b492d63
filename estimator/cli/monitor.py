"""``vitmem monitor``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidRequest
from .output import emit, json_option, out_options, target_of

if TYPE_CHECKING:
    from ..validate.monitor import Followed, Sample
    from ..validate.nvml import Reading

__all__ = ["command"]


@click.command("monitor")
@click.option("--gpu", type=click.IntRange(min=0), metavar="N", help="index of the GPU, as nvidia-smi numbers it")
@click.option("--pid", type=click.IntRange(min=1), metavar="PID", help="follow this process, and end with it")
@click.option(
    "--interval", type=click.FloatRange(0.01, 3600), default=0.5, metavar="S", help="seconds between  [default: 0.5]"
)
@click.option("--duration", type=click.FloatRange(min=0), default=0, metavar="S", help="end after this long")
@click.option("--csv", "csv_file", metavar="FILE", help="write every sample to FILE as it is taken")
@json_option
@out_options
def command(
    *,
    gpu: int | None,
    pid: int | None,
    interval: float,
    duration: float,
    csv_file: str | None,
    as_json: bool,
    out: str | None,
    force: bool,
) -> None:
    """Follow the memory of a GPU, or of one process on it, until Ctrl-C, and say what the peak was.

    --out also takes .png and .svg: memory over time, drawn by matplotlib. The live line goes to stderr on a terminal.

    Exit codes: 0 done, 2 bad usage, 4 cannot say: no NVIDIA driver, or no nvidia-ml-py.
    """
    from ..validate import monitor, monitor_plot, nvml

    plot = Path(out) if out is not None and Path(out).suffix.lower() in monitor_plot.SUFFIXES else None
    target = target_of(out, force) if plot is None else None
    if plot is not None:
        _check_plot(plot, force)
        monitor_plot.pyplot_or_refuse()
    with nvml.opened() as gpus, contextlib.ExitStack() as stack:
        device = nvml.chosen(gpus, gpu, pid)
        table = None if csv_file is None else stack.enter_context(monitor.Table(Path(csv_file), force=force))
        live = stack.enter_context(_Live(table, follows=pid is not None))
        followed = monitor.follow(device, pid=pid, interval_s=interval, duration_s=duration, seen=live.seen)
    if plot is not None:
        monitor_plot.save(followed, plot)
        print(f"wrote {plot}", file=sys.stderr)
    _report(followed, as_json=as_json, target=target)


def _report(followed: Followed, *, as_json: bool, target: Any) -> None:
    from ..report.monitor import monitor_report

    emit(monitor_report(followed.to_dict()), as_json=as_json, target=target)


def _check_plot(path: Path, force: bool) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidRequest(f"out {str(path)!r} is not a file in an existing folder")
    if path.exists() and not force:
        raise InvalidRequest(f"out {str(path)!r} exists; choose another name or add --force")


class _Live:
    """The line that is written over, on a terminal only, and the rows of the CSV file."""

    def __init__(self, table: Any, *, follows: bool) -> None:
        self._table = table
        self._follows = follows
        self._peak = 0
        self._shows = sys.stderr.isatty()

    def __enter__(self) -> _Live:
        return self

    def __exit__(self, *reason: object) -> None:
        if self._shows and self._peak:
            print(file=sys.stderr)

    def seen(self, sample: Sample, reading: Reading) -> None:
        """Show and store one sample."""
        from ..report.monitor import live_line

        self._peak = max(self._peak, (sample.process_bytes or 0) if self._follows else sample.used_bytes)
        if self._table is not None:
            self._table.add(sample)
        if self._shows:
            line = live_line(sample.used_bytes, reading.total_bytes, sample.process_bytes, self._peak)
            print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
