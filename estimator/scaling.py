"""The same run with one image more in every batch, from one step more of it."""

from __future__ import annotations

from .engine import NotRepeatable
from .ledger import Ledger
from .loops import LOOPS
from .step import Step

__all__ = ["with_larger_batch"]


def with_larger_batch(step: Step, ledger: Ledger) -> Ledger | None:
    """``ledger`` with the last two steps as they are with one image more: only sizes differ, and one step tells them.

    ``step`` goes on. None where it does other things than the last step of ``ledger``.
    """
    loop, run = LOOPS[step.settings.loop], step.run
    step.sizes = [size + 1 for size in step.sizes]
    if step.repeats is not None:
        step.repeats.start_anew(min(len(step.sizes), 2))
    try:
        loop.begin(step)  # names that a step finds bound, such as a batch fetched ahead
        first = len(run.allocations)
        loop.play(step)
    except NotRepeatable:
        return None
    if step.repeats is not None and step.repeats.num_open:
        return None
    later = run.allocations[first:]
    *_, before, last = (_first_allocation(ledger, place) for place in ledger.steps)
    same = list(zip(ledger.kinds[last:], ledger.layers[last:]))
    if last - before != len(later) or same != [(kind, layer) for _, kind, layer in later]:
        return None
    sizes = [num_bytes for num_bytes, _, _ in later]
    return ledger._replace(bytes=(*ledger.bytes[:before], *sizes, *sizes))


def _first_allocation(ledger: Ledger, phase: int) -> int:
    return next(event for event in ledger.events[ledger.first_event(phase) :] if event >= 0)
