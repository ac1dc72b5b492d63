"""One plan that is to be written, and what every file asks of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from ...config_file import read_json
from ...engine import Run, Scope
from ...families import Plan as ModelPlan
from ...kernels import Kernels
from ...lora import frozen_rows
from ...pipeline import resolved
from ...settings import TrainSettings
from ...units import DType
from ..plan import Plan

__all__ = ["Order", "trained_blocks"]

#: Where the module that the library builds lies within what the Trainer trains.
_WRAPPED = {"timm": "timm_model.", "torchvision": "torchvision_model."}
#: Settings that leave out parts of the pretrained model.
PRUNING = ("depth", "heads", "mlp_ratio", "dim")


class Order:
    """``settings`` are the plan's, ``model`` the model that they build; paths are those of the trained module."""

    def __init__(self, plan: Plan, gpu: str) -> None:
        self.plan, self.gpu = plan, gpu
        self.settings = TrainSettings.from_dict(plan.settings)
        self.model: ModelPlan = resolved(self.settings)[0]

    @property
    def library(self) -> str:
        """``timm``, ``transformers`` or ``torchvision``."""
        return self.model.model.library

    @property
    def prefix(self) -> str:
        """In front of the library's own names."""
        return _prefix(self.settings, self.model)

    @property
    def is_folder(self) -> bool:
        """Whether the model is the user's own ``config.json``."""
        return self.model.model.num_parameters is None and os.path.exists(os.path.expanduser(self.settings.model))

    @property
    def location(self) -> str:
        """The model as the user names it; a folder from anywhere."""
        return os.path.abspath(os.path.expanduser(self.settings.model)) if self.is_folder else self.settings.model

    @cached_property
    def timm_model(self) -> tuple[str, Mapping[str, Any]]:
        """timm's name for the model, and the arguments that a user's folder has for it."""
        if not self.is_folder:
            return self.model.model.name, {}
        path = self.location if os.path.isfile(self.location) else os.path.join(self.location, "config.json")
        from pathlib import Path

        config = read_json(Path(path))
        return str(config["architecture"]), dict(config.get("model_args") or {})

    @cached_property
    def whole(self) -> TrainSettings | None:
        """The settings with nothing pruned; None where nothing is."""
        if all(getattr(self.settings, name) is None for name in PRUNING):
            return None
        return dataclasses.replace(self.settings, depth=None, heads=None, mlp_ratio=None, dim=None)

    @cached_property
    def _rows(self) -> Mapping[str, str]:
        """The row of every parameter, by the library's name."""
        scope = Scope(Run(kernels=Kernels(), parameter_dtype=DType.float32))
        self.model.build(scope)
        return {name: parameter.storage.layer or "" for name, parameter in scope.parameters.items()}

    @property
    def blocks(self) -> list[str]:
        """What ``--checkpoint-layers`` and ``--freeze-layers`` count."""
        return trained_blocks(self.settings, self.model)

    @property
    def whole_blocks(self) -> list[str]:
        """The blocks of the model that the weights were published for."""
        assert self.whole is not None
        return trained_blocks(self.whole, resolved(self.whole)[0])

    @property
    def head(self) -> tuple[str, ...]:
        """The modules of the classifier that hold its parameters."""
        own = [name.rpartition(".")[0] for name, row in self._rows.items() if row in self.model.head]
        return tuple(self.prefix + path for path in dict.fromkeys(own))

    @property
    def frozen(self) -> tuple[str, ...]:
        """Parameters and modules that ``--freeze-layers`` freezes."""
        rows = frozen_rows(self.settings, self.model)
        chosen = {name for name, row in self._rows.items() if row in rows}
        return tuple(self.prefix + path for path in _covering(chosen, self._rows))


def trained_blocks(settings: TrainSettings, model: ModelPlan) -> list[str]:
    """The blocks' paths within what the loop trains."""
    return [_prefix(settings, model) + path for path in model.blocks]


def _prefix(settings: TrainSettings, model: ModelPlan) -> str:
    return _WRAPPED.get(model.model.library, "") if settings.loop == "trainer" else ""


def _covering(chosen: set[str], names: Iterable[str]) -> list[str]:
    """The shortest paths under which every name is one of the ``chosen``."""
    spared = {
        ".".join(name.split(".")[:end]) for name in names if name not in chosen for end in range(name.count(".") + 2)
    }
    found = []
    for name in names:
        if name in chosen:
            parts = name.split(".")
            paths = (".".join(parts[: end + 1]) for end in range(len(parts)))
            found.append(next(path for path in paths if path not in spared))
    return list(dict.fromkeys(found))
