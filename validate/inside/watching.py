"""``with watching(model, optimizer):`` the same figures in a timm or plain loop."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import vitmem
from torch import nn
from vitmem import Estimate
from vitmem.errors import InvalidRequest

from .callback import MemoryWarning, leak_sentence
from .live import described, keywords
from .meter import meter_for
from .optimizers import check_groups, name_of
from .record import OF_A_STEP, Record
from .report import MemoryReport

__all__ = ["Watching", "describe", "watching"]


class Watching:
    """What has been seen; readable while the loop runs and after."""

    def __init__(self, record: Record) -> None:
        self._record = record

    @property
    def report(self) -> MemoryReport:
        """Peaks by phase and step, the leak, and the comparison with the estimate."""
        return self._record.report()


@contextlib.contextmanager
def watching(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    estimate: Estimate | None = None,
    layers: bool = False,
    **settings: Any,
) -> Iterator[Watching]:
    """Measure the steps of the block, from the model's first forward pass to ``optimizer.step``.

    ``estimate`` is compared with what is seen. With ``settings`` of the loop (``bs=64, precision="bf16", loop="timm"``)
    it is made from the live model instead, as :func:`describe` does. Everything is put back at the end, also after an
    exception. Warns of a leak and of a used-up headroom when the block ends.
    """
    if settings:
        if estimate is not None:
            raise InvalidRequest(f"an estimate and settings for another ({', '.join(settings)}); give one of them")
        estimate = describe(model, optimizer, **settings)
    device = next(model.parameters()).device
    record = Record(meter_for(device), device, estimate, layers=layers)
    with contextlib.ExitStack() as stack:
        for handle in _hooks(record, model, optimizer):
            stack.callback(handle.remove)
        stack.callback(record.stop)
        record.start(model)
        yield Watching(record)
    _tell(record)


def describe(model: nn.Module, optimizer: torch.optim.Optimizer, **settings: Any) -> Estimate:
    """The estimate of a live timm or transformers model in a ``plain`` or ``timm`` loop; raises NotModelled with what
    of it is not modelled. ``settings`` are those of the loop: ``bs``, ``accum``, ``precision``, ``gpu`` ..."""
    given = {"loop": "plain", **settings}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    given["optim"] = name_of(optimizer, parameters=trained)
    with described(model, given) as live:
        check_groups(optimizer, live.settings, live.built.model, model)
        own = keywords(live.settings)
        return vitmem.estimate(own.pop("model"), **own)


def _hooks(record: Record, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    """Forward is the model's call, the step that of ``optimizer.step``; what comes between belongs to the backward
    pass, what follows a step to the time between."""
    state = {"phase": "between_steps"}

    def forward_begins(module: nn.Module, args: Any) -> None:
        phase = "forward" if module.training else "evaluation"
        if phase != state["phase"]:
            _ends(record, state["phase"])
            state["phase"] = phase

    def forward_ends(module: nn.Module, args: Any, output: Any) -> None:
        if state["phase"] == "forward":
            _ends(record, "forward")
            state["phase"] = "backward"

    def step_begins(*args: Any) -> None:
        _ends(record, state["phase"])
        state["phase"] = "optimizer_step"

    def step_ends(*args: Any) -> None:
        _ends(record, "optimizer_step")
        record.step_ended()
        record.goes_on()
        state["phase"] = "between_steps"

    yield model.register_forward_pre_hook(forward_begins)
    yield model.register_forward_hook(forward_ends)
    yield optimizer.register_step_pre_hook(step_begins)
    yield optimizer.register_step_post_hook(step_ends)


def _ends(record: Record, phase: str) -> None:
    record.ends(phase, in_step=phase in OF_A_STEP)


def _tell(record: Record) -> None:
    record.ends("between_steps")
    comparison, leak = record.comparison(), record.leak()
    if comparison is not None and comparison.headroom_is_used_up:
        sentence = f"the estimate's headroom is used up: {comparison.sentence()}"
        warnings.warn(sentence, MemoryWarning, stacklevel=4)
    if leak is not None:
        warnings.warn(leak_sentence(leak), MemoryWarning, stacklevel=4)
