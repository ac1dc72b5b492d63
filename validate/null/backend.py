"""``--backend null``: :mod:`vitmem.validate.cuda` in a child process that has a null device. Needs no torch itself."""

from __future__ import annotations

from vitmem.settings import TrainSettings

from ..allocator_measurement import AllocatorMeasurement
from ..in_child import measured_in_child
from .build import libraries
from .device import NullDevice, environment, refuse_beside_a_real_device
from .torch_build import installed

__all__ = ["measure"]


def measure(settings: TrainSettings, device: NullDevice, *, force: bool, timeout_s: float) -> AllocatorMeasurement:
    """Three steps under the device; raises what the child refuses, NotModelled where it ends without an answer."""
    refuse_beside_a_real_device(force)
    variables = environment(device, libraries(installed()))
    document = measured_in_child("the null device's run", "cuda", settings, timeout_s=timeout_s, variables=variables)
    return AllocatorMeasurement.of(document, backend="null", device=device.name, notes=_notes(device))


def _notes(device: NullDevice) -> tuple[str, ...]:
    workspace = device.cudnn_workspace_bytes
    asked = (
        f"taken as {workspace} bytes per plan" if workspace else "not known and taken as 0; --cudnn-workspace bounds it"
    )
    return (
        f"PyTorch's CUDA build on a null {device.name}: allocator and kernel choice are real, kernels do nothing",
        f"the allocator may take {device.memory_bytes - device.context_bytes} bytes: the device's "
        f"{device.memory_bytes} less {device.context_bytes} expected of the CUDA context",
        f"the workspace of cuDNN's plans (convolutions; attention on sm90 and sm100) is {asked}",
    )
