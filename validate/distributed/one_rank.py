"""FSDP2 on one CUDA device: the first of many ranks, whose collectives nobody else takes part in.

torch's own "fake" process group (torch/testing/_internal/distributed/fake_pg.py of torch 2.14) stands in for the
others: what is allocated, and on which stream, is decided before a collective begins. What NCCL holds is not there.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings

from .fsdp import layer_classes, options

__all__ = ["alone", "first_of", "shard"]

#: What transformers' ``_no_split_modules`` name a stage of.
_BLOCKS_OF = {"SwinStage": "SwinLayer", "Swinv2Stage": "Swinv2Layer"}
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def alone(settings: TrainSettings) -> TrainSettings:
    """The settings of the model itself."""
    others: dict[str, Any] = {"offload": "none", "reshard_after_forward": None, "wrap_layers": None}
    return dataclasses.replace(settings, gpus=1, parallel=None, **others)


def first_of(settings: TrainSettings) -> AbstractContextManager[None]:
    """A process group of ``settings.gpus`` ranks while FSDP trains inside; else nothing."""
    if settings.parallel != "fsdp" and settings.gpus == 1:
        return nullcontext()
    if settings.parallel != "fsdp":
        raise NotModelled(
            "on one device the other ranks of FSDP can be left out, not those of DDP or ZeRO: use --backend cpu, which "
            "starts them all, or --parallel fsdp"
        )
    return _group(settings.gpus)


@contextlib.contextmanager
def _group(ranks: int) -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()


def shard(model: nn.Module, settings: TrainSettings) -> None:
    """As the loop does it: accelerate's own function for Trainer, every block and then the model in a plain one."""
    if settings.loop == "trainer":
        _as_accelerate(model, settings)
        return
    dtype = _DTYPES.get(settings.precision)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32) if dtype else MixedPrecisionPolicy()
    shared: dict[str, Any] = {
        "mp_policy": policy,
        "offload_policy": CPUOffloadPolicy() if settings.offload == "all" else OffloadPolicy(),
    }
    classes = {_BLOCKS_OF.get(name, name) for name in layer_classes(model)}
    for module in [module for module in model.modules() if type(module).__name__ in classes]:
        fully_shard(module, reshard_after_forward=settings.reshard_after_forward is not False, **shared)
    fully_shard(model, **shared)


def _as_accelerate(model: nn.Module, settings: TrainSettings) -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="TRANSFORMER_BASED_WRAP",
        transformer_cls_names_to_wrap=options(model, {})["transformer_layer_cls_to_wrap"],
        cpu_offload=settings.offload == "all",
        reshard_after_forward=settings.reshard_after_forward is not False,
    )
    mixed = settings.precision if settings.precision in _DTYPES else "no"
    if mixed != "no":
        plugin.set_mixed_precision(mixed)
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision=mixed,
        is_main_process=True,
        device=torch.device("cuda"),
    )
    fsdp2_prepare_model(accelerator, model)
