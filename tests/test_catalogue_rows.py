"""Every row of the catalogue: what the installed libraries build, and what the cached figures say."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
import vitmem
from vitmem import catalog

ROWS = {
    name: row
    for library in ("timm", "transformers", "torchvision")
    for name, row in json.loads(files("vitmem.data.models").joinpath(f"{library}.json").read_text())["models"].items()
}
HF_NAMES = [name for name in ROWS if "/" in name and not name.startswith("torchvision/")]
TIMM_NAMES = [name for name in ROWS if "/" not in name]
TORCHVISION_NAMES = [name for name in ROWS if name.startswith("torchvision/")]


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_plain_and_resolves(name):
    model = catalog.resolve(name)
    assert (model.name, model.family, model.class_name) == (name, ROWS[name]["family"], ROWS[name]["class"])
    assert model.num_parameters is not None
    assert model.num_parameters > 10_000
    defaults = catalog._catalogue(model.library)["defaults"]
    if model.library == "transformers":
        assert set(model.config) == {"model_type", *defaults[model.config["model_type"]]}
    if model.library == "timm":
        assert set(model.config) <= set(defaults[model.family])


def rebuilt(name):
    """The parameter count of the model that the row describes, built from the row alone."""
    torch = pytest.importorskip("torch")
    model = catalog.resolve(name)
    with torch.device("meta"):
        real = BUILDERS[model.library](model)
    return sum(parameter.numel() for parameter in real.parameters())


def build_timm(model):
    real = pytest.importorskip("timm").create_model(model.name, num_classes=1000)
    height, width = ROWS[model.name]["input_size"]
    size = getattr(real.patch_embed, "img_size", None)
    assert size in {None, (height, width)}
    return real


def build_transformers(model):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.AutoConfig.for_model(**model.config, num_labels=1000)
    real = getattr(transformers, model.class_name)(config)
    if "For" in model.class_name:
        return real
    return torch.nn.Sequential(real, torch.nn.Linear(config.hidden_size, 1000))


def build_torchvision(model):
    torchvision = pytest.importorskip("torchvision")
    return torchvision.models.get_model(model.name.removeprefix("torchvision/"), num_classes=1000)


BUILDERS = {"timm": build_timm, "transformers": build_transformers, "torchvision": build_torchvision}


SPREAD = [*HF_NAMES[::8], *TIMM_NAMES[::16], *TORCHVISION_NAMES[::4]]


@pytest.mark.parametrize("name", SPREAD)
def test_a_row_has_the_librarys_parameter_count(name):
    assert rebuilt(name) == ROWS[name]["num_parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ROWS if name not in SPREAD])
def test_every_row_has_the_librarys_parameter_count(name):
    assert rebuilt(name) == ROWS[name]["num_parameters"]


def assert_per_image(name):
    scaling = vitmem.estimate(name).scaling
    assert catalog.bytes_per_image()[name] == scaling.bytes_per_image


@pytest.mark.parametrize("name", catalog.names()[::20])
def test_the_cached_cost_of_an_image_is_the_estimators(name):
    assert_per_image(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", catalog.names())
def test_every_cached_cost_of_an_image_is_the_estimators(name):
    assert_per_image(name)


def test_every_name_has_a_cached_cost_and_no_other_has():
    assert sorted(catalog.bytes_per_image()) == sorted(catalog.names())


@pytest.mark.slow
def test_a_pretrained_tag_changes_no_shape():
    timm = pytest.importorskip("timm")
    torch = pytest.importorskip("torch")
    for tagged in timm.list_models(pretrained=True):
        if (name := tagged.split(".")[0]) in ROWS:
            with torch.device("meta"):
                real = timm.create_model(tagged, num_classes=1000)
            assert sum(p.numel() for p in real.parameters()) == ROWS[name]["num_parameters"], tagged
