"""A user's config.json: read as JSON, up to 10 MB, and every field checked against the library's default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import InvalidRequest, NotModelled

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["checked", "read_json", "refuse_other_training"]

_MAX_CONFIG_BYTES = 10_000_000
_MAX_STAGES = 16
#: As ``--depth``: beyond it an estimate would take minutes, and nobody trains so.
_MAX_DEPTH = 1_000
_DEPTHS = frozenset({"depth", "depths", "num_hidden_layers", "decoder_num_hidden_layers"})

#: Fields that may be one number or (height, width), fields whose whole-number default may be a fraction too,
#: and the kinds of fields whose default is None where it is not text.
_SIZES = frozenset({"image_size", "img_size", "patch_size"})
_RATIOS = frozenset(
    {"mlp_ratio", "drop_rate", "mask_ratio", "layerscale_value", "layer_scale_init_value", "attention_dropout"}
)
_NULLABLE: Mapping[str, tuple[type, ...]] = {
    "init_values": (int, float),
    "fc_norm": (bool,),
    "window_size": (int,),
    "use_fc_norm": (bool,),
    "rel_pos_dim": (int,),
    "pos_embed_shift": (int, float),
    "pos_embed_jitter": (int, float),
    "pos_embed_rescale": (int, float),
}

#: Fields with a default that the library also takes as null.
_MAY_BE_NULL = frozenset({"pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"})


def refuse_other_training(model: str, config: Mapping[str, Any]) -> None:
    """Fields of transformers' config.json that change what a training step is."""
    if config.get("quantization_config"):
        raise NotModelled(f"{model}: quantized weights are not modelled; take quantization_config out of config.json")
    if config.get("problem_type") not in {None, "single_label_classification"}:
        raise NotModelled(f"{model}: problem_type {config['problem_type']!r} has another loss, which is not modelled")


def read_json(path: Path, expected: str = "a folder written by save_pretrained") -> Mapping[str, Any]:
    """The object in a JSON file of at most 10 MB; ``expected`` is what an error asks for instead."""
    try:
        text = _read_text(path, expected)
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not UTF-8 text") from error
    try:
        loaded = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"{path} is not valid JSON: {str(error).splitlines()[0]}") from error
    except ValueError as error:  # Python converts no number of more digits (sys.int_info)
        raise InvalidRequest(f"{path} holds a whole number of thousands of digits, which is no setting") from error
    except RecursionError as error:
        raise InvalidRequest(f"{path} is not valid JSON: it is nested too deeply") from error
    if not isinstance(loaded, dict):
        raise InvalidRequest(f"{path} holds no JSON object")
    return loaded


def _read_text(path: Path, expected: str) -> str:
    if not path.is_file():
        raise InvalidRequest(f"{path} is not a file; give {expected}")
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise InvalidRequest(f"{path} is larger than 10 MB; give {expected}")
    return path.read_text(encoding="utf-8-sig")


def checked(model: str, name: str, value: Any, default: Any) -> Any:
    """A field of a user's config.json, of the same kind as the library's default."""
    if isinstance(default, dict):
        given = value if isinstance(value, dict) else _refuse(model, name, value, default)
        return {key: checked(model, f"{name}.{key}", given.get(key, inner), inner) for key, inner in default.items()}
    field = name.rpartition(".")[2]
    if field in _SIZES and isinstance(value, list) and len(value) == 2:
        return [checked(model, name, side, 1) for side in value]
    if isinstance(default, list):
        stages = (
            value if isinstance(value, list) and 0 < len(value) <= _MAX_STAGES else _refuse(model, name, value, default)
        )
        limit = _limit(field)
        return [item if _is_count(item, 0, limit) else _refuse(model, name, value, default) for item in stages]
    return value if _is_valid(field, value, default) else _refuse(model, name, value, default)


def _is_valid(field: str, value: Any, default: Any) -> bool:
    if default is None or (field in _MAY_BE_NULL and value is None):
        return value is None or isinstance(value, _NULLABLE.get(field, str))
    if isinstance(default, (bool, str)):
        return isinstance(value, type(default))
    if field in _RATIOS or isinstance(default, float):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and (0 <= value < 1 if _is_rate(field) else 0 <= value < 1000)
    return _is_count(value, 0 if default == 0 else 1, _limit(field))


def _limit(field: str) -> int:
    return _MAX_DEPTH if field in _DEPTHS else 2**31 - 1


def _is_rate(field: str) -> bool:
    return field.endswith(("_prob", "_rate", "dropout"))


def _is_count(value: Any, minimum: int, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def _refuse(model: str, name: str, value: Any, default: Any) -> NoReturn:
    shown = repr(value) if len(repr(value)) < 60 else f"{repr(value)[:60]}..."
    raise InvalidRequest(f"{model}: {name} is {shown} in config.json; expected something like {default!r}")
