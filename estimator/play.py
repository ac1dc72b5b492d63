"""A training run of three steps, played: its ledger, the blocks behind it, and the moments that matter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from copy import copy
from functools import cached_property
from typing import NamedTuple, TypeVar

from .allocator import AllocatorConfig
from .device import Run
from .engine import Library, NotRepeatable, Repeats
from .families import Plan
from .generations import Torch
from .kernels import Gpu, Kernels
from .ledger import Alive, Ledger, living, with_last_step_again
from .loops import LOOPS, begin
from .parallel import engine_of
from .phases import Course, continued, not_played, resumed
from .replay import Replay
from .settings import TrainSettings
from .step import Step
from .timeline import Moment, PhaseSummary, phase_summaries, raised_peak

__all__ = ["Played", "play", "shared"]

MadeT = TypeVar("MadeT")

#: The second step is the first steady one, and every later one repeats it.
STEPS = 2


def play(plan: Plan, settings: TrainSettings, gpu: Gpu | None = None) -> Step:
    """The steps up to the first that later ones repeat, from the building on; without a ``gpu``, on an A100."""
    return shared(settings, gpu, lambda num_last, library: play_once(plan, settings, gpu, num_last, library))


#: What was the first to work for a model, to be tried first the next time.
_worked: dict[tuple[object, ...], int] = {}


#: Settings that do not change what a block does to the same tensors.
_OUTSIDE_BLOCKS = frozenset(
    [
        *("bs", "accum", "optim", "ema", "clip_grad", "zero_grad", "label_smoothing", "train_samples"),
        *("eval_bs", "eval_samples", "eval_accum", "workers", "prefetch", "pin_memory"),
        *("gpu", "memory", "alloc_conf", "notes", "zero_options"),
    ]
)
_INSIDE_BLOCKS = tuple(field.name for field in dataclasses.fields(TrainSettings) if field.name not in _OUTSIDE_BLOCKS)


def _library(settings: TrainSettings, gpu: Gpu | None) -> Library:
    """What earlier plays tell of the blocks of this one; hooks are called anew, so that a rank tells of the others."""
    options = tuple([option for option in settings.zero_options if option[0] != "rank"])
    return Library((gpu, options, *[getattr(settings, name) for name in _INSIDE_BLOCKS]))


def shared(settings: TrainSettings, gpu: Gpu | None, make: Callable[[int, Library | None], MadeT]) -> MadeT:
    """What ``make`` plays: equal blocks share one play, where they turn out to be equal in every event."""
    if settings.checkpoint_reentrant:
        return make(0, None)
    key = settings.model, settings.grad_checkpointing, settings.accum > 1, settings.loop, engine_of(settings)
    for num_last in (1, 2):  # the second-last, if nothing comes in to the last as to the others
        if num_last < _worked.get(key, 1):
            continue
        library = _library(settings, gpu)
        try:
            try:
                made = make(num_last, library)
            except NotRepeatable:
                if not library.was_used:
                    continue
                library.forget()
                made = make(num_last, library)
        except NotRepeatable:
            continue
        _worked[key] = num_last
        return made
    _worked[key] = 0
    return make(0, None)


def play_once(
    plan: Plan, settings: TrainSettings, gpu: Gpu | None = None, num_last: int = 0, library: Library | None = None
) -> Step:
    """:func:`play`, block by block; with a ``num_last`` equal blocks repeat one, or NotRepeatable is raised."""
    loop = LOOPS[settings.loop]
    torch = Torch.parse(settings.torch)
    step = Step(plan, settings, Kernels(gpu=gpu or Gpu(), sdpa_kernel=settings.sdpa_kernel, torch=torch))
    full_passes = min(settings.accum, 2)  # the later micro-steps find gradients
    blocks = step.model.blocks if num_last else ()
    step.repeats = Repeats(blocks, full_passes=full_passes, num_last=num_last, library=library)
    begin(step, loop)
    if num_last and (twin := step.strategy.twin) is not None:
        step.dispose()
        twin.settings = settings
        return twin
    for _ in range(step.strategy.num_steps):
        step.run.start_step()
        loop.play(step)
    if step.repeats.num_open:
        raise NotRepeatable
    return step


class _Training(NamedTuple):
    """What is known of the first two steps, three steps, the course of the run that begins with them, and what is alive
    before the third."""

    step: Step
    ledger: Ledger
    saved_activations: dict[str, int]
    unknown_workspace_bytes: int
    course: Course
    alive: Alive


def train(step: Step, *, evaluates: bool, trains_again: bool = True) -> _Training:
    """What comes after the third step of a play of two."""
    two_steps = step.run.ledger()
    saved = step.saved_activations(two_steps)
    before = living(two_steps, two_steps.first_event(two_steps.steps[-1]))
    end = living(two_steps, len(two_steps.events), before)
    unknown = raised_peak(two_steps, -1, step.run.unknown, before)
    ledger = two_steps if len(two_steps.steps) > STEPS else with_last_step_again(two_steps, before, end)
    course = continued(step, two_steps, ledger, (before, end), evaluates=evaluates, trains_again=trains_again)
    if step.repeats is not None and step.repeats.num_open:
        raise NotRepeatable
    return _Training(step, ledger, saved, unknown, course, before if ledger is two_steps else end)


class Played:
    """Three steps through the caching allocator; the third is the one that is reported.

    ``trains_again`` False leaves out the training behind an evaluation: it decides only whether all of it fits. What
    :func:`play` has ``begun`` goes on.
    """

    def __init__(
        self,
        plan: Plan,
        settings: TrainSettings,
        gpu: Gpu | None = None,
        allocator: AllocatorConfig | None = None,
        *,
        trains_again: bool = True,
        begun: Step | None = None,
    ) -> None:
        self.not_played = not_played(plan, settings)
        evaluates = self.not_played.evaluation is None

        def make(num_last: int, library: Library | None) -> _Training:
            step = play_once(plan, settings, gpu, num_last, library)
            return train(step, evaluates=evaluates, trains_again=trains_again)

        try:
            goes_on = begun and train(begun, evaluates=evaluates, trains_again=trains_again)
        except NotRepeatable:
            goes_on = None
        training = goes_on or shared(settings, gpu, make)
        self.step, self.ledger, self.course = training.step, training.ledger, training.course
        self.alive = training.alive  # when the step that is reported begins
        self.saved_activations = training.saved_activations
        self.unknown_workspace_bytes = training.unknown_workspace_bytes
        self._allocator = allocator or AllocatorConfig()
        self._has_masters = training.step.strategy.updates

    def under(self, allocator: AllocatorConfig) -> Played:
        """The same training through another allocator, which decides nothing of what is played; without the step."""
        other = copy(self)
        for name in ("run", "resume", "_summaries", "tensors", "allocated", "step"):
            vars(other).pop(name, None)
        other._allocator = allocator
        return other

    def let_go(self) -> None:
        """Let go of the step: the runs and their figures stay known."""
        if (step := vars(self).pop("step", None)) is not None:
            step.dispose()

    @cached_property
    def run(self) -> Run:
        """The process from its first step on."""
        return Run(self.course.ledger, self.course.parts, self._allocator)

    @cached_property
    def resume(self) -> Run | None:
        """A process that begins with a checkpoint, where it is known."""
        if self.not_played.resume is not None:
            return None
        return Run(self._resumed, (("resume", len(self._resumed.events)),), self._allocator)

    @cached_property
    def _resumed(self) -> Ledger:
        return resumed(self.ledger, has_masters=self._has_masters)

    @property
    def replay(self) -> Replay:
        """What the allocator did in :attr:`run`."""
        return self.run.replay

    @cached_property
    def _summaries(self) -> list[PhaseSummary]:
        """The phases from the step that is reported to the last that an answer speaks of."""
        ledger, steps = self.course.ledger, self.course.ledger.steps
        last = max(STEPS, self.course.last_batch or 0, self.course.evaluation or 0)
        phases = range(steps[STEPS], ledger.step_phases(last).stop)
        return phase_summaries(ledger, self.replay.blocks, phases, self.alive)

    @property
    def steady(self) -> list[PhaseSummary]:
        """The phases of the step that is reported."""
        return self.summaries(STEPS)

    @cached_property
    def first_step(self) -> list[PhaseSummary]:
        """The phases of the first step."""
        ledger = self.course.ledger
        return phase_summaries(ledger, self.replay.blocks, ledger.step_phases(0))

    @cached_property
    def tensors(self) -> Moment:
        """The moment of the largest total of live tensors in the step that is reported."""
        return tensor_peak(self.steady)

    @cached_property
    def allocated(self) -> Moment:
        """The moment at which most is allocated in the step that is reported."""
        return block_peak(self.steady)

    @property
    def each_run(self) -> Iterator[Run]:
        """The processes whose memory decides whether a training fits, one by one."""
        yield self.run
        if self.resume is not None:
            yield self.resume

    @property
    def runs(self) -> tuple[Run, ...]:
        """:attr:`each_run`, all of them."""
        return tuple(self.each_run)

    def summaries(self, step: int) -> list[PhaseSummary]:
        """The phases of a step, from the one that is reported on."""
        begin, phases = self.course.ledger.steps[STEPS], self.course.ledger.step_phases(step)
        return self._summaries[phases.start - begin : phases.stop - begin]

    @property
    def last_batch(self) -> list[PhaseSummary]:
        """The phases of an epoch's smaller last step, where there is one."""
        return [] if self.course.last_batch is None else self.summaries(self.course.last_batch)

    @property
    def evaluation(self) -> list[PhaseSummary]:
        """The evaluation, where it is known."""
        step = self.course.evaluation
        return [] if step is None else [s for s in self.summaries(step) if s.name == "evaluation"]

    @property
    def resumption(self) -> list[PhaseSummary]:
        """From the loading of an optimizer's state to the end of the first step with it, where it is known."""
        if self.resume is None:
            return []
        ledger = self.resume.ledger
        first = next(phase for phase, (name, _) in enumerate(ledger.phases) if name == "resume")
        return phase_summaries(ledger, self.resume.replay.blocks, range(first, ledger.steps[1]))


def tensor_peak(summaries: list[PhaseSummary]) -> Moment:
    """The moment of the largest total of live tensors."""
    return max((summary.tensor_peak for summary in summaries), key=lambda moment: moment.total_bytes)


def block_peak(summaries: list[PhaseSummary]) -> Moment:
    """The moment of the largest total of blocks that the allocator has handed out."""
    return max((summary.allocated_peak for summary in summaries), key=lambda moment: moment.total_bytes)
