"""Reports are views: they show what the Estimate says, keep unknown apart from zero, and fit 80 columns."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import click
import pytest
from factories import MIB, make_comparison_document, make_estimate, make_layers
from vitmem.report.comparison import comparison_report
from vitmem.report.estimate import estimate_report
from vitmem.report.folding import fold
from vitmem.report.formats import renderer, suffixes
from vitmem.report.layout import lines_of
from vitmem.report.tables import Column, Report, Table, format_cell
from vitmem.report.terminal import draw

REPORTS = {
    "estimate": lambda: estimate_report(make_estimate()),
    "comparison": lambda: comparison_report(make_comparison_document()),
    "failed": lambda: comparison_report(make_comparison_document(difference=50 * MIB)),
}


def table_of(report: Report, name: str) -> Table:
    return next(table for table in report.tables if table.name == name)


def test_headline_says_peak_phase_and_layer() -> None:
    assert estimate_report(make_estimate()).headline == "Peak 4.11 GiB in the backward pass, at vit.layers.11."


def test_rows_of_the_breakdown_add_up_to_its_total() -> None:
    table = table_of(estimate_report(make_estimate()), "at_peak")
    assert table.total is not None
    assert sum(row[1] for row in table.rows) == table.total[1]  # type: ignore[misc]
    assert sum(row[2] for row in table.rows) == pytest.approx(1)  # type: ignore[misc]


def test_kinds_without_a_byte_are_named_not_dropped() -> None:
    table = table_of(estimate_report(make_estimate()), "at_peak")
    assert table.note == "None of: buffers, gradients, temporaries, communication."


def test_unknown_is_never_shown_as_zero() -> None:
    text = renderer(".txt")(estimate_report(make_estimate()))
    line = next(line for line in text.splitlines() if "max_memory_reserved" in line)
    assert line.split("()")[1].strip() == "not known yet"
    assert format_cell(None, "bytes") == "not known yet"
    assert format_cell(0, "bytes") == "0 B"


def test_folded_layers_add_up_to_the_total_row() -> None:
    table = table_of(estimate_report(make_estimate()), "layers")
    assert [row[:2] for row in table.rows][1] == ("vit.layers.0-11", 12)
    assert table.total is not None
    for place in (2, 3):
        assert sum(row[1] * row[place] for row in table.rows) == table.total[place]  # type: ignore[operator,misc]


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["b.0", "b.1", "b.2"], [("b.0-2", 3)]),
        (["b.0", "b.2"], [("b.0", 1), ("b.2", 1)]),
        (["s.0.b.0", "s.0.b.1", "s.1.b.0"], [("s.0.b.0-1", 2), ("s.1.b.0", 1)]),
        (["b.0", "b.1", "c.1"], [("b.0-1", 2), ("c.1", 1)]),
        (["a.0.0", "a.0.1", "a.1.1"], [("a.0.0-1", 2), ("a.1.1", 1)]),
    ],
)
def test_fold_needs_one_counter_in_one_place(names: list[str], folded: list[tuple[str, int]]) -> None:
    assert [(row.name, row.count) for row in fold((name, (1,)) for name in names)] == folded


def test_fold_keeps_layers_that_differ_apart() -> None:
    assert [row.count for row in fold([("b.0", (1,)), ("b.1", (2,)), ("b.2", (2,))])] == [1, 2]


@pytest.mark.parametrize("suffix", suffixes())
@pytest.mark.parametrize("name", REPORTS)
def test_every_format_draws_every_report(suffix: str, name: str) -> None:
    text = renderer(suffix)(REPORTS[name]())
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "None" not in text.replace("None of:", "")


@pytest.mark.parametrize("name", REPORTS)
def test_text_fits_80_columns(name: str) -> None:
    assert max(map(len, renderer(".txt")(REPORTS[name]()).splitlines())) <= 80


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [1, 30, 50, 80, 200])
def test_a_narrow_terminal_loses_no_figure(width: int, name: str) -> None:
    report = REPORTS[name]()
    lines = ["".join(span.text for span in line) for line in lines_of(report, width=width)]
    if width >= 30:
        assert max(map(len, lines)) <= min(width, 80)
    text = "\n".join(lines)
    for table in report.tables:
        for row in table.rows:
            for value, column in list(zip(row, table.columns, strict=True))[1:]:
                assert format_cell(value, column.kind, table.unknown) in text


def test_a_long_name_wraps_instead_of_pushing_figures_out() -> None:
    report = estimate_report(make_estimate(layers=make_layers(1)))
    table = table_of(report, "layers")._replace(rows=(("x" * 100, 1, 2, 3, 4),))
    lines = ["".join(span.text for span in line) for line in lines_of(report._replace(tables=(table,)))]
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("x") >= 100


def test_an_ascii_terminal_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, "ascii", write_through=True))
    draw(estimate_report(make_estimate()))
    assert b"#####" in raw.getvalue()


def test_no_color_is_respected_and_colour_only_wraps_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = estimate_report(make_estimate())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    draw(report)
    coloured = capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    draw(report)
    plain = capsys.readouterr().out
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    assert [line.rstrip() for line in click.unstyle(coloured).splitlines()] == plain.splitlines()


def test_json_is_the_document_in_the_contracts_order() -> None:
    estimate = make_estimate()
    text = renderer(".json")(estimate_report(estimate))
    assert json.loads(text) == json.loads(json.dumps(estimate.to_dict()))
    assert list(json.loads(text))[:4] == ["schema_version", "vitmem_version", "request", "model"]


def test_csv_holds_raw_bytes_and_leaves_unknown_empty() -> None:
    rows = list(csv.DictReader(io.StringIO(renderer(".csv")(estimate_report(make_estimate())))))
    values = {(row["table"], row["row"], row["column"]): row["value"] for row in rows}
    assert values["at_peak", "parameters", "bytes"] == str(330 * MIB)
    assert values["peak", "torch.cuda.max_memory_reserved()", "bytes"] == ""


@pytest.mark.parametrize(
    ("fits", "headroom", "sentence"),
    [
        ("yes", 2 * MIB, "Fits t4: 2.0 MiB to spare."),
        ("no", -3 * MIB, "Does not fit t4: 3.0 MiB too much."),
        ("borderline", -MIB, "Borderline on t4: headroom -1.0 MiB."),
        ("yes", None, "Fits t4."),
    ],
)
def test_verdict_is_one_sentence(fits: str, headroom: int | None, sentence: str) -> None:
    verdict = {"gpu": "t4", "usable_bytes": 1, "fits": fits, "headroom_bytes": headroom}
    assert estimate_report(make_estimate(verdict=verdict)).subtitle[-1] == sentence


def test_comparison_shows_both_sides_by_kind_and_layer() -> None:
    report = comparison_report(make_comparison_document(difference=5 * MIB))
    assert ("activations", 3000 * MIB, 2995 * MIB, 5 * MIB) in table_of(report, "at_peak").rows
    assert ("vit.layers.0-11", 12, 250 * MIB, 250 * MIB, 0) in table_of(report, "layers_saved").rows
    assert report.headline == "FAILED: the estimate is 0.120 % above the meta backend (tensor bytes)."


def test_comparison_equal_to_the_byte_says_so() -> None:
    assert comparison_report(make_comparison_document()).headline == (
        "Passed: the estimate equals the meta backend to the byte."
    )


def test_a_layer_that_only_one_side_has_is_shown() -> None:
    document = make_comparison_document()
    document["measurement"]["layers"].append({"name": "surprise", "saved_activation_bytes": 4})
    assert ("surprise", 1, None, 4, None) in table_of(comparison_report(document), "layers_saved").rows


def test_warnings_come_before_assumptions() -> None:
    report = estimate_report(dataclasses.replace(make_estimate(), warnings=("careful",)))
    assert [notes.title for notes in report.notes if notes.lines] == ["Warnings", "Assumptions", "Not modelled"]


def test_a_long_name_goes_on_below_from_word_to_word() -> None:
    columns = (Column(name="plan"), Column(name="reserved", kind="bytes"))
    name = "1  32 x 1, fp16, adamw_torch_fused, 11 blocks checkpointed, expandable segments, 8 GPUs (ddp), and so on"
    table = Table(name="plans", title="Plans", columns=columns, rows=((name, 2**30),))
    report = Report(headline="A.", subtitle=(), tables=(table,), notes=(), document={})
    lines = ["".join(span.text for span in line) for line in lines_of(report, width=60)]
    assert max(map(len, lines)) <= 60
    rule = next(place for place, line in enumerate(lines) if "\N{BOX DRAWINGS LIGHT HORIZONTAL}" in line)
    below = [line.replace("1.00 GiB", "").split() for line in lines[rule + 1 :]]
    assert [word for words in below for word in words] == name.split()


def test_a_word_too_long_for_its_column_breaks_after_slashes_and_hyphens() -> None:
    name = "windowed attention: microsoft/swin-large-patch4-window12-384"
    table = Table(name="t", title="T", columns=(Column(name="n"), Column(name="v")), rows=((name, "v" * 42),))
    report = Report(headline="A.", subtitle=(), tables=(table,), notes=(), document={})
    lines = ["".join(span.text for span in line) for line in lines_of(report)]
    pieces = [line.replace("v" * 42, "").strip() for line in lines[-2:]]
    assert pieces == ["windowed attention: microsoft/", "swin-large-patch4-window12-384"]
