"""``fsdp`` and ``fsdp_config`` of TrainingArguments, as transformers 5.24 reads them (``_process_fsdp_args``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .config_file import read_json
from .errors import InvalidRequest, NotModelled

__all__ = ["fsdp_settings"]

_SOURCE = "fsdp_config"
#: Words of the older ``fsdp`` string, and what they say of ``reshard_after_forward``.
_WORDS = {"full_shard": True, "shard_grad_op": False, "auto_wrap": None, "offload": None}


def fsdp_settings(name: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Settings with the argument behind each; nothing where ``fsdp`` is off. Raises for what is not modelled."""
    fsdp = arguments.get("fsdp")
    if not fsdp:
        return
    words = fsdp.split() if isinstance(fsdp, str) else [] if fsdp is True else list(fsdp)
    if str(fsdp).lower() == "true":
        words = []
    for word in words:
        if word not in _WORDS:
            raise NotModelled(f"{name}: fsdp {word!r} is FSDP1's, which is not modelled; use true, and fsdp_config")
    options = _options(name, arguments.get(_SOURCE))
    for option, refuse in _REFUSED.items():
        if option in options and (reason := refuse(options[option])):
            raise NotModelled(f"{name}: {_SOURCE} {option} {options[option]!r} {reason}")
    yield "parallel", ("fsdp", "fsdp")
    reshards = next((_WORDS[word] for word in words if _WORDS[word] is not None), None)
    if (reshards := _flag(options, "reshard_after_forward", reshards)) is not None:
        yield "reshard_after_forward", (reshards, "reshard_after_forward")
    if _flag(options, "cpu_offload", "offload" in words):
        yield "offload", ("all", "cpu_offload")
    layers = options.get("transformer_layer_cls_to_wrap")
    if layers:
        yield "wrap_layers", (layers if isinstance(layers, str) else ",".join(layers), "transformer_layer_cls_to_wrap")
    if _flag(options, "activation_checkpointing", False):
        _refuse_checkpoints(name, arguments, layers)
        yield "grad_checkpointing", (True, "activation_checkpointing")


def _options(name: str, given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        given = read_json(Path(given), "a JSON file of FSDP's options")
    if not isinstance(given or {}, Mapping):
        raise InvalidRequest(f"{name}: {_SOURCE} {given!r} is no mapping and no file")
    return {key.removeprefix("fsdp_"): value for key, value in (given or {}).items()}


def _flag(options: Mapping[str, Any], name: str, usual: bool | None) -> bool | None:
    value = options.get(name, usual)
    if value is None or isinstance(value, bool):
        return value
    if str(value).lower() not in {"true", "false"}:
        raise InvalidRequest(f"{_SOURCE} {name} {value!r} is not valid; FSDP2 takes true or false")
    return str(value).lower() == "true"


def _refuse_checkpoints(name: str, arguments: Mapping[str, Any], layers: Any) -> None:
    """accelerate checkpoints what it wraps: the blocks only where they are named."""
    if arguments.get("gradient_checkpointing") or arguments.get("activation_checkpointing"):
        raise NotModelled(
            f"{name} checkpoints twice, by gradient_checkpointing and by {_SOURCE}; leave out one of them"
        )
    if not layers or "Swin" in str(layers):
        raise NotModelled(
            f"{name}: {_SOURCE} activation_checkpointing is modelled where transformer_layer_cls_to_wrap names a class "
            "of blocks, Swin's stages and blocks aside; use gradient_checkpointing"
        )


def _not(*usual: Any) -> Callable[[Any], str]:
    return lambda value: "" if value in usual else "is not modelled; leave it out"


#: Options that change the memory in a way that is not modelled: the reason, empty where the value is harmless.
_REFUSED: Mapping[str, Callable[[Any], str]] = {
    "version": lambda value: "" if int(value) == 2 else "is deprecated and not modelled; use 2",
    "xla": _not(False),
    "auto_wrap_policy": _not("TRANSFORMER_BASED_WRAP"),
    "activation_checkpointing_offload": _not(False, "false"),
    "ignored_modules": _not(None),
    "mixed_precision_policy": _not(None),
}
