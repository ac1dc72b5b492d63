"""Runs written scripts one after the other, as ``python train.py`` would, and says what each Trainer was.

Called as ``python written_runs.py CASES.json OUT.json``: names with a folder and arguments each, and where to write
what came of them.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils import checkpoint
from vitmem.validate.inside.preflight import estimate_of

SEEN: dict[str, Any] = {}
TRAIN, CHECKPOINT = transformers.Trainer.train, checkpoint.checkpoint


def followed(trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """``Trainer.train`` with a preflight in front, as on a GPU."""
    if trainer.optimizer_cls_and_kwargs is not None:
        trainer.create_optimizer()
    trainer.args.use_cpu = False
    try:
        SEEN["preflight"] = estimate_of(trainer).peak.tensor_bytes
    except Exception as reason:
        SEEN["no_preflight"] = f"{type(reason).__name__}: {reason}"
    trainer.args.use_cpu = True
    SEEN["trainable"] = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    SEEN["checkpointed"] = 0
    result = TRAIN(trainer, *args, **kwargs)
    SEEN["steps"] = trainer.state.global_step
    SEEN["evaluated"] = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return result


def counted(*args: Any, **kwargs: Any) -> Any:
    """Calls of ``torch.utils.checkpoint.checkpoint``."""
    SEEN["checkpointed"] = SEEN.get("checkpointed", 0) + 1
    return CHECKPOINT(*args, **kwargs)


def run(folder: str, arguments: list[str]) -> dict[str, Any]:
    """One script; global switches of timm are as at the start."""
    from timm.layers import set_fused_attn, set_reentrant_ckpt

    set_fused_attn(enable=True, experimental=False)
    set_reentrant_ckpt(False)
    SEEN.clear()
    sys.argv = ["train.py", *arguments]
    try:
        runpy.run_path(str(Path(folder) / "train.py"), run_name="__main__")
    except BaseException:
        return {**SEEN, "error": traceback.format_exc()}
    return dict(SEEN)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.Trainer.train = followed
    checkpoint.checkpoint = counted
    transformers.modeling_utils.checkpoint = counted
    cases = json.loads(Path(sys.argv[1]).read_text())
    out = Path(sys.argv[2])
    found = {name: run(folder, arguments) for name, (folder, arguments) in cases.items()}
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
