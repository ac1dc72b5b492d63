"""schedulefree 1.4.1: the point ``z`` that the average is taken of; the averaged weights are the parameters themselves.

``step`` of each class is one function over all groups: ``denom`` lives until the next group binds it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.tensor import Tensor
from .row import Group, Optimizer, StateOf, copies, in_place, like

__all__ = ["ROWS"]

_SOURCE = "schedulefree 1.4.1"


def _adamw(groups: Sequence[Group], state_of: StateOf) -> None:
    denom: list[Tensor] = []
    for group in groups:
        state_of.all(group.parameters)
        if group.parameters:
            denom = like(group.parameters)
    del denom


def _radam(groups: Sequence[Group], state_of: StateOf) -> None:
    """The first steps are plain gradient descent; they are few, and a step of the rest is what counts."""
    first = any(len(p.run.steps) == 1 for group in groups for p in group.parameters[:1])
    (in_place if first else _adamw)(groups, state_of)


ROWS = {
    "schedule_free_adamw": Optimizer(source=_SOURCE, kept=copies(2), step=_adamw),
    "schedule_free_radam": Optimizer(
        source=f"{_SOURCE}; its first four steps borrow less than the later ones, which the figures are of",
        kept=copies(2),
        step=_radam,
    ),
    "schedule_free_sgd": Optimizer(source=_SOURCE, kept=copies(1), step=in_place),
}
