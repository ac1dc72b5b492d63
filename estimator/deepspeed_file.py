"""``--deepspeed``: what a DeepSpeed configuration (deepspeed 0.19.8) asks for, as Trainer reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from .config_file import read_json
from .errors import InvalidRequest, NotModelled
from .training_args import Reading

__all__ = ["DeepSpeedFile", "read"]

_AUTO = "auto"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedFile(Reading):
    """The settings, and the ``options`` of ZeRO that are no setting."""

    options: tuple[tuple[str, int | str], ...] = ()


def read(source: str | PathLike[str] | Mapping[str, Any]) -> DeepSpeedFile:
    """The settings in a JSON file or a mapping; raises ``NotModelled`` for what changes the memory in another way."""
    if isinstance(source, Mapping):
        return _reading("the DeepSpeed configuration", source)
    if not fspath(source).strip():
        raise InvalidRequest("deepspeed is empty; name the JSON that Trainer is given")
    path = Path(fspath(source))
    return _reading(path.name, read_json(path, "a DeepSpeed configuration"))


def _reading(name: str, document: Mapping[str, Any]) -> DeepSpeedFile:
    zero = document.get("zero_optimization")
    if not isinstance(zero, Mapping) or zero.get("stage") not in {1, 2, 3}:
        raise NotModelled(f"{name} asks for no ZeRO stage 1, 2 or 3 in zero_optimization; only these are modelled")
    for entries, usual, where in ((document, _USUAL, ""), (zero, _USUAL_OF_ZERO, "zero_optimization.")):
        for entry, values in usual.items():
            if entry in entries and entries[entry] not in (*values, _AUTO):
                raise NotModelled(f"{name}: {where}{entry} {entries[entry]!r} changes memory and is not modelled")
    found = dict(_settings(name, document, zero))
    return DeepSpeedFile(
        name=name,
        settings={setting: value for setting, (value, _) in found.items()},
        fields={setting: field for setting, (_, field) in found.items()},
        options=tuple(_options(name, document, zero)),
    )


def _options(name: str, document: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[tuple[str, int | str]]:
    for key in _OPTIONS:
        if zero.get(key) is not None:
            yield key, _number(name, key, zero[key])
    parts = [zero.get(f"offload_{part}") or {} for part in ("optimizer", "param")]
    if any("pin_memory" in part for part in parts):
        yield "pin_memory", any(part.get("pin_memory") for part in parts)
    if document.get("optimizer"):
        yield "single_group", True


#: Entries of ``zero_optimization`` that are options of :class:`vitmem.parallel.zero_config.ZeroConfig` as they are.
_OPTIONS = (
    "reduce_bucket_size",
    "overlap_comm",
    "reduce_scatter",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "sub_group_size",
)

#: Entries that would change what is allocated, with the values that do not.
_USUAL: Mapping[str, tuple[Any, ...]] = {
    "data_types": ({},),
    "amp": ({}, {"enabled": False}),
    "torch_autocast": ({}, {"enabled": False}),
    "activation_checkpointing": ({},),
    "zero_allow_untested_optimizer": (True, False),
    "communication_data_type": (None,),
}
_USUAL_OF_ZERO: Mapping[str, tuple[Any, ...]] = {
    "contiguous_gradients": (True,),
    "round_robin_gradients": (False,),
    "use_multi_rank_bucket_allreduce": (True,),
    "zero_hpz_partition_size": (1,),
    "zero_quantized_weights": (False,),
    "zero_quantized_gradients": (False,),
    "zero_quantized_nontrainable_weights": (False,),
    "mics_shard_size": (-1,),
    "cpu_offload": (False,),
    "zenflow": (None,),
}


def _settings(name: str, document: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "parallel", (f"zero{zero['stage']}", "zero_optimization.stage")
    yield "loop", ("trainer", name)
    on_host = [part for part in ("optimizer", "param") if _is_on_host(name, part, zero.get(f"offload_{part}"))]
    if on_host == ["param"]:
        raise NotModelled(f"{name}: offload_param without offload_optimizer is not modelled; give both or neither")
    if on_host:
        offload = "all" if "param" in on_host else "optimizer"
        yield "offload", (offload, f"zero_optimization.offload_{on_host[-1]}")
    for entry, setting in _NUMBERS.items():
        value = document.get(entry)
        if value is not None and value != _AUTO:
            yield setting, (value, entry)
    precisions = {entry: (document.get(entry) or {}).get("enabled") for entry in ("fp16", "bf16")}
    if all(value is True for value in precisions.values()):
        raise InvalidRequest(f"{name} has both fp16 and bf16; DeepSpeed takes one of them")
    for entry, enabled in precisions.items():
        if enabled is True:
            yield "precision", (entry, f"{entry}.enabled")
    if False in precisions.values() and not {True, _AUTO} & set(precisions.values()):
        yield "precision", ("fp32", "fp16.enabled and bf16.enabled")
    if optimizer := document.get("optimizer"):
        yield "optim", (_optim(name, optimizer.get("type")), "optimizer.type")


def _optim(name: str, kind: Any) -> str:
    """DeepSpeed's FusedAdam updates in place, as torch's fused implementation does."""
    if str(kind).lower() not in {"adam", "adamw"}:
        raise NotModelled(f"{name}: optimizer {kind!r} is not modelled; use AdamW, or leave optimizer to Trainer")
    return "adamw_torch_fused"


_NUMBERS = {
    "train_micro_batch_size_per_gpu": "bs",
    "gradient_accumulation_steps": "accum",
    "gradient_clipping": "clip_grad",
}


def _is_on_host(name: str, part: str, offload: Any) -> bool:
    device = (offload or {}).get("device", "none")
    if device == "nvme":
        raise NotModelled(f"{name}: offload_{part} to nvme is not modelled; use cpu")
    return bool(device == "cpu")


def _number(name: str, key: str, value: Any) -> int | str:
    if value == _AUTO or isinstance(value, bool):
        return _AUTO if value == _AUTO else value
    if not isinstance(value, (int, float)) or value < 0:
        raise InvalidRequest(f"{name}: {key} {value!r} is no number of elements")
    return int(value)
