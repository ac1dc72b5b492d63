"""What was followed as a picture, by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitmem.errors import NotModelled, VitmemError
from vitmem.units import MIB

from .monitor import Followed

__all__ = ["SUFFIXES", "gib", "locator", "pyplot_or_refuse", "save"]

SUFFIXES = (".png", ".svg")


def pyplot_or_refuse() -> Any:
    """matplotlib's Figure, looked for before anything is followed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise NotModelled("a plot is drawn by matplotlib; pip install 'vitmem[plot]', or use --out FILE.csv") from error
    return Figure


def save(followed: Followed, path: Path) -> None:
    """Memory over time: the GPU, the followed process, and the GPU's size."""
    figure = pyplot_or_refuse()(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    seconds = [sample.seconds for sample in followed.samples]
    axes.step(seconds, [sample.used_bytes for sample in followed.samples], where="post", label="GPU")
    if followed.pid is not None:
        process = [sample.process_bytes or 0 for sample in followed.samples]
        axes.step(seconds, process, where="post", label=f"process {followed.pid}")
    axes.axhline(followed.total_bytes, linestyle="--", color="grey", label=f"{followed.gpu.name}")
    axes.yaxis.set_major_locator(locator(followed.total_bytes))
    axes.yaxis.set_major_formatter(gib)
    axes.set(xlabel="seconds", ylabel="GiB", ylim=(0, followed.total_bytes * 1.05), title="GPU memory")
    axes.legend(loc="lower right")
    try:
        figure.savefig(path)
    except OSError as error:
        raise VitmemError(f"cannot write {str(path)!r}: {error.strerror}") from error


def locator(total_bytes: int) -> Any:
    """Up to ten ticks, a power of two apart."""
    from matplotlib.ticker import MultipleLocator

    base = MIB
    while total_bytes > 10 * base:
        base *= 2
    return MultipleLocator(base)


def gib(value: float, position: object) -> str:
    """For an axis in bytes."""
    from vitmem.units import format_bytes

    return format_bytes(int(value)).removesuffix(" GiB")
