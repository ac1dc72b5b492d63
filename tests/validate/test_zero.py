"""ZeRO between real processes: DeepSpeed under the real Trainer on the CPU, storage by storage.

DeepSpeed is an extra: ``pip install vitmem[deepspeed]``, then ``pytest -m slow tests/validate/test_zero.py``.
"""

from __future__ import annotations

import pytest
from vitmem.pipeline import resolved
from vitmem.play import Played
from vitmem.settings import TrainSettings
from vitmem.timeline import snapshot
from vitmem.validate.distributed.launch import measure_ranks

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install vitmem[deepspeed]")
pytestmark = pytest.mark.slow

VIT = {"model": "google/vit-base-patch16-224", "dim": 192, "heads": 3, "depth": 4, "res": "32", "bs": 2, "gpus": 2}
SWIN = {"model": "microsoft/swin-tiny-patch4-window7-224", "dim": 24, "res": "112", "window": 3, "bs": 2, "gpus": 2}
AUTO = {"reduce_bucket_size": "auto"}
SMALL = {"reduce_bucket_size": 1_000_000}
AUTO3 = {**AUTO, "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
DOCUMENT = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
}
ON_HOST = {"device": "cpu", "pin_memory": False}  # sizes as they are, not rounded up to powers of two


def document(stage, options, offload="none"):
    zero = {"stage": stage, **options}
    if offload != "none":
        zero["offload_optimizer"] = ON_HOST
    if offload == "all":
        zero["offload_param"] = ON_HOST
    return {**DOCUMENT, "zero_optimization": zero}


def figures(settings):
    """The estimate's bytes by kind at the end of the step, its peaks, and what the host holds."""
    played = Played(*resolved(settings))
    peaks = {}
    for summary in played.steady:
        peaks[summary.name] = max(peaks.get(summary.name, 0), summary.tensor_peak.total_bytes)
    at_rest = snapshot(played.ledger, played.replay.blocks, played.steady[-1].end.event)
    return at_rest, peaks, played.step.strategy.host().get("offload_bytes", 0)


@pytest.mark.parametrize(
    ("model", "stage", "options", "more"),
    [
        (VIT, 1, AUTO, {}),
        (VIT, 1, SMALL, {"accum": 2}),
        (VIT, 2, SMALL, {}),
        (VIT, 2, SMALL, {"accum": 2}),
        (VIT, 2, {}, {"precision": "fp32"}),
        (VIT, 2, {**SMALL, "reduce_bucket_size": 300_000}, {"gpus": 4}),
        (VIT, 2, SMALL, {"offload": "optimizer"}),
        (VIT, 3, AUTO3, {}),
        (VIT, 3, SMALL, {}),
        (VIT, 3, {**SMALL, "stage3_prefetch_bucket_size": 1_000_000}, {"gpus": 3}),
        (VIT, 3, SMALL, {"precision": "fp32", "accum": 2}),
        (VIT, 3, SMALL, {"offload": "optimizer"}),
        (SWIN, 3, SMALL, {"sdpa_kernel": "math"}),  # the CPU's kernel for a mask that wants a gradient
    ],
)
def test_ranks_hold_what_the_estimate_says(model, stage, options, more):
    asked = {"precision": "bf16", **model, **more, "parallel": f"zero{stage}"}
    offload = asked.pop("offload", "none")
    wanted = document(stage, options, offload)
    at_rest, peaks, on_host = figures(TrainSettings.of(deepspeed=wanted, **asked))
    ranks = measure_ranks(TrainSettings.of(**asked), deepspeed=wanted)
    for rank in ranks:
        rest = rank["moments"]["rest"]
        states = sum(rest["kinds"].values()) + sum(size for size, op in rest["others"] if op in _BUFFERS)
        of_estimate = sum(at_rest.get(kind, 0) for kind in _KINDS) + on_host
        assert states == pytest.approx(of_estimate, abs=0 if offload == "none" else 200)
    highest = {phase: max(rank["peaks"][phase] for rank in ranks) for phase in peaks}
    assert {phase: peak + on_host for phase, peak in peaks.items()} == {
        phase: pytest.approx(peak, rel=0.02) for phase, peak in highest.items()
    }


_KINDS = ("parameters", "buffers", "gradients", "optimizer_state", "communication")
#: What DeepSpeed makes buffers with; batches come from others.
_BUFFERS = ("aten.zeros.default", "aten.empty.memory_format", "aten.full.default")
