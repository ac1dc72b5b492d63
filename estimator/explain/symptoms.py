"""What else running out of memory looks like: on the host, in a CUDA library, in a collective. One row each.

Sources: pytorch/pytorch#5040 and #25730 (workers, shared memory), pytorch/pytorch#20618 (the CPU allocator),
Lightning-AI/lightning-thunder#1296 and deepspeedai/DeepSpeedExamples#323 (cuBLAS), haotian-liu/LLaVA#392 (cuDNN),
meta-llama/codellama#118 (a rank that the kernel killed), NCCL's src/include/checks.h.
"""

from __future__ import annotations

import dataclasses
import re

__all__ = ["SYMPTOMS", "Symptom"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """``where`` is ``gpu`` or ``host``; ``advice`` is (setting, what to do) from the likeliest on."""

    kind: str
    where: str
    pattern: re.Pattern[str]
    summary: str
    advice: tuple[tuple[str, str], ...]


def _row(kind: str, where: str, pattern: str, summary: str, *advice: tuple[str, str]) -> Symptom:
    flags = re.IGNORECASE | re.MULTILINE
    return Symptom(kind=kind, where=where, pattern=re.compile(pattern, flags), summary=summary, advice=advice)


_WORKERS = (
    "dataloader_num_workers",
    "fewer workers; each holds its own copy of what the data set keeps in Python objects",
)
_PREFETCH = ("dataloader_prefetch_factor", "fewer batches prefetched per worker (2 by default)")
_SMALLER = ("--bs", "a smaller batch with more --accum leaves room for it")

#: The rows in order of what explains most.
SYMPTOMS: tuple[Symptom, ...] = (
    _row(
        "shared_memory",
        "host",
        r"killed by signal: Bus error|insufficient shared memory|unable to (?:open|mmap|write|resize)[^\n]{0,80}shared"
        r"|/torch_\d+[^\n]{0,60}No space left",
        "The host's shared memory (/dev/shm) is full: the loader's workers hand batches over in it.",
        ("--shm-size", "give the container more: docker run --shm-size 16g, or --ipc host"),
        _WORKERS,
        _PREFETCH,
    ),
    _row(
        "host_killed_worker",
        "host",
        r"DataLoader worker \(pid[^\n)]{0,60}\) (?:is killed by signal: Killed|exited unexpectedly)",
        "A worker of the data loader was killed, as the kernel does when the host runs out of memory.",
        _WORKERS,
        _PREFETCH,
        ("data set", "keep paths and arrays instead of decoded images or long Python lists"),
    ),
    _row(
        "host_killed",
        "host",
        r"oom[-_]kill|Out of memory: Killed process|^\s*(?:\S{1,80}: line \d{1,7}:\s{1,5}\d{1,9} )?Killed\b"
        r"|exitcode\s?: -9|SIGKILL|exit(?:ed)?(?: with)?(?: code)? 137\b|OOMKilled|Detected \d{1,6} oom",
        "The process was killed from outside, as the kernel or the job's manager does when host memory runs out: this "
        "is not GPU memory.",
        (
            "host memory",
            "ask the job or container for more, or look at what grows with `vitmem monitor` beside `free -h`",
        ),
        _WORKERS,
        ("--offload", "optimizer states that are offloaded lie in host memory: leave some of them on the GPU"),
        ("from_pretrained", "load the weights once per node: every rank that loads them holds a copy for a moment"),
    ),
    _row(
        "host_allocation",
        "host",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|Cannot allocate memory|\[Errno 12\]|^MemoryError\b"
        r"|std::bad_alloc|Buy new RAM",
        "The host refused memory: this is not GPU memory.",
        ("host memory", "ask the job or container for more; `ulimit -v` and a cgroup's limit count too"),
        _WORKERS,
        (
            "eval_accumulation_steps",
            "predictions that the Trainer moves to the host pile up there: keep the class only",
        ),
    ),
    _row(
        "nccl",
        "gpu",
        r"NCCL WARN[^\n]{0,200}out of memory|NCCL[^\n]{0,200}(?:Cuda failure 2|CUDA calloc)|ncclUnhandledCudaError",
        "NCCL could not take the memory of its channels: it allocates outside PyTorch's caching allocator, which had "
        "left too little.",
        ("set_per_process_memory_fraction", "leave 1 or 2 GiB outside the allocator: 0.9 before the first collective"),
        _SMALLER,
        ("NCCL_MAX_NCHANNELS", "fewer channels, or a smaller NCCL_BUFFSIZE, take less"),
    ),
    _row(
        "cublas",
        "gpu",
        r"CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
        "cuBLAS could not make its handle or workspace, which it takes when it is first used: the GPU was full.",
        _SMALLER,
        ("labels", "the same error comes from a label outside num_labels: run once with CUDA_LAUNCH_BLOCKING=1"),
    ),
    _row(
        "cudnn",
        "gpu",
        r"CUDNN_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)|Unable to find a valid "
        r"cuDNN algorithm|unable to find an engine to execute this",
        "cuDNN found no memory for its handle or for the workspace of any algorithm: the GPU was full or nearly so.",
        _SMALLER,
        ("torch.backends.cudnn.benchmark", "False: trying every algorithm takes the largest workspace of all"),
    ),
    _row(
        "cuda",
        "gpu",
        r"CUDA(?: runtime)? error[^\n]{0,40}out of memory|cuda runtime error \(2\)|CUDA_ERROR_OUT_OF_MEMORY"
        r"|error=2 : out of memory|cudaErrorMemoryAllocation|torch\.(?:cuda\.)?OutOfMemoryError"
        r"|(?:CUDA|HIP) out of memory",
        "CUDA itself ran out of memory, without the figures of PyTorch's allocator: something outside it asked, such "
        "as the context of another process, pinned host memory or an extension.",
        ("nvidia-smi", "look who holds the GPU; a process that was ended badly may still be there"),
        _SMALLER,
        ("dataloader_pin_memory", "False, if the traceback is in a pin_memory thread: that is host memory"),
    ),
)
