"""One configuration of many: its step is played at once, what follows and the allocator only when asked for."""

from __future__ import annotations

from collections.abc import Container, Mapping
from copy import copy
from functools import cached_property
from typing import Any

from .cost import Cost, cost_of
from .device import Run, device_of, holds, reserved_by_first, verdict
from .pipeline import estimate_of, peak_of, resolved
from .play import Played, play
from .result import KINDS, Estimate, Peak
from .settings import TrainSettings
from .step import Step
from .timeline import allocated_peak, allocated_peaks

__all__ = ["Candidate"]

#: The kinds that have no size for each image or pixel.
_LASTING = frozenset(KINDS) - {"activations", "temporaries", "inputs"}
#: What the allocator's layout takes beside what is requested is likely to be about this part of the memory.
_LAYOUT = 80


class Candidate:
    """Raises as an estimate does; settings need a GPU or a memory.

    ``requested_bytes`` is the steady step's peak before the allocator rounds it up, ``largest_parameter`` the elements
    of one that is trained.
    """

    #: Whose play is this one's too.
    _same: Candidate | None = None

    def __init__(self, settings: TrainSettings) -> None:
        self.plan, self.settings = resolved(settings)
        self.device = device_of(self.settings)
        step = self._begun
        ledger = step.run.ledger()
        self.requested_bytes, self.num_events = allocated_peak(ledger, -1), len(ledger.events)
        self.has_batch_statistics = any(name.endswith("running_mean") for name in step.scope.buffers)
        self.largest_parameter = max((p.numel for p in step.trained.values()), default=0)

    def under(self, settings: TrainSettings) -> Candidate:
        """That of ``settings``, which differ in ``alloc_conf`` alone: nothing is played for it, and it makes no
        estimate."""
        other = copy(self)
        for name in ("_begun", "_played", "_judged", "fits", "peak", "reserved_bytes"):
            vars(other).pop(name, None)
        other.plan, other.settings = resolved(settings)
        other.device, other._same = device_of(other.settings), self
        return other

    @cached_property
    def _begun(self) -> Step:
        return play(self.plan, self.settings, self.device.gpu)

    @cached_property
    def _played(self) -> Played:
        if self._same is not None:
            return self._same._played.under(self.device.allocator)
        device, begun = self.device, self._begun
        del self._begun  # it goes on
        return Played(self.plan, self.settings, device.gpu, device.allocator, begun=begun)

    @cached_property
    def cost(self) -> Cost:
        """What a step computes and moves."""
        return cost_of(vars(self).get("_begun") or self._played.step)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The processes that decide whether it fits."""
        return self._played.runs

    @property
    def least_bytes(self) -> int:
        """What no GPU of this generation could do without: :attr:`requested_bytes` less what kernels borrow, which is
        all that depends on the number of its processors."""
        return allocated_peak(self._played.ledger, -1, without=frozenset({"workspaces"}))

    @cached_property
    def activation_bytes(self) -> int:
        """The most that activations take at once: no stage of ZeRO and no offload changes it."""
        return self._most(without=frozenset(KINDS) - {"activations"})

    @property
    def growing_bytes(self) -> int:
        """The most that grows with batch and resolution, at once."""
        return self._most(without=_LASTING)

    def _most(self, *, without: frozenset[str]) -> int:
        """The peak of the other kinds in the forward and backward passes."""
        step = vars(self).get("_begun")
        ledger = step.run.ledger() if step else self._played.ledger
        peaks = allocated_peaks(ledger, -1, without=without)
        return max(peaks["forward"], peaks["backward"])

    @property
    def usable_bytes(self) -> int:
        """What the context's expected size leaves."""
        assert self.device.usable_bytes is not None
        return self.device.usable_bytes

    @cached_property
    def fits(self) -> bool:
        """Whether an estimate would say yes. The allocator is not asked where it could not even hold what is live at
        once."""
        return self.slack_bytes >= 0 and holds(self.device, self._played.each_run)

    @cached_property
    def _judged(self) -> Mapping[str, Any]:
        judged, _ = verdict(self.device, self._played.runs)
        assert judged is not None
        return judged

    @cached_property
    def peak(self) -> Peak:
        """An estimate's, whether it fits or not."""
        return peak_of(self._played, self.device, self.reserved_bytes)

    @cached_property
    def reserved_bytes(self) -> int:
        """The peak's, alone."""
        return reserved_by_first(self.device, self._played.run)

    @property
    def headroom_bytes(self) -> int:
        """The verdict's."""
        return int(self._judged["headroom_bytes"])

    @property
    def slack_bytes(self) -> int:
        """What the largest context leaves, less what is requested."""
        return self.device.room_bytes - self.requested_bytes

    @property
    def expected_spare_bytes(self) -> int:
        """What the largest context leaves, less what is likely to be reserved."""
        return self.slack_bytes - self.device.room_bytes // _LAYOUT

    @property
    def spare_bytes(self) -> int:
        """What the largest context leaves, less what is reserved; of one that does not fit, below 0.

        A guess where only the layout decides: where the allocator had to give back what it had cached, or that did not
        help, and a little less would do.
        """
        if self.slack_bytes < 0:
            return self.slack_bytes
        if not self.fits:
            reserved = max(run.replay.reserved_bytes for run in self.runs)
            return min(max(self.device.room_bytes - reserved, -self.device.room_bytes // _LAYOUT), -1)
        if self._judged["num_alloc_retries"]:
            return max(self.expected_spare_bytes, 0)
        return self.headroom_bytes - self.usable_bytes + self.device.room_bytes

    @cached_property
    def saved_activation_bytes(self) -> int:
        """What the forward pass leaves for the backward pass."""
        return sum(self._played.saved_activations.values())

    @cached_property
    def saved_by_block(self) -> tuple[int, ...]:
        """:attr:`saved_activation_bytes` of each of the model's blocks."""
        step = vars(self).get("_begun")
        saved = step.saved_activations(step.run.ledger()) if step else self._played.saved_activations
        blocks = dict.fromkeys(self.plan.blocks, 0)
        for layer, num_bytes in saved.items():
            if (block := _block_of(layer, blocks)) is not None:
                blocks[block] += num_bytes
        return tuple(blocks.values())

    def estimate(self, slope_bytes: int | None = None) -> Estimate:
        """All that there is to say; ``slope_bytes``: what one more image takes, where it is known."""
        return estimate_of(self.plan, self.settings, self.device, self._played, slope_bytes)

    @property
    def missing_bytes(self) -> int:
        """How much more memory would hold it beside the largest CUDA context."""
        assert self.device.context is not None
        return self.device.context.high_bytes - self.device.context.expected_bytes - self.headroom_bytes

    def rest(self) -> None:
        """Let go of the step: what the allocator did stays known."""
        if (step := vars(self).pop("_begun", None)) is not None:
            step.dispose()
        if "_played" in vars(self):
            self._played.let_go()

    def release(self) -> None:
        """Let go of the play; what is asked for later is played again."""
        self.rest()
        vars(self).pop("_played", None)


def _block_of(layer: str, blocks: Container[str]) -> str | None:
    """The one that a layer is, or is a part of."""
    while layer and layer not in blocks:
        layer = layer.rpartition(".")[0]
    return layer or None
