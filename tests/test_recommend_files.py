"""The files of a plan: nothing of the user's is replaced, nothing half written, and they say what was estimated."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path
from typing import Any

import pytest
import vitmem
from vitmem.advice.files import Folder, write_plan
from vitmem.cli import main
from vitmem.errors import InvalidRequest, NotModelled, VitmemError

TINY = "vit_tiny_patch16_224"
FILES = {"train.py", "launch.sh", "env.sh", "accelerate.yaml", "README.md"}


def write(folder: Path, *, force: bool = False, **settings: Any) -> Any:
    plan = vitmem.recommend(**{"model": TINY, "memory": "1GiB", "effective_batch": 16, **settings})[0]
    write_plan(plan, "1GiB", Folder(folder, force=force))
    return plan


def test_the_command_writes_every_file(tmp_path: Path, capsys: Any) -> None:
    words = ["recommend", TINY, "--bs", "16", "--memory", "1GiB", "--no-ladder", "--write", str(tmp_path / "out")]
    assert main(words) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert main(words) == 2
    assert "add --force" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    assert main([*words, "--force", "--plan", "99"]) == 2


def test_nothing_is_written_where_nothing_fits(tmp_path: Path) -> None:
    words = ["recommend", "vit_huge_patch14_224", "--memory", "1GiB", "--no-ladder", "--no-lighter"]
    assert main([*words, "--write", str(tmp_path / "out")]) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(InvalidRequest, match=r"train\.py exist"):
        write(tmp_path)
    assert (tmp_path / "train.py").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"train.py"}
    write(tmp_path, force=True)
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "train.py").symlink_to(victim)
    write(folder, force=True)
    assert victim.read_text() == "mine"
    assert not (folder / "train.py").is_symlink()


@pytest.mark.parametrize("path", ["missing/out", "file"])
def test_a_folder_that_cannot_be_made_is_refused_first(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VitmemError):
        Folder(tmp_path / path, force=False)


def test_the_script_says_what_the_plan_says(tmp_path: Path) -> None:
    plan = write(tmp_path / "out", bs=64, memory="1200MiB", effective_batch=None, precision="bf16")
    script = ast.parse((tmp_path / "out" / "train.py").read_text())
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in script.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id.isupper()
        and not isinstance(node.value, (ast.Call, ast.Tuple))
    }
    settings = plan.settings
    assert (values["MICRO_BATCH"], values["ACCUMULATION"]) == (settings["bs"], settings["accum"])
    assert values["PRECISION"] == "bf16"
    assert values["OPTIMIZER"] == settings["optim"]
    assert values["GRAD_CHECKPOINTING"] == settings["grad_checkpointing"]
    assert values["CHECKPOINT_LAYERS"] == settings["checkpoint_layers"]
    assert 'mixed_precision: "bf16"' in (tmp_path / "out" / "accelerate.yaml").read_text()
    exports = (tmp_path / "out" / "env.sh").read_text()
    assert ("export PYTORCH_CUDA_ALLOC_CONF=" in exports) == bool(settings["alloc_conf"])


def test_the_readme_names_the_command_that_estimates_the_same(tmp_path: Path, capsys: Any) -> None:
    plan = write(tmp_path / "out", res=(96, 64), patch_drop=0.25)
    text = (tmp_path / "out" / "README.md").read_text()
    command = next(line for line in text.splitlines() if line.startswith("vitmem estimate"))
    assert main(shlex.split(command)[1:]) == 0
    shown = capsys.readouterr().out
    estimate = vitmem.estimate(**plan.settings)
    assert vitmem.Estimate.to_dict(estimate)["peak"]["reserved_bytes"] == plan.peak.reserved_bytes
    assert "Fits 1GiB" in shown


def test_a_folder_with_quotes_in_its_name_stays_text(tmp_path: Path) -> None:
    config = tmp_path / 'a """ + \'b\' $model'
    config.mkdir()
    source = (
        '{"model_type": "vit", "image_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}'
    )
    (config / "config.json").write_text(source)
    write(tmp_path / "out", model=str(config))
    script = ast.parse((tmp_path / "out" / "train.py").read_text())
    named = [
        node.value for node in script.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODEL"
    ]
    assert ast.literal_eval(named[0]) == str(config)


@pytest.mark.parametrize(
    "settings",
    [
        {"loop": "plain"},
        {"model": "torchvision/vit_b_16"},
        {"train": "linear-probe"},
        {"model": "facebook/vit-mae-base"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_what_the_script_cannot_say_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(NotModelled):
        write(tmp_path / "out", **{"memory": "8GiB", "effective_batch": 1, **settings})
    assert not (tmp_path / "out").exists()
