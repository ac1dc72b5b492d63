"""The command line: what is parsed, what is printed where, and every exit code."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vitmem
from factories import make_estimate
from vitmem import pipeline
from vitmem.cli import COMMANDS, main
from vitmem.cli.options import SECTIONS, settings_of
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.result import Estimate
from vitmem.settings import TrainSettings

Run = Callable[..., tuple[int, str, str]]
PROGRAM = [sys.executable, "-W", "error", "-m", "vitmem"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process: (exit code, stdout, stderr)."""

    def call(*args: str) -> tuple[int, str, str]:
        code = main(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[TrainSettings]:
    """A hand-made estimate in place of the engine; the settings that it was asked for."""
    asked: list[TrainSettings] = []

    def estimate_settings(settings: TrainSettings) -> Estimate:
        asked.append(settings)
        return make_estimate()

    monkeypatch.setattr(pipeline, "estimate_settings", estimate_settings)
    return asked


def test_every_setting_has_one_option() -> None:
    names = [row.name for rows in SECTIONS.values() for row in rows]
    assert sorted(names) == sorted(
        {field.name for field in dataclasses.fields(TrainSettings)} - {"model", "notes", "zero_options"}
    )


def test_options_reach_the_settings(run: Run, engine: list[TrainSettings]) -> None:
    line = (
        "vit_base_patch16_224 --res 512x384 --bs 4 --mlp-ratio 3.5 --drop-path 0.1 --precision bf16 --ema --no-compile"
    )
    assert run("estimate", *line.split())[0] == 0
    expected = {"res": (512, 384), "bs": 4, "mlp_ratio": 3.5, "drop_path": 0.1, "precision": "bf16", "ema": True}
    assert engine == [TrainSettings.of("vit_base_patch16_224", **expected)]


def test_without_options_the_defaults_are_the_librarys(run: Run, engine: list[TrainSettings]) -> None:
    run("estimate")
    assert engine == [TrainSettings()]


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_zero_is_short_for_parallel(stage: str) -> None:
    assert settings_of(None, {"zero": stage}).parallel == f"zero{stage}"


@pytest.mark.parametrize("given", [{"zero": "4"}, {"zero": "2", "parallel": "ddp"}])
def test_zero_refuses_what_it_cannot_mean(given: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="zero"):
        settings_of(None, given)


BAD_USAGE = [
    ("estimate --res 512x", "res '512x' is not a size in pixels"),
    ("estimate --res 0", "res '0' is not a size in pixels"),
    ("estimate --bs -1", "bs -1 is not valid; it must be a whole number, at least 1"),
    ("estimate --bs many", "bs 'many' is not valid; it must be a whole number, at least 1"),
    ("estimate --drop-path 2", "drop_path 2 is not valid; it must be a rate"),
    ("estimate --precision fp61", "did you mean fp16"),
    ("estimate --rez 3", "No such option"),
    ("estimate --bs", "requires an argument"),
    ("estimate a b", "unexpected extra argument"),
    ("estimate --out report.pdf", "has no known suffix"),
    ("estimate --out missing/report.md", "existing folder"),
    ("estimate no_such_model_at_all", "no_such_model_at_all"),
    ("estimate vit_base_patch16_22", "vit_base_patch16_224"),
    ("estimat", "did you mean estimate?"),
    ("validate --backend mta", "did you mean meta?"),
    ("validate --tolerance x", "tolerance 'x' is not valid"),
    ("models no_such_model_at_all", "no model matches"),
]


@pytest.mark.parametrize(("line", "message"), BAD_USAGE)
def test_bad_usage_is_one_clear_error_and_exit_2(run: Run, line: str, message: str) -> None:
    code, out, err = run(*line.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") <= 2


def test_without_a_device_cuda_is_exit_4_and_names_backends_that_run(run: Run) -> None:
    code, out, err = run("validate", "--backend", "cuda")
    assert (code, out) == (4, "")
    assert "--backend meta" in err


@pytest.mark.parametrize(("fits", "code"), [("yes", 0), ("borderline", 0), ("no", 3)])
def test_a_verdict_decides_the_exit_code_after_printing(
    run: Run, monkeypatch: pytest.MonkeyPatch, fits: str, code: int
) -> None:
    verdict = {"gpu": "t4", "usable_bytes": 1, "fits": fits, "headroom_bytes": 0}
    monkeypatch.setattr(pipeline, "estimate_settings", lambda settings: make_estimate(verdict=verdict))
    assert run("estimate")[0] == code
    assert json.loads(run("estimate", "--json")[1])["verdict"]["fits"] == fits


def _raising(error: BaseException) -> Callable[[Any], Any]:
    def fail(settings: TrainSettings) -> Estimate:
        raise error

    return fail


def test_an_error_is_wrapped_on_a_terminal_and_one_line_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["estimate", "/no/such/folder/with/a/name/that/is/longer/than/any/terminal/would/ever/show/in/one/line"]
    plain, terminal = io.StringIO(), io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    for stream in (plain, terminal):
        monkeypatch.setattr(sys, "stderr", stream)
        main(line)
    assert plain.getvalue().count("\n") == 1
    lines = terminal.getvalue().splitlines()
    assert len(lines) > 1
    assert max(len(one) for one in lines if "/no/such" not in one) <= 80
    assert terminal.getvalue().split() == plain.getvalue().split()


@pytest.mark.parametrize(
    ("error", "code", "err"),
    [
        (NotModelled("no such thing; do this"), 4, "error: no such thing; do this\n"),
        (KeyboardInterrupt(), 130, ""),
        (ZeroDivisionError("a\nb"), 1, "error: internal error: ZeroDivisionError: a b; please report it"),
    ],
)
def test_errors_have_an_exit_code_and_no_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, err: str
) -> None:
    monkeypatch.setattr(pipeline, "estimate_settings", _raising(error))
    got = run("estimate")
    assert got[:2] == (code, "")
    assert got[2].strip().startswith(err.strip())
    assert got[2].count("\n") <= 2


def test_debug_lets_the_traceback_through(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITMEM_DEBUG", "1")
    monkeypatch.setattr(pipeline, "estimate_settings", _raising(ZeroDivisionError("here")))
    with pytest.raises(ZeroDivisionError):
        run("estimate")


@pytest.mark.usefixtures("engine")
def test_json_prints_the_document_and_nothing_else(run: Run) -> None:
    code, out, err = run("estimate", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(make_estimate().to_dict()))


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("suffix", [".json", ".md", ".csv", ".txt"])
def test_out_writes_the_format_of_the_suffix(run: Run, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"report{suffix}"
    code, out, err = run("estimate", "--out", str(path))
    assert (code, err) == (0, f"wrote {path}\n")
    assert out.startswith("Peak ")
    assert path.read_text()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_out_refuses_to_overwrite_before_anything_is_computed(
    run: Run, engine: list[TrainSettings], tmp_path: Path
) -> None:
    path = tmp_path / "report.md"
    path.write_text("mine")
    code, out, err = run("estimate", "--out", str(path))
    assert (code, out, engine) == (2, "", [])
    assert "--force" in err
    assert path.read_text() == "mine"
    assert run("estimate", "--out", str(path), "--force")[0] == 0
    assert path.read_text().startswith("**Peak ")


def test_models_lists_what_matches(run: Run) -> None:
    found = json.loads(run("models", "vit_base_patch16_224", "--json")[1])["models"]
    names = [model["name"] for model in found]
    assert "vit_base_patch16_224" in names
    assert set(names) < set(run("models")[1].split())
    row = next(model for model in found if model["name"] == "vit_base_patch16_224")
    per_image = vitmem.estimate("vit_base_patch16_224").scaling.bytes_per_image
    assert row == {
        "name": "vit_base_patch16_224",
        "library": "timm",
        "family": "timm_vit",
        "num_parameters": 86_567_656,
        "native_size": [224, 224],
        "bytes_per_image": per_image,
    }


def test_validate_without_torch_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("vitmem.validate.")]:
        monkeypatch.delitem(sys.modules, name)
    code, out, err = run("validate")
    assert (code, out) == (4, "")
    assert "pip install 'vitmem[validate]'" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run: Run, command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert command in run("--help")[1]


def test_version(run: Run) -> None:
    assert re.fullmatch(r"vitmem \d+\.\d+\.\d+\n", run("--version")[1])


@pytest.mark.parametrize(
    ("args", "banned"),
    [
        (["--help"], {"rich", "torch", "numpy", "vitmem.pipeline"}),
        (["estimate", "--res", "512", "--bs", "8"], {"torch", "numpy", "timm", "transformers", "asyncio"}),
        (["estimate", "--json"], {"torch", "numpy", "rich"}),
    ],
)
def test_a_command_imports_only_what_it_needs(args: list[str], banned: set[str]) -> None:
    code = f"import sys; from vitmem.cli import main; main({args!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not banned & set(done.stderr.split())


@pytest.mark.parametrize("args", [["models"], ["estimate"], ["estimate", "--json"]])
def test_the_module_runs_and_keeps_quiet_when_its_reader_leaves(args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run([*PROGRAM, *args], stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 1


def test_piped_output_has_no_escape_codes() -> None:
    done = subprocess.run([*PROGRAM, "estimate"], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    "settings",
    [
        {"mlp_ratio": "4"},
        {"grad_checkpointing": "no"},
        {"grad_checkpointing": 1},
        {"precision": None},
        {"bs": None},
        {"memory": 24 * 2**30},
        {"gpu": 3},
        {"alloc_conf": {}},
        {"model": 3},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_kind_is_refused_from_python_too(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        vitmem.estimate(**{"model": "vit_tiny_patch16_224", **settings})


def test_a_name_that_is_begun_is_completed() -> None:
    with pytest.raises(InvalidRequest, match="did you mean adamw_torch, "):
        vitmem.estimate("vit_tiny_patch16_224", optim="adamw_t")
