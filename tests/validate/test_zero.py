"""ZeRO between real processes: DeepSpeed under the real Trainer on the CPU, storage by storage.

One case of each kind runs by default, the others with ``pytest -m slow tests/validate/test_zero.py``.
"""

from __future__ import annotations

import importlib.util

import pytest
from ranks import KINDS, SWIN, VIT, at_rest, both, highest, peaks_of, states

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed: pip install 'vitmem[deepspeed]'"
)

AUTO = {"reduce_bucket_size": "auto"}
SMALL = {"reduce_bucket_size": 1_000_000}
AUTO3 = {**AUTO, "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
ON_HOST = {"device": "cpu", "pin_memory": False}  # sizes as they are, not rounded up to powers of two
#: Beyond this loss scale steps of a model that was not trained are left out.
FP16 = {"enabled": "auto", "initial_scale_power": 4}


def document(stage, options, precision="bf16", offload="none"):
    zero = {"stage": stage, **options}
    if offload != "none":
        zero["offload_optimizer"] = ON_HOST
    if offload == "all":
        zero["offload_param"] = ON_HOST
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        **{name: FP16 if name == "fp16" else {"enabled": "auto"} for name in ("fp16", "bf16") if name == precision},
        "zero_optimization": zero,
    }


_SCALARS = 16

DEFAULT = [(VIT, 2, SMALL, {"bs": 3})]
SLOW = [
    (VIT, 1, AUTO, {}),
    (VIT, 1, SMALL, {"accum": 2}),
    (VIT, 1, {"reduce_bucket_size": 20_000}, {"gpus": 4}),
    (VIT, 1, {**SMALL, "overlap_comm": True}, {"precision": "fp16"}),
    (VIT, 2, SMALL, {"accum": 2}),
    (VIT, 2, {}, {"precision": "fp32"}),
    (VIT, 2, SMALL, {"precision": "fp16"}),
    (VIT, 2, {**SMALL, "reduce_bucket_size": 300_000}, {"gpus": 4}),
    (VIT, 2, SMALL, {"train": "linear-probe"}),
    (VIT, 2, SMALL, {"freeze_layers": 2}),
    (VIT, 2, SMALL, {"train": "lora"}),
    (VIT, 1, SMALL, {"train": "lora", "lora_targets": ("all-linear",)}),
    (VIT, 2, SMALL, {"ema": True}),
    (VIT, 2, SMALL, {"grad_checkpointing": True, "accum": 3}),
    (VIT, 3, AUTO3, {}),
    (VIT, 3, SMALL, {}),
    (VIT, 3, SMALL, {"precision": "fp16"}),
    (VIT, 3, {**SMALL, "stage3_prefetch_bucket_size": 1_000_000}, {"gpus": 3}),
    (VIT, 3, SMALL, {"precision": "fp32", "accum": 2}),
    (SWIN, 1, SMALL, {}),
    (SWIN, 2, AUTO, {"accum": 2}),
    (SWIN, 2, SMALL, {"precision": "fp32", "gpus": 4}),
    (SWIN, 3, SMALL, {}),
    ({**VIT, "model": "vit_tiny_patch16_224", "depth": 2}, 2, SMALL, {}),
    ({**VIT, "model": "vit_tiny_patch16_224", "depth": 2}, 3, SMALL, {"precision": "fp32"}),
]


@pytest.mark.parametrize(
    ("model", "stage", "options", "more"), [*DEFAULT, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_ranks_hold_what_the_estimate_says(model, stage, options, more):
    asked = {"precision": "bf16", **model, **more, "parallel": f"zero{stage}"}
    played, ranks = both(asked, document(stage, options, asked["precision"]))
    of_estimate = at_rest(played)
    for rank in ranks:  # to the byte, but for scalars between two steps
        assert states(rank) == pytest.approx(sum(of_estimate.get(kind, 0) for kind in KINDS), abs=_SCALARS)
    assert peaks_of(played) == {name: pytest.approx(peak, rel=1e-3) for name, peak in highest(ranks).items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "offload", "more"),
    [(1, "optimizer", {}), (2, "optimizer", {}), (2, "optimizer", {"accum": 2}), (3, "optimizer", {}), (3, "all", {})],
)
def test_device_and_host_together_hold_what_the_estimate_says(stage, offload, more):
    """A run on the CPU cannot tell the host from the device."""
    asked = {"precision": "bf16", **VIT, **more, "parallel": f"zero{stage}", "offload": offload}
    played, ranks = both(asked, document(stage, SMALL, offload=offload))
    of_estimate, on_host = at_rest(played), played.step.strategy.host()["offload_bytes"]
    most = max(states(rank) for rank in ranks)  # with accumulation the host holds whole gradients of a rank's part
    assert most == pytest.approx(sum(of_estimate.get(kind, 0) for kind in KINDS) + on_host, abs=200)
    found = {name: peak + on_host for name, peak in peaks_of(played).items()}
    assert found == {name: pytest.approx(peak, rel=1e-3) for name, peak in highest(ranks).items()}


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "options"), [(1, {"round_robin_gradients": True}), (2, {"reduce_scatter": False})])
def test_other_ways_to_partition(stage, options):
    played, ranks = both(
        {"precision": "bf16", **VIT, "parallel": f"zero{stage}"}, document(stage, {**SMALL, **options})
    )
    assert peaks_of(played) == {name: pytest.approx(peak, rel=1e-3) for name, peak in highest(ranks).items()}


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_summed_in_fp32(stage):
    wanted = {**document(stage, SMALL), "data_types": {"grad_accum_dtype": "fp32"}}
    played, ranks = both({"precision": "bf16", **VIT, "accum": 2, "parallel": f"zero{stage}"}, wanted)
    assert peaks_of(played) == {name: pytest.approx(peak, rel=1e-3) for name, peak in highest(ranks).items()}


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [{"train": "linear-probe"}, {"freeze_layers": 2}])
def test_stage_3_lets_frozen_weights_go_behind_their_forward_pass(frozen):
    """Its states are known to the byte, its peaks within 1 %: when the patch embedding's kernel goes is not."""
    played, ranks = both({"precision": "bf16", **VIT, **frozen, "parallel": "zero3"}, document(3, SMALL))
    of_estimate = at_rest(played)
    for rank in ranks:
        assert states(rank) == pytest.approx(sum(of_estimate.get(kind, 0) for kind in KINDS), abs=_SCALARS)
    assert peaks_of(played) == {name: pytest.approx(peak, rel=0.01) for name, peak in highest(ranks).items()}


@pytest.mark.slow
def test_what_stage_3_updates_at_a_time_and_keeps_whole():
    options = {"sub_group_size": 300_000, "stage3_model_persistence_threshold": 30_000}
    played, ranks = both({"precision": "bf16", **VIT, "parallel": "zero3"}, document(3, {**SMALL, **options}))
    assert peaks_of(played) == {name: pytest.approx(peak, rel=1e-3) for name, peak in highest(ranks).items()}
