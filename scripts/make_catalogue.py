"""Make ``data/models/*.json`` from the installed libraries' own configurations.

    python scripts/make_catalogue.py            # write the files
    python scripts/make_catalogue.py --check    # exit 1 if they would change

timm: every registered name whose class a family covers is built on the meta device while the arguments that reach its
constructor are recorded; only those that differ from the constructor's defaults are kept. transformers: the ids of
``data/models/hf_ids.json`` (what their published config.json changes) on top of the config class's defaults.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer

HERE = Path(__file__).resolve().parent.parent / "data" / "models"
NUM_CLASSES = 1000

#: Modules of timm whose names are looked at, and the classes that a family covers.
TIMM_MODULES = ("vision_transformer", "vision_transformer_hybrid", "deit")
TIMM_FAMILIES: dict[type, str] = {VisionTransformer: "timm_vit", VisionTransformerDistilled: "timm_vit"}

#: Constructor arguments that decide nothing about memory.
IGNORED = {"self", "weight_init", "fix_init", "device", "dtype", "num_classes"}

#: config.json's model_type -> class for classification, and the fields that decide memory.
HF_CLASSES = {"vit": ("hf_vit", "ViTForImageClassification"), "deit": ("hf_deit", "DeiTForImageClassification")}
HF_FIELDS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "image_size", "patch_size", "num_channels", "qkv_bias",
)  # fmt: skip


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
    """A constructor argument as JSON: classes and partials by the name that a family knows."""
    if isinstance(value, functools.partial):
        if value.keywords.get("gate_last") is False:
            return "SwiGLUPacked"
        return plain(value.func)
    if isinstance(value, type) or callable(value):
        return {"SiLU": "silu", "GELU": "gelu"}.get(value.__name__, value.__name__)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return {"rmsnorm": "RmsNorm", "layernorm": "LayerNorm"}.get(value, value) if isinstance(value, str) else value


def timm_row(name: str) -> dict[str, Any] | str:
    """One model's row, or the reason why no family covers it."""
    with recorded(VisionTransformer) as arguments, torch.device("meta"):
        model = timm.create_model(name, num_classes=NUM_CLASSES)
    family = TIMM_FAMILIES.get(type(model))
    if family is None:
        return f"class {type(model).__name__} has no family"
    if "embed_layer" in arguments:
        return "a convolutional stem before the transformer"
    if arguments.get("attn_layer") == "diff" or plain(arguments.get("block_fn")) == "DiffParallelScalingBlock":
        return "differential attention"
    defaults = {key: p.default for key, p in inspect.signature(VisionTransformer.__init__).parameters.items()}
    kept = {
        key: plain(value) for key, value in arguments.items() if key not in IGNORED and value != defaults.get(key)
    }
    config = model.pretrained_cfg
    return {
        "family": family,
        "class": type(model).__name__,
        "config": kept,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "input_size": list(config["input_size"][1:]),
    }


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
    return {"versions": {"timm": timm.__version__, "torch": torch.__version__.split("+")[0]}, "models": models, "skipped": skipped}


def hf_config(model_type: str, changes: dict[str, Any]) -> Any:
    """The config object of a published id at 1000 labels."""
    return transformers.AutoConfig.for_model(model_type, **changes, num_labels=NUM_CLASSES)


def transformers_catalogue() -> dict[str, Any]:
    """data/models/transformers.json."""
    models = {}
    for name, (model_type, changes) in json.loads((HERE / "hf_ids.json").read_text()).items():
        family, class_name = HF_CLASSES[model_type]
        config = hf_config(model_type, changes)
        with torch.device("meta"):
            model = getattr(transformers, class_name)(config)
        models[name] = {
            "family": family,
            "class": class_name,
            "config": {"model_type": model_type, **{field: getattr(config, field) for field in HF_FIELDS}},
            "num_parameters": sum(p.numel() for p in model.parameters()),
        }
    defaults = {
        model_type: {field: getattr(hf_config(model_type, {}), field) for field in HF_FIELDS} for model_type in HF_CLASSES
    }
    families = {model_type: {"family": family, "class": cls} for model_type, (family, cls) in HF_CLASSES.items()}
    versions = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    return {"versions": versions, "families": families, "defaults": defaults, "models": models}


def text_of(catalogue: dict[str, Any]) -> str:
    """JSON with one model per line, sorted, so that changes read well."""
    sections = []
    for key, value in catalogue.items():
        if key in {"models", "skipped", "defaults"}:
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
