"""Plans that are written without a search for them, and models as small as they get."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

from vitmem.advice.files import texts_of
from vitmem.advice.plan import Plan
from vitmem.pipeline import resolved
from vitmem.result import Peak
from vitmem.settings import TrainSettings

OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
SIZES = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
STAGES = {"image_size": 64, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4}
#: Configurations of transformers' families, as small as they get.
CONFIGS = {
    "vit": {**SIZES, "intermediate_size": 64},
    "deit": {**SIZES, "intermediate_size": 64},
    "dinov2": {**SIZES, "mlp_ratio": 2},
    "beit": {**SIZES, "intermediate_size": 64, "use_relative_position_bias": True},
    "swin": STAGES,
    "swinv2": STAGES,
}

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


def settings_in(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """``given`` with a folder for its ``hf``."""
    given = dict(given)
    if (family := given.pop("hf", None)) is None:
        return given
    (folder / family).mkdir(exist_ok=True)
    (folder / family / "config.json").write_text(json.dumps({"model_type": family, **CONFIGS[family]}))
    return {"model": str(folder / family), **given}
