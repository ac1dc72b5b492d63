"""``sweep``: every combination once, in the order of the grid, and a reason where there is no figure."""

from __future__ import annotations

import csv
import json

import pytest
import vitmem
from vitmem import InvalidRequest
from vitmem.cli import main
from vitmem.report.formats import renderer
from vitmem.report.sweep import sweep_report
from vitmem.sweep import sweep_settings


def test_every_combination_is_the_estimate_of_its_settings():
    axes = {"bs": [1, 2], "precision": ["fp32", "bf16"]}
    sweep = sweep_settings({"model": "test_vit"}, axes)
    assert [tuple(row.values.values()) for row in sweep.rows] == [(1, "fp32"), (1, "bf16"), (2, "fp32"), (2, "bf16")]
    for row in sweep.rows:
        assert row.estimate == vitmem.estimate("test_vit", **row.values)


def test_a_refused_combination_is_a_row_with_a_reason():
    sweep = sweep_settings({"model": "torchvision/vit_b_16", "bs": 1}, {"res": [224, 225]})
    assert [row.error is None for row in sweep.rows] == [True, False]
    assert sweep.to_dict()["rows"][1]["peak"] is None


def test_a_wrong_value_and_a_sweep_over_nothing_are_errors():
    with pytest.raises(InvalidRequest, match="precision 'fp17' is unknown"):
        sweep_settings({}, {"precision": ["fp32", "fp17"]})
    with pytest.raises(InvalidRequest, match="several values"):
        sweep_settings({"bs": 1}, {})
    with pytest.raises(InvalidRequest, match="too many"):
        sweep_settings({}, {"bs": range(1, 200), "res": range(1, 200)})


def test_the_command_line(capsys):
    line = ("sweep", "test_vit", "--bs", "1,2", "--res", "160,192x160", "--memory", "2GiB")
    assert main((*line, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["axes"] == {"res": [160, "192x160"], "bs": [1, 2]}
    assert {row["verdict"]["fits"] for row in document["rows"]} == {"yes"}
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "4 combinations, 4 of them fit." in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main(("sweep", "test_vit", "--bs", "4")) == 2


def test_lists_of_texts_of_stages_and_of_what_needs_another_setting(capsys):
    assert main(("sweep", "test_vit", "--bs", "1", "--torch", "2.10,2.14", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["axes"] == {"torch": ["2.10", "2.14"]}
    line = ("sweep", "test_vit", "--bs", "1", "--gpus", "2", "--precision", "bf16")
    assert main((*line, "--zero", "1,2", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["axes"] == {"parallel": ["zero1", "zero2"]}
    sweep = sweep_settings({"model": "test_vit", "bs": 1, "lora_rank": 4}, {"train": ["lora", "full"]})
    assert [row.error is None for row in sweep.rows] == [True, False]


def test_a_sweep_without_a_figure_or_with_a_hole_is_no_success(capsys):
    assert main(("sweep", "test_vit", "--compile", "--bs", "1,2")) == 4
    assert main(("sweep", "test_vit", "--bs", "1,,4")) == 2
    assert "empty value" in capsys.readouterr().err


def test_the_csv_file_has_a_line_for_every_combination(tmp_path):
    """Read back, it is the table of the JSON: axes, bytes as whole numbers, and nothing where there is no figure."""
    path = tmp_path / "sweep.csv"
    line = ("sweep", "torchvision/vit_b_16", "--bs", "1,2", "--res", "224,225", "--optim", "sgd", "--memory", "24GiB")
    assert main((*line, "--out", str(path))) == 0
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        found = list(reader)
    assert reader.fieldnames == ["bs", "res", "allocated", "reserved", "device", "fits"]
    assert [(row["res"], row["bs"]) for row in found] == [("224", "1"), ("225", "1"), ("224", "2"), ("225", "2")]
    for row in found[::2]:
        estimate = vitmem.estimate("torchvision/vit_b_16", res=224, bs=int(row["bs"]), optim="sgd", memory="24GiB")
        peak = estimate.peak
        sizes = [int(row[name]) for name in ("allocated", "reserved", "device")]
        assert sizes == [peak.allocated_bytes, peak.reserved_bytes, peak.device_bytes]
        assert row["fits"] == estimate.verdict["fits"]
    assert all(set(row.values()) == {row["res"], row["bs"], ""} for row in found[1::2])


def test_the_csv_file_has_the_same_columns_where_no_gpu_is_named():
    sweep = sweep_settings({"model": "test_vit"}, {"grad_checkpointing": [False, True], "bs": [1]})
    lines = renderer(".csv")(sweep_report(sweep)).splitlines()
    assert lines[0] == "grad-checkpointing,bs,allocated,reserved,device,fits"
    assert [line.split(",")[0] for line in lines[1:]] == ["False", "True"]
    assert all(line.endswith(",,") for line in lines[1:])
