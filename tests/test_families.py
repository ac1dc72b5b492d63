"""Every catalogued name: the parameters that a family makes are the library's, in number and by name."""

from __future__ import annotations

import dataclasses

import pytest
import vitmem
from matrix import MODELS
from vitmem import catalog, families
from vitmem.engine import Run, Scope
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.kernels import Kernels
from vitmem.settings import TrainSettings
from vitmem.units import DType

NAMES = catalog.names()


def built(name, **settings):
    """The parameters of ``name`` as its family makes them: path -> shape."""
    plan = families.plan(catalog.resolve(name), TrainSettings.of(name, **settings))
    scope = Scope(Run(kernels=Kernels(), parameter_dtype=DType.float32))
    plan.build(scope)
    return {path: tensor.shape for path, tensor in scope.parameters.items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_parameter_count_is_the_librarys(name):
    sizes = built(name)
    total = 0
    for shape in sizes.values():
        count = 1
        for side in shape:
            count *= side
        total += count
    assert total == catalog.resolve(name).num_parameters


def library_parameters(name, **arguments):
    """The real model's parameters, on the meta device; ``arguments`` go to its constructor or its config."""
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        real = real_model(catalog.resolve(name), arguments)
    return {path: tuple(parameter.shape) for path, parameter in real.named_parameters()}


def real_model(model, arguments):
    if model.library == "timm":
        return pytest.importorskip("timm").create_model(model.name, num_classes=1000, **arguments)
    if model.library == "torchvision":
        models = pytest.importorskip("torchvision").models
        return models.get_model(model.name.removeprefix("torchvision/"), num_classes=1000, **arguments)
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**{**model.config, **arguments}, num_labels=1000)
    real = getattr(transformers, model.class_name)(config)
    if "For" not in model.class_name:
        from vitmem.validate.heads import LinearClassifier

        return LinearClassifier(real)
    return real


#: Kinds of blocks, pools and tokens that no case of the matrix has.
OTHERS = ["vit_xsmall_patch16_clip_224", "vit_so150m_patch16_reg4_map_256", "vit_wee_patch16_reg1_gap_256"]
SPREAD = sorted({*MODELS, *OTHERS})


@pytest.mark.parametrize("name", SPREAD)
def test_every_parameter_has_the_librarys_name_and_shape(name):
    assert built(name) == library_parameters(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SPREAD])
def test_every_parameter_of_every_name(name):
    assert built(name) == library_parameters(name)


@pytest.mark.slow
def test_the_catalogue_can_be_made_again(monkeypatch):
    from pathlib import Path

    root = Path(__file__).parent.parent
    monkeypatch.syspath_prepend(str(root / "scripts"))
    import make_catalogue

    for name, text in make_catalogue.catalogues().items():
        assert (root / "data" / "models" / name).read_text() == text


@pytest.mark.parametrize(
    "settings",
    [{"freeze_layers": 13}, {"checkpoint_layers": 13, "grad_checkpointing": True}],
    ids=["freeze", "checkpoint"],
)
def test_more_blocks_than_the_model_has_is_an_error(settings):
    with pytest.raises(InvalidRequest, match="more than the 12 blocks"):
        vitmem.estimate("vit_tiny_patch16_224", **settings)
    vitmem.estimate("vit_tiny_patch16_224", **{name: 12 if value == 13 else value for name, value in settings.items()})


def test_what_would_take_minutes_is_an_error_and_many_micro_steps_are_not():
    for settings in ({"accum": 100_001}, {"depth": 1_001}):
        with pytest.raises(InvalidRequest, match="too large"):
            vitmem.estimate("vit_tiny_patch16_224", **settings)
    two, many = (vitmem.estimate("vit_tiny_patch16_224", accum=accum, loop="plain", depth=2) for accum in (2, 5000))
    assert two.peak == many.peak


def test_a_regression_loss_is_not_modelled():
    with pytest.raises(NotModelled, match="regression"):
        vitmem.estimate("vit_tiny_patch16_224", num_classes=1)
    vitmem.estimate("vit_tiny_patch16_224", num_classes=1, loop="plain")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("vit_base_patch16_224", {"heads": 7}, "not divisible"),
        ("openai/clip-vit-base-patch32", {"dim": 100}, "not divisible"),
        ("google/vit-base-patch16-224", {"heads": 800}, "leaves nothing to 800 heads"),
        ("facebook/dinov2-small", {"res": 8}, "smaller than one patch"),
        ("facebook/dinov2-small", {"mlp_ratio": 2.5}, "whole mlp_ratio"),
        ("vit_base_patch16_224", {"res": 8}, "smaller than one patch"),
        ("google/vit-base-patch16-224", {"patch": 300}, "smaller than one patch"),
        ("vit_base_patch16_224", {"window": 7}, "no windows"),
        ("google/vit-base-patch16-224", {"window": 7}, "no window_size"),
        ("google/vit-base-patch16-224", {"patch_drop": 0.5}, "no patch_drop_rate"),
        ("google/vit-base-patch16-224", {"drop_path": 0.1}, "no drop_path_rate"),
        ("vit_base_patch16_224", {"attn": "flash_attention_2"}, "use --attn sdpa"),
    ],
)
def test_what_the_library_refuses_is_an_error(name, settings, message):
    with pytest.raises(InvalidRequest, match=message):
        built(name, **settings)


@pytest.mark.parametrize(
    ("name", "patch"),
    [
        ("vit_base_patch16_224", 32),
        ("swin_tiny_patch4_window7_224", 8),
        ("google/vit-base-patch16-224", 32),
        ("facebook/dinov2-small", 7),
    ],
)
def test_the_patch_that_the_user_asks_for_is_the_librarys(name, patch):
    assert built(name, patch=patch) == library_parameters(name, patch_size=patch)


@pytest.mark.parametrize("name", ["vit_base_patch16_224", "swin_tiny_patch4_window7_224"])
def test_an_argument_that_the_family_does_not_know_is_not_modelled(name):
    model = catalog.resolve(name)
    newer = dataclasses.replace(model, config={**model.config, "invented": 1})
    with pytest.raises(NotModelled, match="invented is not modelled"):
        families.plan(newer, TrainSettings.of(name))
