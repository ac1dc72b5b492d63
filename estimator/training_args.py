"""``--training-args``: what a Trainer's arguments (transformers 5.24, ``TrainingArguments.to_json_string``) ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from .accelerate_arguments import accelerate_settings
from .config_file import read_json
from .errors import InvalidRequest, NotModelled
from .fsdp_arguments import fsdp_settings

__all__ = ["Reading", "read"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """``settings`` are fields of ``TrainSettings``; ``fields`` name the argument behind each."""

    name: str
    settings: Mapping[str, Any]
    fields: Mapping[str, str]

    def merged(self, asked: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What was ``asked`` for explicitly wins; the second value names every contradiction."""
        notes = tuple(
            f"{name} {asked[name]!r} as asked, not the {value!r} of {self.fields[name]} in {self.name}"
            for name, value in self.settings.items()
            if name in asked and asked[name] != value
        )
        return {**self.settings, **asked}, notes


def read(source: str | PathLike[str] | Mapping[str, Any]) -> Reading:
    """The settings in a JSON file or a mapping; raises ``InvalidRequest`` for what the Trainer refuses as well, and
    ``NotModelled`` for an argument that changes the memory in a way that is not modelled."""
    if isinstance(source, Mapping):
        return _reading("the training arguments", source)
    if not isinstance(source, (str, PathLike)):
        raise InvalidRequest(f"training_args {source!r} is not valid; name a JSON file, or give its content in braces")
    if not fspath(source).strip():
        raise InvalidRequest("training_args is empty; name the JSON that TrainingArguments.to_json_string() writes")
    path = Path(fspath(source))
    return _reading(path.name, read_json(path, "the JSON of TrainingArguments.to_json_string()"))


def _reading(name: str, arguments: Mapping[str, Any]) -> Reading:
    _check_kinds(name, arguments)
    for field, refuse in _REFUSED.items():
        if arguments.get(field) and (reason := refuse(arguments[field])):
            raise NotModelled(f"{name}: {field} {arguments[field]!r} {reason}")
    if arguments.get("weight_decay") and arguments.get("optim") in _COUPLED_DECAY:
        raise NotModelled(
            f"{name}: weight_decay with optim {arguments['optim']!r} copies the gradients, which is not modelled; "
            "leave weight_decay out or use adamw_torch"
        )
    found = {
        "loop": ("trainer", name),
        "precision": (_precision(name, arguments), "fp16 and bf16"),
        "grad_checkpointing": (_checkpoints(arguments), "gradient_checkpointing"),
    }
    if _checkpoints(arguments) and _is_reentrant(arguments):
        found["checkpoint_reentrant"] = (True, "use_reentrant")
    found |= {setting: (arguments[field], field) for field, setting in _SETTINGS.items() if field in arguments}
    if arguments.get("deepspeed"):
        if arguments.get("fsdp"):
            raise InvalidRequest(f"{name} has both fsdp and deepspeed; the Trainer takes one of them")
        found["deepspeed"] = (arguments["deepspeed"], "deepspeed")
    found |= fsdp_settings(name, arguments)
    found |= accelerate_settings(name, arguments)
    return Reading(
        name=name,
        settings={setting: value for setting, (value, _) in found.items()},
        fields={setting: field for setting, (_, field) in found.items()},
    )


#: Optimizers that add the decay to the gradients: their foreach step does so on a copy (torch/optim of 2.14).
_COUPLED_DECAY = frozenset({"sgd", "adagrad", "rmsprop"})

#: Arguments that are a setting as they are.
_SETTINGS: Mapping[str, str] = {
    "per_device_train_batch_size": "bs",
    "gradient_accumulation_steps": "accum",
    "optim": "optim",
    "max_grad_norm": "clip_grad",
    "label_smoothing_factor": "label_smoothing",
    "per_device_eval_batch_size": "eval_bs",
    "eval_accumulation_steps": "eval_accum",
    "dataloader_num_workers": "workers",
    "dataloader_prefetch_factor": "prefetch",
    "dataloader_pin_memory": "pin_memory",
    "torch_compile": "compile",
    "ddp_bucket_cap_mb": "ddp_bucket_cap_mb",
    "ddp_find_unused_parameters": "ddp_find_unused_parameters",
}


def _check_kinds(name: str, arguments: Mapping[str, Any]) -> None:
    """Each argument that is read holds what its field of TrainingArguments is declared for; null leaves it open."""
    if not arguments.keys() & (_SETTINGS.keys() | _KINDS.keys() | _REFUSED.keys() | {"output_dir"}):
        raise InvalidRequest(f"{name} holds no training argument; it must be what TrainingArguments writes")
    for field, (label, is_valid) in _KINDS.items():
        value = arguments.get(field)
        if value is not None and not is_valid(value):
            raise InvalidRequest(f"{name}: {field} {value!r} is not valid; it must be {label}")


def _is_fsdp(value: Any) -> bool:
    words = value if isinstance(value, list) else [value]
    return isinstance(value, bool) or all(isinstance(word, str) for word in words)


_Kind = tuple[str, Callable[[Any], bool]]
_SWITCH: _Kind = ("true or false", lambda value: isinstance(value, bool))
_TEXT: _Kind = ("a name", lambda value: isinstance(value, str))
_SECTION: _Kind = ("a section in braces", lambda value: isinstance(value, Mapping))
_FILE: _Kind = ("a section in braces or the name of a JSON file", lambda value: isinstance(value, (Mapping, str)))

#: Arguments that no setting checks.
_KINDS: Mapping[str, _Kind] = {
    **dict.fromkeys(("fp16", "bf16", "use_cpu"), _SWITCH),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), _SWITCH),
    **dict.fromkeys(("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"), _SECTION),
    **dict.fromkeys(("deepspeed", "accelerator_config", "fsdp_config"), _FILE),
    "optim": _TEXT,
    "fsdp": ("true, false or its words", _is_fsdp),
    "ddp_bucket_cap_mb": ("a whole number of MiB, at least 1", lambda value: type(value) is int and value > 0),
    **dict.fromkeys(("ddp_find_unused_parameters", "ddp_broadcast_buffers", "ddp_static_graph"), _SWITCH),
    "ddp_backend": _TEXT,
}


def _precision(name: str, arguments: Mapping[str, Any]) -> str:
    if arguments.get("fp16") and arguments.get("bf16"):
        raise InvalidRequest(f"{name} has both fp16 and bf16; the Trainer takes one of them")
    return "fp16" if arguments.get("fp16") else "bf16" if arguments.get("bf16") else "fp32"


def _checkpoints(arguments: Mapping[str, Any]) -> bool:
    """The newer name decides where it is not null (``__post_init__``)."""
    newer = arguments.get("activation_checkpointing")
    return bool(arguments.get("gradient_checkpointing") if newer is None else newer)


def _is_reentrant(arguments: Mapping[str, Any]) -> bool:
    """What torch.utils.checkpoint gets: False from transformers where nothing is handed on; else its own is True."""
    newer = arguments.get("activation_checkpointing_kwargs")
    options = (arguments.get("gradient_checkpointing_kwargs") if newer is None else newer) or {}
    handed_on = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
    return bool(handed_on) and handed_on.get("use_reentrant") in (None, True)


#: Options of transformers' own, and the value that changes nothing.
_OWN_OPTIONS = {"every_n_layers": 1, "offload": False}


def _checkpointing(options: Mapping[str, Any]) -> str:
    usual = _OWN_OPTIONS
    other = [key for key, value in options.items() if key in usual and value != usual[key]]
    return f"is not modelled; leave out {', '.join(other)}" if other else ""


#: Arguments that change the memory in a way that is not modelled: the reason, empty where the value is harmless.
_REFUSED: Mapping[str, Callable[[Any], str]] = {
    "gradient_checkpointing_kwargs": _checkpointing,
    "activation_checkpointing_kwargs": _checkpointing,
    "optim_args": lambda value: "changes what the optimizer keeps; leave it out, or name the optimizer with --optim",
    "optim_target_modules": lambda value: "is not modelled; leave it out",
    "torch_empty_cache_steps": lambda value: "empties the allocator's cache within a step, which is not modelled",
    "use_cpu": lambda value: "trains on the CPU: there is no GPU memory to estimate",
}
