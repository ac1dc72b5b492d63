"""Replay every stored measurement and write the README's accuracy tables: python scripts/update_accuracy.py."""

from __future__ import annotations

from pathlib import Path

from vitmem.report.corpus import accuracy_report
from vitmem.report.formats import renderer
from vitmem.validate.corpus import replay

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- accuracy: written by scripts/update_accuracy.py -->\n", "<!-- accuracy: end -->"


def main() -> None:
    """Replace what is between the two marks."""
    block = renderer(".md")(accuracy_report(replay().to_dict()))
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    README.write_text(f"{before}{BEGIN}{block}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
