"""A Schedule as a report: one row for every phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from .settings import named_settings
from .tables import Column, Notes, Report, Table

__all__ = ["schedule_report"]


class Part(Protocol):
    """What a report shows of a phase."""

    @property
    def res(self) -> tuple[int, int]: ...
    @property
    def num_epochs(self) -> int: ...
    @property
    def bs(self) -> int: ...
    @property
    def accum(self) -> int: ...
    @property
    def reserved_bytes(self) -> int: ...
    @property
    def headroom_bytes(self) -> int: ...
    @property
    def relative_epoch_time(self) -> float: ...
    @property
    def changes(self) -> Mapping[str, Any]: ...


class Scheduled(Protocol):
    """What a report shows of a schedule."""

    @property
    def effective_batch(self) -> int: ...
    @property
    def gpu(self) -> str: ...
    @property
    def phases(self) -> Sequence[Part]: ...
    @property
    def relative_time(self) -> float: ...
    @property
    def notes(self) -> Sequence[str]: ...
    def to_dict(self) -> dict[str, Any]: ...


def schedule_report(found: Scheduled) -> Report:
    """The phases in order."""
    columns = (
        Column(name="resolution"),
        Column(name="epochs", kind="count"),
        Column(name="batch"),
        Column(name="reserved", kind="bytes"),
        Column(name="headroom", kind="bytes"),
        Column(name="epoch's time"),
    )
    rows = tuple(
        (
            f"{phase.res[0]}x{phase.res[1]}",
            phase.num_epochs,
            f"{phase.bs} x {phase.accum}",
            phase.reserved_bytes,
            phase.headroom_bytes,
            f"x {phase.relative_epoch_time:.2f}",
        )
        for phase in found.phases
    )
    share = f"{100 * found.relative_time:.0f} % of the time that all epochs at the last resolution would take"
    return Report(
        headline=f"{len(found.phases)} phases on {found.gpu}, {found.effective_batch} images per update: {share}.",
        subtitle=(),
        tables=(
            Table(
                name="phases",
                title="Phases",
                columns=columns,
                rows=rows,
                note="Batch: images per micro-step x micro-steps, per GPU. Time: relative to the first phase.",
            ),
        ),
        notes=(
            Notes(title="To set beside the batch", lines=tuple(_changes(found.phases))),
            Notes(title="Notes", lines=tuple(found.notes)),
        ),
        document=found.to_dict(),
    )


def _changes(phases: Sequence[Part]) -> Iterator[str]:
    """What all phases share first."""
    shared = {name: value for name, value in phases[0].changes.items() if _is_shared(name, phases)}
    if shared:
        yield f"all phases: {named_settings(shared)}"
    for phase in phases:
        if own := {name: value for name, value in phase.changes.items() if name not in shared}:
            yield f"{phase.res[0]}x{phase.res[1]}: {named_settings(own)}"


def _is_shared(name: str, phases: Sequence[Part]) -> bool:
    return all(name in phase.changes and phase.changes[name] == phases[0].changes[name] for phase in phases)
