"""``sweep --out map.png``: a cell for every combination, and a mark on what does not fit."""

from __future__ import annotations

import builtins
import json
import re
from pathlib import Path
from typing import Any

import pytest
from vitmem.cli import main
from vitmem.errors import InvalidRequest
from vitmem.validate.heat_map import check

LINE = ("sweep", "torchvision/vit_b_16", "--bs", "1,8", "--res", "64,65", "--memory", "1600MiB")


def test_a_picture_has_every_figure_and_marks_what_does_not_fit(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "map.svg"
    assert main((*LINE, "--json", "--out", str(target))) == 0
    shown = capsys.readouterr()
    assert shown.err == f"wrote {target}\n"
    rows = json.loads(shown.out)["rows"]
    assert [row["verdict"] and row["verdict"]["fits"] for row in rows] == ["no", None, "no", None]
    texts = re.findall(r"<!-- (.*?) -->", target.read_text())
    assert texts.count("no figure") == 2
    assert sum(text.endswith(" GiB") for text in texts) == 2
    assert {"bs", "res", "does not fit", "GiB reserved", "torchvision/vit_b_16 on 1600MiB"} <= set(texts)
    assert "borderline" not in texts
    assert target.read_text().count("fill: url(#") == 3, "two cells are hatched, and the legend"


def test_a_picture_of_one_axis_and_of_three(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(("sweep", "test_vit", "--bs", "1,2", "--out", str(tmp_path / "one.png"))) == 0
    line = ("sweep", "test_vit", "--bs", "1,2", "--precision", "fp32,bf16", "--accum", "1,2")
    assert main((*line, "--out", str(tmp_path / "three.PNG"))) == 0
    for name in ("one.png", "three.PNG"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert main((*line, "--out", str(tmp_path / "one.png"))) == 2


def test_names_that_are_longer_than_a_cell_is_wide_are_slanted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for column, slants in (("--optim=adamw_torch_fused,sgd", True), ("--res=64,96", False)):
        target = tmp_path / f"{slants}.svg"
        assert main(("sweep", "test_vit", column, "--out", str(target))) == 0
        assert ("rotate(-25" in target.read_text()) is slants


def test_too_many_cells_are_refused_before_anything_is_computed() -> None:
    pytest.importorskip("matplotlib")
    check({"precision": range(12), "bs": range(20), "res": range(20)})
    with pytest.raises(InvalidRequest, match="up to 400 cells"):
        check({"bs": range(20), "res": range(21)})
    with pytest.raises(InvalidRequest, match="12 panels"):
        check({"precision": range(13), "bs": range(2), "res": range(2)})


def test_without_matplotlib_the_extra_is_named(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert main((*LINE, "--out", str(tmp_path / "map.png"))) == 4
    assert "pip install 'vitmem[plot]'" in capsys.readouterr().err
