"""One rank of a written script, on the CPU: ``torchrun written_rank.py train.py ...``.

accelerate starts FSDP on accelerators only, and DDP on the CPU without a word.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import torch
import transformers
from vitmem.validate.distributed.fsdp import as_if_on_gpus

MAKE = transformers.Trainer.__init__


def made(trainer: Any, *args: Any, **kwargs: Any) -> None:
    as_if_on_gpus()
    MAKE(trainer, *args, **kwargs)
    assert trainer.is_fsdp_enabled


if __name__ == "__main__":
    transformers.Trainer.__init__ = made
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    torch.distributed.destroy_process_group()  # gloo's threads outlive an interpreter that only ends
