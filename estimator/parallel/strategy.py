"""What a strategy may do at the moments that the loops name. By itself it does nothing: a GPU that trains alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine import Tensor

if TYPE_CHECKING:
    from ..settings import TrainSettings
    from ..step import Step

__all__ = ["Strategy"]


class Strategy:
    """The state of one rank between steps."""

    #: What the figures rest on, for people.
    assumption = ""

    def __init__(self, step: Step) -> None:
        self.step = step
        #: Steps until one is repeated by all later ones: in the second the optimizer's state exists.
        self.num_steps = 2

    @classmethod
    def check(cls, settings: TrainSettings) -> None:
        """Raise for what the engine refuses or what is not modelled with it."""

    @classmethod
    def warnings(cls, settings: TrainSettings) -> tuple[str, ...]:
        """What the user may not expect of the engine."""
        if settings.gpus > 1:
            return (f"--parallel none on {settings.gpus} GPUs: each trains a model of its own",)
        return ()

    def wrap(self) -> None:
        """The model is handed to the engine: before the first step, after the optimizer was made."""

    def before_forward(self, *, first: bool) -> None:
        """The wrapped model is called; ``first``: in the first micro-step."""

    def outputs(self, *outputs: Tensor) -> tuple[Tensor, ...]:
        """What the wrapped model returns for what the model did."""
        return outputs

    def after_backward(self) -> None:
        """A backward pass has ended."""
