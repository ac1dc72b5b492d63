"""How a plan is started: ``launch.sh``, the environment, accelerate's configuration."""

from __future__ import annotations

import shlex

from .order import Order
from .render import render

__all__ = ["ALLOCATOR_VARIABLES", "accelerate_yaml", "env_sh", "launch_sh", "uses_accelerate"]

#: timm reads it before a model is built (timm/layers/config.py); 2: also where fused attention is not its default.
_TIMM_ATTENTION = {"eager": "0", "sdpa": "2"}


#: The allocator's variable of today, and the name that it had before torch 2.9.
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def uses_accelerate(order: Order) -> bool:
    """A Trainer alone or on several GPUs; DeepSpeed has a launcher of its own, and torchrun starts a single DDP
    process, which ``accelerate launch`` would start without."""
    settings = order.settings
    alone_on_ddp = settings.gpus == 1 and settings.parallel == "ddp"
    return settings.loop == "trainer" and not alone_on_ddp and not str(settings.parallel).startswith("zero")


def launch_sh(order: Order) -> str:
    """A shell script; its arguments go on to the training."""
    settings = order.settings
    if settings.loop == "timm":
        name, what = "launch_timm.sh", "timm's train.py"
    elif uses_accelerate(order):
        name, what = "launch.sh", "train.py"
    else:
        name, what = "launch_script.sh", "train.py"
    values = {"gpus": settings.gpus, "what": what, "starter": _starter(order)}
    return render(name, values)


def _starter(order: Order) -> str:
    """The command in front of the script."""
    settings = order.settings
    if str(settings.parallel).startswith("zero"):
        return f"deepspeed --num_gpus {settings.gpus} --no_local_rank"
    if settings.gpus > 1 or settings.parallel == "ddp":
        return f"torchrun --standalone --nproc_per_node {settings.gpus}"
    return "python"


def env_sh(order: Order) -> str:
    """Exports: the allocator under both its names, and timm's switches."""
    settings, exports = order.settings, {}
    if settings.alloc_conf:
        exports = dict.fromkeys(ALLOCATOR_VARIABLES, settings.alloc_conf)
    if settings.loop == "timm":
        if settings.attn in _TIMM_ATTENTION:
            exports["TIMM_FUSED_ATTN"] = _TIMM_ATTENTION[settings.attn]
        if settings.checkpoint_reentrant:
            exports["TIMM_REENTRANT_CKPT"] = "1"
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
    return render("env.sh", {"exports": "\n".join(lines) or "# nothing"})


def accelerate_yaml(order: Order) -> str:
    """``accelerate launch --config_file``."""
    settings = order.settings
    values = {
        "gpus": settings.gpus,
        "distributed_type": "MULTI_GPU" if settings.gpus > 1 else "'NO'",
        "mixed_precision": settings.precision if settings.precision in {"fp16", "bf16"} else "no",
    }
    return render("accelerate.yaml", values)
