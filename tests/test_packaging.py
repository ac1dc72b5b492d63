"""What gets installed: the wheel holds ``vitmem`` and nothing else, and every folder of the source is in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {"estimator": "vitmem", "validate": "vitmem/validate", "data": "vitmem/data"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The file names in a wheel that is built from a copy of the source."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return archive.namelist()


def test_the_wheel_installs_vitmem_and_nothing_else(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"vitmem"}


def test_every_source_file_is_in_the_wheel(wheel: list[str]) -> None:
    expected = {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, target in SOURCES.items()
        for suffix in ("*.py", "*.json", "*.toml", "csrc/**/*")
        for path in (ROOT / folder).rglob(suffix)
        if path.is_file()
    }
    assert expected - set(wheel) == set()


def test_types_and_licence_are_in_the_wheel(wheel: list[str]) -> None:
    assert "vitmem/py.typed" in wheel
    assert any(name.endswith("/LICENSE") for name in wheel)


def test_every_package_folder_is_listed() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for folder, target in SOURCES.items():
        for path in (ROOT / folder).rglob("__init__.py"):
            name = ".".join((*target.split("/"), *path.parent.relative_to(ROOT / folder).parts))
            assert f'"{name}"' in text, f"add {name} to tool.setuptools.packages"


def test_installing_needs_no_deep_learning_library() -> None:
    line = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("dependencies"))
    assert not any(name in line for name in ("torch", "timm", "transformers"))
