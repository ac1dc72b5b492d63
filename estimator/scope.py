"""What this version answers for, and what it says about the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from .device import device_of
from .errors import InvalidRequest, NotModelled
from .families import Plan
from .generations import Torch, wheels_of
from .loops import LOOPS, own_optimizer
from .optimizers import optimizer_of
from .parallel import strategy_of
from .result import PhasePeak
from .settings import TrainSettings
from .step import PARAMETER_DTYPES
from .units import DType, format_bytes

__all__ = [
    "NOT_MODELLED",
    "assumptions",
    "before_sdpa",
    "check",
    "check_attention",
    "check_blocks",
    "check_labels",
    "phase_warnings",
    "reentrant_warnings",
    "warnings",
]

NOT_MODELLED = ("cuDNN's own workspaces for convolutions (peak.unknown_workspace_bytes bounds what they can add)",)


def check(settings: TrainSettings) -> None:
    """Refuse what is not modelled yet: no number is better than a plausible one."""
    if settings.compile:
        raise NotModelled(
            "a compiled step is not estimated: which tensors share memory is inductor's choice, kernel by kernel; "
            "leave out --compile and see docs/torch-compile.md for what it changes"
        )
    _check_generation(settings)
    _check_optimizer(settings)
    _check_mixup(settings)
    strategy_of(settings).check(settings)
    if settings.checkpoint_reentrant and (settings.gpus > 1 or settings.offload != "none"):
        raise NotModelled(
            "re-entrant checkpointing is modelled on one GPU without offload only; leave out --checkpoint-reentrant"
        )
    if settings.num_classes == 1 and settings.loop == "trainer":
        raise NotModelled("one class makes transformers use a regression loss, which is not modelled; use two or more")


def _check_optimizer(settings: TrainSettings) -> None:
    name = settings.optim
    optimizer = optimizer_of(name or own_optimizer(settings), Torch.parse(settings.torch))
    if optimizer.refused:
        raise NotModelled(f"optim {name or own_optimizer(settings)!r} is not modelled: {optimizer.refused}")
    dtype = PARAMETER_DTYPES.get(settings.precision, DType.float32)
    if dtype not in optimizer.dtypes:
        raise InvalidRequest(f"optim {name!r} has no kernel for {dtype.label} parameters; use --precision bf16")


def check_on_cpu(settings: TrainSettings) -> None:
    """What only the rules of the CPU refuse."""
    optimizer = optimizer_of(settings.optim or own_optimizer(settings), Torch.parse(settings.torch), on_cpu=True)
    if optimizer.refused:
        raise NotModelled(f"optim {settings.optim!r} is not modelled on the CPU: {optimizer.refused}")


def _check_generation(settings: TrainSettings) -> None:
    """Refuse what an older torch refuses."""
    torch, sm = Torch.parse(settings.torch), device_of(settings).gpu.capability
    if settings.precision == "bf16" and sm < (8, 0) and not torch.has("emulates_bf16"):
        raise InvalidRequest(
            f"torch {torch.label} refuses bf16 autocast on compute capability {sm[0]}.{sm[1]}; use --precision fp16"
        )
    if "expandable_segments" in (settings.alloc_conf or "") and not torch.has("expandable_segments"):
        raise InvalidRequest(f"torch {torch.label} has no expandable_segments; leave out --alloc-conf")


def _check_mixup(settings: TrainSettings) -> None:
    """transformers' image classifiers take float labels for independent classes (5.24, loss/loss_utils.py)."""
    if not settings.mixup:
        return
    if settings.loop == "trainer":
        raise NotModelled(
            "Trainer has no loss for the targets that mixup makes: it takes a compute_loss_func of the user's own; "
            "use --loop timm or plain, or leave out --mixup"
        )
    if settings.loop == "timm" and settings.bs % 2:
        raise InvalidRequest(f"timm's mixup needs an even batch; use --bs {settings.bs + 1}, not {settings.bs}")


def check_labels(settings: TrainSettings, plan: Plan) -> None:
    """Refuse to soften the labels of a model that has none."""
    for name in ("mixup", "label_smoothing"):
        if getattr(settings, name) and not plan.head:
            raise InvalidRequest(
                f"{plan.model.name} is trained on pixels alone: there are no labels for --{name.replace('_', '-')}; "
                "leave it out"
            )


def check_blocks(settings: TrainSettings, plan: Plan) -> None:
    """Refuse to freeze or checkpoint more blocks than the model has."""
    for name in ("freeze_layers", "checkpoint_layers"):
        count = getattr(settings, name)
        if count is not None and count > len(plan.blocks):
            raise InvalidRequest(
                f"{name} {count} is more than the {len(plan.blocks)} blocks of {plan.model.name}; "
                f"use --{name.replace('_', '-')} {len(plan.blocks)} for all of them"
            )


def before_sdpa(settings: TrainSettings, library: str) -> TrainSettings:
    """Under a torch without ``scaled_dot_product_attention`` libraries that have an eager attention run that."""
    torch = Torch.parse(settings.torch)
    if torch.has("sdpa"):
        return settings
    if settings.attn not in {"auto", "eager"}:
        raise InvalidRequest(f"torch {torch.label} has no {settings.attn} attention; leave out --attn")
    return settings if library == "torchvision" else dataclasses.replace(settings, attn="eager")


def check_attention(settings: TrainSettings, plan: Plan) -> None:
    """Refuse what an old torch cannot run."""
    if plan.attn != "eager" and not Torch.parse(settings.torch).has("sdpa"):
        raise NotModelled(f"{plan.model.name} without scaled_dot_product_attention is not modelled; use --torch 2.0")


_ATTENTION = {
    "sdpa": "fused scaled_dot_product_attention",
    "eager": "eager attention",
    "auto": "eager and fused attention as the library mixes them",
}


def _recipe(settings: TrainSettings, plan: Plan) -> Iterator[str]:
    """What the loop does with labels, gradients and weights."""
    loop = LOOPS[settings.loop]
    if plan.head:
        smoothed = f"label smoothing {settings.label_smoothing:g}" if loop.smooths(settings) else "no label smoothing"
        yield f"mixup targets in fp32, {smoothed}" if settings.mixup else smoothed
    yield f"gradients clipped to {settings.clip_grad:g}" if loop.clips(settings) else loop.unclipped
    if settings.ema:
        yield f"an EMA copy, counted as optimizer state: {loop.ema}"


def assumptions(settings: TrainSettings, plan: Plan, sm: tuple[int, int]) -> tuple[str, ...]:
    """What the figures rest on."""
    return (
        LOOPS[settings.loop].assumption,
        *_recipe(settings, plan),
        *filter(None, [strategy_of(settings).assumption]),
        f"optimizer {settings.optim}: {optimizer_of(settings.optim or '', Torch.parse(settings.torch)).source}",
        "a steady-state step (the third): optimizer state exists",
        f"evaluation of {settings.eval_samples} images in batches of {settings.eval_bs} (--eval-samples, --eval-bs), "
        f"{LOOPS[settings.loop].evaluation}",
        f"{settings.workers} data loader workers, {'pinned' if settings.pin_memory else 'pageable'} memory; "
        "a checkpoint is the model and the optimizer",
        f"{_ATTENTION[plan.attn]}; CUDA kernels of torch {settings.torch} on compute capability {sm[0]}.{sm[1]}",
        *([f"a classifier of {settings.num_classes} classes"] if plan.head else []),
    )


def warnings(settings: TrainSettings, plan: Plan, sm: tuple[int, int]) -> tuple[str, ...]:
    """What the user may not expect; ``sm`` is the compute capability."""
    found = [*settings.notes, *strategy_of(settings).warnings(settings)]
    images = settings.bs * settings.accum * settings.gpus
    if settings.train_samples is not None and settings.train_samples < images:
        found.append(
            f"an epoch of {settings.train_samples} images is less than a step of {images}; the figures are those of a "
            "full step"
        )
    if sm < (8, 0) and "bf16" in settings.precision:
        found.append(
            f"compute capability {sm[0]}.{sm[1]} has no bf16: PyTorch emulates it, slowly, and attention falls back "
            "to the math kernel; use --precision fp16"
        )
    found += filter(None, [wheels_of(Torch.parse(settings.torch), sm)])
    if settings.sdpa_kernel != "auto" and plan.attn == "eager":
        found.append(f"sdpa_kernel {settings.sdpa_kernel} is not used: attention is eager here")
    for side, pixels, step in zip(("height", "width"), plan.image_size, plan.patch_size):
        if rest := pixels % step:
            does = f"adds {step - rest} pixels of zeros" if plan.pads_images else f"ignores {rest} pixels"
            found.append(
                f"{side} {pixels} is no multiple of the patch size {step}: the library {does}; "
                f"{pixels - rest} and {pixels - rest + step} are"
            )
    return tuple(found)


def reentrant_warnings(settings: TrainSettings, plan: Plan, without_gradient: tuple[str, ...]) -> Iterator[str]:
    """What re-entrant checkpointing does that nobody asks for; ``without_gradient`` are parameters that it cuts off."""
    if without_gradient:
        yield (
            f"{len(without_gradient)} trainable parameters get no gradient, {without_gradient[0]} the first: "
            "re-entrant checkpointing needs a trainable part in front of a block; leave out --checkpoint-reentrant"
        )
    if settings.checkpoint_reentrant and settings.loop == "trainer" and plan.model.library == "timm":
        yield (
            "Trainer's gradient_checkpointing_kwargs do not reach a model of timm: it checkpoints re-entrantly with "
            "TIMM_REENTRANT_CKPT=1 only; else leave out --checkpoint-reentrant"
        )


#: A phase that can need more than a training step, and what makes it smaller.
_LARGER = {
    "evaluation": "--eval-bs and, for what piles up, --eval-accum make it smaller",
    "resume": "a first run would not show it",
    "first_step": "later steps need less",
}


def phase_warnings(phases: Mapping[str, PhasePeak | None], peak_bytes: int) -> Iterator[str]:
    """The phases whose tensors need more than those of a steady step, whose peak is ``peak_bytes``."""
    for name, advice in _LARGER.items():
        phase = phases[name]
        if phase is not None and phase.tensor_bytes > peak_bytes:
            needed = format_bytes(phase.allocated_bytes or phase.tensor_bytes)
            yield f"{name.replace('_', ' ')} needs more than a steady step: {needed}; {advice}"
