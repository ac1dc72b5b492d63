"""What PEFT makes of the real models: names, types and what requires grad, in the order of the estimator's."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("timm")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import vitmem
from vitmem import pipeline
from vitmem.errors import VitmemError
from vitmem.kernels import Kernels
from vitmem.settings import TrainSettings
from vitmem.step import Step
from vitmem.validate.build import build_model
from vitmem.validate.meta import rehearse

CASES = [
    {"model": "vit_tiny_patch16_224", "depth": 2, "lora_targets": "qkv,proj", "precision": "pure-bf16"},
    {"model": "vit_tiny_patch16_224", "depth": 2, "loop": "trainer"},
    {"model": "swin_tiny_patch4_window7_224", "freeze_layers": 3},
    {"model": "beitv2_base_patch16_224", "depth": 2, "lora_targets": "all-linear"},
    {"model": "facebook/dinov2-small", "depth": 2, "loop": "trainer"},
    {"model": "microsoft/swinv2-tiny-patch4-window8-256", "lora_targets": "all-linear", "precision": "pure-fp16"},
    {"model": "facebook/dinov3-vits16-pretrain-lvd1689m", "depth": 2},
    {"model": "google/siglip-base-patch16-224", "depth": 2, "lora_targets": "all-linear", "freeze_layers": 1},
    {"model": "torchvision/swin_t", "lora_targets": "all-linear"},
]
WRAPPERS = ("timm_model.", "torchvision_model.")


def name_of(settings):
    return " ".join(map(str, settings.values()))


@pytest.mark.parametrize("settings", CASES, ids=name_of)
def test_parameters_are_those_of_peft(settings):
    plan, resolved = pipeline.resolved(TrainSettings.of(**{"loop": "plain", "train": "lora", **settings}))
    ours = [
        (name, parameter.shape, parameter.dtype.label, parameter.requires_grad)
        for name, parameter in Step(plan, resolved, Kernels()).scope.parameters.items()
    ]
    theirs = []
    for name, parameter in build_model(resolved).model.named_parameters():
        bare = name.removeprefix("base_model.model.")
        for wrapper in WRAPPERS:
            bare = bare.removeprefix(wrapper)
        theirs.append(
            (bare, tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."), parameter.requires_grad)
        )
    assert ours == theirs


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "vit_tiny_patch16_224", "lora_targets": "query"},
        {"model": "vit_tiny_patch16_224", "lora_targets": "head"},
        {"model": "vit_tiny_patch16_224", "freeze_layers": 12},
        {"model": "torchvision/vit_b_16"},
        {"model": "google/siglip-base-patch16-224", "lora_targets": "attention"},
        {"model": "google/siglip-base-patch16-224", "lora_targets": "position_embedding"},
        {"model": "xcit_nano_12_p8_224", "lora_targets": "conv1"},
        {"model": "vit_base_patch16_xp_224"},
    ],
    ids=name_of,
)
def test_both_sides_refuse_the_same(settings):
    with pytest.raises(VitmemError) as ours:
        vitmem.estimate(train="lora", **settings)
    with pytest.raises(VitmemError) as theirs:
        rehearse(TrainSettings.of(train="lora", **settings))
    assert ours.type is theirs.type


def test_a_model_without_a_family_is_adapted_too():
    estimate = vitmem.estimate("resnet18", bs=1, train="lora", loop="plain", lora_targets="conv2")
    assert (estimate.request["lora_rank"], estimate.request["lora_targets"]) == (8, ["conv2"])
    assert estimate.peak.allocated_bytes is None
    assert estimate.model.num_trainable_parameters < estimate.model.num_parameters / 10
