"""The rules of the source: who may import whom, how long things may get, and where bytes become GiB."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ESTIMATOR = sorted((ROOT / "estimator").rglob("*.py"))
VALIDATE = sorted((ROOT / "validate").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SCRIPTS = sorted((ROOT / "scripts").rglob("*.py"))
LONGEST_MODULE = 300
LONGEST_FUNCTION = 40

#: What the checking side may know of the checked side: its vocabulary and its results, none of its rules.
SHARED = {
    "vitmem",
    "vitmem.catalog",
    "vitmem.errors",
    "vitmem.result",
    "vitmem.settings",
    "vitmem.targets",
    "vitmem.units",
    "vitmem.data",
}
#: Where the two sides meet: the command that compares them, and models that no family covers.
MAY_IMPORT_VALIDATE = {
    "cli/monitor.py",
    "cli/sweep.py",
    "cli/validate.py",
    "cli/null.py",
    "cli/null_device.py",
    "fallback.py",
}
#: Drawing and parsing stand on results only.
REPORT_MAY_IMPORT = {"vitmem", "vitmem.errors", "vitmem.report", "vitmem.result", "vitmem.units"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> list[str]:
    folder, *parts = path.relative_to(ROOT).with_suffix("").parts
    return [*({"estimator": ["vitmem"], "validate": ["vitmem", "validate"]}.get(folder, [folder])), *parts]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, inside functions too, as an absolute dotted name."""
    package = module_of(path)[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join((*base, *([node.module] if node.module else [])))
            yield from (f"{module}.{alias.name}" for alias in node.names) if module == "vitmem" else [module]


def within(module: str, allowed: set[str]) -> bool:
    return any(module == name or (name != "vitmem" and module.startswith(f"{name}.")) for name in allowed)


@pytest.mark.parametrize("path", ESTIMATOR, ids=name_of)
def test_the_estimator_imports_the_standard_library_and_click(path: Path) -> None:
    allowed = sys.stdlib_module_names | {"click", "vitmem"}
    assert {module.split(".")[0] for module in imports(path)} - allowed == set()


@pytest.mark.parametrize("path", ESTIMATOR, ids=name_of)
def test_the_estimator_does_not_know_what_checks_it(path: Path) -> None:
    if path.relative_to(ROOT / "estimator").as_posix() not in MAY_IMPORT_VALIDATE:
        assert [module for module in imports(path) if module.startswith("vitmem.validate")] == []


@pytest.mark.parametrize("path", VALIDATE, ids=name_of)
def test_what_checks_shares_no_rule_with_what_is_checked(path: Path) -> None:
    ours = [module for module in imports(path) if module.split(".")[0] == "vitmem"]
    attributes = {"vitmem.__version__", "vitmem.TrainSettings", "vitmem.Estimate", "vitmem.estimate"}
    assert [module for module in ours if not within(module, SHARED | {"vitmem.validate"} | attributes)] == []


@pytest.mark.parametrize("path", sorted((ROOT / "estimator/report").rglob("*.py")), ids=name_of)
def test_reports_compute_nothing(path: Path) -> None:
    ours = [module for module in imports(path) if module.split(".")[0] == "vitmem"]
    assert [module for module in ours if not within(module, REPORT_MAY_IMPORT)] == []


@pytest.mark.parametrize("path", [p for p in ESTIMATOR if p.parent.name != "cli"], ids=name_of)
def test_only_the_entry_point_knows_the_command_line(path: Path) -> None:
    if path.name != "__main__.py":
        assert [module for module in imports(path) if module.startswith("vitmem.cli")] == []


@pytest.mark.parametrize("path", [*ESTIMATOR, *VALIDATE, *TESTS, *SCRIPTS], ids=name_of)
def test_modules_and_functions_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST_MODULE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", [p for p in ESTIMATOR if p.name != "units.py"] + VALIDATE, ids=name_of)
def test_only_units_turns_bytes_into_gib(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv)):
            assert ast.unparse(node.right) not in {
                "2 ** 30",
                "2 ** 20",
                "1024 ** 3",
                "1024 ** 2",
                "1 << 30",
                "1 << 20",
                "GIB",
                "MIB",
            }
