"""One rank of a written script, on the CPU: ``torchrun written_rank.py ENGINE train.py ...``.

accelerate starts FSDP on accelerators only, and DDP on the CPU without a word. gloo's threads may still run when an
interpreter ends, which then aborts: a rank ends without that end.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any


def make_fsdp() -> None:
    import transformers
    from vitmem.validate.distributed.fsdp import as_if_on_gpus

    make = transformers.Trainer.__init__

    def made(trainer: Any, *args: Any, **kwargs: Any) -> None:
        as_if_on_gpus()
        make(trainer, *args, **kwargs)
        assert trainer.is_fsdp_enabled

    transformers.Trainer.__init__ = made


if __name__ == "__main__":
    if sys.argv[1] == "fsdp":
        make_fsdp()
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
