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
