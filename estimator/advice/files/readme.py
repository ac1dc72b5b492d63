"""The README of a plan: the estimate, the command that makes it again, what was changed, what to install."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...pipeline import resolved
from ...settings import TrainSettings
from ...units import format_bytes
from .library import resamples
from .optimizers import MADE_FOR_TRAINER, made
from .order import Order
from .render import one_line, render

__all__ = ["readme"]

_OF_FILES = frozenset({"model", "training_args", "deepspeed", "zero_options"})


def readme(order: Order, flags: Sequence[str], said: Mapping[str, Any]) -> str:
    """``flags`` of ``vitmem estimate`` stand for what is ``said`` already, as keywords of :meth:`TrainSettings.of`."""
    from ... import __version__

    plan, settings = order.plan, order.settings
    assert plan.peak.allocated_bytes is not None
    assert plan.peak.reserved_bytes is not None
    data = "--data-dir" if settings.loop == "timm" else "--data"
    return render(
        "README.md",
        {
            "version": __version__,
            "model": one_line(settings.model),
            "gpu": one_line(order.gpu),
            "gpus": settings.gpus,
            "gpus_plural": "s" if settings.gpus > 1 else "",
            "bs": settings.bs,
            "accum": settings.accum,
            "accum_plural": "s" if settings.accum > 1 else "",
            "effective_batch": plan.effective_batch,
            "allocated": format_bytes(plan.peak.allocated_bytes),
            "reserved": format_bytes(plan.peak.reserved_bytes),
            "headroom": format_bytes(plan.headroom_bytes),
            "relative": f"{plan.relative_step_time:.2f}",
            "command": shlex.join(["vitmem", "estimate", order.location, *flags, *_flags(order, said)]),
            "changes": _changes(order),
            "start": f"bash launch.sh {data} path/to/images",
            "install": " ".join(dict.fromkeys(_packages(order))),
            "notes": "\n\n".join(_notes(order)),
        },
    )


def _flags(order: Order, said: Mapping[str, Any]) -> Iterator[str]:
    """What the plan has beside what is ``said`` and what the loop does by itself."""
    told = {"gpus": order.settings.gpus, "bs": order.settings.bs}  # what else goes without saying depends on these
    base = resolved(TrainSettings.of(order.settings.model, **told, **said))[1].to_dict()
    unsaid = TrainSettings.of(order.settings.model)
    base |= {"gpus": unsaid.gpus, **({} if "training_args" in said else {"bs": unsaid.bs})}
    for name, value in order.settings.to_dict().items():
        if name in _OF_FILES or value == base[name] or value is None:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            joiner = {"res": "x", "lora_targets": ","}.get(name)
            yield from (f"--{flag}", str(value) if joiner is None else joiner.join(map(str, value)))


def _changes(order: Order) -> str:
    plan = order.plan
    if not plan.changes:
        return "Nothing: it fits as it was asked for."
    rows = ["| change | saves | costs | what training loses |", "| --- | ---: | --- | --- |"]
    for change in plan.changes:
        what = ", ".join(_what(change.settings))
        rows.append(f"| {what} | {format_bytes(change.saved_bytes)} | {change.cost} | {change.loses} |")
    return "\n".join(rows)


def _what(changed: Mapping[str, Any]) -> Iterator[str]:
    for name, value in changed.items():
        if name == "zero_options":
            yield from (f"{option} {size}" for option, size in value)
        elif value is not None:
            yield f"{name} {value}"


def _packages(order: Order) -> Iterator[str]:
    """What pip installs for these files."""
    settings = order.settings
    yield from ("torch", "torchvision")
    if order.library == "timm":
        yield "timm"
    if settings.loop == "timm":
        return
    yield "datasets"
    if settings.loop == "trainer":
        yield from ("transformers", "accelerate")
    if order.library == "transformers":
        yield "transformers"
    if settings.train == "lora":
        yield "peft"
    if str(settings.parallel).startswith("zero"):
        yield "deepspeed"
    yield from _packages_of_optimizer(order)


def _packages_of_optimizer(order: Order) -> Iterator[str]:
    optim = order.settings.optim or ""
    if order.settings.loop == "plain" or optim in MADE_FOR_TRAINER:
        yield made(optim).package or made(optim).module.partition(".")[0]
    for part, package in _OF_TRAINER.items():
        if part in optim:
            yield package


#: Parts of Trainer's names, and the package that holds the optimizer (transformers 5.24, trainer_optimizer.py).
_OF_TRAINER = {
    "8bit": "bitsandbytes",
    "32bit": "bitsandbytes",
    "ademamix": "bitsandbytes",
    "bnb": "bitsandbytes",
    "schedule_free": "schedulefree",
    "stable_adamw": "torch-optimi",
    "grokadamw": "grokadamw",
    "adamw_torch_4bit": "torchao",
    "adamw_torch_8bit": "torchao",
}


def _notes(order: Order) -> Iterator[str]:
    settings = order.settings
    if settings.loop == "timm":
        yield (
            "launch.sh runs timm's `train.py`, which no package holds: `git clone "
            "https://github.com/huggingface/pytorch-image-models` and `export TIMM=path/to/it`."
        )
    else:
        yield (
            "`bash launch.sh --max_steps 20` trains on random images with random weights: enough to see the peak, "
            "which it prints at the end."
        )
        if not settings.workers:
            yield (
                "With a folder of images add `--workers 8`, or as many as there are cores for each GPU: without them a "
                "step waits for its images, which the times leave out. They take host memory, not the GPU's."
            )
    if order.whole is not None:
        yield from _pruning(order)
    if resamples(order) and settings.loop != "timm":
        yield (
            "Position embeddings are of another grid of patches: train.py resamples the published ones, where "
            "transformers by itself would begin at random."
        )
        if settings.patch is not None:
            yield "The patch embedding is of another size and begins at random."


def _pruning(order: Order) -> Iterator[str]:
    if order.settings.loop == "timm":
        yield (
            "The model is smaller than the published one, and begins with random weights. To prune the published ones, "
            "write the plan for `--loop trainer` or `plain`: its script cuts them."
        )
        return
    yield (
        "The model is smaller than the published one. `cut` in train.py prunes its weights: evenly spaced blocks are "
        "kept, and of each MLP the hidden units with the largest weights; what it cannot cut (another width) needs "
        "--from_scratch. Accuracy falls at once and comes back by training: plan for more epochs, and compare with a "
        "lighter model (`vitmem recommend --lighter`)."
    )
    if order.settings.heads is not None:
        yield (
            "Fewer heads are wider heads: the weights keep their shapes but mean something else, so that attention is "
            "learnt anew."
        )
