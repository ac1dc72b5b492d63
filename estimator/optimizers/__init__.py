"""Optimizers: what each keeps per parameter and what its step borrows.

One row of ``OPTIMIZERS`` is one optimizer under the name that Trainer's ``optim`` or the contract gives it. The modules
mirror their sources: torch's foreach path as torch picks it on CUDA, and the packages that Trainer's names stand for.
"""

from . import adafactor, bitsandbytes, others, refused, schedulefree, torch_optim, torchao
from .row import Group, Optimizer
from .states import States

__all__ = ["LOADED_AS_MADE", "OPTIMIZERS", "Group", "Optimizer", "States"]

OPTIMIZERS: dict[str, Optimizer] = (
    torch_optim.ROWS
    | adafactor.ROWS
    | bitsandbytes.ROWS
    | schedulefree.ROWS
    | torchao.ROWS
    | others.ROWS
    | refused.ROWS
)

#: Those of which a resumed state is what the first step would have made. NAdam's ``mu_product`` leaves the host when it
#: is loaded, and what is not torch's may load otherwise.
LOADED_AS_MADE = frozenset({*torch_optim.ROWS, "lion"} - {"nadam"})
