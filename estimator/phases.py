"""What comes besides steady training steps: an epoch's smaller last step, evaluation, resuming from a checkpoint."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from math import ceil
from typing import NamedTuple

from .families import Plan
from .generations import Torch
from .ledger import Alive, Ledger, followed_by, living
from .loops import LOOPS
from .optimizers import LOADED_AS_MADE
from .settings import TrainSettings
from .step import AUTOCAST_DTYPES, Step

__all__ = ["Course", "NotPlayed", "continued", "last_sizes", "not_played", "resumed"]

_KNOWN = frozenset({"ddp", "zero1", "zero2"})
_LOOP = 1  # the phase in which a loop binds its first names; the one before builds model and optimizer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A run from the first step to the training behind an evaluation; steps are indices into ``ledger.steps``.

    The first three steps are training; ``last_batch`` and ``evaluation`` are None where they are not played.
    """

    ledger: Ledger
    last_batch: int | None
    evaluation: int | None

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """What happens one after the other, and the event with which it ends."""
        names = {self.last_batch: "last_batch", self.evaluation: "evaluation"}
        starts = [self.ledger.first_event(step) for step in self.ledger.steps[1:]]
        stops = [*starts, len(self.ledger.events)]
        parts: list[tuple[str, int]] = []
        for step, stop in enumerate(stops):
            name = names.get(step, "training")
            if parts and parts[-1][0] == name:
                parts.pop()
            parts.append((name, stop))
        return tuple(parts)


class NotPlayed(NamedTuple):
    """Why a phase is not known; None where it is."""

    evaluation: str | None
    resume: str | None

    @property
    def lines(self) -> tuple[str, ...]:
        """What an estimate says of it."""
        named = (("evaluation", self.evaluation), ("resuming from a checkpoint", self.resume))
        return tuple(f"{name}: {reason}" for name, reason in named if reason is not None)


def not_played(plan: Plan, settings: TrainSettings) -> NotPlayed:
    """Which phases nothing is said about, as no rehearsal has shown them."""
    evaluation = resume = None
    if plan.fused_evaluation and settings.precision not in AUTOCAST_DTYPES:
        evaluation = "nn.MultiheadAttention then runs a fused kernel of its own"
    if settings.optim not in LOADED_AS_MADE:
        resume = f"how {settings.optim} loads its state"
    if settings.parallel not in {None, "none"} and (settings.loop != "trainer" or settings.parallel not in _KNOWN):
        evaluation = resume = f"with --parallel {settings.parallel} in the {settings.loop} loop"
    if not (torch := Torch.parse(settings.torch)).is_newest:
        evaluation = resume = f"only known of the newest torch, not of {torch.label}"
    return NotPlayed(evaluation, resume)


def continued(
    step: Step,
    two_steps: Ledger,
    three_steps: Ledger,
    alive: tuple[Alive, Alive],
    *,
    evaluates: bool,
    trains_again: bool = True,
) -> Course:
    """``three_steps``, then the epoch's last step where it is smaller, an evaluation, and training again.

    ``step`` has played ``two_steps`` and goes on from there; ``alive`` is what is there before the last of them and
    at their end.
    """
    loop, last = LOOPS[step.settings.loop], last_sizes(step.settings)
    count, whole = len(three_steps.steps), step.sizes
    if last:
        step.run.start_step()
        step.sizes = last
        if step.repeats is not None:
            step.repeats.start_anew(len(last))
        loop.play(step)
        step.sizes = whole
    if evaluates:
        step.run.start_step()
        loop.evaluate(step)
    if last and trains_again:  # no earlier step begins with what this one has left
        step.run.start_step()
        loop.play(step)
    (before, end), ledger = alive, three_steps
    if last or evaluates:
        there = living(ledger, len(ledger.events), end)
        ledger = followed_by(ledger, step.run.ledger(), len(two_steps.events), end, there)
        if trains_again and not last:
            there = living(ledger, len(ledger.events), there)
            ledger = followed_by(ledger, two_steps, two_steps.first_event(two_steps.steps[-1]), before, there)
    evaluation = count + bool(last) if evaluates else None
    return Course(ledger=ledger, last_batch=count if last else None, evaluation=evaluation)


def last_sizes(settings: TrainSettings) -> tuple[int, ...]:
    """The micro-batches of an epoch's last step where they differ from the others'; timm's loader drops the rest."""
    samples, bs, accum = settings.train_samples, settings.bs, settings.accum
    if samples is None or settings.loop == "timm":
        return ()
    if settings.parallel not in {None, "none"}:
        samples = _of_one_rank(samples, settings)
    batches, rest = divmod(samples, bs)
    count = (batches + bool(rest)) % accum or min(accum, batches + bool(rest))
    sizes = (bs,) * (count - 1) + (rest or bs,)
    return () if sizes == (bs,) * accum else sizes


def _of_one_rank(samples: int, settings: TrainSettings) -> int:
    """Images of an epoch: Trainer's ranks all get whole batches (accelerate 1.15, ``even_batches``), others as many
    images (torch's ``DistributedSampler``)."""
    if settings.loop != "trainer":
        return ceil(samples / settings.gpus)
    return ceil(ceil(samples / settings.bs) / settings.gpus) * settings.bs


def resumed(steps: Ledger, *, has_masters: bool = False) -> Ledger:
    """A run that begins with an optimizer's state from a checkpoint: all of it is there before the loop's own names.

    ``has_masters``: the states before the first step are an engine's fp32 weights, into which it copies.
    ``Optimizer.load_state_dict`` moves it tensor by tensor, in the order in which the first step made it, and the
    weights are copied into those that the model has (torch 2.14, optim/optimizer.py). A state that is there from the
    optimizer's construction on goes when all of the new one is there.
    """
    start, begin = steps.first_event(_LOOP), steps.first_event(steps.steps[0])
    first_made = next(event for event in steps.events[begin:] if event >= 0)  # an EMA copy is made before
    made = [i for i, kind in enumerate(steps.kinds[first_made:], first_made) if kind == "optimizer_state"]
    before, (behind, places) = steps.events[:start], _without(steps.events, made, start)
    constructed = [] if has_masters else [event for event in before if steps.kinds[event] == "optimizer_state"]
    first_new = len(steps.bytes)
    loaded = [*range(first_new, first_new + len(constructed)), *(~event for event in constructed), *made]
    phases = [(name, first + len(loaded) - bisect_left(places, first)) for name, first in steps.phases[_LOOP:]]
    return steps._replace(
        bytes=(*steps.bytes, *(steps.bytes[event] for event in constructed)),
        kinds=(*steps.kinds, *("optimizer_state" for _ in constructed)),
        layers=(*steps.layers, *(steps.layers[event] for event in constructed)),
        events=(*before, *loaded, *behind),
        phases=(*steps.phases[:_LOOP], ("resume", start), *phases),
        steps=tuple(step + 1 for step in steps.steps),
    )


def _without(events: tuple[int, ...], some: list[int], start: int) -> tuple[list[int], list[int]]:
    """The events from ``start`` on but for ``some``, which are given in their order, and where these are."""
    rest: list[int] = []
    places: list[int] = []
    for event in some:
        place = events.index(event, start)
        rest += events[start:place]
        places.append(place)
        start = place + 1
    return [*rest, *events[start:]], places
