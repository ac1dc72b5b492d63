"""A sweep as a picture: one cell per combination, what fits marked; drawn by matplotlib."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from vitmem.errors import InvalidRequest
from vitmem.result import Estimate
from vitmem.units import format_bytes

from .monitor_plot import SUFFIXES, gib, locator, pyplot_or_refuse

__all__ = ["SUFFIXES", "check", "heat_map"]

_MOST_PANELS, _MOST_CELLS = 12, 400
_INCHES_PER_CELL = (0.95, 0.5)
#: Longer labels under a cell would run into each other.
_MOST_LETTERS = 11
#: How a cell that does not fit, or only just, is drawn over its colour.
_HATCHES = {"no": "xx", "borderline": ".."}
_MEANINGS = {"no": "does not fit", "borderline": "borderline"}
_REFUSED = "0.85"


class Combination(Protocol):
    """What a picture shows of one combination."""

    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def estimate(self) -> Estimate | None: ...


class Swept(Protocol):
    """What a picture shows of a sweep."""

    @property
    def axes(self) -> Mapping[str, Sequence[Any]]: ...
    @property
    def rows(self) -> Sequence[Combination]: ...


def check(axes: Mapping[str, Sequence[Any]]) -> None:
    """Raise InvalidRequest for more combinations than a picture can show, NotModelled without matplotlib."""
    pyplot_or_refuse()
    *outer, rows, columns = [1, 1, *(len(values) for values in axes.values())]
    if rows * columns > _MOST_CELLS or math.prod(outer) > _MOST_PANELS:
        raise InvalidRequest(
            f"a heat map has up to {_MOST_CELLS} cells for the last two settings and {_MOST_PANELS} panels for the "
            "others; give fewer values, or use --out FILE.csv"
        )


def heat_map(sweep: Swept, suffix: str) -> bytes:
    """The picture's bytes: the last two settings with several values span the cells, one panel for the others.

    A cell shows what is reserved, or allocated where that alone is known.
    """
    names = list(sweep.axes)
    inner = names[-2:]
    outer = [name for name in names if name not in inner]
    panels = list(itertools.product(*(sweep.axes[name] for name in outer)))
    height, width = ([1] + [len(sweep.axes[name]) for name in inner])[-2:]
    size = (max(width * _INCHES_PER_CELL[0] + 2.2, 5.5), max(height * _INCHES_PER_CELL[1] + 1.6, 2.2))
    figure = pyplot_or_refuse()(figsize=(size[0], size[1] * len(panels)), layout="constrained")
    drawn = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    known = [value for row in sweep.rows if (value := _bytes(row)) is not None]
    highest = max(known, default=1)
    scale = {"vmin": min(known, default=0), "vmax": highest, "cmap": "viridis"}
    for panel, axes in zip(panels, drawn):
        rows = [row for row in sweep.rows if tuple(row.values[name] for name in outer) == panel]
        image = _panel(axes, rows, inner, sweep.axes, scale)
        axes.set_title(", ".join(f"{_flag(name)} {value}" for name, value in zip(outer, panel)), fontsize="medium")
    figure.colorbar(image, ax=list(drawn), label="GiB reserved", ticks=locator(highest), format=gib)
    figure.suptitle(_title(sweep), fontsize="large")
    _legend(figure, sweep)
    stream = io.BytesIO()
    figure.savefig(stream, format=suffix.lstrip("."), dpi=150)
    return stream.getvalue()


def _panel(
    axes: Any, rows: Sequence[Combination], inner: list[str], values: Mapping[str, Sequence[Any]], scale: Any
) -> Any:
    """The cells of one combination of the outer settings."""
    columns = list(values[inner[-1]])
    lines = list(values[inner[0]]) if len(inner) == 2 else [""]
    cells = {(row.values[inner[0]] if len(inner) == 2 else "", row.values[inner[-1]]): row for row in rows}
    grid = [[_bytes(cells[line, column]) or math.nan for column in columns] for line in lines]
    axes.set_facecolor(_REFUSED)
    image = axes.imshow(grid, aspect="auto", **scale)
    for y, line in enumerate(lines):
        for x, column in enumerate(columns):
            _cell(axes, x, y, cells[line, column], image)
    labels = [str(column) for column in columns]
    slanted = (
        {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if max(map(len, labels)) > _MOST_LETTERS else {}
    )
    axes.set_xticks(range(len(columns)), labels, **slanted)
    axes.set_yticks(range(len(lines)), [str(line) for line in lines])
    axes.set(xlabel=_flag(inner[-1]), ylabel=_flag(inner[0]) if len(inner) == 2 else "")
    return image


def _cell(axes: Any, x: int, y: int, row: Combination, image: Any) -> None:
    """Its figure, and a hatch over what does not fit."""
    num_bytes, verdict = _bytes(row), _verdict(row)
    if verdict in _HATCHES:
        from matplotlib.patches import Rectangle

        corner = (x - 0.5, y - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch=_HATCHES[verdict], edgecolor="white", linewidth=0))
    text = "no figure" if num_bytes is None else format_bytes(num_bytes)
    shade = 1.0 if num_bytes is None else image.norm(num_bytes)
    box = {"boxstyle": "round,pad=0.15", "facecolor": image.cmap(shade), "edgecolor": "none"}
    if num_bytes is None:
        box["facecolor"] = _REFUSED
    axes.text(
        x, y, text, ha="center", va="center", fontsize="small", color="black" if shade > 0.6 else "white", bbox=box
    )


def _legend(figure: Any, sweep: Swept) -> None:
    """What the hatches mean, of those that are there."""
    from matplotlib.patches import Patch

    there = {_verdict(row) for row in sweep.rows}
    handles = [
        Patch(facecolor="0.4", edgecolor="white", hatch=hatch, label=_MEANINGS[verdict])
        for verdict, hatch in _HATCHES.items()
        if verdict in there
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)


def _title(sweep: Swept) -> str:
    """The model, unless that is an axis, and what it has to fit into."""
    estimates = [row.estimate for row in sweep.rows if row.estimate is not None]
    names = {estimate.model.name for estimate in estimates}
    gpus = {str(estimate.verdict["gpu"]) for estimate in estimates if estimate.verdict is not None}
    model = names.pop() if len(names) == 1 else "one training step"
    return f"{model} on {gpus.pop()}" if len(gpus) == 1 else model


def _bytes(row: Combination) -> int | None:
    if row.estimate is None:
        return None
    peak = row.estimate.peak
    return peak.allocated_bytes if peak.reserved_bytes is None else peak.reserved_bytes


def _verdict(row: Combination) -> str | None:
    verdict = None if row.estimate is None else row.estimate.verdict
    return None if verdict is None else str(verdict["fits"])


def _flag(name: str) -> str:
    return name.replace("_", "-")
