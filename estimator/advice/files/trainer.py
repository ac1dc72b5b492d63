"""The files for the Hugging Face Trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from . import building, fsdp
from .ds_config import NAME as DS_CONFIG
from .ds_config import document as ds_document
from .launch import accelerate_yaml, env_sh, launch_sh, uses_accelerate
from .library import model_config
from .optimizers import MADE_FOR_TRAINER, ON_CPU, made
from .order import Order
from .readme import readme
from .render import script

__all__ = ["arguments", "texts"]


def texts(order: Order) -> Mapping[str, str]:
    """Every file by name."""
    found = {"train.py": _script(order), "training_args.json": json.dumps(arguments(order), indent=2) + "\n"}
    if order.library == "transformers":
        found["model_config.json"] = model_config(order)
    ds_config = ds_document(order) if _uses_deepspeed(order) else None
    if ds_config is not None:
        found[DS_CONFIG] = json.dumps(ds_config, indent=2) + "\n"
    if uses_accelerate(order):
        found["accelerate.yaml"] = fsdp.accelerate_yaml(order) if fsdp.is_used(order) else accelerate_yaml(order)
    flags = ["--training-args", "training_args.json", *(["--deepspeed", DS_CONFIG] if ds_config else [])]
    said = {"training_args": arguments(order), **({"deepspeed": ds_config} if ds_config else {})}
    return {
        **found,
        "launch.sh": launch_sh(order),
        "env.sh": env_sh(order),
        "README.md": readme(order, flags, said),
    }


def arguments(order: Order) -> dict[str, Any]:
    """Fields of TrainingArguments, by the names of transformers 5.24; the script adds what each run says."""
    settings = order.settings
    found = {
        "per_device_train_batch_size": settings.bs,
        "gradient_accumulation_steps": settings.accum,
        "per_device_eval_batch_size": settings.eval_bs,
        "eval_accumulation_steps": settings.eval_accum,
        "fp16": settings.precision == "fp16",
        "bf16": settings.precision == "bf16",
        "optim": settings.optim,
        "activation_checkpointing": settings.grad_checkpointing and settings.checkpoint_layers is None,
        "activation_checkpointing_kwargs": {"use_reentrant": True} if settings.checkpoint_reentrant else None,
        "max_grad_norm": settings.clip_grad,
        "label_smoothing_factor": settings.label_smoothing,
        "ddp_bucket_cap_mb": settings.ddp_bucket_cap_mb,
        "ddp_find_unused_parameters": settings.ddp_find_unused_parameters,
        "dataloader_num_workers": settings.workers,
        "dataloader_prefetch_factor": settings.prefetch,
        "dataloader_pin_memory": settings.pin_memory,
        "dataloader_drop_last": settings.train_samples is None,
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "warmup_steps": 0.05,
        "logging_steps": 10,
        "report_to": "none",
    }
    if fsdp.is_used(order):
        found |= fsdp.arguments(order)
    if settings.optim in MADE_FOR_TRAINER:
        del found["optim"]  # the script makes it
    return {name: value for name, value in found.items() if value is not None}


def _uses_deepspeed(order: Order) -> bool:
    return str(order.settings.parallel).startswith("zero")


def _script(order: Order) -> str:
    settings = order.settings
    own = made(settings.optim or "") if settings.optim in MADE_FOR_TRAINER else None
    ema = ["ema"] if settings.ema else []
    constants = {
        **building.constants(order),
        "DEEPSPEED": repr(DS_CONFIG if _uses_deepspeed(order) else None),
        "OPTIMIZER": "None  # the one that training_args.json names" if own is None else own.text,
        "OPTIMIZER_ON_CPU": repr(settings.optim if settings.optim in ON_CPU else "adamw_torch"),
    }
    values = {**building.values(order), "callbacks": "AverageWeights()" if ema else ""}
    fragments = [*building.fragments(order), *ema, "trainer"]
    return script(fragments, constants, values, modules=[own.module] if own else [])
