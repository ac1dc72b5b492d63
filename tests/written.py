"""Plans that are written without a search for them."""

from __future__ import annotations

import ast
from typing import Any

from vitmem.advice.files import texts_of
from vitmem.advice.plan import Plan
from vitmem.pipeline import resolved
from vitmem.result import Peak
from vitmem.settings import TrainSettings

#: Figures that the files repeat, where no test looks at them.
PEAK = Peak(**dict.fromkeys(Peak.__dataclass_fields__, 1))


def planned(**settings: Any) -> Plan:
    """A plan with exactly these settings, without a search and an estimate."""
    asked = resolved(TrainSettings.of(**{"model": "test_vit", "bs": 2, "memory": "8GiB", **settings}))[1]
    return Plan(
        rank=1,
        settings=asked.to_dict(),
        effective_batch=asked.bs * asked.accum * asked.gpus,
        peak=PEAK,
        headroom_bytes=5,
        relative_step_time=1.0,
        step_flops=0,
        keeps_recipe=True,
        changes=(),
    )


def texts(**settings: Any) -> Any:
    return texts_of(planned(**settings), "8GiB")


def constants(script: str) -> dict[str, Any]:
    """The script's names in capitals that are plain values."""
    found = {}
    for node in ast.parse(script).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                found[node.targets[0].id] = ast.unparse(node.value)
    return found
