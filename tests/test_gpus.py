"""The table of GPUs, what is read from it, and the command that shows it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.resources import files

import pytest
from vitmem import gpus, units
from vitmem.cli import main
from vitmem.errors import InvalidRequest, UnknownName

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MIB = 2**20
FILE = tomllib.loads((files("vitmem.data") / "gpus.toml").read_text(encoding="utf-8"))
MEASURED = FILE["context"]["measured"]
ROWS = list(gpus.load().values())
#: Threads an SM holds, and its fp32 lanes (CUDA programming guide, "Compute capabilities").
SM = {
    (6, 0): (2048, 64),
    (7, 0): (2048, 64),
    (7, 5): (1024, 64),
    (8, 0): (2048, 64),
    (8, 6): (1536, 128),
    (8, 9): (1536, 128),
    (9, 0): (2048, 128),
    (10, 0): (2048, 128),
    (10, 3): (2048, 128),
    (12, 0): (1536, 128),
}


def entry(**changes):
    row = FILE["gpu"][0] | changes
    return {key: value for key, value in row.items() if value is not None}


def test_the_gpus_of_the_contract_are_there():
    said = "t4 v100-16g v100-32g rtx2080ti rtx3090 rtx4090 rtx5090 a10g l4 l40s a100-40g a100-80g h100-80g h200 b200"
    assert set(said.split()) <= set(gpus.names())
    assert len(ROWS) >= 45


def test_every_label_means_one_gpu():
    labels = [label for row in ROWS for label in (row.name, row.full_name)]
    assert [gpus.find(label).name for label in labels] == [row.name for row in ROWS for _ in range(2)]
    assert len({label.casefold() for label in labels}) == len(labels)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_plausible(row):
    threads, lanes = SM[row.capability]
    assert row.max_threads_per_sm == threads
    assert 1.2 < row.fp32_tflops * 1e3 / (2 * lanes * row.num_sms) < 2.7, "GHz that the fp32 rate takes"
    assert 2 <= round(row.tensor_tflops / row.fp32_tflops) <= 30
    assert row.tensor_dtype == ("bf16" if row.capability >= (8, 0) else "fp16")
    assert row.name == row.name.lower()
    assert 0.85 * row.sold_as_gib < row.memory_mib / 1024 < row.sold_as_gib


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_says_what_its_figures_rest_on(row):
    assert len(row.source_peak) > 10
    if row.memory_is_confirmed:
        quoted = [float(text) for text in re.findall(r"\d+(?:\.\d+)?", row.source_memory)]
        as_mib = [scale * value for value in quoted for scale in (1, 1024, 1 / MIB)]
        assert any(abs(row.memory_mib - value) < 6 for value in as_mib), "a figure of the source is the row's"
    else:
        assert re.match(r"not confirmed: .*\d", row.source_memory)


def test_most_memory_sizes_are_confirmed():
    assert sum(row.memory_is_confirmed for row in ROWS) >= 0.8 * len(ROWS)


@pytest.mark.parametrize("name", ["RTX3090", "rtx 3090", "RTX-3090", "GeForce RTX 3090", "nvidia geforce rtx 3090"])
def test_a_gpu_is_found_however_it_is_spelt(name):
    assert gpus.find(name).name == "rtx3090"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a100", "a100-40g, a100-80g, a100-80g-pcie"),
        ("NVIDIA GeForce RTX 3080", "rtx3080-10g, rtx3080-12g, rtx3080ti"),
        ("Tesla V100", "v100-16g, v100-32g"),
        ("rtx4900", "rtx4090"),
        ("", "lists what is known"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name, hint):
    with pytest.raises(UnknownName, match=hint) as caught:
        gpus.find(name)
    assert caught.value.exit_code == 2


def test_memory_can_be_given_as_a_size():
    assert units.parse_bytes("24GiB") == 24 * 2**30
    with pytest.raises(InvalidRequest, match="24GiB"):
        units.parse_bytes("24")


def test_a_row_gives_kernels_what_they_need():
    row = gpus.find("l4")
    kernels = row.kernel_view
    assert (kernels.capability, kernels.num_sms, kernels.threads_per_sm) == ((8, 9), 58, 1536)
    assert (row.memory_bytes, row.generation) == (22563 * MIB, "Ada Lovelace")


@pytest.mark.parametrize("point", MEASURED, ids=lambda point: f"{point['gpu']}-{point['state']}-{point['mib']}")
def test_the_context_agrees_with_what_was_measured(point):
    row = gpus.find(point["gpu"])
    context = gpus.context_of(row)
    if point["state"] == "bare":
        threads_mib = 2 * row.num_sms * row.max_threads_per_sm / 1024  # 2 KiB each
        assert abs(point["mib"] - threads_mib) <= 20
    assert context.low_bytes <= point["mib"] * MIB <= context.high_bytes
    assert point["source"]


def test_the_expected_context_is_the_median_of_working_processes():
    working = [point for point in MEASURED if point["state"] == "working"]
    above = sum(point["mib"] * MIB > gpus.context_of(gpus.find(point["gpu"])).expected_bytes for point in working)
    assert abs(2 * above - len(working)) <= 1


def test_an_unknown_gpus_context_is_a_wide_range():
    context = gpus.context_of(None)
    assert (context.low_bytes, context.expected_bytes, context.high_bytes) == (300 * MIB, 450 * MIB, 700 * MIB)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_sms": 0}, "p100-16g: num_sms is 0"),
        ({"num_sms": "56"}, "p100-16g: num_sms is '56'"),
        ({"num_sms": None}, "p100-16g has or lacks num_sms"),
        ({"colour": "green"}, "p100-16g has or lacks colour"),
        ({"source_peak": " "}, "p100-16g: source_peak is ' '"),
        ({"nvlink_gb_per_s": 160}, "p100-16g has or lacks source_nvlink"),
        ({"nvlink_gb_per_s": 160, "source_nvlink": 1}, "p100-16g: source_nvlink is 1"),
        ({"compute_capability": "6"}, "p100-16g: compute_capability is '6'"),
        ({"compute_capability": "99.0"}, "p100-16g: compute_capability is '99.0'"),
        ({"tensor_bf16_tflops": 1.0}, "p100-16g needs either"),
        ({"name": None}, "number 1 has or lacks name"),
    ],
)
def test_a_bad_row_is_named(monkeypatch, changes, message):
    monkeypatch.setattr(gpus, "_file", lambda: {"gpu": [entry(**changes)]})
    with pytest.raises(ValueError, match=re.escape(message)):
        gpus.load.__wrapped__()


def test_a_row_that_is_there_twice_is_named(monkeypatch):
    monkeypatch.setattr(gpus, "_file", lambda: {"gpu": [entry(), entry()]})
    with pytest.raises(ValueError, match="p100-16g is there twice"):
        gpus.load.__wrapped__()


def test_the_command_lists_them_in_80_columns(capsys):
    assert main(["gpus"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{len(ROWS)} GPUs.")
    assert max(map(len, out.splitlines())) <= 80
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith("  ") and line.strip()}
    assert lines["a100-80g"] == ["a100-80g", "79.15", "GiB", "8.0", "108", "312", "bf16", "2,039"]
    assert {row.name for row in ROWS} < set(lines)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("rtx50*", ["rtx5060ti-16g", "rtx5070ti", "rtx5080", "rtx5090"]), ("SXM2", ["v100-16g", "v100-32g"])],
)
def test_the_command_searches_names_and_full_names(capsys, pattern, names):
    assert main(["gpus", pattern, "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["gpus"]] == names


def test_the_json_has_every_figure_and_its_source(capsys):
    main(["gpus", "h200", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    row = document["gpus"][0]
    given = {key: value for key, value in FILE["gpu"][gpus.names().index("h200")].items() if "mib" not in key}
    given["tensor_tflops"] = given.pop("tensor_bf16_tflops")
    assert given.items() <= (row | {"sold_as_gib": 141}).items()
    assert row["memory_bytes"] == 143156 * MIB
    assert row["context_low_bytes"] < row["context_expected_bytes"] < row["context_high_bytes"]


def test_the_command_writes_a_file(tmp_path, capsys):
    assert main(["gpus", "l4*", "--out", str(tmp_path / "gpus.csv")]) == 0
    capsys.readouterr()
    assert "l40s" in (tmp_path / "gpus.csv").read_text(encoding="utf-8")


def test_no_match_is_bad_usage(capsys):
    assert main(["gpus", "rtx9090"]) == 2
    assert "no gpu matches 'rtx9090'; did you mean rtx" in capsys.readouterr().err


def test_an_estimate_without_a_gpu_reads_no_table():
    script = (
        "import sys, vitmem; vitmem.estimate('vit_tiny_patch16_224', bs=1); "
        "sys.exit(bool({'tomllib', 'tomli', 'vitmem.gpus'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
