"""Make ``data/models/*.json`` from the installed libraries' own configurations.

    python scripts/make_catalogue.py            # write the files
    python scripts/make_catalogue.py --check    # exit 1 if they would change

One module per library (``scripts/catalogue_*.py``) says how its rows come about. No weights, no network.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import catalogue_timm
import catalogue_torchvision
import catalogue_transformers

HERE = Path(__file__).resolve().parent.parent / "data" / "models"


def text_of(catalogue: dict[str, Any]) -> str:
    """JSON with one model per line, sorted, so that changes read well."""
    sections = []
    for key, value in catalogue.items():
        if key in {"models", "skipped", "defaults", "families", "aliases"}:
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value[name])}" for name in sorted(value))
            sections.append(f' "{key}": {{\n{rows}\n }}')
        else:
            sections.append(f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(sections) + "\n}\n"


def catalogues() -> dict[str, str]:
    """File name -> text of every catalogue."""
    return {
        "timm.json": text_of(catalogue_timm.catalogue()),
        "transformers.json": text_of(catalogue_transformers.catalogue()),
        "torchvision.json": text_of(catalogue_torchvision.catalogue()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file would change")
    check = parser.parse_args().check
    changed = {name: text for name, text in catalogues().items() if not _same(HERE / name, text)}
    for name, text in changed.items():
        print(f"{name} {'differs' if check else 'written'}")
        if not check:
            (HERE / name).write_text(text)
    return 1 if check and changed else 0


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
