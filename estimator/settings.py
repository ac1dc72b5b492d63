"""What the user asks for: one frozen value, validated when it is made.

The vocabulary is the same for the command line, the Python API and the JSON. A field that is ``None`` means
"the library's own": the model's native size, its default drop-path, the loop's optimizer.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from .errors import InvalidRequest, did_you_mean
from .generations import NEWEST, Torch
from .optimizers import OPTIMIZERS

__all__ = ["CHOICES", "TrainSettings", "parse_resolution", "torch_setting"]

Precision = Literal["fp32", "fp16", "bf16", "pure-fp16", "pure-bf16"]
Attention = Literal["auto", "eager", "sdpa", "flash_attention_2"]
SdpaKernel = Literal["auto", "flash", "efficient", "cudnn", "math"]
Train = Literal["full", "linear-probe", "lora"]
Loop = Literal["trainer", "timm", "plain"]
ZeroGrad = Literal["after-step", "before-backward", "before-forward", "keep"]
Parallel = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp"]
Offload = Literal["none", "optimizer", "all"]

CHOICES: Mapping[str, tuple[str, ...]] = {
    "precision": get_args(Precision),
    "optim": tuple(OPTIMIZERS),
    "attn": get_args(Attention),
    "sdpa_kernel": get_args(SdpaKernel),
    "train": get_args(Train),
    "loop": get_args(Loop),
    "zero_grad": get_args(ZeroGrad),
    "parallel": get_args(Parallel),
    "offload": get_args(Offload),
}

_AT_LEAST_ONE = (
    "bs",
    "accum",
    "patch",
    "window",
    "dim",
    "depth",
    "heads",
    "num_classes",
    "gpus",
    "lora_rank",
    "eval_bs",
    "eval_samples",
    "eval_accum",
    "train_samples",
    "prefetch",
    "ddp_bucket_cap_mb",
)
_AT_LEAST_ZERO = ("checkpoint_layers", "freeze_layers", "workers")
#: Beyond these an estimate would take minutes, and nobody trains so.
_AT_MOST = {"accum": 100_000, "depth": 1_000, "gpus": 65_536}
_RATES = ("dropout", "attn_dropout", "drop_path", "patch_drop", "lora_dropout", "label_smoothing")
_OF_LORA = ("lora_rank", "lora_dropout", "lora_targets")

#: Fields that the user's files fill.
_FROM_FILES = frozenset({"notes"})

_TEXTS = {
    "model": "google/vit-base-patch16-224",
    "gpu": "a100-40g",
    "memory": "24GiB",
    "wrap_layers": "ViTLayer",
    "alloc_conf": "expandable_segments:True",
    "torch": "{}.{}".format(*NEWEST),
}

#: Switches that are the loop's own where they are left open.
_SWITCHES = ("pin_memory", "reshard_after_forward", "ddp_find_unused_parameters")

_RESOLUTION = re.compile(r"(\d+)(?:x(\d+))?", re.ASCII)


def parse_resolution(text: str | int | tuple[int, int] | list[int]) -> tuple[int, int]:
    """``512``, ``"512"`` or ``"512x384"`` as (height, width) in pixels."""
    if isinstance(text, (tuple, list)):
        size = tuple(text)
    else:
        match = _RESOLUTION.fullmatch(str(text).strip())
        size = () if match is None else (int(match[1]), int(match[2] or match[1]))
    if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
        raise InvalidRequest(f"res {text!r} is not a size in pixels; write it as 512 or 512x384 (height x width)")
    return size


def parse_targets(given: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """``"qkv,proj"`` or ``["qkv", "proj"]`` as names without blanks, each once; ``all-linear`` stands alone."""
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) and name.strip() for name in names):
        raise InvalidRequest(f"lora_targets {given!r} are no names of layers; write them as qkv,proj or all-linear")
    targets = tuple(dict.fromkeys(name.strip() for name in names))
    if not targets or ("all-linear" in targets and len(targets) > 1):
        raise InvalidRequest(f"lora_targets {given!r}: all-linear stands alone; write names as qkv,proj or all-linear")
    return targets


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """One training configuration, as interface flags spell it; raises ``InvalidRequest`` when it cannot mean anything.

    Sizes are in pixels, images or elements; rates are probabilities in [0, 1). ``res`` accepts every spelling of
    :func:`parse_resolution` and holds (height, width). ``notes`` say where a setting that was asked for contradicts
    the user's own files; the result shows them as warnings. ``zero_options`` are what a DeepSpeed file says of ZeRO.
    """

    model: str = "google/vit-base-patch16-224"
    res: tuple[int, int] | None = None
    bs: int = 8
    accum: int = 1
    patch: int | None = None
    window: int | None = None
    dim: int | None = None
    depth: int | None = None
    heads: int | None = None
    mlp_ratio: float | None = None
    num_classes: int = 1000
    dropout: float | None = None
    attn_dropout: float | None = None
    drop_path: float | None = None
    patch_drop: float | None = None
    precision: Precision = "fp16"
    optim: str | None = None
    eval_bs: int | None = None
    eval_samples: int | None = None
    eval_accum: int | None = None
    train_samples: int | None = None
    grad_checkpointing: bool = False
    checkpoint_layers: int | None = None
    checkpoint_reentrant: bool = False
    attn: Attention = "auto"
    sdpa_kernel: SdpaKernel = "auto"
    train: Train = "full"
    lora_rank: int | None = None
    lora_dropout: float | None = None
    lora_targets: tuple[str, ...] | None = None
    freeze_layers: int | None = None
    loop: Loop = "trainer"
    zero_grad: ZeroGrad | None = None
    ema: bool = False
    clip_grad: float | None = None
    label_smoothing: float | None = None
    mixup: bool = False
    compile: bool = False
    gpus: int = 1
    parallel: Parallel | None = None
    offload: Offload = "none"
    reshard_after_forward: bool | None = None
    wrap_layers: str | None = None
    ddp_bucket_cap_mb: int | None = None
    ddp_find_unused_parameters: bool | None = None
    gpu: str | None = None
    memory: str | None = None
    alloc_conf: str | None = None
    torch: str = _TEXTS["torch"]
    training_args: str | None = None
    deepspeed: str | None = None
    zero_options: tuple[tuple[str, int | str], ...] = ()
    notes: tuple[str, ...] = ()
    workers: int | None = None
    prefetch: int | None = None
    pin_memory: bool | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_type(field.name, getattr(self, field.name), field.default)
        object.__setattr__(self, "torch", Torch.parse(self.torch).label)
        if self.res is not None:
            object.__setattr__(self, "res", parse_resolution(self.res))
        for name in _AT_LEAST_ONE:
            _check_int(name, getattr(self, name), minimum=1, maximum=_AT_MOST.get(name))
        for name in _AT_LEAST_ZERO:
            _check_int(name, getattr(self, name), minimum=0)
        for name in _RATES:
            _check_rate(name, getattr(self, name))
        for name, known in CHOICES.items():
            _check_choice(name, getattr(self, name), known)
        _check_ratio("mlp_ratio", self.mlp_ratio)
        _check_norm("clip_grad", self.clip_grad)
        if self.checkpoint_layers is not None and not self.grad_checkpointing:
            raise InvalidRequest("checkpoint_layers needs gradient checkpointing; add --grad-checkpointing")
        if self.checkpoint_reentrant and not self.grad_checkpointing:
            raise InvalidRequest("checkpoint_reentrant needs gradient checkpointing; add --grad-checkpointing")
        if self.eval_accum is not None and self.loop != "trainer":
            raise InvalidRequest(f"eval_accum is Trainer's; the {self.loop} loop lets nothing pile up: leave it out")
        if self.lora_targets is not None:
            object.__setattr__(self, "lora_targets", parse_targets(self.lora_targets))
        for name in _OF_LORA:
            if getattr(self, name) is not None and self.train != "lora":
                raise InvalidRequest(f"{name} needs --train lora")

    @classmethod
    def of(cls, model: str | os.PathLike[str] | None = None, **settings: Any) -> TrainSettings:
        """Settings from keywords, with a close match for a misspelt one; ``training_args``
        and ``deepspeed`` are files or mappings."""
        known = [field.name for field in dataclasses.fields(cls) if field.name not in _FROM_FILES]
        for name in settings:
            if name not in known:
                raise InvalidRequest(f"unknown setting {name!r}{did_you_mean(name, known)}")
        if model is not None:
            settings["model"] = os.fspath(model) if isinstance(model, os.PathLike) else model
        if isinstance(settings.get("zero_options"), Mapping):  # as to_dict() spells it
            settings["zero_options"] = tuple(settings["zero_options"].items())
        if settings.get("training_args") is not None or settings.get("deepspeed") is not None:
            from .user_files import with_files

            settings = with_files(settings)
        return cls(**settings)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainSettings:
        """What :meth:`to_dict` gave; the files that it names are not read again."""
        return cls(**{**values, "zero_options": tuple(values["zero_options"].items())})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; ``res`` becomes a list."""
        values = dataclasses.asdict(self)
        for name in ("res", "lora_targets"):
            value = getattr(self, name)
            values[name] = None if value is None else list(value)
        del values["notes"]
        values["zero_options"] = dict(self.zero_options)
        return values


def _check_type(name: str, value: object, default: object) -> None:
    """What has a default is never None; switches are booleans, names are text."""
    if value is None and default is not None:
        raise InvalidRequest(f"{name} None is not valid; leave it out for {default!r}")
    if (isinstance(default, bool) or (name in _SWITCHES and value is not None)) and not isinstance(value, bool):
        raise InvalidRequest(f"{name} {value!r} is not valid; it must be True or False")
    if name in _TEXTS and value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name} {value!r} is not valid; write it as text, such as {_TEXTS[name]!r}")


def _check_ratio(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1000:
        raise InvalidRequest(f"{name} {value!r} is not valid; it must be a number above 0 and below 1000")


def _check_norm(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InvalidRequest(f"{name} {value!r} is not valid; it must be a norm, or 0 to switch clipping off")


def _check_int(name: str, value: object, *, minimum: int, maximum: int | None = None) -> None:
    if value is None:
        return
    if maximum is not None and isinstance(value, int) and value > maximum:
        raise InvalidRequest(f"{name} {value} is too large; at most {maximum} is estimated")
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidRequest(f"{name} {value!r} is not valid; it must be a whole number, at least {minimum}")


def _check_rate(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise InvalidRequest(f"{name} {value!r} is not valid; it must be a rate in [0, 1)")


def _check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    if value is None:
        return
    if value not in known:
        hint = did_you_mean(str(value), known) or f"; choose one of {', '.join(known)}"
        raise InvalidRequest(f"{name} {value!r} is unknown{hint}")


def torch_setting(installed: str) -> str:
    """The value of ``torch`` for an installed version: of a later one than is known, the newest that is."""
    return Torch.nearest(installed).label
