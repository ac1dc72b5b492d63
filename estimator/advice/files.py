"""A plan as files that are ready to run: Trainer script, accelerate's configuration, launcher, environment, README."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from ..errors import InvalidRequest, NotModelled, VitmemError
from ..families import Plan as ModelPlan
from ..families._timm_config import OVERRIDES_WITH_PATCH_DROP
from ..pipeline import resolved
from ..report.files import write_text
from ..settings import TrainSettings
from ..units import format_bytes
from .plan import Plan
from .schedule import Schedule

__all__ = ["Folder", "callback_text", "write_plan"]

_NAMES = ("train.py", "launch.sh", "env.sh", "accelerate.yaml", "README.md")
#: What the script does not say to the Trainer: the value that it may have, and what to do about any other.
_ONLY = {
    "loop": ("trainer",),
    "train": ("full",),
    "freeze_layers": (None,),
    "ema": (False,),
    "mixup": (False,),
    "compile": (False,),
    "zero_grad": (None, "after-step"),
    "sdpa_kernel": ("auto",),
    "parallel": (None, "none", "ddp"),
    "offload": ("none",),
}
_TIMM_ARGUMENTS = {
    "patch": "patch_size",
    "window": "window_size",
    **{ours: theirs for ours, theirs in OVERRIDES_WITH_PATCH_DROP.items() if ours != "num_classes"},
}
_HF_FIELDS = {
    "patch": "patch_size",
    "window": "window_size",
    "depth": "num_hidden_layers",
    "dropout": "hidden_dropout_prob",
    "attn_dropout": "attention_probs_dropout_prob",
    "drop_path": "drop_path_rate",
}
#: These take any image in forward and keep the configuration's image size.
_ANY_SIZE = frozenset({"hf_dinov2", "hf_dinov2_with_registers"})
_LEARNING_RATE = 5e-5  # TrainingArguments' own


class Folder:
    """Where the files go, refused before anything is computed."""

    def __init__(self, path: Path, *, force: bool) -> None:
        self.path, self.force = path, force
        if path.exists() and not path.is_dir():
            raise InvalidRequest(f"write {str(path)!r} is a file; name a folder")
        if not path.parent.is_dir():
            raise InvalidRequest(f"write {str(path)!r} is not in an existing folder")
        self.refuse_overwriting()

    def refuse_overwriting(self) -> None:
        """Without ``force``, nothing of the user's is replaced."""
        there = [name for name in _NAMES if os.path.lexists(self.path / name)]
        if there and not self.force:
            raise InvalidRequest(
                f"{', '.join(there)} exist in {str(self.path)!r}; choose another folder or add --force"
            )


def write_plan(plan: Plan, gpu: str, folder: Folder) -> list[Path]:
    """Write every file of ``plan``; each appears whole or not at all."""
    settings = TrainSettings.from_dict(plan.settings)
    model, _ = resolved(settings)
    _refuse(settings, model)
    values = _values(plan, gpu, settings, model)
    texts = {name: _render(name, values) for name in _NAMES}
    folder.refuse_overwriting()
    try:
        folder.path.mkdir(exist_ok=True)
        for name, text in texts.items():
            write_text(folder.path / name, text)
    except OSError as error:
        raise VitmemError(f"cannot write into {str(folder.path)!r}: {error.strerror}") from error
    return [folder.path / name for name in texts]


def callback_text(schedule: Schedule) -> str:
    """A Trainer callback with the phases of a schedule."""
    rows = [
        f"    ({phase.first_epoch}, {phase.num_epochs}, {phase.res}, {phase.bs}, {phase.accum}),"
        for phase in schedule.phases
    ]
    return _render("callback.py", {"rows": "\n".join(rows)})


def _render(name: str, values: Mapping[str, Any]) -> str:
    template = Path(__file__).parent / "templates" / f"{name}.template"
    return Template(template.read_text(encoding="utf-8")).substitute(values)


def _refuse(settings: TrainSettings, model: ModelPlan) -> None:
    for name, known in _ONLY.items():
        value = getattr(settings, name)
        if value not in known:
            raise NotModelled(f"--write knows no files for {name.replace('_', '-')} {value}; leave out --write or that")
    if model.model.library == "torchvision" or not model.head:
        raise NotModelled(f"--write knows timm models and transformers' image classifiers, not {model.model.name}")
    if model.model.library == "transformers" and not model.model.class_name.endswith("ForImageClassification"):
        raise NotModelled(f"transformers has no image classifier for {model.model.name}; leave out --write")
    names = _TIMM_ARGUMENTS if model.model.library == "timm" else _HF_FIELDS
    for name in _TIMM_ARGUMENTS:
        if getattr(settings, name) is not None and name not in names:
            raise NotModelled(f"--write cannot set {name} for {model.model.name}; write its config.json into a folder")


def _overrides(settings: TrainSettings, model: ModelPlan) -> dict[str, Any]:
    """What the library is told beside the model's name."""
    is_timm = model.model.library == "timm"
    names = _TIMM_ARGUMENTS if is_timm else _HF_FIELDS
    given = {theirs: getattr(settings, ours) for ours, theirs in names.items() if getattr(settings, ours) is not None}
    if settings.res is not None and model.model.family not in _ANY_SIZE:
        height, width = settings.res
        given["img_size" if is_timm else "image_size"] = height if height == width else [height, width]
    return given


def _values(plan: Plan, gpu: str, settings: TrainSettings, model: ModelPlan) -> dict[str, Any]:
    """What the templates' names stand for."""
    from .. import __version__

    several, conf = settings.gpus > 1, settings.alloc_conf
    return {
        "version": __version__,
        "model": _one_line(settings.model),
        "gpu": _one_line(gpu),
        "gpus": settings.gpus,
        "gpus_plural": "s" if several else "",
        "launch_hint": "launch.sh starts one process per GPU." if several else "launch.sh sets the environment too.",
        "exports": f"export PYTORCH_CUDA_ALLOC_CONF={shlex.quote(conf)}" if conf else "# nothing",
        "distributed_type": "MULTI_GPU" if several else "'NO'",
        "mixed_precision": settings.precision if settings.precision in {"fp16", "bf16"} else "no",
        **_script_values(settings, model),
        **_estimate_values(plan, settings),
    }


def _script_values(settings: TrainSettings, model: ModelPlan) -> dict[str, Any]:
    """Python literals."""
    name = settings.model if model.model.library == "transformers" else model.model.name
    return {
        "model_literal": repr(name),
        "library_literal": repr(model.model.library),
        "resolution": repr(model.image_size),
        "num_classes": settings.num_classes,
        "overrides": repr(_overrides(settings, model)),
        "attention": repr(None if settings.attn == "auto" else settings.attn),
        "precision": repr(settings.precision),
        "optim": repr(settings.optim),
        "bs": settings.bs,
        "accum": settings.accum,
        "grad_checkpointing": settings.grad_checkpointing,
        "checkpoint_layers": settings.checkpoint_layers,
        "blocks": repr(list(model.blocks)),
        "max_grad_norm": settings.clip_grad,
        "label_smoothing": settings.label_smoothing,
        "learning_rate": _LEARNING_RATE,
    }


def _estimate_values(plan: Plan, settings: TrainSettings) -> dict[str, Any]:
    """What the README says."""
    assert plan.peak.allocated_bytes is not None
    assert plan.peak.reserved_bytes is not None
    return {
        "effective_batch": plan.effective_batch,
        "allocated": format_bytes(plan.peak.allocated_bytes),
        "reserved": format_bytes(plan.peak.reserved_bytes),
        "headroom": format_bytes(plan.headroom_bytes),
        "relative": f"{plan.relative_step_time:.2f}",
        "command": _command(settings),
        "changes": _changes(plan),
    }


def _one_line(text: str) -> str:
    """Nothing of a user's text may end a comment or a docstring."""
    return " ".join(text.split()).replace("\\", "/").replace('"', "'")


def _command(settings: TrainSettings) -> str:
    """The command line of the estimate."""
    plain = TrainSettings(model=settings.model)
    words = ["vitmem", "estimate", settings.model]
    for name, value in settings.to_dict().items():
        if name in {"model", "zero_options"} or value == getattr(plain, name) or value is None:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", "x".join(map(str, value)) if name == "res" else str(value)]
    return shlex.join(words)


def _changes(plan: Plan) -> str:
    if not plan.changes:
        return "Nothing: it fits as it was asked for."
    rows = ["| change | saves | costs | what training loses |", "| --- | ---: | --- | --- |"]
    for change in plan.changes:
        what = ", ".join(f"{name} {value}" for name, value in change.settings.items())
        rows.append(f"| {what} | {format_bytes(change.saved_bytes)} | {change.cost} | {change.loses} |")
    return "\n".join(rows)
