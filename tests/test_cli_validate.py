"""``vitmem validate`` against the real library, on its smallest model."""

from __future__ import annotations

import dataclasses
import json
import re
from importlib import metadata

import pytest
from vitmem import ops, pipeline
from vitmem.cli import main
from vitmem.cli.validate import _with_installed_torch
from vitmem.errors import NotModelled
from vitmem.result import Estimate
from vitmem.settings import TrainSettings

pytest.importorskip("torch")
pytest.importorskip("timm")

COMMAND = ["validate", "--backend", "meta", "vit_tiny_patch16_224", "--depth", "2", "--bs", "2"]
real_estimate = pipeline.play_settings


def too_large(settings: TrainSettings) -> Estimate:
    """One percent over at the peak."""
    estimate = real_estimate(settings)
    peak = dataclasses.replace(estimate.peak, tensor_bytes=estimate.peak.tensor_bytes * 101 // 100)
    return dataclasses.replace(estimate, peak=peak)


def test_a_validation_that_passes_is_exit_0_and_shows_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMAND) == 0
    out = capsys.readouterr().out
    assert out.startswith("Passed: the estimate equals the meta backend to the byte.")
    assert "blocks.0-1" in out
    assert "optimizer state" in out


def test_a_validation_that_fails_is_exit_3(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "play_settings", too_large)
    assert main(COMMAND) == 3
    assert capsys.readouterr().out.startswith("FAILED: the estimate is 1.000 % above the meta backend (tensor bytes).")
    assert main([*COMMAND, "--tolerance", "0.02"]) == 0


def test_a_wrong_rule_of_an_operator_is_found_in_its_layer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, own_library: None
) -> None:
    # GIVEN an estimator whose dropout keeps a mask also at rate 0
    right = ops.dropout
    monkeypatch.setattr(ops, "dropout", lambda x, rate: right(x, 0.5))
    # THEN the validation fails, and the rows of the blocks, not the head's, are the ones that differ
    assert main([*COMMAND, "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    estimated = {row["name"]: row["saved_activation_bytes"] for row in document["estimate"]["layers"]}
    measured = {row["name"]: row["saved_activation_bytes"] for row in document["measurement"]["layers"]}
    tokens_by_width = 2 * 197 * 192
    assert estimated["blocks.0"] > measured["blocks.0"] + tokens_by_width
    assert estimated["head"] == measured["head"]
    assert main(COMMAND) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"saved activations differ in \d layers, most in blocks\.[01] \(\+", said)


def test_json_is_the_document_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert {"backend", "estimate", "measurement", "relative_error", "tolerance", "passed"} <= set(document)
    assert {"peak", "at_peak", "phases", "layers", "versions", "device"} <= set(document["measurement"])
    assert captured.err == ""


@pytest.mark.parametrize(("installed", "known"), [("2.9.1+cu128", "2.9"), ("2.14.1", "2.14"), ("2.99.0a0", "2.14")])
def test_the_estimate_is_for_the_torch_that_runs(monkeypatch: pytest.MonkeyPatch, installed: str, known: str) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: installed)
    assert _with_installed_torch(TrainSettings()).torch == known
    with pytest.raises(NotModelled, match=rf"installed \({known}\); leave out --torch 2\.1"):
        _with_installed_torch(TrainSettings(torch="2.1"))
