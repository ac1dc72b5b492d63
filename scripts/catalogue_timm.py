"""timm's rows: every registered name of the families below, with the arguments that reach its class's constructor.

A model is built on the meta device while the arguments are recorded; only those that differ from the constructor's
defaults are kept.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any

import timm
import torch
from timm.layers.mlp import GluMlp
from timm.models import _registry
from timm.models.beit import Beit
from timm.models.cait import Cait
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.swin_transformer_v2_cr import SwinTransformerV2Cr
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from timm.models.xcit import Xcit

__all__ = ["NUM_CLASSES", "catalogue", "plain", "recorded"]

NUM_CLASSES = 1000

#: Modules of timm that can register a name of a class below, and the family of each class.
MODULES = (
    "vision_transformer", "vision_transformer_hybrid", "vision_transformer_relpos", "vitamin", "deit", "beit", "eva",
    "cait", "xcit", "swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr",
)  # fmt: skip
FAMILIES: dict[type, str] = {
    VisionTransformer: "timm_vit",
    VisionTransformerDistilled: "timm_vit",
    VisionTransformerRelPos: "timm_vit_relpos",
    Beit: "timm_beit",
    Eva: "timm_eva",
    Cait: "timm_cait",
    Xcit: "timm_xcit",
    SwinTransformer: "timm_swin",
    SwinTransformerV2: "timm_swinv2",
    SwinTransformerV2Cr: "timm_swinv2_cr",
}

#: The class whose constructor decides a family's shapes (subclasses pass everything on).
CONSTRUCTORS: dict[str, type] = {
    family: cls for cls, family in FAMILIES.items() if cls is not VisionTransformerDistilled
}

#: Constructor arguments that decide nothing about memory; the number of classes is every row's own.
IGNORED = {"self", "weight_init", "fix_init", "head_init_scale", "device", "dtype", "num_classes"}


@contextmanager
def recorded(cls: type) -> Iterator[dict[str, Any]]:
    """The arguments of the first construction of ``cls`` inside the context."""
    seen: dict[str, Any] = {}
    original: Callable[..., None] = cls.__init__  # type: ignore[misc]
    signature = inspect.signature(original)

    @functools.wraps(original)
    def spy(self: object, *args: Any, **kwargs: Any) -> None:
        if not seen:
            bound = signature.bind(self, *args, **kwargs).arguments
            seen.update({**bound, **bound.get("kwargs", {})})
        original(self, *args, **kwargs)

    cls.__init__ = spy  # type: ignore[misc]
    try:
        yield seen
    finally:
        cls.__init__ = original  # type: ignore[misc]


def plain(value: Any) -> Any:
    """A constructor argument as JSON: classes and partials by the name that a family knows.

    Of the keywords that a partial binds, eps decides nothing about memory, and a block passes its own activation over
    the one bound in ``SwiGLUPacked = partial(GluMlp, act_layer=nn.SiLU, gate_last=False)`` (timm/layers/mlp.py).
    """
    if isinstance(value, functools.partial):
        if value.func is GluMlp and value.keywords.get("gate_last") is False:
            return "SwiGLUPacked"
        if set(value.keywords) - {"eps"}:
            raise ValueError(f"{value} binds keywords that a row cannot hold")
        return plain(value.func)
    if isinstance(value, type) or callable(value):
        return {"SiLU": "silu", "GELU": "gelu"}.get(value.__name__, value.__name__)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return {"rmsnorm": "RmsNorm", "layernorm": "LayerNorm"}.get(value, value) if isinstance(value, str) else value


def _row(name: str) -> dict[str, Any] | str:
    """One model's row, or the reason why no family covers it."""
    with contextlib.ExitStack() as stack:
        seen = {family: stack.enter_context(recorded(cls)) for family, cls in CONSTRUCTORS.items()}
        stack.enter_context(torch.device("meta"))
        model = timm.create_model(name, num_classes=NUM_CLASSES)
    family = FAMILIES.get(type(model))
    if family is None:
        return f"class {type(model).__name__} has no family"
    arguments = seen[family]
    if "embed_layer" in arguments:
        return "a convolutional stem before the transformer"
    if arguments.get("attn_layer") == "diff" or plain(arguments.get("block_fn")) == "DiffParallelScalingBlock":
        return "differential attention"
    parameters = inspect.signature(CONSTRUCTORS[family].__init__).parameters  # type: ignore[misc]
    defaults = {key: p.default for key, p in parameters.items()}
    kept = {key: plain(value) for key, value in arguments.items() if key not in IGNORED and value != defaults.get(key)}
    published: Any = model.pretrained_cfg
    return {
        "family": family,
        "class": type(model).__name__,
        "config": kept,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "input_size": list(published["input_size"][1:]),
    }


def _defaults(cls: type) -> dict[str, Any]:
    """The constructor's defaults of every recorded argument."""
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    return {p.name: plain(p.default) for p in parameters if p.name not in IGNORED | {"embed_layer"}}


def _aliases(known: Container[str]) -> dict[str, str]:
    """Deprecated names that ``create_model`` still builds -> the name that it builds, without its pretrained tag."""
    renamed = {old: new.split(".")[0] for old, new in _registry._deprecated_models.items() if new}
    return {old: new for old, new in renamed.items() if new in known}


def catalogue() -> dict[str, Any]:
    """data/models/timm.json."""
    models, skipped = {}, {}
    for module in MODULES:
        for name in timm.list_models(module=module):
            row = _row(name)
            if isinstance(row, str):
                skipped[name] = row
            else:
                models[name] = row
    versions = {"timm": timm.__version__, "torch": torch.__version__.split("+")[0]}
    defaults = {family: _defaults(cls) for family, cls in CONSTRUCTORS.items()}
    return {
        "versions": versions,
        "defaults": defaults,
        "aliases": _aliases(models),
        "models": models,
        "skipped": skipped,
        "others": sorted(set(timm.list_models()) - set(models) - set(skipped)),
    }
