"""``data/measurements`` replayed: every row is replayed or has a reason, and nothing that misses is without a cause."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import pytest
from vitmem.cli import main
from vitmem.report.corpus import accuracy_report, corpus_report
from vitmem.report.formats import renderer
from vitmem.report.layout import WIDTH, lines_of
from vitmem.validate import corpus
from vitmem.validate.measured_rows import Figure, Reason, Rung

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "data" / "measurements"


@pytest.fixture(scope="module")
def replayed():
    """Without the null device's rows, which ``test_measurements.py`` and ``test_phase_measurements.py`` hold."""
    public = [figure for figure in corpus.figures() if figure.source != "null device"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "figures", lambda: iter(public))
        return corpus.replay()


def rows_of(name):
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_table(replayed):
    """Prints it: ``pytest -s``."""
    lines = ["".join(span.text for span in line) for line in lines_of(corpus_report(replayed.to_dict()))]
    print("\n" + "\n".join(lines))
    assert max(map(len, lines)) <= WIDTH
    assert lines[0].startswith("Passed: ")
    assert replayed.passed


def test_every_row_of_the_files_is_replayed_or_has_a_reason(replayed):
    refused = {name for reason in replayed.unsupported for name in reason.ids}
    figures = {row.figure.id for row in replayed.replayed}
    public = {row["id"] for row in rows_of("public_measurements")}
    assert public <= figures | refused
    assert not figures & refused
    rungs = sum(bool(row["batch_fits"]) + bool(row["batch_oom_next"]) for row in rows_of("timm_train_bounds"))
    refused_rungs = [row for row in rows_of("timm_train_bounds") if f"{row['model']} {row['source_file']}" in refused]
    assert len(replayed.judged) == rungs - 2 * len(refused_rungs) == 338


def test_public_reserved_memory_within_one_and_a_half_percent(replayed):
    errors = {row.figure.id: row.relative_error for row in replayed.replayed if row.figure.metric == "reserved"}
    rasbt = {name: error for name, error in errors.items() if name.startswith("rasbt")}
    assert len(rasbt) == 6
    assert all(abs(error) < 0.015 for error in rasbt.values())
    assert abs(rasbt["rasbt-03"]) < 0.0002  # fp16 under autocast: what FlashAttention-1 made the out projection save


def test_what_fitted_is_judged_to_fit(replayed):
    outcomes = [row.outcome for row in replayed.judged if row.rung.fitted]
    assert (outcomes.count("right"), outcomes.count("contradiction")) == (178, 0)


def test_every_contradiction_has_a_cause(replayed):
    assert all(row.rung.cause for row in replayed.contradictions)
    assert not [row for row in replayed.contradictions if row.torch == "1.12"]
    named = {row.rung.id.split(" ")[0] for row in replayed.contradictions}
    assert {name for name in named if not name.startswith("swin_v2_cr")} == {"deit_base_patch16_224"}


def test_the_models_of_the_ladder_are_those_of_2022(replayed):
    for row in replayed.judged:
        assert abs(row.num_parameters / 1e6 - row.rung.num_parameters_millions) <= 0.011, row.rung.id
        assert row.image_size == (row.rung.image_size,) * 2, row.rung.id


@pytest.mark.slow
def test_the_readme_has_this_table():
    block = renderer(".md")(accuracy_report(corpus.replay().to_dict()))
    assert block in (ROOT / "README.md").read_text(encoding="utf-8"), "run scripts/update_accuracy.py"


SETTINGS = {"model": "vit_tiny_patch16_224", "depth": 1, "bs": 1, "precision": "fp32", "loop": "plain"}


def small(monkeypatch, figures=(), rungs=(), reasons=()):
    for name, rows in (("figures", figures), ("rungs", rungs), ("reasons", reasons)):
        monkeypatch.setattr(corpus, name, lambda rows=rows: iter(rows))
    return corpus.replay()


def figure(**fields):
    base = {"id": "a", "source": "somewhere", "metric": "allocated", "gpu": "a100-40g", "settings": SETTINGS}
    return Figure(**{**base, **fields})


def rung(**fields):
    base = {"id": "r", "source": "s", "gpu": "rtx3090", "settings": SETTINGS, "image_size": 224}
    return Rung(**{**base, "num_parameters_millions": 0.8, **fields})


def test_errors_groups_and_under_estimates(monkeypatch):
    allocated = small(monkeypatch, [figure(measured=1)]).replayed[0].estimated
    result = small(
        monkeypatch,
        [
            figure(measured=allocated),
            figure(id="b", measured=round(allocated / 0.99)),
            figure(id="c", source="null device", measured=allocated - 512, left_bytes=-512),
        ],
    )
    source = {row["name"]: row for row in result.to_dict()["errors"]["source"]}
    assert (source["public"]["rows"], source["public"]["equal"], source["public"]["under_estimated"]) == (2, 1, 0.5)
    assert source["public"]["worst"] == pytest.approx(-0.01, abs=1e-6)
    assert source["null device"]["equal"] == 1
    assert result.passed


def test_a_miss_without_a_cause_fails_and_one_with_a_cause_is_named(monkeypatch):
    miss = figure(measured=1)
    assert not small(monkeypatch, [miss]).passed
    result = small(monkeypatch, [dataclasses.replace(miss, cause="a known one")])
    assert result.passed
    assert "a: a known one." in "\n".join(corpus_report(result.to_dict()).notes[0].lines)


def test_differences_and_ratios(monkeypatch):
    deeper = {**SETTINGS, "depth": 3}
    one, three = (
        small(monkeypatch, [figure(settings=s, metric="saved_activations", measured=1)]).replayed[0].estimated
        for s in (SETTINGS, deeper)
    )
    difference = figure(settings=deeper, base=SETTINGS, metric="saved_activations", measured=three - one)
    ratio = figure(id="b", settings=deeper, base=SETTINGS, metric="saved_activations", measured=0, low=1.5, high=3.0)
    first, second = small(monkeypatch, [difference, ratio]).replayed
    assert first.relative_error == 0
    assert (second.estimated, second.relative_error, second.is_within) == (three / one, None, True)
    assert not small(monkeypatch, [dataclasses.replace(ratio, high=1.6)]).passed


def test_a_contradiction_is_beyond_the_context(monkeypatch):
    judged = small(monkeypatch, rungs=[rung(fitted=True), rung(fitted=False)]).judged
    assert [row.outcome for row in judged] == ["right", "contradiction"]
    assert not small(monkeypatch, rungs=[rung(fitted=False)]).passed
    assert small(monkeypatch, rungs=[rung(fitted=False, cause="known")]).passed


def test_how_many_are_below_is_said(monkeypatch):
    allocated = small(monkeypatch, [figure(measured=1)]).replayed[0].estimated
    rows = [figure(measured=allocated), figure(id="b", measured=round(allocated / 0.99))]
    said = corpus_report(small(monkeypatch, rows).to_dict()).subtitle
    assert said == ("1 of 2 estimates (50.00 %) are below the measurement, by 1.000 % at most.",)
    said = corpus_report(small(monkeypatch, rows[:1]).to_dict()).subtitle
    assert said == ("No estimate is below its measurement.",)


def test_a_saved_file_is_replayed_by_its_own_torch(monkeypatch, capsys, tmp_path):
    estimated = {
        torch: small(monkeypatch, [figure(settings={**SETTINGS, "torch": torch}, measured=1)]).replayed[0].estimated
        for torch in ("2.9", "2.14")
    }
    assert estimated["2.9"] != estimated["2.14"]  # cuBLASLt's workspace of its own
    saved = tmp_path / "own.json"
    for installed, known in (("2.9.1+cu128", "2.9"), ("2.14.1", "2.14"), ("2.99.0", "2.14")):
        row = {"settings": SETTINGS, "allocated_bytes": estimated[known]}
        file = {"gpu": "a100-40g", "versions": {"torch": installed}, "rows": [row, {"settings": {}, "error": "none"}]}
        saved.write_text(json.dumps(file))
        for path in (saved, tmp_path):
            assert main(["validate", "--corpus", str(path), "--json"]) == 0
            document = json.loads(capsys.readouterr().out)
            assert [(row["torch"], row["relative_error"]) for row in document["rows"]] == [(known, 0)]
            assert [row["reason"] for row in document["unsupported"]] == ["none"]
    assert main(["validate", "--corpus", str(tmp_path / "missing")]) == 2
    assert "missing is not there; `vitmem validate --save FILE` writes a file" in capsys.readouterr().err


def test_the_command(monkeypatch, capsys, tmp_path):
    small(monkeypatch, [figure(measured=1)], reasons=[Reason(ids=("x", "y"), source="a.csv", reason="no family")])
    out = tmp_path / "accuracy.md"
    assert main(["validate", "--corpus", "--out", str(out)]) == 3
    assert "2 of a.csv (x, y): no family." in capsys.readouterr().out.replace("\n    ", " ")
    assert out.read_text().startswith("**FAILED: 0 of 1 figures equal to the byte, 0 within their tolerance.**")
    assert main(["validate", "--corpus", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["passed"] is False
    for wrong in (["vit_tiny_patch16_224"], ["--bs", "4"]):
        assert main(["validate", *wrong, "--corpus"]) == 2
        assert "leave out" in capsys.readouterr().err
