"""LoRA as PEFT makes it (peft 0.21.2): which layers get adapters, which are trained as a copy."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from . import targets
from .engine import Run, Scope
from .families import Plan
from .kernels import Kernels
from .settings import TrainSettings
from .units import DType

if TYPE_CHECKING:
    from .step import Step

__all__ = ["Lora", "assumptions", "frozen_rows", "is_trained", "lora_of", "resolved", "warnings"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """``copied`` are the rows of ``modules_to_save``, the classifier's; rows that are ``frozen`` get no adapter."""

    rank: int
    dropout: float
    targets: tuple[str, ...]
    copied: frozenset[str]
    frozen: frozenset[str]

    def copies(self, scope: Scope) -> bool:
        """Whether the layer at this place is trained as a copy of itself."""
        return scope.layer in self.copied

    def adapts(self, scope: Scope, kind: str) -> bool:
        """Whether the layer of class ``kind`` at this place gets an adapter."""
        return (
            scope.layer not in self.copied
            and scope.layer not in self.frozen
            and targets.is_named(scope.path, kind, self.targets)
        )


def frozen_rows(settings: TrainSettings, plan: Plan) -> frozenset[str]:
    """The rows that ``--freeze-layers`` freezes: what comes before the blocks, and the first of them."""
    count = settings.freeze_layers
    return frozenset() if count is None else frozenset({*plan.stem, *plan.blocks[:count]})


def lora_of(settings: TrainSettings, plan: Plan) -> Lora | None:
    """What the :func:`resolved` settings ask for; None without LoRA."""
    if settings.train != "lora":
        return None
    assert settings.lora_rank is not None
    assert settings.lora_dropout is not None
    assert settings.lora_targets is not None
    return Lora(
        rank=settings.lora_rank,
        dropout=settings.lora_dropout,
        targets=settings.lora_targets,
        copied=frozenset(plan.head),
        frozen=frozen_rows(settings, plan),
    )


def resolved(settings: TrainSettings, plan: Plan) -> TrainSettings:
    """``settings`` with PEFT's defaults and the layers that are adapted; raises what :func:`targets.lora_targets` does.

    The model is built once to know its layers.
    """
    if settings.train != "lora":
        return settings
    scope = Scope(Run(kernels=Kernels(), parameter_dtype=DType.float32))
    plan.build(scope)
    layers, rows = {}, {}
    for name, parameter in scope.parameters.items():
        path, _, last = name.rpartition(".")
        kind = _kind(last, len(parameter.shape), embedding=name in scope.embeddings)
        if kind and parameter.storage.layer not in plan.head:
            layers[path], rows[path] = kind, parameter.storage.layer
    frozen = frozen_rows(settings, plan)
    return dataclasses.replace(
        settings,
        lora_rank=settings.lora_rank or targets.RANK,
        lora_dropout=targets.DROPOUT if settings.lora_dropout is None else settings.lora_dropout,
        lora_targets=targets.lora_targets(settings, layers, [path for path, row in rows.items() if row in frozen]),
    )


def _kind(last: str, num_dims: int, *, embedding: bool) -> str | None:
    """The class of the layer whose parameter ends with ``last``; None if PEFT knows none."""
    if last == "in_proj_weight":
        return "MultiheadAttention"
    if last != "weight" or num_dims not in {2, 4}:
        return None
    return "Conv2d" if num_dims == 4 else "Embedding" if embedding else "Linear"


def is_trained(name: str) -> bool:
    """Whether a parameter is an adapter's or a copy's."""
    return ".lora_" in name or ".modules_to_save." in name


def assumptions(settings: TrainSettings, plan: Plan) -> tuple[str, ...]:
    """What LoRA's figures rest on; ``settings`` are resolved."""
    if settings.train != "lora":
        return ()
    names = ", ".join(settings.lora_targets or ())
    copied = "; the classifier is there twice, PEFT trains a copy (modules_to_save)" if plan.head else ""
    return (
        f"LoRA of peft 0.21: rank {settings.lora_rank} (its default is {targets.RANK}) on {names}; adapters in fp32, "
        f"added before checkpointing is switched on{copied}",
    )


def warnings(step: Step) -> tuple[str, ...]:
    """The adapters that the model never runs."""
    idle = [name.partition(".lora_A.")[0] for name in step.updated_never if ".lora_A." in name]
    names = ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in idle))
    if not idle:
        return ()
    return (
        f"{len(idle)} adapters on {names} are never run and get no gradient: the library computes with the weights of "
        "these layers and does not call the layers; name others with --lora-targets",
    )
