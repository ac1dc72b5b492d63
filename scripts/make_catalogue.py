"""Make ``data/models/*.json`` from the installed libraries' own configurations.

    python scripts/make_catalogue.py            # write the files
    python scripts/make_catalogue.py --check    # exit 1 if they would change

timm: every registered name whose class a family covers is built on the meta device while the arguments that reach its
constructor are recorded; only those that differ from the constructor's defaults are kept. transformers: the ids of
``data/models/hf_ids.json`` (what their published config.json changes) on top of the config class's defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import json
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from timm.layers.mlp import GluMlp
from timm.models import _registry
from timm.models.deit import VisionTransformerDistilled
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer

HERE = Path(__file__).resolve().parent.parent / "data" / "models"
NUM_CLASSES = 1000

#: Modules of timm that can register a name of a class below, and the family of each class.
TIMM_MODULES = ("vision_transformer", "vision_transformer_hybrid", "vitamin", "deit", "swin_transformer")
TIMM_FAMILIES: dict[type, str] = {
    VisionTransformer: "timm_vit",
    VisionTransformerDistilled: "timm_vit",
    SwinTransformer: "timm_swin",
}

#: The class whose constructor decides a family's shapes (subclasses pass everything on).
CONSTRUCTORS: dict[str, type] = {"timm_vit": VisionTransformer, "timm_swin": SwinTransformer}

#: Constructor arguments that decide nothing about memory; the number of classes is every row's own.
IGNORED = {"self", "weight_init", "fix_init", "device", "dtype", "num_classes"}

#: config.json's model_type -> family, class for classification, and the fields that decide memory.
HF_COMMON = ("image_size", "patch_size", "num_channels", "hidden_act")
HF_ENCODER = ("hidden_size", "num_hidden_layers", "num_attention_heads", *HF_COMMON)
HF_RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob")
HF_VIT = (*HF_ENCODER, "intermediate_size", *HF_RATES, "qkv_bias")
HF_DINOV2 = (*HF_ENCODER, "mlp_ratio", *HF_RATES, "qkv_bias", "layerscale_value", "drop_path_rate", "use_swiglu_ffn")
HF_BEIT = (
    *HF_ENCODER, "intermediate_size", *HF_RATES, "drop_path_rate", "layer_scale_init_value", "use_mask_token",
    "use_absolute_position_embeddings", "use_relative_position_bias", "use_shared_relative_position_bias",
    "use_mean_pooling",
)  # fmt: skip
HF_SWIN = (
    *HF_COMMON, "embed_dim", "depths", "num_heads", "window_size", "mlp_ratio", "qkv_bias", *HF_RATES, "drop_path_rate",
    "use_absolute_embeddings",
)  # fmt: skip
HF_MAE = (
    "decoder_num_attention_heads",
    "decoder_hidden_size",
    "decoder_num_hidden_layers",
    "decoder_intermediate_size",
)
HF_CLIP = (*HF_ENCODER, "intermediate_size", "attention_dropout")
HF_CLASSES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "vit": ("hf_vit", "ViTForImageClassification", HF_VIT),
    "deit": ("hf_deit", "DeiTForImageClassification", HF_VIT),
    "vit_msn": ("hf_vit_msn", "ViTMSNForImageClassification", HF_VIT),
    "vit_mae": ("hf_vit_mae", "ViTMAEForPreTraining", (*HF_VIT, *HF_MAE, "mask_ratio")),
    "dinov2": ("hf_dinov2", "Dinov2ForImageClassification", (*HF_DINOV2, "use_mask_token")),
    "dinov2_with_registers": (
        "hf_dinov2_with_registers", "Dinov2WithRegistersForImageClassification", (*HF_DINOV2, "num_register_tokens"),
    ),
    "beit": ("hf_beit", "BeitForImageClassification", HF_BEIT),
    "data2vec-vision": ("hf_data2vec_vision", "Data2VecVisionForImageClassification", HF_BEIT),
    "swin": ("hf_swin", "SwinForImageClassification", HF_SWIN),
    "swinv2": ("hf_swinv2", "Swinv2ForImageClassification", (*HF_SWIN, "pretrained_window_sizes")),
    "clip": ("hf_clip", "CLIPForImageClassification", HF_CLIP),
    "siglip": ("hf_siglip", "SiglipForImageClassification", (*HF_CLIP, "vision_use_head")),
}  # fmt: skip


@contextmanager
def recorded(cls: type) -> Iterator[dict[str, Any]]:
    """The arguments of the first construction of ``cls`` inside the context."""
    seen: dict[str, Any] = {}
    original: Callable[..., None] = cls.__init__  # type: ignore[misc]
    signature = inspect.signature(original)

    @functools.wraps(original)
    def spy(self: object, *args: Any, **kwargs: Any) -> None:
        if not seen:
            seen.update(signature.bind(self, *args, **kwargs).arguments)
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


def timm_row(name: str) -> dict[str, Any] | str:
    """One model's row, or the reason why no family covers it."""
    with contextlib.ExitStack() as stack:
        seen = {family: stack.enter_context(recorded(cls)) for family, cls in CONSTRUCTORS.items()}
        stack.enter_context(torch.device("meta"))
        model = timm.create_model(name, num_classes=NUM_CLASSES)
    family = TIMM_FAMILIES.get(type(model))
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


def timm_defaults(cls: type) -> dict[str, Any]:
    """The constructor's defaults of every recorded argument."""
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    return {p.name: plain(p.default) for p in parameters if p.name not in IGNORED | {"embed_layer"}}


def timm_aliases(known: Container[str]) -> dict[str, str]:
    """Deprecated names that ``create_model`` still builds -> the name that it builds, without its pretrained tag."""
    renamed = {old: new.split(".")[0] for old, new in _registry._deprecated_models.items() if new}
    return {old: new for old, new in renamed.items() if new in known}


def timm_catalogue() -> dict[str, Any]:
    """data/models/timm.json."""
    models, skipped = {}, {}
    for module in TIMM_MODULES:
        for name in timm.list_models(module=module):
            row = timm_row(name)
            if isinstance(row, str):
                skipped[name] = row
            else:
                models[name] = row
    versions = {"timm": timm.__version__, "torch": torch.__version__.split("+")[0]}
    defaults = {family: timm_defaults(cls) for family, cls in CONSTRUCTORS.items()}
    aliases = timm_aliases(models)
    return {"versions": versions, "defaults": defaults, "aliases": aliases, "models": models, "skipped": skipped}


def hf_config(model_type: str, changes: dict[str, Any]) -> Any:
    """The config object of a published id at 1000 labels."""
    return transformers.AutoConfig.for_model(model_type, **changes, num_labels=NUM_CLASSES)


def hf_fields(model_type: str, config: Any) -> dict[str, Any]:
    """The fields of config.json that decide memory; those of a two-tower model are its vision tower's."""
    fields = HF_CLASSES[model_type][2]
    if hasattr(config, "vision_config"):
        return {"vision_config": {field: getattr(config.vision_config, field) for field in fields}}
    return {field: getattr(config, field) for field in fields}


def hf_row(model_type: str, changes: dict[str, Any]) -> dict[str, Any]:
    """One id's row."""
    family, class_name, _ = HF_CLASSES[model_type]
    config = hf_config(model_type, changes)
    with torch.device("meta"):
        model = getattr(transformers, class_name)(config)
    return {
        "family": family,
        "class": class_name,
        "config": {"model_type": model_type, **hf_fields(model_type, config)},
        "num_parameters": sum(p.numel() for p in model.parameters()),
    }


def transformers_catalogue() -> dict[str, Any]:
    """data/models/transformers.json."""
    ids = json.loads((HERE / "hf_ids.json").read_text())
    return {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]},
        "families": {name: {"family": family, "class": cls} for name, (family, cls, _) in HF_CLASSES.items()},
        "defaults": {name: hf_fields(name, hf_config(name, {})) for name in HF_CLASSES},
        "models": {name: hf_row(model_type, changes) for name, (model_type, changes) in ids.items()},
    }


def text_of(catalogue: dict[str, Any]) -> str:
    """JSON with one model per line, sorted, so that changes read well."""
    sections = []
    for key, value in catalogue.items():
        if key in {"models", "skipped", "defaults", "families", "aliases"}:
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value[name])}" for name in sorted(value))
            sections.append(f' "{key}": {{\n{rows}\n }}')
        else:
            sections.append(f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(sections) + "\n}\n"


def catalogues() -> dict[str, str]:
    """File name -> text of every catalogue."""
    return {"timm.json": text_of(timm_catalogue()), "transformers.json": text_of(transformers_catalogue())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file would change")
    check = parser.parse_args().check
    changed = {name: text for name, text in catalogues().items() if not _same(HERE / name, text)}
    for name, text in changed.items():
        print(f"{name} {'differs' if check else 'written'}")
        if not check:
            (HERE / name).write_text(text)
    return 1 if check and changed else 0


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
