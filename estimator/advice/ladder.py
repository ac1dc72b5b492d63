"""The ladder: what an expert would try, in that order, each rung with its own saving and cost for this model.

The first rungs stand on each other, from fp32, eager attention and the whole batch at once; those that divide or move
states, and those that change the model or its input, stand each alone on the micro-batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from .. import catalog
from ..errors import InvalidRequest, NotModelled
from ..parallel import STRATEGIES, casts_model, strategy_of
from ..pipeline import resolved
from ..settings import TrainSettings
from .axes import Known, axis_named
from .batches import batches, with_batch
from .plan import Rung
from .relatives import is_windowed, smaller_than, windowed_like
from .search import Family, Grid
from .trials import Trial, Trials

__all__ = ["ladder"]

_CASTS = "the time is that of a model in 16 bits, norms and losses too, where autocast casts back and forth"
_CLAIM = "usual claim: 60 to 70 % of the activations for about 30 % more compute"


def ladder(trials: Trials, asked: TrainSettings, per_gpu: int) -> tuple[Rung, ...]:
    """Every rung; those that the library refuses say so."""
    return tuple(_Ladder(trials, asked, per_gpu).rungs())


#: A rung that stands alone: its name, its value, a remark, and the settings it changes.
Alone = tuple[str, str, str, dict[str, Any]]
#: Relatives of the model that are tried.
_TRIES = 4


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
        for name, to, remark, changes in (*self._divided(top), *self._smaller_work(top), *self._other_models(top)):
            self.below = top
            yield self._rung(name, to, remark, **changes)

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
        if not changes:
            return _refused(name, to, remark)
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
        if places := grid.fitting(0):
            place, remark = places[-1], "the largest that fits"
        else:
            place, remark = grid.smallest, "the one that takes the least; it does not fit"
        settings = with_batch(self.below, sizes[place], self.per_gpu)
        split = f"{settings.bs} x {settings.accum}"
        return self._rung("smaller micro-batch", split, remark, bs=settings.bs, accum=settings.accum)

    def _divided(self, top: TrainSettings) -> Iterator[Alone]:
        """States divided among the GPUs, and moved to the host."""
        if self.asked.offload != "none":
            return
        known = Known(self.trials.gpu, self.plan, self.trials(top).largest_parameter)
        own = strategy_of(top)
        engines = [] if own.offloads else axis_named("parallel").values(top, known)
        for engine in ({}, *engines):
            name = engine.get("parallel", top.parallel or "none")
            casts = casts_model(dataclasses.replace(top, **engine)) and not casts_model(top)
            remark = _CASTS if casts else ""
            if engine and top.gpus > 1:
                yield "divided states", name, remark, engine
            for offload in STRATEGIES[name].offloads:
                yield "offload", f"{name}, {offload}", remark, {**engine, "offload": offload}

    def _smaller_work(self, top: TrainSettings) -> Iterator[Alone]:
        height, width = self.plan.image_size
        patch = self.plan.patch_size[0]
        if smaller := _smaller_size(height, width, patch):
            yield "lower resolution", f"{smaller[0]}x{smaller[1]}", "", {"res": smaller}
        at_size = {"res": self.plan.image_size}
        remark = "a fourth of the tokens; not the weights of this model: those of its patches and positions begin anew"
        yield "larger patch", str(2 * patch), remark, {"patch": 2 * patch, **at_size}
        if patch % 2 == 0:
            remark = "four times the tokens: a smaller patch takes more memory, not less"
            yield "smaller patch", str(patch // 2), remark, {"patch": patch // 2, **at_size}
        yield "token dropping", "0.5", "", {"patch_drop": 0.5}
        if fewer := len(self.plan.blocks) // 2:
            remark = "structured pruning: the weights have to be cut and trained on; see --lighter"
            yield "fewer blocks", f"{fewer} of {len(self.plan.blocks)}", remark, {"depth": fewer}

    def _other_models(self, top: TrainSettings) -> Iterator[Alone]:
        """Windows of attention, and fewer parameters: the nearest that take this resolution."""
        model = self.plan.model
        if is_windowed(model):
            yield "windowed attention", "", "its attention is windowed already", {}
        else:
            none = "the catalogue has none of about this size for this resolution"
            yield from self._first("windowed attention", windowed_like(model), top, none)
        smaller = "the catalogue has no smaller one of its family that takes less at this resolution"
        yield from self._first("lighter model", smaller_than(model), top, smaller, is_lighter=True)

    def _first(
        self, name: str, models: list[str], top: TrainSettings, none: str, *, is_lighter: bool = False
    ) -> Iterator[Alone]:
        """The first that trains at this size; a lighter one takes less memory and less time."""
        changes: dict[str, Any] = {"res": self.plan.image_size, "attn": self.asked.attn}
        own = self.trials(top)
        for model in models[:_TRIES]:
            trial = self.trials.maybe(top, model=model, **changes)
            if trial is None:
                continue
            if is_lighter and not (trial.requested_bytes < own.requested_bytes and trial.seconds < own.seconds):
                continue
            num, whole = catalog.resolve(model).num_parameters or 0, self.plan.model.num_parameters or 0
            remark = f"{num / 1e6:,.0f} million parameters, not {whole / 1e6:,.0f}: another model, other weights"
            yield name, model, remark, {"model": model, **changes}
            return
        yield name, "", none, {}


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
