"""What a strategy may do at the moments that the loops name. By itself it does nothing: a GPU that trains alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..engine import Tensor
from ..errors import InvalidRequest, NotModelled
from ..generations import Torch
from ..ops.clip import clip_grad_norm
from ..units import DType
from .traffic import Traffic

if TYPE_CHECKING:
    from ..optimizers import Group
    from ..settings import TrainSettings
    from ..step import Step

__all__ = ["Strategy", "refuse_together"]


def refuse_together(settings: TrainSettings) -> None:
    """What is not modelled with any engine on several GPUs, or is another engine's."""
    for name in ("reshard_after_forward", "wrap_layers"):
        if getattr(settings, name) is not None and settings.parallel != "fsdp":
            raise InvalidRequest(f"{name} is FSDP's; add --parallel fsdp, or leave it out")
    if settings.gpus > 1 and not Torch.parse(settings.torch).is_newest:
        raise NotModelled(f"several GPUs are modelled for the newest torch only, not for {settings.torch}")


class Strategy:
    """The state of one rank between steps."""

    #: What the figures rest on, for people.
    assumption = ""
    #: Whether 16-bit precision means a model of that type, without autocast, and batches that are copied in it.
    casts_model = False
    #: Whether the engine scales losses, clips and updates by itself.
    updates = False
    #: Whether what is found in gradients is summed over the ranks: found_inf, norms.
    divides_gradients = False

    #: Fewer GPUs are refused.
    min_gpus = 1
    #: The values of ``--offload`` that a recommendation tries.
    offloads: tuple[str, ...] = ()
    #: Among how many ranks the update is divided.
    num_parts = 1

    def __init__(self, step: Step) -> None:
        self.step = step
        #: A play of the same steps, where one had to be made to know what to follow.
        self.twin: Step | None = None
        #: Steps until one is repeated by all later ones: in the second the optimizer's state exists.
        self.num_steps = 2

    @classmethod
    def check(cls, settings: TrainSettings) -> None:
        """Raise for what the engine refuses or what is not modelled with it."""
        refuse_together(settings)
        if settings.offload != "none":
            raise InvalidRequest("only ZeRO and FSDP offload to host memory; add --zero 2 or 3, or leave out --offload")

    @classmethod
    def buffer_dtype(cls, settings: TrainSettings) -> DType | None:
        """The type of the model's floating-point buffers, None for that of its parameters."""
        return None

    @classmethod
    def warnings(cls, settings: TrainSettings) -> tuple[str, ...]:
        """What the user may not expect of the engine."""
        if settings.gpus > 1:
            return (f"--parallel none on {settings.gpus} GPUs: each trains a model of its own",)
        return ()

    def wrap(self, groups: Sequence[Group]) -> None:
        """The model and the optimizer's groups are handed to the engine, before the first step."""

    @property
    def num_gathered(self) -> int:
        """Of how many ranks Trainer's evaluation gathers its results on each."""
        return self.step.settings.gpus if self.step.settings.parallel != "none" else 1

    def prepared(self, images: Tensor) -> Tensor:
        """The batch as the model gets it."""
        return images

    def before_forward(self, *, first: bool) -> None:
        """The wrapped model is called; ``first``: in the first micro-step."""

    def outputs(self, *outputs: Tensor) -> tuple[Tensor, ...]:
        """What the wrapped model returns for what the model did."""
        return outputs

    def after_backward(self) -> None:
        """A backward pass has ended."""

    def leaf(self, parameter: Tensor) -> Tensor:
        """What the optimizer is handed for a parameter of the model."""
        return parameter

    def clip_grad_norm(self, grads: Sequence[Tensor]) -> Tensor:
        """``clip_grad_norm_`` of all gradients."""
        return clip_grad_norm(grads, sharded=self.divides_gradients)

    @property
    def updates_on_host(self) -> bool:
        """Whether gradients and what the optimizer keeps are in host memory."""
        return False

    def update(self) -> None:
        """``optimizer.step()`` where the engine ``updates``."""

    def traffic(self) -> Traffic:
        """What an optimizer step exchanges, once it is played."""
        return Traffic()

    def host(self) -> Mapping[str, int]:
        """Bytes of host memory that the engine takes on one rank."""
        return {}
