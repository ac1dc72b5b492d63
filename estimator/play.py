"""A training run of three steps, played: its ledger, the blocks behind it, and the moments that matter."""

from __future__ import annotations

from .allocator import AllocatorConfig
from .device import Run, run_of
from .families import Plan
from .kernels import Gpu, Kernels
from .ledger import with_last_step_again
from .loops import LOOPS, begin
from .optimizers import LOADED_AS_MADE
from .phases import continued, resumed
from .settings import TrainSettings
from .step import Step
from .timeline import Moment, PhaseSummary, phase_summaries

__all__ = ["Played", "play"]

#: The second step is the first steady one, and every later one repeats it.
STEPS = 2


def play(plan: Plan, settings: TrainSettings, gpu: Gpu | None = None) -> Step:
    """The first two steps from the building of the model on; without a ``gpu``, on an A100."""
    loop = LOOPS[settings.loop]
    step = Step(plan, settings, Kernels(gpu=gpu or Gpu(), sdpa_kernel=settings.sdpa_kernel))
    begin(step, loop)
    for _ in range(STEPS):
        step.run.start_step()
        loop.play(step)
    return step


class Played:
    """Three steps through the caching allocator; the third is the one that is reported."""

    def __init__(
        self,
        plan: Plan,
        settings: TrainSettings,
        gpu: Gpu | None = None,
        allocator: AllocatorConfig | None = None,
    ) -> None:
        self.step = play(plan, settings, gpu)
        two_steps = self.step.run.ledger()
        self.saved_activations = self.step.saved_activations(two_steps)
        self.ledger = with_last_step_again(two_steps)
        evaluates = self.step.autocast_dtype is not None or not plan.fused_evaluation
        self.course = continued(self.step, two_steps, self.ledger, evaluates=evaluates)
        self.run = run_of(self.course.ledger, self.course.parts, allocator)
        self.replay = self.run.replay
        self._summaries = phase_summaries(self.course.ledger, self.replay.blocks)
        self.steady, self.first_step = self.summaries(STEPS), self.summaries(0)
        self.tensors = tensor_peak(self.steady)
        self.allocated = block_peak(self.steady)
        self.resume: Run | None = None
        if settings.optim in LOADED_AS_MADE:
            ledger = resumed(two_steps)
            self.resume = run_of(ledger, (("resume", len(ledger.events)),), allocator)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The processes whose memory decides whether a training fits."""
        return (self.run,) if self.resume is None else (self.run, self.resume)

    def summaries(self, step: int) -> list[PhaseSummary]:
        """The phases of a step."""
        return [self._summaries[phase] for phase in self.course.ledger.step_phases(step)]

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
        return phase_summaries(ledger, self.resume.replay.blocks)[first : ledger.steps[1]]


def tensor_peak(summaries: list[PhaseSummary]) -> Moment:
    """The moment of the largest total of live tensors."""
    return max((summary.tensor_peak for summary in summaries), key=lambda moment: moment.total_bytes)


def block_peak(summaries: list[PhaseSummary]) -> Moment:
    """The moment of the largest total of blocks that the allocator has handed out."""
    return max((summary.allocated_peak for summary in summaries), key=lambda moment: moment.total_bytes)
