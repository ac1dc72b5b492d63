"""A live model as settings: read from its own configuration, then held against the model that these settings build.

The second half is what makes the first safe: the library builds the described model on the meta device, and every
parameter, every module and what each module prints of itself has to be the live one's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vitmem import TrainSettings
from vitmem.errors import InvalidRequest, NotModelled

from ..build import Built, build_model
from ..build_timm import first_parts as first_parts_of_timm
from ..build_timm import unwrapped
from ..build_transformers import first_parts as first_parts_of_transformers

__all__ = ["Described", "described", "keywords", "whole_shape"]

_PURE = {torch.float16: "pure-fp16", torch.bfloat16: "pure-bf16"}
#: What of a PEFT configuration changes the memory and is not a setting.
_PEFT_USUAL: Mapping[str, Any] = {
    "bias": "none",
    "use_dora": False,
    "layers_to_transform": None,
    "rank_pattern": {},
    "target_parameters": None,
    "trainable_token_indices": None,
    "layer_replication": None,
    "lora_bias": False,
}

#: Attributes that say how a module is used, and are settings of their own.
_STATE = frozenset({"training", "gradient_checkpointing", "grad_checkpointing", "activation_checkpointing"})

#: What the model's builder needs not to know: the engine wraps what it builds.
_OF_THE_ENGINE: Mapping[str, Any] = {"gpus": 1, "parallel": None, "offload": "none", "zero_options": ()}

_OF_FILES = frozenset({"training_args", "deepspeed", "zero_options"})


class Described:
    """``settings`` describe the live model; ``built`` is what they build. The model is a folder that goes away."""

    def __init__(self, name: str, settings: TrainSettings, built: Built) -> None:
        self.name, self.settings, self.built = name, settings, built


@contextlib.contextmanager
def described(model: nn.Module, given: Mapping[str, Any]) -> Iterator[Described]:
    """The settings of ``model``, with ``given`` ones of the loop; raises NotModelled with what differs."""
    adapted = _peft(model)
    base = model if adapted is None else adapted.pop("base")
    with tempfile.TemporaryDirectory(prefix="vitmem-") as folder:
        name, own = _configuration(base, Path(folder))
        own |= adapted or {}
        own["precision"] = _precision(model, given)
        if adapted is None:
            own |= _trained(model)
        if _checkpoints(base):
            own["grad_checkpointing"] = True
        settings = TrainSettings.of(folder, **{**given, **own})
        built = build_model(dataclasses.replace(settings, **_OF_THE_ENGINE))
        _compare(model, built.model)
        yield Described(name, settings, built)


def keywords(settings: TrainSettings) -> dict[str, Any]:
    """The settings as :func:`vitmem.estimate` takes them, without what came from files and what is left open."""
    values = settings.to_dict()
    return {name: value for name, value in values.items() if value is not None and name not in _OF_FILES}


# the model


def _configuration(model: nn.Module, folder: Path) -> tuple[str, dict[str, Any]]:
    """Writes ``config.json``; what the model is called, and the settings that are not in the file."""
    core: Any = unwrapped(model)
    config: Any = getattr(model, "config", None)
    if core is not model or hasattr(model, "pretrained_cfg"):
        return _timm(core, config, folder)
    if config is None or not hasattr(config, "to_dict") or not getattr(config, "model_type", ""):
        raise NotModelled(f"{type(model).__name__} is no model of transformers or timm that names its configuration")
    document = json.loads(config.to_json_string(use_diff=False))
    document["architectures"] = [type(model).__name__]
    _write(folder, document)
    own = {"num_classes": config.num_labels, "attn": getattr(config, "_attn_implementation", None) or "auto"}
    if type(model).__name__.endswith("ForPreTraining"):
        del own["num_classes"]
    return config.name_or_path or type(model).__name__, own


def _timm(core: Any, config: Any, folder: Path) -> tuple[str, dict[str, Any]]:
    architecture = getattr(core, "pretrained_cfg", {}).get("architecture") or getattr(config, "architecture", None)
    if not architecture:
        raise NotModelled(f"{type(core).__name__} does not say which architecture of timm it is")
    arguments = dict(getattr(config, "model_args", None) or {})
    if config is None:
        arguments = _sizes(core)
    _write(folder, {"architecture": architecture, "model_args": arguments})
    fused = {bool(module.fused_attn) for module in core.modules() if hasattr(module, "fused_attn")}
    attn = "auto" if len(fused) != 1 else "sdpa" if fused == {True} else "eager"
    return str(architecture), {"num_classes": core.num_classes, "attn": attn}


def _sizes(core: Any) -> dict[str, Any]:
    """What a timm model was built with, where its sizes tell: timm keeps no record of the arguments."""
    found: dict[str, Any] = {}
    patches: Any = getattr(core, "patch_embed", None)
    size = getattr(patches, "img_size", None)
    if size is not None and tuple(size) != tuple(core.pretrained_cfg["input_size"][1:]):
        found["img_size"] = list(size)
    heads = {getattr(getattr(block, "attn", None), "num_heads", None) for block in getattr(core, "blocks", ())}
    if len(heads) == 1 and type(core).__name__ == "VisionTransformer":
        found |= {"embed_dim": core.embed_dim, "depth": len(core.blocks), "num_heads": heads.pop()}
        found["patch_size"] = patches.patch_size[0]
    return found


def _write(folder: Path, document: Mapping[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")


# what is trained, and in which types


def _precision(model: nn.Module, given: Mapping[str, Any]) -> str:
    autocast = str(given.get("precision", "fp32"))
    dtypes = {_dtype(parameter) for name, parameter in model.named_parameters() if ".lora_" not in name}
    if dtypes == {torch.float32}:
        return autocast
    pure = _PURE.get(next(iter(dtypes))) if len(dtypes) == 1 else None
    if pure is None or autocast not in {"fp32", pure}:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise NotModelled(f"parameters are {names} under {autocast}: that mixture is not modelled")
    return pure


def _trained(model: nn.Module) -> dict[str, Any]:
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if not frozen:
        return {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    heads = {name for name in names.values() if "classifier" in name or name.startswith(("head", "timm_model.head"))}
    if frozen == set(names.values()) - heads:
        return {"train": "linear-probe"}
    for count in range(1000):
        try:
            parts = list(_first_parts(model, count))
        except InvalidRequest:
            break
        inside = {names[id(parameter)] for part in parts for parameter in _parameters(part)}
        if inside == frozen:
            return {"freeze_layers": count}
        if not inside < frozen:
            break
    raise NotModelled(
        f"{len(frozen)} of {len(names)} parameters are frozen in a way that no setting describes: neither all but the "
        "classifier, nor the embeddings and the first blocks"
    )


def _first_parts(model: nn.Module, count: int) -> Iterator[nn.Module | nn.Parameter]:
    of_timm = unwrapped(model) is not model or hasattr(model, "pretrained_cfg")
    yield from first_parts_of_timm(model, count) if of_timm else first_parts_of_transformers(model, count)


def _parameters(part: nn.Module | nn.Parameter) -> list[nn.Parameter]:
    return list(part.parameters()) if isinstance(part, nn.Module) else [part]


def _peft(model: nn.Module) -> dict[str, Any] | None:
    """The settings behind PEFT's adapters, with the model under ``base``; None without PEFT."""
    configs: Any = getattr(model, "peft_config", None)
    if configs is None or not hasattr(model, "get_base_model"):
        return None
    config: Any = next(iter(configs.values())) if len(configs) == 1 else None
    if type(config).__name__ != "LoraConfig":
        raise NotModelled("only one LoRA adapter of PEFT is modelled")
    for field, usual in _PEFT_USUAL.items():
        if (value := getattr(config, field, usual)) not in (usual, None):
            raise NotModelled(f"LoraConfig's {field} {value!r} is not modelled; leave it out")
    base: Any = model.get_base_model()  # type: ignore[operator]
    if getattr(base, "_require_grads_hook", None) is not None:
        raise NotModelled(
            "gradient checkpointing was switched on before PEFT wrapped the model; switch it on afterwards"
        )
    wanted = config.target_modules
    return {
        "base": base,
        "train": "lora",
        "lora_rank": config.r,
        "lora_dropout": config.lora_dropout,
        "lora_targets": wanted if isinstance(wanted, str) else sorted(wanted),
    }


def _checkpoints(base: Any) -> bool:
    """Whether checkpointing is on already; reentrant checkpointing is refused."""
    for module in base.modules():
        options = getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", None) or {}
        if options.get("use_reentrant"):
            raise NotModelled("reentrant checkpointing is not modelled; pass use_reentrant=False")
    core: Any = unwrapped(base)
    return bool(getattr(base, "is_activation_checkpointing", False) or getattr(core, "grad_checkpointing", False))


# whether it is the same


def _compare(live: nn.Module, built: nn.Module) -> None:
    for what, there, here in (
        ("parameters", _parameter_rows(live), _parameter_rows(built)),
        ("buffers", _buffer_rows(live), _buffer_rows(built)),
        ("modules", _module_rows(live), _module_rows(built)),
    ):
        if there == here:
            continue
        differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
        name = differing[0]
        raise NotModelled(
            f"the live model is not what its configuration builds: {len(differing)} {what} differ, such as {name}: "
            f"{there.get(name, 'not there')} in the model, {here.get(name, 'not there')} by its configuration"
        )


def whole_shape(parameter: nn.Parameter) -> torch.Size:
    """Of a parameter that ZeRO-3 has cut up when the model was built: that of all its parts together."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def _dtype(parameter: nn.Parameter) -> torch.dtype:
    """The type that the model was to be built in, where ZeRO-3 has already put the engine's in its place."""
    return torch.float32 if hasattr(parameter, "ds_shape") else parameter.dtype


def _parameter_rows(model: nn.Module) -> dict[str, str]:
    return {
        name: f"{tuple(whole_shape(p))} {_dtype(p)}{'' if p.requires_grad else ' frozen'}"
        for name, p in model.named_parameters()
    }


def _buffer_rows(model: nn.Module) -> dict[str, str]:
    return {name: f"{tuple(buffer.shape)} {buffer.dtype}" for name, buffer in model.named_buffers()}


def _module_rows(model: nn.Module) -> dict[str, str]:
    return {
        name: f"{type(module).__name__}({module.extra_repr()}; {_numbers(module)})"
        for name, module in model.named_modules()
    }


def _numbers(module: nn.Module) -> str:
    """What shapes do not tell: heads, rates, windows, which attention."""
    numbers = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in _STATE and isinstance(value, (bool, int, float))
    }
    return ", ".join(f"{name}={numbers[name]}" for name in sorted(numbers))
