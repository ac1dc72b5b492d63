"""What must hold for every configuration, tried on many."""

from __future__ import annotations

import json
from itertools import accumulate

import vitmem
from hypothesis import given, settings
from hypothesis import strategies as st
from vitmem.ledger import with_last_step_again
from vitmem.loops import LOOPS
from vitmem.optimizers import OPTIMIZERS
from vitmem.pipeline import resolved
from vitmem.play import Played, play
from vitmem.result import KINDS
from vitmem.settings import CHOICES, TrainSettings
from vitmem.timeline import NOT_TENSORS, snapshot

TIMM = [
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_small_patch14_reg4_dinov2",
    "vit_base_patch16_siglip_224",
]
HF = ["WinKawaks/vit-tiny-patch16-224", "facebook/deit-tiny-distilled-patch16-224"]

ANY_DTYPE = [name for name, row in OPTIMIZERS.items() if not row.refused and len(row.dtypes) == 3]

configurations = st.fixed_dictionaries(
    {
        "model": st.sampled_from(TIMM + HF),
        "res": st.sampled_from(["224", "256x128", "98"]),
        "bs": st.integers(1, 9),
        "accum": st.integers(1, 3),
        "depth": st.integers(1, 3),
        "precision": st.sampled_from(CHOICES["precision"]),
        "loop": st.sampled_from(CHOICES["loop"]),
        "optim": st.sampled_from([*ANY_DTYPE, None]),
        "attn": st.sampled_from(["auto", "eager", "sdpa"]),
        "zero_grad": st.sampled_from([*CHOICES["zero_grad"], None]),
        "ema": st.booleans(),
        "clip_grad": st.sampled_from([None, 0, 1.0]),
        "label_smoothing": st.sampled_from([None, 0, 0.1]),
        "dropout": st.sampled_from([None, 0.1]),
        "attn_dropout": st.sampled_from([None, 0.1]),
        "grad_checkpointing": st.booleans(),
        "freeze_layers": st.sampled_from([None, 0, 1]),
    }
)


@settings(max_examples=60, deadline=None)
@given(configurations)
def test_kinds_add_up_to_the_total_at_every_moment(asked):
    plan, resolved_settings = resolved(TrainSettings.of(**asked))
    played = Played(plan, resolved_settings)
    ledger, blocks = played.ledger, played.replay.blocks
    totals = dict.fromkeys(KINDS, 0)
    running = accumulate(blocks[e] if e >= 0 else -blocks[~e] for e in ledger.events)
    for event, allocated in zip(ledger.events, running):
        i, sign = (event, 1) if event >= 0 else (~event, -1)
        totals[ledger.kinds[i]] += sign * ledger.bytes[i]
        totals["rounding"] += sign * (blocks[i] - ledger.bytes[i])
        assert sum(totals.values()) == allocated
        assert totals[ledger.kinds[i]] >= 0
    assert {k: v for k, v in snapshot(ledger, blocks, len(ledger.events)).items() if v} == {
        k: v for k, v in totals.items() if v
    }


@settings(max_examples=40, deadline=None)
@given(configurations)
def test_every_allocation_dies_at_most_once_and_after_its_birth(asked):
    plan, resolved_settings = resolved(TrainSettings.of(**asked))
    ledger = Played(plan, resolved_settings).ledger
    living = set()
    for event in ledger.events:
        if event >= 0:
            assert event not in living
            living.add(event)
        else:
            living.remove(~event)


@settings(max_examples=30, deadline=None)
@given(configurations)
def test_the_second_step_is_steady(asked):
    # the third repeats the second: a step played after it makes and frees the same again
    plan, resolved_settings = resolved(TrainSettings.of(**asked))
    step = play(plan, resolved_settings)
    repeated = with_last_step_again(step.run.ledger())
    step.run.start_step()
    LOOPS[resolved_settings.loop].play(step)
    played = step.run.ledger()
    assert (played.bytes, played.kinds, played.layers) == (repeated.bytes, repeated.kinds, repeated.layers)
    assert (played.events, played.phases, played.steps) == (repeated.events, repeated.phases, repeated.steps)


@settings(max_examples=40, deadline=None)
@given(configurations)
def test_the_estimate_agrees_with_itself(asked):
    estimate = vitmem.estimate(**asked)
    assert sum(estimate.at_peak.values()) == estimate.peak.allocated_bytes
    tensors = {kind: size for kind, size in estimate.at_tensor_peak.items() if kind not in NOT_TENSORS}
    assert sum(tensors.values()) == estimate.peak.tensor_bytes
    known = [estimate.phases[name] for name in ("forward", "backward", "optimizer_step")]
    assert max(phase.tensor_bytes for phase in known) == estimate.peak.tensor_bytes
    assert max(phase.allocated_bytes for phase in known) == estimate.peak.allocated_bytes
    assert estimate.peak.reserved_bytes >= estimate.peak.allocated_bytes >= estimate.peak.tensor_bytes
    assert sum(row.saved_activation_bytes for row in estimate.layers) == estimate.states.saved_activation_bytes
    assert sum(row.parameter_bytes for row in estimate.layers) == estimate.states.parameter_bytes


@settings(max_examples=40, deadline=None)
@given(configurations)
def test_the_peak_never_falls_when_the_batch_grows(asked):
    smaller = vitmem.estimate(**asked)
    larger = vitmem.estimate(**{**asked, "bs": asked["bs"] + 1})
    assert larger.peak.tensor_bytes >= smaller.peak.tensor_bytes


@settings(max_examples=40, deadline=None)
@given(configurations)
def test_the_json_survives_a_round_trip(asked):
    document = vitmem.estimate(**asked).to_dict()
    assert json.loads(json.dumps(document)) == document
    # the resolved request, asked again, gives the same answer
    again = {k: v for k, v in document["request"].items() if v is not None and k in asked}
    assert vitmem.estimate(**{**asked, **again}).to_dict()["peak"] == document["peak"]
