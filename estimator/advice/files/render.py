"""Templates with values put in, and scripts put together from several of them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

__all__ = ["body_of", "imports_of", "one_line", "render", "script"]

_TEMPLATES = Path(__file__).parents[1] / "templates"


def render(name: str, values: Mapping[str, Any]) -> str:
    """A template's text; raises KeyError for a name that has no value."""
    return Template((_TEMPLATES / f"{name}.template").read_text(encoding="utf-8")).substitute(values)


def script(
    fragments: Sequence[str], constants: Mapping[str, str], values: Mapping[str, Any], modules: Iterable[str] = ()
) -> str:
    """A Python script: its docstring, the imports of all ``fragments`` and ``modules``, constants, and their bodies.

    ``constants`` are Python expressions by name. Every fragment begins with its imports.
    """
    parts = [_split(render(f"{name}.py", values)) for name in fragments]
    imports = [*(f"import {module}" for module in modules), *(line for lines, _ in parts for line in lines)]
    head = {
        "imports": _imports(imports),
        "constants": "\n".join(f"{name} = {text}" for name, text in constants.items()),
    }
    return "\n\n".join([render("head.py", {**values, **head}), *(body for _, body in parts)])


def body_of(name: str) -> str:
    """A fragment without its imports."""
    return _split(render(f"{name}.py", {}))[1]


def imports_of(name: str) -> str:
    """The imports that a fragment begins with."""
    return "".join(line for line in _split(render(f"{name}.py", {}))[0] if line.strip())


def one_line(text: str) -> str:
    """Nothing of a user's text may end a comment or a docstring."""
    return " ".join(text.split()).replace("\\", "/").replace('"', "'")


def _split(text: str) -> tuple[list[str], str]:
    """The import lines that a fragment begins with, and the rest."""
    lines = text.splitlines(keepends=True)
    is_head = [not line.strip() or line.startswith(("import ", "from ")) for line in lines]
    end = is_head.index(False) if False in is_head else len(lines)
    return lines[:end], "".join(lines[end:])


def _imports(lines: Iterable[str]) -> str:
    """Each once, the standard library's first, names of one module together."""
    plain: set[str] = set()
    named: dict[str, set[str]] = {}
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.Import):
            plain |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            named.setdefault(node.module or "", set()).update(ast.unparse(alias) for alias in node.names)
    found = [(_is_foreign(name), False, name.lower(), f"import {name}") for name in plain]
    found += [
        (_is_foreign(module), True, module.lower(), f"from {module} import {', '.join(sorted(names, key=_kind))}")
        for module, names in named.items()
    ]
    groups = [[line for foreign, *_, line in sorted(found) if foreign is wanted] for wanted in (False, True)]
    return "\n\n".join("\n".join(group) for group in groups if group)


def _is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in sys.stdlib_module_names


def _kind(name: str) -> tuple[bool, bool, str]:
    """Constants, classes, functions."""
    return not name.isupper(), name[0].islower(), name
