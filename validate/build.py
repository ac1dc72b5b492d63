"""Settings to the real model, on the meta device: built, adapted to ``train`` and checkpointing, in training mode."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from vitmem.errors import InvalidRequest, NotModelled, VitmemError
from vitmem.settings import TrainSettings

from . import build_timm, build_torchvision, build_transformers
from .adapters import add_lora
from .hub import is_known

__all__ = ["DTYPES", "Built", "build_model", "named_refusals"]

DTYPES = {"pure-fp16": torch.float16, "pure-bf16": torch.bfloat16}

_BUILDERS = {"timm": build_timm, "torchvision": build_torchvision, "transformers": build_transformers}

#: What libraries raise at settings that they do not take; a field of the wrong type is transformers' own error.
_REFUSALS = (
    AssertionError,
    AttributeError,
    IndexError,
    NotImplementedError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
    ZeroDivisionError,
)

_NOT_YET = {"gpus": 1, "offload": "none", "parallel": (None, "none")}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The model with what the loop needs to know: ``image_size`` is (height, width) in pixels.

    ``takes_num_items``: the loss is normalised inside the model, by the ``num_items_in_batch`` that the Trainer passes.
    ``own_loss``: the model computes its loss from the pixels alone; no labels are fetched, and nobody counts them.
    ``base``: the model without PEFT's wrapper, where it has one; ``resolved``: the settings that it was wrapped with.
    """

    model: nn.Module
    library: str
    image_size: tuple[int, int]
    takes_num_items: bool
    own_loss: bool = False
    base: nn.Module | None = None
    resolved: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def core(self) -> Any:
        """The library's own module, without a wrapper for the Trainer, and without PEFT's."""
        return build_torchvision.unwrapped(build_timm.unwrapped(self.library_model))

    @property
    def library_model(self) -> nn.Module:
        """``model`` before PEFT wrapped it."""
        return self.model if self.base is None else self.base


def build_model(settings: TrainSettings, device: str = "meta") -> Built:
    """The model that ``settings`` name, ready to train, as its library builds it."""
    _refuse_unmodelled(settings)
    with named_refusals(settings, "built"):
        built = _build(settings, device)
    _refuse_labels(settings, built)
    built.model.train()
    if settings.precision in DTYPES:
        built.model.to(DTYPES[settings.precision])
    built = _select_trained(built, settings, device)
    if settings.grad_checkpointing:
        _checkpoint(built, settings.checkpoint_layers, reentrant=settings.checkpoint_reentrant)
    return built


def _build(settings: TrainSettings, device: str) -> Built:
    if build_torchvision.is_torchvision(settings.model):
        model, size = build_torchvision.build(settings, device)
        return Built(model=model, library="torchvision", image_size=size, takes_num_items=False)
    if is_known(settings.model):
        model, size = build_transformers.build(settings, device)
        own_loss = build_transformers.computes_its_loss(model)
        takes_num_items = _takes_kwargs(model) and not own_loss
        return Built(
            model=model, library="transformers", image_size=size, takes_num_items=takes_num_items, own_loss=own_loss
        )
    model, size = build_timm.build(settings, device)
    return Built(model=model, library="timm", image_size=size, takes_num_items=False)


def _takes_kwargs(model: nn.Module) -> bool:
    """Trainer's own test (``model_accepts_loss_kwargs``): does the forward take ``**kwargs``?"""
    declared = getattr(model, "accepts_loss_kwargs", None)
    if declared is not None:
        return bool(declared)
    parameters = inspect.signature(model.forward).parameters.values()
    return any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def _refuse_labels(settings: TrainSettings, built: Built) -> None:
    if built.own_loss and settings.mixup:
        raise InvalidRequest(f"{settings.model} is trained on pixels alone: there are no labels to mix")
    if settings.mixup and settings.loop == "trainer":
        raise NotModelled("mixup under Trainer takes a loss function of the user's own")


def _refuse_unmodelled(settings: TrainSettings) -> None:
    for name, usual in _NOT_YET.items():
        value = getattr(settings, name)
        if value not in (usual if isinstance(usual, tuple) else (usual,)):
            raise NotModelled(f"{name}={value!r} cannot be rehearsed on the meta device")
    if settings.attn == "flash_attention_2":
        raise NotModelled("attn='flash_attention_2' needs the flash-attn package; rehearse with attn='sdpa'")


@contextlib.contextmanager
def named_refusals(settings: TrainSettings, doing: str) -> Iterator[None]:
    """What a library refuses is the user's request, said in one line with the library's reason."""
    try:
        yield
    except VitmemError:
        raise
    except _REFUSALS as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        kind = NotModelled if isinstance(error, (AttributeError, NotImplementedError)) else InvalidRequest
        raise kind(f"{settings.model} cannot be {doing} with these settings: {reason}") from error


# what is trained


def _select_trained(built: Built, settings: TrainSettings, device: str) -> Built:
    core: Any = _BUILDERS[built.library]
    if settings.train == "lora":
        return _adapted(built, settings, device)
    if settings.train == "linear-probe":
        built.model.requires_grad_(False)
        heads = core.classifiers(built.model)
        if not heads:
            raise InvalidRequest(f"{type(built.core).__name__} has no classifier to train alone; use train='full'")
        for head in heads:
            head.requires_grad_(True)
    if settings.freeze_layers is not None:
        for part in core.first_parts(built.model, settings.freeze_layers):
            part.requires_grad_(False)
    return built


def _adapted(built: Built, settings: TrainSettings, device: str) -> Built:
    """PEFT freezes what it does not add, and comes before checkpointing is switched on, as in the Trainer."""
    core: Any = _BUILDERS[built.library]
    classifiers = [] if built.own_loss else core.classifiers(built.model)
    frozen = [] if settings.freeze_layers is None else core.first_parts(built.model, settings.freeze_layers)
    with named_refusals(settings, "adapted"):
        model, resolved = add_lora(built.model, settings, classifiers=classifiers, frozen=frozen, device=device)
    return dataclasses.replace(built, model=model, base=built.model, resolved=resolved)


# activation checkpointing


def _without_checkpointing(built: Built) -> str:
    """What to type instead, where the class has no checkpointing."""
    has_it = "vit_base_patch16_224 or swin_tiny_patch4_window7_224 of timm have it"
    return (
        f"{type(built.core).__name__} of {built.library} has no gradient checkpointing; leave it out and lower --bs "
        f"with --accum, or --precision bf16, or take a model that has it: {has_it}"
    )


def _checkpoint(built: Built, first: int | None, *, reentrant: bool) -> None:
    """The library's own switch; with ``first``, the same checkpoint function on the first blocks only."""
    if built.library == "transformers":
        build_transformers.enable_checkpointing(built.library_model, first, reentrant=reentrant)
        return
    from timm.layers.config import set_reentrant_ckpt

    set_reentrant_ckpt(reentrant)  # global, and read whenever a block is checkpointed
    try:
        built.core.set_grad_checkpointing(True)
    except (AssertionError, AttributeError) as error:  # classes without it assert that nobody asks, or have no switch
        raise InvalidRequest(_without_checkpointing(built)) from error
    if first is None:
        return
    built.core.set_grad_checkpointing(False)
    from timm.models._manipulate import checkpoint

    for block in build_timm.blocks(built.library_model)[:first]:
        block.forward = functools.partial(checkpoint, block.forward)
