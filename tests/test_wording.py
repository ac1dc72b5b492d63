"""What is refused says so in words that fit: empty values, and numbers in other digits than 0 to 9."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from vitmem.cli import main
from vitmem.units import parse_number

REFUSED = [
    ("estimate --bs 1_000", "bs '1_000' is not valid; it must be a whole number"),
    ("estimate --bs \uff11\uff12", "is not valid; it must be a whole number"),
    ("estimate --res \uff11\uff16\uff10", "is not a size in pixels"),
    ("estimate --memory \uff11GiB", "is not a positive size"),
    ("estimate --memory 24", "memory '24' has no unit"),
    ("estimate --torch \uff12.14", "is no version"),
    ("estimate --mlp-ratio 2000", "a number above 0 and below 1000"),
    ("estimate --out=", "out is empty; name a file"),
    ("estimate --training-args=", "training_args is empty"),
    ("estimate --deepspeed=", "deepspeed is empty"),
    ("recommend --memory 4GiB --allow=", "allow is empty; name settings"),
    ("recommend --memory 4GiB --forbid ,", "forbid is empty; name settings"),
    ("recommend --memory 4GiB --write=", "write is empty; name a folder"),
    ("recommend --memory 4GiB --effective-batch 1_0", "effective batch '1_0' is not valid"),
    ("schedule --res 224 --epochs 1", "schedule needs what every phase must fit into"),
    ("schedule --res 224 --epochs 1_0 --memory 4GiB", "epochs '1_0' is not a whole number"),
    ("sweep --bs 1_0,2", "bs '1_0' is not valid"),
    ("recommend --memory 4GiB --write /proc/plan", "write '/proc/plan' cannot be written (it takes no files)"),
    ("estimate --out /proc/plan.md", "out '/proc/plan.md' cannot be written (it takes no files)"),
    ("sweep --bs 1,2 --out map.pdf", "end it in .csv, .json, .md, .txt, .png, .svg"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_a_refusal_says_what_is_wrong(line: str, message: str, capsys: Any) -> None:
    assert main(shlex.split(line)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in " ".join(shown.err.split())


def test_numbers_are_written_in_ascii_digits() -> None:
    assert [parse_number(text) for text in ("12", "-3", ".5", "1e3", "2.", "+7")] == [12, -3, 0.5, 1000.0, 2.0, 7]
    for text in ("1_000", "\uff11", "\u0661", "0x10", "1,5", " 1", ""):
        assert parse_number(text) == text


def test_what_is_searched_for_a_model_of_no_family_says_what_to_type_instead(capsys: Any) -> None:
    assert main(("recommend", "resnet50", "--gpu", "t4")) == 4
    message = " ".join(capsys.readouterr().err.split())
    assert message == (
        "error: resnet50 of timm is outside the modelled families; `vitmem models` lists those that are, `vitmem "
        "estimate` rehearses the others"
    )


def test_one_file_exists_and_several_exist(tmp_path: Path, capsys: Any) -> None:
    line = ("recommend", "test_vit", "--gpu", "t4", "--write", str(tmp_path))
    for name, words in (("README.md", "README.md exists in"), ("train.py", "train.py, README.md exist in")):
        (tmp_path / name).touch()
        assert main(line) == 2
        assert words in " ".join(capsys.readouterr().err.split())
