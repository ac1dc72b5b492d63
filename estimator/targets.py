"""Which layers PEFT adapts: what ``--lora-targets`` names, and what is adapted where nobody says.

A name stands for every layer whose path is the name or ends with ``.name`` (peft 0.21.2, tuners/tuners_utils.py,
``check_target_module_exists``); ``all-linear`` for every ``nn.Linear``. The classifier takes no adapter: it is trained
whole, as a copy (``modules_to_save``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from .errors import InvalidRequest, NotModelled
from .settings import TrainSettings

__all__ = ["ALL_LINEAR", "DROPOUT", "RANK", "is_named", "lora_targets"]

#: ``LoraConfig``'s own (peft 0.21.2, tuners/lora/config.py).
RANK, DROPOUT = 8, 0.0
ALL_LINEAR = "all-linear"

#: Query and value projections, as Hugging Face's guides adapt them; the packed projection where there is only one.
_USUAL = (("q_proj", "v_proj"), ("query", "value"), ("qkv",), ("q", "v"))
_MERGED = "PEFT merges its adapters into the weights of nn.MultiheadAttention before every forward pass, and out again"


def is_named(path: str, kind: str, targets: Collection[str]) -> bool:
    """Whether the layer at ``path``, of class ``kind``, is among ``targets``."""
    if ALL_LINEAR in targets:
        return kind == "Linear"
    return any(path == target or path.endswith(f".{target}") for target in targets)


def lora_targets(settings: TrainSettings, layers: Mapping[str, str], frozen: Collection[str]) -> tuple[str, ...]:
    """The names to adapt. ``layers`` are paths and classes of what could be, without the classifier.

    ``frozen`` are those of them that get no adapter: embeddings and blocks of ``--freeze-layers``. Raises
    InvalidRequest for a name that is no layer's, NotModelled for a class whose adapters are not modelled.
    """
    targets = settings.lora_targets or _usual(settings.model, layers)
    if ALL_LINEAR not in targets:
        for target in targets:
            if not any(is_named(path, kind, (target,)) for path, kind in layers.items()):
                raise InvalidRequest(
                    f"lora_targets {target!r} names no layer of {settings.model} that takes an adapter; "
                    f"it has {_names(layers)}"
                )
    adapted = [path for path, kind in layers.items() if is_named(path, kind, targets)]
    for path in adapted:
        _check_kind(path, layers)
    if not set(adapted) - set(frozen):
        raise InvalidRequest(
            f"freeze_layers {settings.freeze_layers} freezes every layer that LoRA would adapt; freeze fewer, or use "
            "--train linear-probe"
        )
    return targets


def _usual(model: str, layers: Mapping[str, str]) -> tuple[str, ...]:
    names = {path.rpartition(".")[2] for path, kind in layers.items() if kind == "Linear"}
    for usual in _USUAL:
        if names.issuperset(usual):
            return usual
    if "MultiheadAttention" in layers.values():
        raise NotModelled(f"{_MERGED}, which is not modelled; name other layers with --lora-targets: {_names(layers)}")
    raise InvalidRequest(
        f"{model} has no query and value projections of their own; name the layers with --lora-targets: "
        f"{_names(layers)}"
    )


def _check_kind(path: str, layers: Mapping[str, str]) -> None:
    if layers[path] == "MultiheadAttention":
        raise NotModelled(f"{path}: {_MERGED}, which is not modelled; name other layers: {_names(layers)}")
    if layers[path] == "Embedding":
        raise NotModelled(f"{path}: adapters on nn.Embedding are not modelled; name other layers: {_names(layers)}")


def _names(layers: Mapping[str, str]) -> str:
    """Short names of the layers whose adapters are modelled, and run: nn.MultiheadAttention does not call its own."""
    parents = {path: layers.get(path.rpartition(".")[0]) for path in layers}
    usable = [
        path for path, kind in layers.items() if kind in {"Linear", "Conv2d"} and parents[path] != "MultiheadAttention"
    ]
    return ", ".join(dict.fromkeys(_short(usable)))


def _short(paths: Iterable[str]) -> list[str]:
    """The last component, with the one before it where the last is a number."""
    return [".".join(path.split(".")[-1 - path.rpartition(".")[2].isdigit() :]) for path in paths]
