"""torchvision's families: what the library refuses is refused on both sides, and the wrapper for the Trainer."""

from __future__ import annotations

import dataclasses

import pytest
import vitmem
from vitmem import catalog, families
from vitmem.errors import InvalidRequest, NotModelled, UnknownName
from vitmem.settings import TrainSettings

VIT, SWIN, SWIN_V2 = "torchvision/vit_b_16", "torchvision/swin_t", "torchvision/swin_v2_t"

REFUSED = [
    (VIT, {"attn": "eager"}, InvalidRequest, "always runs sdpa attention; leave out --attn"),
    (SWIN, {"attn": "sdpa"}, InvalidRequest, "always runs eager attention; leave out --attn"),
    (VIT, {"grad_checkpointing": True}, InvalidRequest, "has no gradient checkpointing"),
    (SWIN_V2, {"grad_checkpointing": True}, InvalidRequest, "has no gradient checkpointing"),
    (VIT, {"res": "224x192"}, InvalidRequest, "square images only; use --res 192"),
    (VIT, {"res": "100"}, InvalidRequest, "no multiple of the patch size|indivisible by patch size"),
    (VIT, {"heads": 7}, InvalidRequest, "divisible by"),
    (VIT, {"window": 7}, InvalidRequest, "no such setting; leave out --window"),
    (VIT, {"drop_path": 0.1}, InvalidRequest, "no such setting; leave out --drop-path"),
    (SWIN, {"patch_drop": 0.1}, InvalidRequest, "no such setting; leave out --patch-drop"),
    (SWIN, {"depth": 2}, NotModelled, "--depth is not modelled for a model in stages"),
    (SWIN, {"heads": 2}, NotModelled, "--heads is not modelled for a model in stages"),
    (SWIN, {"dim": 100}, InvalidRequest, "not divisible by|invalid for input"),
    (SWIN, {"res": "3"}, InvalidRequest, "smaller than one patch|cannot be trained"),
]


@pytest.mark.parametrize(("model", "settings", "error", "message"), REFUSED)
def test_the_estimator_refuses_it(model, settings, error, message):
    with pytest.raises(error, match=message) as caught:
        vitmem.estimate(model, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("model", "settings", "error", "message"), REFUSED)
def test_the_rehearsal_refuses_it(model, settings, error, message):
    for package in ("torch", "torchvision", "transformers"):
        pytest.importorskip(package)
    from vitmem.validate.meta import measure

    with pytest.raises(error, match=message) as caught:
        measure(TrainSettings.of(model, **settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", catalog.names("torchvision/*"))
def test_without_checkpointing_a_model_of_timm_is_named_that_has_it(name):
    with pytest.raises(InvalidRequest, match="has no gradient checkpointing") as caught:
        vitmem.estimate(name, grad_checkpointing=True)
    instead = str(caught.value).rpartition("timm's ")[2].removesuffix(" has it")
    assert catalog.resolve(instead).library == "timm"
    assert catalog.resolve(instead).num_parameters == pytest.approx(catalog.resolve(name).num_parameters, rel=0.01)


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean torchvision/vit_b_16"):
        vitmem.estimate("torchvision/vit_b_61")


def test_an_argument_that_the_family_does_not_know_is_not_modelled():
    for name in (VIT, SWIN):
        model = catalog.resolve(name)
        newer = dataclasses.replace(model, config={**model.config, "invented": 1})
        with pytest.raises(NotModelled, match="invented is not modelled"):
            families.plan(newer, TrainSettings.of(name))


def test_the_wrapper_computes_the_loss_as_timms_wrapper_does():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    from vitmem.validate.build_torchvision import ForImageClassification

    torch.manual_seed(0)
    head = torch.nn.Linear(4, 3)
    config = transformers.TimmWrapperConfig(architecture="test_vit", num_labels=3)
    timm = transformers.TimmWrapperForImageClassification(config)
    timm.timm_model = head
    images, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])
    ours, theirs = ForImageClassification(head)(images, labels), timm(images, labels)
    assert torch.equal(ours["loss"], theirs.loss)
    assert torch.equal(ours["logits"], theirs.logits)
    assert timm.accepts_loss_kwargs is False
