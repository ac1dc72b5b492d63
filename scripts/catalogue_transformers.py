"""transformers' rows: the ids of ``data/models/hf_ids.json`` on top of the config class's defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from catalogue_timm import NUM_CLASSES
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS

__all__ = ["catalogue"]

IDS = Path(__file__).resolve().parent.parent / "data" / "models" / "hf_ids.json"

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
    "norm_pix_loss",
)
HF_CLIP = (*HF_ENCODER, "intermediate_size", "attention_dropout")
HF_DINOV3 = (
    *HF_CLIP, "query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias", "drop_path_rate", "use_gated_mlp",
    "num_register_tokens", "pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale",
)  # fmt: skip
CLASSES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "vit": ("hf_vit", "ViTForImageClassification", HF_VIT),
    "deit": ("hf_deit", "DeiTForImageClassification", HF_VIT),
    "vit_msn": ("hf_vit_msn", "ViTMSNForImageClassification", HF_VIT),
    "vit_mae": ("hf_vit_mae", "ViTMAEForPreTraining", (*HF_VIT, *HF_MAE, "mask_ratio")),
    "dinov2": ("hf_dinov2", "Dinov2ForImageClassification", (*HF_DINOV2, "use_mask_token")),
    "dinov2_with_registers": (
        "hf_dinov2_with_registers", "Dinov2WithRegistersForImageClassification", (*HF_DINOV2, "num_register_tokens"),
    ),
    "dinov3_vit": ("hf_dinov3_vit", "DINOv3ViTModel", HF_DINOV3),
    "beit": ("hf_beit", "BeitForImageClassification", HF_BEIT),
    "data2vec-vision": ("hf_data2vec_vision", "Data2VecVisionForImageClassification", HF_BEIT),
    "swin": ("hf_swin", "SwinForImageClassification", HF_SWIN),
    "swinv2": ("hf_swinv2", "Swinv2ForImageClassification", (*HF_SWIN, "pretrained_window_sizes")),
    "clip": ("hf_clip", "CLIPForImageClassification", HF_CLIP),
    "siglip": ("hf_siglip", "SiglipForImageClassification", (*HF_CLIP, "vision_use_head")),
}  # fmt: skip


def _config(model_type: str, changes: dict[str, Any]) -> Any:
    """The config object of a published id at 1000 labels."""
    return transformers.AutoConfig.for_model(model_type, **changes, num_labels=NUM_CLASSES)


def _fields(model_type: str, config: Any) -> dict[str, Any]:
    """The fields of config.json that decide memory; those of a two-tower model are its vision tower's."""
    fields = CLASSES[model_type][2]
    if hasattr(config, "vision_config"):
        return {"vision_config": {field: getattr(config.vision_config, field) for field in fields}}
    return {field: getattr(config, field) for field in fields}


def _row(model_type: str, changes: dict[str, Any]) -> dict[str, Any]:
    """One id's row."""
    family, class_name, _ = CLASSES[model_type]
    config = _config(model_type, changes)
    with torch.device("meta"):
        model = getattr(transformers, class_name)(config)
    head = 0 if "For" in class_name else (config.hidden_size + 1) * NUM_CLASSES  # a base model gets a linear classifier
    return {
        "family": family,
        "class": class_name,
        "config": {"model_type": model_type, **_fields(model_type, config)},
        "num_parameters": sum(p.numel() for p in model.parameters()) + head,
    }


def catalogue() -> dict[str, Any]:
    """data/models/transformers.json."""
    ids = json.loads(IDS.read_text())
    return {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]},
        "others": sorted(set(CLASSIFIERS) - set(CLASSES)),
        "families": {name: {"family": family, "class": cls} for name, (family, cls, _) in CLASSES.items()},
        "defaults": {name: _fields(name, _config(name, {})) for name in CLASSES},
        "models": {name: _row(model_type, changes) for name, (model_type, changes) in ids.items()},
    }
