"""Why PyTorch's allocator gave up, from the figures of its message: who held the memory, and what would have helped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..units import format_bytes
from .message import OutOfMemory

__all__ = ["advice_of", "cause_of", "notes_of", "summary_of"]

#: The causes, from the first that applies on.
CAUSES = ("limit", "too_large", "refused", "fragmentation", "other_processes", "shortage", "unknown")


def cause_of(message: OutOfMemory) -> str:
    """One of :data:`CAUSES`.

    Before it fails, the allocator gives every segment back that no tensor lives in (CUDACachingAllocator.cpp,
    ``malloc``): what is reserved and unallocated then are gaps between tensors. Where they and the free memory would
    hold the request, it is fragmentation; where that takes the memory of other processes, it is theirs; else the step
    needs more.
    """
    asked, free, gaps = message.requested_bytes, message.free_bytes, message.unallocated_bytes
    if message.is_preempted:
        return "limit"
    if asked is None or free is None:
        return "unknown"
    if message.total_bytes is not None and asked > message.total_bytes:
        return "too_large"
    if free >= asked:
        return "limit" if _is_over_limit(message, asked) else "refused"
    return "unknown" if gaps is None else _without_room(asked, free + gaps, message.others_bytes)


def _without_room(asked: int, left: int, others: int) -> str:
    if left >= asked:
        return "fragmentation"
    return "other_processes" if left + others >= asked else "shortage"


def _is_over_limit(message: OutOfMemory, asked: int) -> bool:
    if message.allowed_bytes is None or message.reserved_bytes is None:
        return False
    return message.reserved_bytes + asked > message.allowed_bytes


def missing_bytes(message: OutOfMemory) -> int:
    """By how much, at the least, the request was larger than what was left."""
    left = (message.free_bytes or 0) + (message.unallocated_bytes or 0)
    return max((message.requested_bytes or 0) - left, 0)


def summary_of(message: OutOfMemory, cause: str) -> str:
    """One sentence that begins with the cause."""
    asked = "A request" if message.requested_bytes is None else f"A request for {format_bytes(message.requested_bytes)}"
    free, gaps = format_bytes(message.free_bytes or 0), format_bytes(message.unallocated_bytes or 0)
    total = format_bytes(message.total_bytes or 0)
    return {
        "limit": f"The process reached its own limit, not the GPU's: {asked[0].lower()}{asked[1:]} went beyond "
        "the fraction set by set_per_process_memory_fraction.",
        "too_large": f"One tensor alone is larger than the GPU: {asked[0].lower()}{asked[1:]} on {total}.",
        "refused": f"The driver refused although {free} were free, more than the request: another process took them in "
        "between, or they are not this process's to take (Windows, WSL, a MIG slice, the driver's last few MiB).",
        "fragmentation": f"Fragmentation: {gaps} are reserved and unused, in gaps between tensors; with the {free} "
        "that were free they would hold the request, but not in one piece.",
        "other_processes": f"Other processes: they hold {format_bytes(message.others_bytes)} of the GPU's {total}; "
        "without them the request would have been served.",
        "shortage": f"The GPU was full: at least {format_bytes(missing_bytes(message))} more were needed just then, "
        "and the peak of the step may come later.",
        "unknown": f"Out of memory; the message does not hold the figures that would say why. {asked} failed.",
    }[cause]


_EXPANDABLE = (
    "PYTORCH_ALLOC_CONF",
    "expandable_segments:True lets segments grow instead of leaving gaps (PYTORCH_CUDA_ALLOC_CONF before torch 2.9)",
)
_BATCH = ("--bs", "a smaller batch; with --accum the effective batch stays")
_ACTIVATIONS = (
    _BATCH,
    ("--grad-checkpointing", "activations are recomputed instead of kept"),
    ("--precision", "bf16 halves most activations; needs compute capability 8.0, fp16 before"),
    ("--attn", "sdpa keeps no score matrix, eager attention does: tokens x tokens per head"),
)
_STATES = (
    ("--optim", "adafactor or sgd keep less state than AdamW, and adamw_torch_fused borrows less than foreach"),
    ("--train", "lora or linear-probe: what is not trained has no gradient and no optimizer state"),
    ("--parallel", "zero1 to zero3 or fsdp share the states among GPUs"),
)
_EVALUATION = (
    ("per_device_eval_batch_size", "a smaller evaluation batch (8 unless set, without gradients)"),
    ("eval_accumulation_steps", "moves the predictions to the host every so many steps; unset, all stay on the GPU"),
    ("preprocess_logits_for_metrics", "return the argmax instead of keeping logits and hidden states"),
)

#: What helps where the memory is simply needed, by the phase that needed it.
_BY_PHASE: Mapping[str | None, tuple[tuple[str, str], ...]] = {
    "clipping": _STATES,
    "optimizer_step": (*_STATES, _BATCH),
    "evaluation": _EVALUATION,
    "evaluation_gathering": (_EVALUATION[1], _EVALUATION[2], _EVALUATION[0]),
    "loading": (
        ("map_location", 'torch.load(..., map_location="cpu"): else a second copy lies on the GPU'),
        ("resume_from_checkpoint", "optimizer states of the checkpoint come on top of what the first step left"),
        *_STATES[1:],
    ),
    "moving": (("model", "a smaller model, or --precision pure-bf16: its weights alone did not fit"), *_STATES[2:]),
    "wrapping": (
        ("--parallel", "zero3 or fsdp instead of ddp, whose buckets are one more copy of the gradients"),
        _BATCH,
    ),
    "saving": (("save_only_model", "save from the host, or after torch.cuda.empty_cache()"), _BATCH),
}


def advice_of(message: OutOfMemory, cause: str, phase: str | None) -> Iterator[tuple[str, str]]:
    """(setting, what to do), from the likeliest on."""
    if cause == "limit":
        yield "set_per_process_memory_fraction", "raise it, or leave it out"
    if cause in {"other_processes", "refused"}:
        who = ", ".join(f"process {pid}" for pid, _ in message.others) or "whatever else"
        yield "nvidia-smi", f"look for {who} on the GPU, and end it if it is not needed"
        yield "CUDA_VISIBLE_DEVICES", "take another GPU"
    if cause == "fragmentation":
        yield _EXPANDABLE
    yield from _BY_PHASE.get(phase, _ACTIVATIONS)
    if cause == "shortage" and (message.unallocated_bytes or 0) > (message.allocated_bytes or 0) // 10:
        yield _EXPANDABLE


def notes_of(message: OutOfMemory) -> Iterator[str]:
    """What else the figures show."""
    total, reserved, hidden = message.total_bytes, message.reserved_bytes, message.unexplained_bytes
    if total is not None and reserved is not None and reserved > total:
        yield (
            f"PyTorch held {format_bytes(reserved)} on a GPU of {format_bytes(total)}: the driver lent host memory "
            "(Windows and WSL do), which is slow"
        )
    elif hidden is not None and total is not None and hidden > total // 10:
        yield (
            f"{format_bytes(hidden)} in use are neither PyTorch's here nor a named process's: the CUDA context and, "
            "likely, other processes"
        )
    if message.private_bytes:
        yield f"{format_bytes(message.private_bytes)} lie in private pools: CUDA graphs keep their memory to themselves"
    yield "the message rounds its figures to two decimals"
