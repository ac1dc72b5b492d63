"""``--deepspeed``: what a DeepSpeed configuration (deepspeed 0.19.8) asks for, as Trainer reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from .config_file import read_json
from .deepspeed_entries import AUTO, check_entries
from .errors import InvalidRequest, NotModelled
from .training_args import Reading

__all__ = ["OPTIONS", "DeepSpeedFile", "read"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedFile(Reading):
    """The settings, the ``options`` of ZeRO that are no setting, ``notes`` on what the file asks for in vain, and the
    ``batch``: images per update on all GPUs, where it is said."""

    options: tuple[tuple[str, int | str], ...] = ()
    notes: tuple[str, ...] = ()
    batch: int | None = None


def read(source: str | PathLike[str] | Mapping[str, Any]) -> DeepSpeedFile:
    """The settings in a JSON file or a mapping; raises ``NotModelled`` for what changes the memory in another way."""
    if isinstance(source, Mapping):
        return _reading("the DeepSpeed configuration", source)
    if not isinstance(source, (str, PathLike)):
        raise InvalidRequest(f"deepspeed {source!r} is not valid; name a JSON file, or give its content in braces")
    if not fspath(source).strip():
        raise InvalidRequest("deepspeed is empty; name the JSON that Trainer is given")
    path = Path(fspath(source))
    return _reading(path.name, read_json(path, "a DeepSpeed configuration"))


def _reading(name: str, document: Mapping[str, Any]) -> DeepSpeedFile:
    zero = document.get("zero_optimization", {})
    if isinstance(zero, Mapping) and zero.get("stage", 0) == 0:
        raise NotModelled(f"{name} asks for no ZeRO stage 1, 2 or 3 in zero_optimization; only these are modelled")
    if zero is None:
        raise InvalidRequest(f"{name}: zero_optimization null is not valid; it must be a section in braces")
    check_entries(name, document)
    if zero["stage"] not in {1, 2, 3}:
        raise InvalidRequest(f"{name}: zero_optimization.stage {zero['stage']!r} is not valid; it must be 1, 2 or 3")
    batch = document.get("train_batch_size")
    found = dict(_settings(name, document, zero))
    return DeepSpeedFile(
        name=name,
        settings={setting: value for setting, (value, _) in found.items()},
        fields={setting: field for setting, (_, field) in found.items()},
        options=tuple(_options(name, document, zero)),
        notes=tuple(_notes(name, document, zero)),
        batch=None if batch in {None, AUTO} else int(batch),
    )


def _options(name: str, document: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[tuple[str, int | str]]:
    for key in OPTIONS:
        if (value := zero.get(key)) is not None:
            yield key, value if value == AUTO or isinstance(value, bool) else int(value)
    parts = [zero.get(f"offload_{part}") or {} for part in ("optimizer", "param")]
    if any("pin_memory" in part for part in parts):
        yield "pin_memory", any(part.get("pin_memory") for part in parts)
    if document.get("optimizer"):
        yield "single_group", True
    types = document.get("data_types") or {}
    for key in ("buffer_dtype", "grad_accum_dtype", "param_dtype"):
        if types.get(key) is not None:
            yield key, types[key]
    if document.get("communication_data_type") is not None:
        yield "communication_data_type", document["communication_data_type"]


def _notes(name: str, document: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[str]:
    """What DeepSpeed reads and does not use here."""
    if document.get("activation_checkpointing"):
        yield (
            f"activation_checkpointing of {name} is for models that call deepspeed.checkpointing, which none of these "
            "does; --grad-checkpointing is Trainer's"
        )
    if zero["stage"] < 3 and _is_on_host(name, "param", zero.get("offload_param")):
        yield f"offload_param of {name} does nothing below stage 3: the weights stay on the GPU"


#: Entries of ``zero_optimization`` that are options of :class:`vitmem.parallel.zero_config.ZeroConfig` as they are.
OPTIONS = (
    "reduce_bucket_size",
    "overlap_comm",
    "reduce_scatter",
    "round_robin_gradients",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_model_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "sub_group_size",
)


def _settings(name: str, document: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "parallel", (f"zero{int(zero['stage'])}", "zero_optimization.stage")
    yield "loop", ("trainer", name)
    parts = ("optimizer", "param") if zero["stage"] == 3 else ("optimizer",)
    on_host = [part for part in parts if _is_on_host(name, part, zero.get(f"offload_{part}"))]
    if on_host == ["param"]:
        raise NotModelled(f"{name}: offload_param without offload_optimizer is not modelled; give both or neither")
    if on_host:
        offload = "all" if "param" in on_host else "optimizer"
        yield "offload", (offload, f"zero_optimization.offload_{on_host[-1]}")
    for entry, setting in _NUMBERS.items():
        value = document.get(entry)
        if value is not None and value != AUTO:
            yield setting, (int(value) if value == int(value) else value, entry)
    precisions = {entry: (document.get(entry) or {}).get("enabled") for entry in ("fp16", "bf16")}
    if all(value is True for value in precisions.values()):
        raise InvalidRequest(f"{name} has both fp16 and bf16; DeepSpeed takes one of them")
    for entry, enabled in precisions.items():
        if enabled is True:
            yield "precision", (entry, f"{entry}.enabled")
    if False in precisions.values() and not {True, AUTO} & set(precisions.values()):
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
