"""Where a training was when it ran out of memory, from the traceback above the message."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["NAMES", "phase_before"]

#: How a sentence names each phase.
NAMES: Mapping[str, str] = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "recompute": "the recomputation of checkpointed layers in the backward pass",
    "clipping": "gradient clipping",
    "optimizer_step": "the optimizer step",
    "evaluation": "the evaluation",
    "evaluation_gathering": "collecting the predictions of the evaluation",
    "loading": "loading a checkpoint",
    "moving": "moving the model to the GPU",
    "saving": "saving a checkpoint",
    "wrapping": "wrapping the model for distributed training",
}

#: What a line of a traceback gives away. The innermost line that matches any of them decides.
_MARKS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        ("clipping", r"clip_grad_norm|clip_grads_with_norm|_get_total_norm"),
        (
            "optimizer_step",
            r"\boptimizer\.step\(|torch/optim/|_init_group|_multi_tensor_|_single_tensor_|scaler\.step\(|, in step$",
        ),
        ("recompute", r"\bunpack_hook\b|recompute_fn|checkpoint\.py\", line \d+, in backward"),
        ("backward", r"\.backward\(|_engine_run_backward|run_backward\("),
        ("evaluation_gathering", r"nested_concat|torch_pad_and_concatenate|gather_for_metrics|pad_across_processes"),
        ("evaluation", r"evaluation_loop|prediction_loop|prediction_step|\.evaluate\(|, in (?:evaluate|validate)$"),
        ("saving", r"save_pretrained|_save_checkpoint|torch\.save\(|gather_state_dict|_gather_16bit"),
        (
            "loading",
            r"torch\.load\(|load_state_dict|_load_from_checkpoint|_load_optimizer_and_scheduler|load_checkpoint|"
            r"from_pretrained\(|safetensors|_rebuild_tensor",
        ),
        (
            "wrapping",
            r"DistributedDataParallel\(|FullyShardedDataParallel\(|deepspeed\.initialize\(|_broadcast_coalesced",
        ),
        ("moving", r"model\.to\(|model\.cuda\(|_move_model_to_device|in convert$|module\._apply\(fn|\.half\(\)"),
    )
)
_FORWARD = re.compile(r"_call_impl|, in forward$|F\.(?:linear|conv2d|gelu|layer_norm|scaled_dot_product_attention)\(")
_PREFIX = re.compile(r"^(?:\S{0,40}\[?rank ?\d{1,5}\]?:|\d{1,5}:)\s?", re.IGNORECASE)
_BEGINS = "Traceback (most recent call last)"
#: How far above the message a traceback is looked for.
_FAR = 40_000


def phase_before(text: str, place: int) -> str | None:
    """The phase that the traceback which ends at ``place`` was in; None where there is none or it says nothing."""
    above = text[max(place - _FAR, 0) : place]
    begins = above.rfind(_BEGINS)
    lines = [_PREFIX.sub("", line).rstrip() for line in above[max(begins, 0) :].splitlines()]
    for line in reversed(lines):
        for phase, pattern in _MARKS:
            if pattern.search(line[:500]):
                return phase
    return "forward" if any(_FORWARD.search(line[:500]) for line in lines) else None
