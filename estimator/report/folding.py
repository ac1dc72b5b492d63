"""Consecutive layers that differ only in one number of their name become one row: ``blocks.0-11``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

__all__ = ["Fold", "fold"]

Values = tuple[object, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """``count`` consecutive layers with the same ``values`` each."""

    name: str
    values: Values
    count: int


def fold(rows: Iterable[tuple[str, Values]]) -> tuple[Fold, ...]:
    """Fold (name, values) rows whose values are equal and whose names count up by one in a single place."""
    runs: list[list[tuple[str, Values]]] = []
    for name, values in rows:
        run = runs[-1] if runs else []
        if run and run[-1][1] == values and _continues([earlier for earlier, _ in run], name):
            run.append((name, values))
        else:
            runs.append([(name, values)])
    return tuple(Fold(name=_joined([n for n, _ in run]), values=run[0][1], count=len(run)) for run in runs)


def _continues(names: Sequence[str], name: str) -> bool:
    place = _counter(names[-1], name)
    return place is not None and (len(names) == 1 or _counter(names[0], names[1]) == place)


def _counter(before: str, after: str) -> int | None:
    """The dotted place that holds n in ``before`` and n + 1 in ``after``, all else equal."""
    old, new = before.split("."), after.split(".")
    if len(old) != len(new):
        return None
    changed = [place for place, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    if len(changed) != 1:
        return None
    a, b = old[changed[0]], new[changed[0]]
    return changed[0] if a.isdecimal() and b.isdecimal() and int(b) == int(a) + 1 else None


def _joined(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    place = _counter(names[0], names[1])
    assert place is not None
    first, last = names[0].split("."), names[-1].split(".")
    first[place] = f"{first[place]}-{last[place]}"
    return ".".join(first)
