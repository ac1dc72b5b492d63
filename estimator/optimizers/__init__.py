"""Optimizers: what each keeps per parameter and what its step borrows.

One row of ``OPTIMIZERS`` is one optimizer under the name that Trainer's ``optim`` or the contract gives it. The modules
mirror their sources: torch's foreach path as torch picks it on CUDA, and the packages that Trainer's names stand for.
"""

from ..generations import Torch
from . import adafactor, bitsandbytes, cpu, earlier, others, refused, schedulefree, torch_optim, torchao
from .row import Group, Optimizer
from .states import States

__all__ = ["LOADED_AS_MADE", "OPTIMIZERS", "Group", "Optimizer", "States", "optimizer_of"]

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


def optimizer_of(name: str, torch: Torch, *, on_cpu: bool = False) -> Optimizer:
    """The row of ``name`` as this version of torch updates; refused where only today's update is known."""
    if on_cpu:
        return cpu.ROWS.get(name, cpu.UNKNOWN)
    unknown = Optimizer(source="", refused=f"its update under torch {torch.label} is not known")
    if not torch.has("foreach_by_default"):
        return earlier.FOR_LOOP.get(name, unknown)
    if not torch.has("foreach_makes_few_lists") and name in torch_optim.ROWS:
        return earlier.FIRST_FOREACH.get(name, OPTIMIZERS[name] if name in earlier.UNCHANGED else unknown)
    return OPTIMIZERS[name]
