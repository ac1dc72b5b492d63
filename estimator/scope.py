"""What this version answers for, and what it says about the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .errors import InvalidRequest, NotModelled
from .families import Plan
from .loops import LOOPS
from .optimizers import OPTIMIZERS
from .result import PhasePeak
from .settings import TrainSettings
from .step import PARAMETER_DTYPES
from .units import DType, format_bytes

__all__ = ["NOT_MODELLED", "assumptions", "check", "check_blocks", "not_modelled", "phase_warnings", "warnings"]

NOT_MODELLED = ("cuDNN's own workspaces for convolutions",)

#: A setting, the value that is modelled, and what to do about any other.
_ONLY = (
    ("compile", False, "torch.compile"),
    ("ema", False, "an exponential moving average on the GPU"),
    ("gpus", 1, "more than one GPU"),
    ("offload", "none", "offload to host memory"),
)


def check(settings: TrainSettings) -> None:
    """Refuse what is not modelled yet: no number is better than a plausible one."""
    for name, modelled, what in _ONLY:
        if getattr(settings, name) != modelled:
            raise NotModelled(f"{what} is not modelled yet; leave out --{name}")
    _check_optimizer(settings)
    if settings.parallel not in {None, "none"}:
        raise NotModelled(f"--parallel {settings.parallel} is not modelled yet; leave it out")
    if settings.num_classes == 1 and settings.loop == "trainer":
        raise NotModelled("one class makes transformers use a regression loss, which is not modelled; use two or more")
    if settings.train == "lora":
        raise NotModelled("--train lora is not modelled yet; use full or linear-probe")


def _check_optimizer(settings: TrainSettings) -> None:
    name = settings.optim
    optimizer = OPTIMIZERS[name or LOOPS[settings.loop].optim]
    if optimizer.refused:
        raise NotModelled(f"optim {name!r} is not modelled: {optimizer.refused}")
    dtype = PARAMETER_DTYPES.get(settings.precision, DType.float32)
    if dtype not in optimizer.dtypes:
        raise InvalidRequest(f"optim {name!r} has no kernel for {dtype.label} parameters; use --precision bf16")


def check_blocks(settings: TrainSettings, plan: Plan) -> None:
    """Refuse to freeze or checkpoint more blocks than the model has."""
    for name in ("freeze_layers", "checkpoint_layers"):
        count = getattr(settings, name)
        if count is not None and count > len(plan.blocks):
            raise InvalidRequest(
                f"{name} {count} is more than the {len(plan.blocks)} blocks of {plan.model.name}; "
                f"use --{name.replace('_', '-')} {len(plan.blocks)} for all of them"
            )


def not_modelled(settings: TrainSettings, *, evaluation: bool, resume: bool) -> tuple[str, ...]:
    """What is left out; ``evaluation`` and ``resume`` say whether these are known."""
    return (
        *NOT_MODELLED,
        *([] if evaluation else ["evaluation: nn.MultiheadAttention then runs a fused kernel of its own"]),
        *([] if resume else [f"resuming from a checkpoint: how {settings.optim} loads its state"]),
    )


_ATTENTION = {
    "sdpa": "fused scaled_dot_product_attention",
    "eager": "eager attention",
    "auto": "eager and fused attention as the library mixes them",
}


def assumptions(settings: TrainSettings, plan: Plan, sm: tuple[int, int]) -> tuple[str, ...]:
    """What the figures rest on."""
    return (
        LOOPS[settings.loop].assumption,
        f"optimizer {settings.optim}: {OPTIMIZERS[settings.optim or ''].source}",
        "a steady-state step (the third): optimizer state exists",
        f"evaluation of {settings.eval_samples} images in batches of {settings.eval_bs} (--eval-samples, --eval-bs), "
        f"{LOOPS[settings.loop].evaluation}",
        f"{settings.workers} data loader workers, {'pinned' if settings.pin_memory else 'pageable'} memory; "
        "a checkpoint is the model and the optimizer",
        f"{_ATTENTION[plan.attn]}; CUDA kernels of torch 2.14 on compute capability {sm[0]}.{sm[1]}",
        *([f"a classifier of {settings.num_classes} classes"] if plan.head else []),
    )


def warnings(settings: TrainSettings, plan: Plan, sm: tuple[int, int]) -> tuple[str, ...]:
    """What the user may not expect; ``sm`` is the compute capability."""
    found = [*settings.notes]
    if sm < (8, 0) and "bf16" in settings.precision:
        found.append(
            f"compute capability {sm[0]}.{sm[1]} has no bf16: PyTorch emulates it, and its convolutions borrow a copy "
            "of the patches that is not counted; use --precision fp16"
        )
    if sm < (7, 5):
        found.append(f"torch 2.14's CUDA 13 builds do not run on compute capability {sm[0]}.{sm[1]}")
    for side, pixels, step in zip(("height", "width"), plan.image_size, plan.patch_size):
        if rest := pixels % step:
            does = f"adds {step - rest} pixels of zeros" if plan.pads_images else f"ignores {rest} pixels"
            found.append(
                f"{side} {pixels} is no multiple of the patch size {step}: the library {does}; "
                f"{pixels - rest} and {pixels - rest + step} are"
            )
    return tuple(found)


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
