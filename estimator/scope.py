"""What this version answers for, and what it says about the rest."""

from __future__ import annotations

from .errors import InvalidRequest, NotModelled
from .families import Plan
from .loops import LOOPS
from .settings import TrainSettings

__all__ = ["NOT_MODELLED", "assumptions", "check", "check_blocks", "warnings"]

NOT_MODELLED = (
    "reserved and device memory: the caching allocator's segments, the CUDA context and libraries",
    "the allocator's unsplit remainders: up to 1 MiB per large block",
    "cuDNN's own workspace for the patch embedding's convolution",
    "evaluation, the first step, and resuming from a checkpoint",
)

#: A setting, the value that is modelled, and what to do about any other.
_ONLY = (
    ("compile", False, "torch.compile"),
    ("ema", False, "an exponential moving average on the GPU"),
    ("gpus", 1, "more than one GPU"),
    ("offload", "none", "offload to host memory"),
    ("gpu", None, "whether it fits a named GPU"),
    ("memory", None, "whether it fits a given memory"),
)


def check(settings: TrainSettings) -> None:
    """Refuse what is not modelled yet: no number is better than a plausible one."""
    for name, modelled, what in _ONLY:
        if getattr(settings, name) != modelled:
            raise NotModelled(f"{what} is not modelled yet; leave out --{name}")
    if settings.parallel not in {None, "none"}:
        raise NotModelled(f"--parallel {settings.parallel} is not modelled yet; leave it out")
    if settings.num_classes == 1 and settings.loop == "trainer":
        raise NotModelled("one class makes transformers use a regression loss, which is not modelled; use two or more")
    if settings.train == "lora":
        raise NotModelled("--train lora is not modelled yet; use full or linear-probe")


def check_blocks(settings: TrainSettings, plan: Plan) -> None:
    """Refuse to freeze or checkpoint more blocks than the model has."""
    for name in ("freeze_layers", "checkpoint_layers"):
        count = getattr(settings, name)
        if count is not None and count > len(plan.blocks):
            raise InvalidRequest(
                f"{name} {count} is more than the {len(plan.blocks)} blocks of {plan.model.name}; "
                f"use --{name.replace('_', '-')} {len(plan.blocks)} for all of them"
            )


def assumptions(settings: TrainSettings, plan: Plan) -> tuple[str, ...]:
    """What the figures rest on."""
    attention = "fused scaled_dot_product_attention" if plan.attn == "sdpa" else "eager attention"
    return (
        LOOPS[settings.loop].assumption,
        "a steady-state step (the third): optimizer state exists",
        f"{attention}; CUDA kernels of torch 2.14 on compute capability 8.0 (A100)",
        f"a classifier of {settings.num_classes} classes",
    )


def warnings(settings: TrainSettings, plan: Plan) -> tuple[str, ...]:
    """What the user may not expect."""
    found = []
    for side, pixels, step in zip(("height", "width"), plan.image_size, plan.patch_size):
        if rest := pixels % step:
            found.append(
                f"{side} {pixels} is no multiple of the patch size {step}: the library ignores {rest} pixels; "
                f"{pixels - rest} and {pixels - rest + step} are"
            )
    return tuple(found)
