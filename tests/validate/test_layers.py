"""The rule that names the rows of the per-layer table."""

from __future__ import annotations

import pytest
from vitmem.validate.layers import layer_of

CASES = [
    ("timm", "", "model"),
    ("timm", "patch_embed.proj", "patch_embed"),
    ("timm", "blocks.11.attn.qkv", "blocks.11"),
    ("timm", "layers.2.blocks.5.mlp", "layers.2.blocks.5"),
    ("timm", "layers.1.downsample.norm", "layers.1"),
    ("timm", "timm_model.blocks.0", "blocks.0"),
    ("timm", "timm_model", "model"),
    ("timm", "head", "head"),
    ("torchvision", "", "model"),
    ("torchvision", "torchvision_model", "model"),
    ("torchvision", "torchvision_model.conv_proj", "conv_proj"),
    ("torchvision", "encoder", "encoder"),
    ("torchvision", "encoder.ln", "encoder.ln"),
    ("torchvision", "encoder.layers.encoder_layer_11.self_attention.out_proj", "encoder.layers.encoder_layer_11"),
    ("torchvision", "heads.head", "heads"),
    ("torchvision", "features.0.2", "features.0"),
    ("torchvision", "features.1.0.attn.qkv", "features.1.0"),
    ("torchvision", "features.2.reduction", "features.2"),
    ("torchvision", "features.10", "features.10"),
    ("torchvision", "layer1.0.conv1", "layer1.0"),
    ("transformers", "vit", "model"),
    ("transformers", "vit.embeddings.patch_embeddings", "vit.embeddings"),
    ("transformers", "vit.encoder.layer.3.attention.query", "vit.encoder.layer.3"),
    ("transformers", "swin.encoder.layers.1.blocks.0.output", "swin.encoder.layers.1.blocks.0"),
    ("transformers", "vit.layernorm", "vit.layernorm"),
    ("transformers", "classifier", "classifier"),
]


@pytest.mark.parametrize(("library", "path", "layer"), CASES)
def test_a_module_belongs_to_its_longest_numbered_block(library, path, layer):
    assert layer_of(path, library=library) == layer
