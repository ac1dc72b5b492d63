"""Models without a family: rehearsed where the libraries are installed, an install hint where they are not."""

from __future__ import annotations

import json
import sys

import pytest
import vitmem
from vitmem import catalog
from vitmem.cli import main
from vitmem.errors import NoFamily, NotModelled, UnknownName
from vitmem.report.estimate import estimate_report
from vitmem.report.formats import renderer, suffixes
from vitmem.settings import TrainSettings

SMALL = {"model": "resnet10t", "res": "64", "bs": 2}


@pytest.fixture
def without_torch(monkeypatch):
    """As where the extra is not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] == "torch" or name.startswith("vitmem.validate.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.parametrize("name", ["resnet10t", "vit_base_r50_s16_224", "torchvision/resnet18"])
def test_without_the_libraries_it_says_what_to_install(without_torch, name):
    with pytest.raises(NotModelled, match=r"needs torch; pip install 'vitmem\[validate\]'") as caught:
        vitmem.estimate(name)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)


def test_a_name_that_no_library_knows_is_not_rehearsed():
    with pytest.raises(UnknownName, match="did you mean"):
        vitmem.estimate("resnet10tt")


def test_what_is_modelled_is_not_rehearsed(without_torch):
    assert vitmem.estimate("vit_tiny_patch16_224", depth=1).peak.allocated_bytes


def test_features_that_are_not_modelled_are_refused_before_anything_is_built(without_torch):
    with pytest.raises(NotModelled, match="leave out --gpus, or --parallel ddp"):
        vitmem.estimate("resnet10t", gpus=2)


@pytest.fixture(scope="module")
def estimate():
    for library in ("torch", "timm", "transformers"):
        pytest.importorskip(library)
    return vitmem.estimate(**SMALL)


def test_the_rehearsal_is_the_estimate(estimate):
    from vitmem.validate.meta import measure

    measured = measure(TrainSettings.of(**SMALL))
    assert estimate.peak.tensor_bytes == measured.peak_bytes
    assert sum(size for size in estimate.at_peak.values() if size is not None) == measured.peak_bytes
    assert {name: phase.tensor_bytes for name, phase in estimate.phases.items() if phase} == measured.phases
    assert estimate.model.num_parameters == measured.num_parameters
    assert (estimate.model.library, estimate.model.family) == ("timm", "ResNet")


def test_what_a_rehearsal_does_not_see_is_unknown_and_not_zero(estimate):
    assert estimate.peak.allocated_bytes is None
    assert estimate.at_peak["workspaces"] is None
    assert {row.peak_temporary_bytes for row in estimate.layers} == {None}
    assert estimate.model.num_tokens is None
    assert estimate.scaling is None
    json.dumps(estimate.to_dict())


def test_the_report_says_that_it_was_rehearsed_and_fits_80_columns(estimate):
    report = estimate_report(estimate)
    assert "of live tensors" in report.headline
    text = " ".join(renderer(".txt")(report).split())
    assert "the real model was rehearsed instead" in text
    assert "Not known: workspaces, rounding." in text
    assert max(map(len, renderer(".txt")(report).splitlines())) <= 80
    for suffix in suffixes():
        assert "None" not in renderer(suffix)(report).replace("None of:", "")


def test_a_folder_of_another_model_type_is_rehearsed(tmp_path):
    pytest.importorskip("transformers")
    config = {"model_type": "poolformer", "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "image_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    estimate = vitmem.estimate(str(tmp_path), bs=2, res="64")
    assert (estimate.model.library, estimate.model.family) == ("transformers", "PoolFormerForImageClassification")


@pytest.mark.parametrize("name", ["timm/resnet10t.c3_in1k", "hf_hub:timm/vit_tiny_patch16_224.augreg_in21k"])
def test_timms_own_spellings_are_rehearsed_and_validated(name):
    pytest.importorskip("timm")
    from vitmem.validate.meta import rehearse

    assert rehearse(TrainSettings.of(name, res="64", bs=1)).library == "timm"


@pytest.mark.parametrize(
    ("architecture", "arguments"), [("resnet10t", {"stem_width": 16}), ("vit_tiny_patch16_224", {"depth": 2})]
)
def test_a_folder_of_timm_is_rehearsed(tmp_path, architecture, arguments):
    pytest.importorskip("timm")
    from vitmem.validate.meta import measure

    (tmp_path / "config.json").write_text(json.dumps({"architecture": architecture, "model_args": arguments}))
    settings = {"model": str(tmp_path), "bs": 2, "res": "64"}
    assert vitmem.estimate(**settings).peak.tensor_bytes == measure(TrainSettings.of(**settings)).peak_bytes


def test_every_other_name_is_its_librarys():
    timm = pytest.importorskip("timm")
    rows = catalog._catalogue("timm")
    assert {*rows["models"], *rows["skipped"], *rows["others"]} == set(timm.list_models())
    with pytest.raises(NoFamily):
        catalog.resolve(rows["others"][0])


def test_validating_a_rehearsal_against_itself_is_refused(capsys):
    assert main(["validate", "resnet10t"]) == 4
    assert "nothing to compare" in capsys.readouterr().err


def test_a_rehearsed_model_gets_a_verdict_only_where_its_tensors_say_no(capsys):
    pytest.importorskip("timm")
    assert main(["estimate", "resnet10t", "--res", "64", "--bs", "2", "--memory", "350MiB"]) == 3
    assert "Does not fit 350MiB" in capsys.readouterr().out
    assert main(["estimate", "resnet10t", "--res", "64", "--bs", "2", "--gpu", "t4"]) == 4
    assert "is not known for a rehearsed model" in capsys.readouterr().err
