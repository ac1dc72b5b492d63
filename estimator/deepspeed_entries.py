"""The entries of a DeepSpeed file (deepspeed 0.19.8, runtime/config.py, zero/config.py, zero/offload_config.py): what
each may hold, and the values that are modelled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .errors import InvalidRequest, NotModelled, did_you_mean

__all__ = ["AUTO", "check_entries"]

AUTO = "auto"


class Entry(NamedTuple):
    """``usual``: the values that are modelled, where not all are; ``why``: what another one does.

    ``fills``: Trainer and accelerate replace ``auto``.
    """

    kind: str
    usual: tuple[Any, ...] | None = None
    why: str = "changes memory"
    fills: bool = False


def check_entries(name: str, document: Mapping[str, Any]) -> None:
    """Raise ``InvalidRequest`` for what DeepSpeed refuses, ``NotModelled`` for what changes memory in another way."""
    _check(name, "", document, _TOP, complete=False)
    for section, entries in _SECTIONS.items():
        _check(name, f"{section}.", document.get(section) or {}, entries, complete=section == "zero_optimization")
    zero = document.get("zero_optimization") or {}
    for part, entries in _OFFLOADS.items():
        _check(name, f"zero_optimization.{part}.", zero.get(part) or {}, entries, complete=True)


def _check(name: str, where: str, found: Any, entries: Mapping[str, Entry], *, complete: bool) -> None:
    """``complete``: DeepSpeed refuses every other entry."""
    if not isinstance(found, Mapping):
        raise InvalidRequest(f"{name}: {where.rstrip('.')} {found!r} is not valid; it must be a section in braces")
    for key, value in found.items():
        entry = entries.get(key)
        if entry is None:
            if complete:
                raise InvalidRequest(f"{name}: {where}{key} is unknown to DeepSpeed{did_you_mean(key, list(entries))}")
            continue
        if value is None and where.startswith(_STRICT) and key not in _NULLABLE:
            raise InvalidRequest(f"{name}: {where}{key} null is not valid; leave it out for DeepSpeed's own")
        if value is None or (value == AUTO and entry.fills):
            continue
        label, is_valid = _KINDS[entry.kind]
        if not is_valid(value):
            only = "; Trainer fills no auto here" if value == AUTO else ""
            raise InvalidRequest(f"{name}: {where}{key} {value!r} is not valid{only}; it must be {label}")
        if entry.usual is not None and value not in entry.usual:
            raise NotModelled(f"{name}: {where}{key} {value!r} {entry.why}, which is not modelled; leave it out")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "switch": ("true or false", lambda value: isinstance(value, bool)),
    "count": ("a whole number, 0 or more", lambda value: _is_number(value) and value == int(value)),
    "positive": ("a whole number, at least 1", lambda value: _is_number(value) and value == int(value) > 0),
    "even": ("an even number", lambda value: _is_number(value) and value == int(value) and value % 2 == 0),
    "integer": ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "number": ("a number, 0 or more", _is_number),
    "share": ("a number from 0 to 1", lambda value: _is_number(value) and value <= 1),
    "type": ("fp32, fp16 or bf16", lambda value: value in ("fp32", "fp16", "bf16")),
    "device": ("none, cpu or nvme", lambda value: value in ("none", "cpu", "nvme")),
    "section": ("a section in braces", lambda value: isinstance(value, Mapping)),
    "any": ("anything", lambda value: True),
}

#: Sections that DeepSpeed validates by pydantic, and their entries that may be null (each tried, deepspeed 0.19.8).
_STRICT = ("zero_optimization.", "fp16.", "bf16.")
_NULLABLE = frozenset(
    {
        "overlap_comm",
        "offload_optimizer",
        "offload_param",
        "cpu_offload",
        "cpu_offload_param",
        "cpu_offload_use_pin_memory",
        "zenflow",
        "leaf_module",
        "nvme_path",
    }
)

_OFF: tuple[Any, ...] = ({}, {"enabled": False})
_SWITCH, _COUNT, _ANY = Entry("switch"), Entry("count"), Entry("any")
_NEVER = Entry("switch", (False,))

_TOP: Mapping[str, Entry] = {
    "train_batch_size": Entry("positive", fills=True),
    "train_micro_batch_size_per_gpu": Entry("positive", fills=True),
    "gradient_accumulation_steps": Entry("positive", fills=True),
    "gradient_clipping": Entry("number", fills=True),
    "steps_per_print": _ANY,
    "wall_clock_breakdown": _SWITCH,
    "zero_optimization": Entry("section"),
    "optimizer": Entry("section"),
    "scheduler": Entry("section"),
    "fp16": Entry("section"),
    "bf16": Entry("section"),
    "data_types": Entry("section"),
    "activation_checkpointing": Entry("section"),
    "amp": Entry("section", _OFF, "hands precision to apex"),
    "torch_autocast": Entry("section", _OFF, "keeps the weights in fp32 under autocast"),
    "compression_training": Entry("section", _OFF),
    "progressive_layer_drop": Entry("section", _OFF, "leaves layers out"),
    "hybrid_engine": Entry("section", _OFF),
    "tensor_parallel": Entry("section", ({}, {"autotp_size": 0}, {"autotp_size": 1}), "divides layers among GPUs"),
    "compile": Entry("section", (*_OFF, {"deepcompile": False}), "compiles the step"),
    "communication_data_type": Entry("type"),
    "prescale_gradients": _NEVER,
    "gradient_predivide_factor": Entry("number", (1, 1.0)),
    "sparse_gradients": _NEVER,
    "zero_allow_untested_optimizer": _SWITCH,
    "zero_force_ds_cpu_optimizer": Entry("switch", (True,), "updates offloaded states by torch"),
}

_ZERO: Mapping[str, Entry] = {
    "stage": Entry("count"),
    "reduce_bucket_size": Entry("positive", fills=True),
    "allgather_bucket_size": Entry("even"),
    "allgather_partitions": _SWITCH,
    "overlap_comm": _SWITCH,
    "reduce_scatter": _SWITCH,
    "contiguous_gradients": Entry("switch", (True,)),
    "round_robin_gradients": _SWITCH,
    "use_multi_rank_bucket_allreduce": Entry("switch", (True,)),
    "compute_grad_norm": Entry("switch", (True,)),
    "parameter_alignment": _NEVER,
    "load_from_fp32_weights": _SWITCH,
    "elastic_checkpoint": _SWITCH,
    "ignore_unused_parameters": _SWITCH,
    "legacy_stage1": _NEVER,
    "offload_optimizer": Entry("section"),
    "offload_param": Entry("section"),
    "cpu_offload": Entry("switch", (False,), "is the old form of offload_optimizer"),
    "cpu_offload_param": Entry("switch", (False,), "is the old form of offload_param"),
    "cpu_offload_use_pin_memory": _SWITCH,
    "zenflow": Entry("section", ({},)),
    "sub_group_size": Entry("positive"),
    "stage3_prefetch_bucket_size": Entry("count", fills=True),
    "stage3_param_persistence_threshold": Entry("count", fills=True),
    "stage3_model_persistence_threshold": _COUNT,
    "stage3_max_live_parameters": _COUNT,
    "stage3_max_reuse_distance": _COUNT,
    "stage3_gather_16bit_weights_on_model_save": Entry("switch", fills=True),
    "stage3_gather_fp16_weights_on_model_save": _SWITCH,
    "stage3_module_granularity_threshold": Entry("integer", (0,), "fetches several layers at once"),
    "stage3_use_all_reduce_for_fetch_params": Entry("switch", (False,), "gathers by another way"),
    "stage3_allgather_sequential": Entry("switch", (False,), "gathers by another way"),
    "memory_efficient_linear": _SWITCH,
    "pipeline_loading_checkpoint": _SWITCH,
    "override_module_apply": _SWITCH,
    "log_trace_cache_warnings": _SWITCH,
    "enable_sanity_checks": _SWITCH,
    "save_muon_momentum_buffer_in_memory": _SWITCH,
    "leaf_module": Entry("section", ({},), "fetches several layers at once"),
    "zero_hpz_partition_size": Entry("count", (0, 1), "keeps a second copy of the shards"),
    "zero_quantized_weights": _NEVER,
    "zero_quantized_nontrainable_weights": _NEVER,
    "zero_quantized_gradients": _NEVER,
}

_SECTIONS: Mapping[str, Mapping[str, Entry]] = {
    "zero_optimization": _ZERO,
    "fp16": {
        "enabled": Entry("switch", fills=True),
        "auto_cast": Entry("switch", fills=True),
        "loss_scale": Entry("number"),
        "initial_scale_power": _COUNT,
        "loss_scale_window": _COUNT,
        "hysteresis": _COUNT,
        "min_loss_scale": Entry("number"),
        "fp16_master_weights_and_grads": _NEVER,
    },
    "bf16": {
        "enabled": Entry("switch", fills=True),
        "bf16_master_weights_and_grads": _NEVER,
        "bf16_optimizer_states": _NEVER,
    },
    "data_types": {
        "grad_accum_dtype": Entry("type"),
        "param_dtype": Entry("type"),
        "buffer_dtype": Entry("type"),
        "keep_in_fp32_modules": Entry("any", (AUTO, []), "keeps a part of the model in fp32"),
    },
}

_BUFFERS = {"device": Entry("device"), "nvme_path": _ANY, "buffer_count": _COUNT, "pin_memory": _SWITCH}
_OFFLOADS: Mapping[str, Mapping[str, Entry]] = {
    "offload_optimizer": {
        **_BUFFERS,
        "pipeline_read": _SWITCH,
        "pipeline_write": _SWITCH,
        "fast_init": _SWITCH,
        "ratio": Entry("share", (1, 1.0), "leaves a part of the states on the GPU"),
        "super_offload": _NEVER,
        "cpuadam_cores_perc": Entry("share"),
    },
    "offload_param": {**_BUFFERS, "buffer_size": _COUNT, "max_in_cpu": _COUNT},
}
