"""Make ``data/models/per_image.json``: what one more image costs in training, for `vitmem models`.

    python scripts/make_per_image.py

The only catalogue file that comes from the estimator: a cache, because all names together take seconds.
``tests/test_catalogue_rows.py`` holds it to the estimator.
"""

from __future__ import annotations

import json
from pathlib import Path

import vitmem
from vitmem import catalog

FILE = Path(__file__).resolve().parent.parent / "data" / "models" / "per_image.json"


def main() -> None:
    rows = []
    for name in sorted(catalog.names()):
        scaling = vitmem.estimate(name).scaling
        assert scaling is not None
        rows.append(f"  {json.dumps(name)}: {scaling.bytes_per_image}")
    joined = ",\n".join(rows)
    FILE.write_text(f'{{\n "bytes_per_image": {{\n{joined}\n }}\n}}\n')


if __name__ == "__main__":
    main()
