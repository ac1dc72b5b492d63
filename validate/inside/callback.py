"""The Trainer's callback (transformers 5.24, ``trainer_callback.py``)."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from transformers import TrainerCallback
from vitmem.result import Estimate
from vitmem.units import format_bytes

from .leak import Leak
from .meter import meter_for
from .record import OF_A_STEP, Record
from .report import MemoryReport

__all__ = ["MemoryCallback", "MemoryWarning", "leak_sentence"]

#: Of the layers that keep most, so many are logged.
_NUM_LAYERS = 3


class MemoryWarning(UserWarning):
    """A training that leaks, or takes more than was estimated."""


class MemoryCallback(TrainerCallback):
    """Peaks by epoch and phase, the layers that keep most, leaks, and the estimate's headroom.

    The forward pass is the model's call, the backward pass everything from there to the optimizer's step, clipping and
    a loss outside the model included; with ``torch_compile`` both are one phase.

    ``trainer.add_callback(MemoryCallback(trainer))`` logs through ``trainer.log`` at the end of every epoch, under
    ``vitmem/...``, in bytes. Without ``trainer`` (``callbacks=[MemoryCallback()]``) the figures go into the Trainer's
    own next log, where the callbacks behind this one see them. ``estimate`` is what :func:`vitmem.validate.preflight`
    returned. ``layers=True`` reads the allocator around every block of the forward pass.

    On CUDA the peak counters of PyTorch are reset all the time. On the CPU every operator is followed, which is slow.
    """

    def __init__(self, trainer: Any = None, *, estimate: Estimate | None = None, layers: bool = False) -> None:
        self._trainer, self._estimate, self._layers = trainer, estimate, layers
        self._record: Record | None = None
        self._backward = "backward"
        self._warned: set[str] = set()
        self._pending: dict[str, float] = {}

    @property
    def report(self) -> MemoryReport:
        """What has been seen so far; raises RuntimeError before the training has begun."""
        if self._record is None:
            raise RuntimeError("the training has not begun: MemoryCallback has seen nothing")
        return self._record.report()

    def close(self) -> None:
        """Stop counting; a training that ended with an exception did not."""
        if self._record is not None:
            self._record.stop()

    # events

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to count."""
        self.close()
        device: torch.device = args.device
        self._record = Record(meter_for(device), device, self._estimate, layers=self._layers)
        self._warned.clear()
        self._record.start(kwargs["model"])
        self._backward = "forward_backward"
        if not args.torch_compile:  # a hook would break the graph
            self._backward = "backward"
            self._record.split_at_the_end_of_forward(kwargs["model"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The batches are there."""
        self._ends("between_steps")
        if self._record is not None:
            self._record.goes_on()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A micro-step is over."""
        self._ends(self._backward, in_step=True)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The last backward pass and clipping are over."""
        self._ends(self._backward, in_step=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped, and gradients are gone."""
        self._ends("optimizer_step", in_step=True)
        if self._record is not None:
            self._record.step_ended()
        self._check_headroom()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The evaluation is over."""
        self._ends("evaluation")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is written."""
        self._ends("save")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Without a Trainer to log through: into what it logs itself."""
        if self._pending and logs is not None:
            logs.update(self._pending)
            if state.log_history:
                state.log_history[-1].update(self._pending)
            self._pending = {}

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The loader is at its end."""
        if self._record is not None:
            self._record.point = None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The epoch before is over with its evaluation and its checkpoint, which come after ``on_epoch_end``."""
        if self._record is not None and self._record.num_steps:
            self._epoch_ended()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the last epoch and count no more."""
        if self._record is None:
            return
        self._epoch_ended()
        if self._pending:
            state.log_history.append({**self._pending, "epoch": state.epoch, "step": state.global_step})
            self._pending = {}
        self._check_headroom()
        self.close()

    def _epoch_ended(self) -> None:
        assert self._record is not None
        self._ends("between_steps")
        leak = self._record.leak()
        figures = _figures(self._record.epoch_ended(), self._record, leak)
        if leak is not None:
            self._warn("leak", leak_sentence(leak))
        if self._trainer is not None:
            self._trainer.log(dict(figures))
        else:
            self._pending = figures

    def _ends(self, phase: str, *, in_step: bool = False) -> None:
        if self._record is not None:
            self._record.ends(phase, in_step=in_step)

    # warnings

    def _check_headroom(self) -> None:
        comparison = None if self._record is None else self._record.comparison()
        if comparison is not None and comparison.headroom_is_used_up:
            self._warn("headroom", f"the estimate's headroom is used up: {comparison.sentence()}")

    def _warn(self, what: str, sentence: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(sentence, MemoryWarning, stacklevel=3)


def _figures(epoch: dict[str, int], record: Record, leak: Leak | None) -> dict[str, float]:
    """The peaks of one epoch as the Trainer's loggers take them."""
    figures: dict[str, float] = {"vitmem/epoch_peak_bytes": max(epoch.values(), default=0)}
    figures["vitmem/training_step_peak_bytes"] = max((epoch.get(name, 0) for name in OF_A_STEP), default=0)
    figures |= {f"vitmem/{name}_peak_bytes": size for name, size in epoch.items()}
    if record.reserved is not None:
        figures["vitmem/reserved_peak_bytes"] = record.reserved
    report = record.report()
    figures |= {f"vitmem/layers/{name}_bytes": report.layers[name] for name in report.bottlenecks[:_NUM_LAYERS]}
    if report.comparison is not None and report.comparison.headroom_bytes is not None:
        figures["vitmem/headroom_bytes"] = report.comparison.headroom_bytes
    figures["vitmem/growth_bytes_per_step"] = 0 if leak is None else leak.bytes_per_step
    return figures


def leak_sentence(leak: Leak) -> str:
    """What to tell the user."""
    return (
        f"memory grows by {format_bytes(leak.bytes_per_step)} per step, from step {leak.first_step + 1} to "
        f"{leak.last_step + 1}: something keeps tensors, such as a list of outputs or of losses with their graph; "
        "keep loss.item() or tensor.detach().cpu()"
    )
