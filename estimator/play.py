"""A training run of three steps, played: its ledger, the blocks behind it, and the moments that matter."""

from __future__ import annotations

from .allocator import AllocatorConfig
from .engine import NotRepeatable, Repeats
from .families import Plan
from .kernels import Gpu, Kernels
from .ledger import with_last_step_again
from .loops import LOOPS, begin
from .parallel import strategy_of
from .replay import replay
from .settings import TrainSettings
from .step import Step
from .timeline import Moment, PhaseSummary, phase_summaries

__all__ = ["Played", "play"]

#: The step that is reported.
REPORTED = 3


def play(plan: Plan, settings: TrainSettings, gpu: Gpu | None = None) -> Step:
    """The steps up to the first that later ones repeat, from the building of the model on.

    Without a ``gpu`` on an A100. Equal blocks share one play, where they turn out to be equal in every event.
    """
    shares_blocks = not strategy_of(settings).casts_model  # a hook on every gradient sees all of them
    for num_last in (
        (1, 2) if shares_blocks else ()
    ):  # with the second-last, in case that nothing comes in to the last as to the others
        try:
            return play_once(plan, settings, gpu, num_last)
        except NotRepeatable:
            continue
    return play_once(plan, settings, gpu)


def play_once(plan: Plan, settings: TrainSettings, gpu: Gpu | None = None, num_last: int = 0) -> Step:
    """:func:`play`, block by block; with a ``num_last`` equal blocks repeat one, or NotRepeatable is raised."""
    loop = LOOPS[settings.loop]
    step = Step(plan, settings, Kernels(gpu=gpu or Gpu(), sdpa_kernel=settings.sdpa_kernel))
    full_passes = min(settings.accum, 2)  # the later micro-steps find gradients
    repeats = Repeats(step.model.blocks if num_last else (), full_passes=full_passes, num_last=num_last)
    begin(step, loop)
    for _ in range(step.strategy.num_steps):
        step.run.start_step()
        loop.play(step)
    if repeats.num_open:
        raise NotRepeatable
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
        played = self.step.run.ledger()
        self.saved_activations = self.step.saved_activations(played)
        self.ledger = played if len(played.steps) == REPORTED else with_last_step_again(played)
        self.replay = replay(self.ledger, allocator)
        self._summaries = phase_summaries(self.ledger, self.replay.blocks)
        self.steady, self.first_step = self.summaries(-1), self.summaries(0)
        self.tensors = tensor_peak(self.steady)
        self.allocated = block_peak(self.steady)

    def summaries(self, step: int) -> list[PhaseSummary]:
        """The phases of a step (negative: from the last)."""
        return [self._summaries[phase] for phase in self.ledger.step_phases(step)]


def tensor_peak(summaries: list[PhaseSummary]) -> Moment:
    """The moment of the largest total of live tensors."""
    return max((summary.tensor_peak for summary in summaries), key=lambda moment: moment.total_bytes)


def block_peak(summaries: list[PhaseSummary]) -> Moment:
    """The moment of the largest total of blocks that the allocator has handed out."""
    return max((summary.allocated_peak for summary in summaries), key=lambda moment: moment.total_bytes)
