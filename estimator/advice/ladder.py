"""The ladder: what an expert would try, in that order, each rung with its own saving and cost for this model.

The first rungs stand on each other, from fp32, eager attention and the whole batch at once; those that change the
model or its input stand each alone on the last of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ..errors import InvalidRequest, NotModelled
from ..pipeline import resolved
from ..settings import TrainSettings
from .plan import Rung
from .search import Family, Grid, batches, with_batch
from .trials import Trial, Trials

__all__ = ["ladder"]

_CLAIM = "usual claim: 60 to 70 % of the activations for about 30 % more compute"


def ladder(trials: Trials, asked: TrainSettings, per_gpu: int) -> tuple[Rung, ...]:
    """Every rung; those that the library refuses say so."""
    return tuple(_Ladder(trials, asked, per_gpu).rungs())


class _Ladder:
    def __init__(self, trials: Trials, asked: TrainSettings, per_gpu: int) -> None:
        self.trials, self.asked, self.per_gpu = trials, asked, per_gpu
        self.plan = resolved(asked)[0]
        self.below = with_batch(asked, per_gpu, per_gpu)

    def rungs(self) -> Iterator[Rung]:
        """From the bottom up."""
        yield self._bottom()
        low = "bf16" if self.trials.gpu.capability >= (8, 0) else "fp16"
        yield self._rung("mixed precision", low, precision=low)
        yield self._rung("fused attention", "sdpa", attn="sdpa")
        yield self._checkpointing()
        yield self._smaller_batch()
        top = self.below
        yield self._rung("8-bit optimizer", "adamw_bnb_8bit", optim="adamw_bnb_8bit")
        yield self._rung("factored optimizer", "adafactor", optim="adafactor")
        yield from self._several_gpus()
        self.below = top
        yield from self._smaller_work(top)

    def _bottom(self) -> Rung:
        plain = {"precision": "fp32", "grad_checkpointing": False, "checkpoint_layers": None}
        for changes in ({**plain, "attn": "eager"}, plain):
            trial = self.trials.maybe(self.below, **changes)
            if trial is not None:
                self.below = trial.settings
                break
        start = self.trials(self.below)
        name = f"fp32, {start.settings.attn}, {self.per_gpu} at once"
        return Rung(
            name=name,
            to="",
            peak_bytes=start.requested_bytes,
            saved_bytes=None,
            relative_time=None,
            fits=start.fits,
            remark="",
        )

    def _rung(self, name: str, to: str, remark: str = "", **changes: Any) -> Rung:
        """A rung on the one below; where it can be stood on, it is the next one's below."""
        old = self.trials(self.below)
        try:
            new = self.trials(dataclasses.replace(self.below, **changes))
        except (InvalidRequest, NotModelled) as reason:
            return _refused(name, to, str(reason))
        self.below = new.settings
        return _between(name, to, old, new, remark)

    def _checkpointing(self) -> Rung:
        before = self.below
        rung = self._rung("gradient checkpointing", "all blocks", grad_checkpointing=True)
        if rung.peak_bytes is None:
            return rung
        old, new = self.trials(before), self.trials(self.below)
        less = 100 * (1 - new.saved_activation_bytes / old.saved_activation_bytes)
        more = 100 * (new.step_flops / old.step_flops - 1)
        remark = f"{less:.0f} % of the activations for {more:.0f} % more FLOPs; {_CLAIM}"
        return dataclasses.replace(rung, remark=remark)

    def _smaller_batch(self) -> Rung:
        sizes = batches(self.below, self.per_gpu)
        grid = Grid(self.trials, Family(self.below, ()), sizes, self.per_gpu, 0)
        place = grid.largest(0) or 0
        settings = with_batch(self.below, sizes[place], self.per_gpu)
        remark = "the largest that fits" if self.trials(settings).fits else "the smallest; it does not fit"
        split = f"{settings.bs} x {settings.accum}"
        return self._rung("smaller micro-batch", split, remark, bs=settings.bs, accum=settings.accum)

    def _several_gpus(self) -> Iterator[Rung]:
        if self.asked.gpus == 1:
            yield _refused("ZeRO, FSDP", "", "there is one GPU: nothing to share states with")
            return
        for parallel in ("zero2", "zero3", "fsdp"):
            below = self.below
            yield self._rung("shared states", parallel, parallel=parallel)
            self.below = below

    def _smaller_work(self, top: TrainSettings) -> Iterator[Rung]:
        height, width = self.plan.image_size
        patch = self.plan.patch_size[0]
        alone: list[tuple[str, str, str, dict[str, Any]]] = []
        if smaller := _smaller_size(height, width, patch):
            alone.append(("lower resolution", f"{smaller[0]}x{smaller[1]}", "", {"res": smaller}))
        alone.append(("larger patch", str(2 * patch), "a model without pretrained weights", {"patch": 2 * patch}))
        if patch % 2 == 0:
            remark = "four times the tokens: a smaller patch takes more memory, not less"
            alone.append(("smaller patch", str(patch // 2), remark, {"patch": patch // 2}))
        alone.append(("token dropping", "0.5", "", {"patch_drop": 0.5}))
        if fewer := len(self.plan.blocks) // 2:
            remark = "structured pruning: the weights have to be cut and trained on; see --lighter"
            alone.append(("fewer blocks", f"{fewer} of {len(self.plan.blocks)}", remark, {"depth": fewer}))
        for name, to, remark, changes in alone:
            self.below = dataclasses.replace(top, res=self.plan.image_size)
            yield self._rung(name, to, remark, **changes)


def _smaller_size(height: int, width: int, patch: int) -> tuple[int, int] | None:
    """Three quarters of either side, in whole patches (of a hierarchical model, 32 pixels)."""
    step = patch if patch >= 8 else 32
    size = (height * 3 // 4 // step * step, width * 3 // 4 // step * step)
    return size if min(size) > 0 else None


def _between(name: str, to: str, old: Trial, new: Trial, remark: str) -> Rung:
    return Rung(
        name=name,
        to=to,
        peak_bytes=new.requested_bytes,
        saved_bytes=old.requested_bytes - new.requested_bytes,
        relative_time=round(new.seconds / old.seconds, 3),
        fits=new.fits,
        remark=remark,
    )


def _refused(name: str, to: str, reason: str) -> Rung:
    return Rung(name=name, to=to, peak_bytes=None, saved_bytes=None, relative_time=None, fits=None, remark=reason)
