"""What the null device says it is, and the environment of a process that has one. Needs no torch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitmem.errors import NotModelled

__all__ = ["NullDevice", "environment", "refuse_beside_a_real_device"]

#: Where Linux shows an NVIDIA device: the driver, one of its GPUs, WSL's, a Jetson's.
_SIGNS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/nvhost-ctrl")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Generation:
    """Blocks and KiB of shared memory per SM, KiB that one block may have, MiB of L2 cache."""

    blocks: int
    shared_kib: int
    shared_per_block_kib: int
    l2_mib: int
    binary: int


#: By compute capability: "Technical Specifications per Compute Capability" of the CUDA programming guide; ``binary`` is
#: the kernels that PyTorch's wheels bring for it (torch.cuda.get_arch_list(): the nearest lower of the same major).
_GENERATIONS: Mapping[int, _Generation] = {
    capability: _Generation(blocks=blocks, shared_kib=shared, shared_per_block_kib=block, l2_mib=l2, binary=binary)
    for capability, blocks, shared, block, l2, binary in (
        (60, 32, 64, 48, 4, 60),
        (70, 32, 96, 96, 6, 70),
        (75, 16, 64, 64, 4, 75),
        (80, 32, 164, 163, 40, 80),
        (86, 16, 100, 99, 6, 86),
        (89, 24, 100, 99, 72, 86),
        (90, 32, 228, 227, 50, 90),
        (100, 32, 228, 227, 126, 100),
        (103, 32, 228, 227, 126, 100),
        (120, 24, 100, 99, 96, 120),
    )
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NullDevice:
    """A GPU: ``context_bytes`` of its memory are gone before PyTorch asks; every cuDNN plan asks for its workspace."""

    name: str
    capability: tuple[int, int]
    num_sms: int
    max_threads_per_sm: int
    memory_bytes: int
    context_bytes: int
    cudnn_workspace_bytes: int = 0

    def __post_init__(self) -> None:
        major, minor = self.capability
        if 10 * major + minor not in _GENERATIONS:
            raise NotModelled(f"the null device does not know compute capability {major}.{minor} ({self.name})")

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "capability": "{}.{}".format(*self.capability)}

    def variables(self) -> dict[str, str]:
        """What ``csrc/core.c`` reads."""
        major, minor = self.capability
        generation = _GENERATIONS[10 * major + minor]
        values = {
            "NAME": self.name,
            "CAPABILITY": 10 * major + minor,
            "BINARY": generation.binary,
            "SMS": self.num_sms,
            "THREADS_PER_SM": self.max_threads_per_sm,
            "BLOCKS_PER_SM": generation.blocks,
            "SHARED_PER_SM": generation.shared_kib << 10,
            "SHARED_PER_BLOCK": generation.shared_per_block_kib << 10,
            "L2": generation.l2_mib << 20,
            "MEMORY": self.memory_bytes,
            "CONTEXT": self.context_bytes,
            "CUDNN_WORKSPACE": self.cudnn_workspace_bytes,
        }
        return {f"VITMEM_NULL_{name}": str(value) for name, value in values.items()}


def environment(device: NullDevice, libraries: Sequence[Path]) -> dict[str, str]:
    """This process's environment with the device: for a child, where the stand-ins are loaded before all else."""
    inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    preload = ":".join([*map(str, libraries), *filter(None, [inherited.get("LD_PRELOAD")])])
    return {**inherited, **device.variables(), "LD_PRELOAD": preload}


def refuse_beside_a_real_device(force: bool) -> None:
    """A stand-in never talks to a real driver, but whoever has a GPU most likely means that one."""
    found = next((sign for sign in _SIGNS if os.path.exists(sign)), None)
    if found is not None and not force:
        raise NotModelled(
            f"this machine has a real NVIDIA device ({found}); use --backend cuda or run the script itself, "
            "or repeat with --force for the null device (the real one is left alone)"
        )
