"""What a training loop is, and what all of them share: parameter groups, the update, the names that they bind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from ..engine import Tensor
from ..optimizers import Group
from ..step import Step

__all__ = ["Loop", "begin", "named", "scaled_update", "update"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """``begin`` makes what the loop's names hold before the first step, ``play`` is one step.

    ``evaluate`` is an evaluation between two steps, of which ``evaluation`` says how it is done.
    ``no_decay`` tells the parameters of the group without weight decay; without it there is one group.
    """

    optim: str
    begin: Callable[[Step], None]
    play: Callable[[Step], None]
    evaluate: Callable[[Step], None]
    no_decay: Callable[[Step, str, Tensor], bool] | None = None
    weight_decay: bool = False
    no_decay_first: bool = False
    assumption: str
    evaluation: str


def begin(step: Step, loop: Loop) -> None:
    """What is there before the first step: the optimizer's own, then what the loop's names hold.

    A loop of one group hands all parameters over, the others those that require grad.
    """
    step.construct_optimizer(groups_of(step, loop, step.scope.parameters if loop.no_decay is None else step.trained))
    step.run.start_phase("loop", kind="temporaries")
    loop.begin(step)


def groups_of(step: Step, loop: Loop, trained: Mapping[str, Tensor]) -> list[Group]:
    """The parameter groups that the loop makes of these parameters."""
    if loop.no_decay is None:
        return [Group(parameters=tuple(trained.values()), decayed=loop.weight_decay)]
    plain = tuple(p for name, p in trained.items() if not loop.no_decay(step, name, p))
    bare = tuple(p for name, p in trained.items() if loop.no_decay(step, name, p))
    groups = [Group(parameters=plain, decayed=loop.weight_decay), Group(parameters=bare, decayed=False)]
    return groups[::-1] if loop.no_decay_first else groups


def update(step: Step, loop: Loop, *, scaled: bool) -> None:
    """``optimizer.step()`` and, where it comes after the step, ``zero_grad()``."""
    step.optimizer_step(groups_of(step, loop, step.updated), scaled=scaled)
    if step.settings.zero_grad in {None, "after-step"}:
        step.zero_grad()


def scaled_update(step: Step, loop: Loop) -> None:
    """``scaler.step(optimizer)`` without clipping: found_inf lives until ``scaler.update()``."""
    step.start("optimizer_step")
    scaled = step.optimizer.takes_scaler and bool(step.scaler)
    found_inf = step.check_inf() if scaled else step.unscale()
    update(step, loop, scaled=scaled)
    del found_inf


def named(step: Step, name: str) -> Tensor:
    """The tensor that a name of the loop holds."""
    value = step.names[name]
    assert isinstance(value, Tensor)
    return value
