"""What single kernels borrow on this GPU, and the size of its context: the probes of :mod:`gpu_session`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from vitmem.errors import NotModelled, UnknownName
from vitmem.gpus import find
from vitmem.kernels import Kernels
from vitmem.units import DType
from vitmem.validate.nvml import DeviceUse, device_use, process_ids
from vitmem.validate.versions import versions

__all__ = ["probes"]

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
COLUMN_SUMS = ((25216, 768), (6304, 768), (50432, 1024), (100352, 96), (6272, 768), (1568, 384))
#: Patches of ViT, DINOv2 and Swin: (channels, kernel).
PATCHES = ((768, 16), (1024, 14), (96, 4))
PIXELS = (224, 512)


def probes() -> dict[str, Any]:
    """All of them, in a process that has not used the GPU yet; raises NotModelled without one."""
    if not torch.cuda.is_available():
        raise NotModelled("torch sees no CUDA device here")
    strangers = process_ids()
    context = {"before_allocation": _used(strangers)}
    torch.ones(1, device="cuda")
    context["first_tensor"] = _used(strangers)
    assert (torch.ones(256, 256, device="cuda") @ torch.ones(256, 256, device="cuda")).is_cuda
    context["first_product"] = _used(strangers)
    sums = list(_column_sums())
    convolutions = list(_convolutions())
    attention = list(_attention())
    context["all_probes"] = _used(strangers)
    use = _use(strangers)
    name = torch.cuda.get_device_name()
    return {
        "gpu": _short(name),
        "device": name,
        "driver": None if use is None else use.driver,
        "versions": versions("full"),
        "context": context,
        "column_sums": sums,
        "convolutions": convolutions,
        "attention": attention,
    }


def _short(name: str) -> str:
    try:
        return find(name).name
    except UnknownName:
        return name


def _use(strangers: frozenset[int]) -> DeviceUse | None:
    return device_use(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid), strangers)


def _used(strangers: frozenset[int]) -> dict[str, int | None]:
    """What the device says is taken, what NVML says is this process's, what the allocator has."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    use = _use(strangers)
    return {
        "device_bytes": total - free,
        "own_bytes": None if use is None else use.own_bytes,
        "reserved_bytes": torch.cuda.memory_reserved(),
    }


def _borrowed(run: Callable[[], Any]) -> int:
    """Allocated at most, less what is left with the results; once before, for what a first call keeps."""
    kept = run()
    del kept
    torch.cuda.empty_cache()  # a cached block that is not split would count as a whole
    torch.cuda.reset_peak_memory_stats()
    kept = run()
    num_bytes = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del kept
    return num_bytes


def _column_sums() -> Iterator[dict[str, Any]]:
    """``x.sum(0)``: staging in global memory, beside what is derived for it."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        kernels = Kernels(gpu=find(properties.name).kernel_view)
    except UnknownName:
        kernels = None
    for shape in COLUMN_SUMS:
        for dtype, torch_dtype in DTYPES.items():
            x = torch.empty(shape, device="cuda", dtype=torch_dtype)
            derived = None
            if kernels is not None:
                scratch = kernels.sum_scratch(shape, (shape[1], 1), (1, shape[1]))
                derived = sum(-(-size // 512) * 512 for size in scratch)
            yield {
                "shape": list(shape),
                "dtype": dtype,
                "borrowed_bytes": _borrowed(lambda x=x: x.sum(0)),
                "derived_bytes": derived,
            }


def _convolutions() -> Iterator[dict[str, Any]]:
    """cuDNN's workspaces of patch embeddings, forward and backward."""
    for channels, kernel in PATCHES:
        for pixels in PIXELS:
            for dtype, torch_dtype in DTYPES.items():
                images = torch.empty(16, 3, pixels, pixels, device="cuda", dtype=torch_dtype)
                weight = torch.empty(channels, 3, kernel, kernel, device="cuda", dtype=torch_dtype)
                weight.requires_grad_()

                def forward(images: Tensor = images, weight: Tensor = weight, step: int = kernel) -> Tensor:
                    return F.conv2d(images, weight, stride=step)

                out = forward()
                grad = torch.empty_like(out)

                def backward(out: Tensor = out, weight: Tensor = weight, grad: Tensor = grad) -> Any:
                    return torch.autograd.grad(out, weight, grad, retain_graph=True)

                yield {
                    "channels": channels,
                    "kernel": kernel,
                    "pixels": pixels,
                    "dtype": dtype,
                    "forward_bytes": _borrowed(forward),
                    "backward_bytes": _borrowed(backward),
                }


def _attention() -> Iterator[dict[str, Any]]:
    """What each kernel borrows and keeps beyond its results."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
    kernels["cudnn"] = SDPBackend.CUDNN_ATTENTION
    for name, backend in kernels.items():
        for tokens in (197, 1025):
            q, k, v = (
                torch.empty(8, 12, tokens, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                for _ in range(3)
            )
            row: dict[str, Any] = {"kernel": name, "tokens": tokens, "element_bytes": DType.bfloat16.size}
            try:
                with sdpa_kernel(backend):
                    out = F.scaled_dot_product_attention(q, k, v)
                    grad = torch.empty_like(out)
                    row["forward_bytes"] = _borrowed(lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v))
                    row["backward_bytes"] = _borrowed(
                        lambda out=out, inputs=(q, k, v), grad=grad: torch.autograd.grad(
                            out, inputs, grad, retain_graph=True
                        )
                    )
            except RuntimeError as error:
                row["error"] = str(error).splitlines()[0]
            yield row
