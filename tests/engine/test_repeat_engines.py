"""Equal blocks share one play with ZeRO and FSDP too: their hooks are called for every block."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from vitmem import ops
from vitmem.engine import Module, NotRepeatable, Repeats, Scope, Tensor, backward
from vitmem.engine.autograd import AccumulateGrad, ones_like
from vitmem.play import play_once

from tests.engine.test_repeat import FAMILIES, hold, hold_course, plan_of

VIT, SWIN = "google/vit-base-patch16-224", "microsoft/swin-tiny-patch4-window7-224"
MODELS = ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", VIT, SWIN]


def zero(stage: int, settings: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A stage of ZeRO with options of its own, at two GPUs unless said; buffers have the model's type."""
    options["buffer_dtype"] = settings["precision"]
    return {"parallel": f"zero{stage}", "gpus": 2, **settings, "zero_options": tuple(options.items())}


def fsdp(loop: str, **settings: Any) -> dict[str, Any]:
    """FSDP in a loop."""
    return {"parallel": "fsdp", "gpus": 4, "loop": loop, **settings}


CHECKPOINTED = {"grad_checkpointing": True, "checkpoint_layers": 2}
#: Buckets that are full within a block, that straddle blocks, and that hold a model.
ENGINES: dict[str, dict[str, Any]] = {
    "zero1": zero(1, {"precision": "fp16", "accum": 3}),
    "zero1 overlap": zero(1, {"precision": "fp32", "accum": 2}, overlap_comm=True, reduce_bucket_size=300_000),
    "zero1 frozen": zero(1, {"precision": "bf16", "freeze_layers": 2, **CHECKPOINTED}, overlap_comm=True),
    "zero2": zero(2, {"precision": "bf16", "gpus": 8}, reduce_bucket_size=700_000),
    "zero2 overlap": zero(2, {"precision": "fp32"}, overlap_comm=True, reduce_bucket_size=50_000),
    "zero2 wide sums": zero(2, {"precision": "bf16", "accum": 2}, grad_accum_dtype="fp32", reduce_bucket_size=900_000),
    "zero2 offload": zero(2, {"precision": "fp16", "accum": 3, "offload": "optimizer", **CHECKPOINTED}),
    "zero2 adapters": zero(2, {"precision": "bf16", "train": "lora"}, reduce_bucket_size=10_000),
    "zero3": zero(3, {"precision": "bf16", "gpus": 8}, reduce_bucket_size=700_000, stage3_prefetch_bucket_size=90_000),
    "zero3 whole": zero(3, {"precision": "fp32", "accum": 3, "grad_checkpointing": True}),
    "zero3 frozen": zero(3, {"precision": "fp16", "freeze_layers": 2}, stage3_param_persistence_threshold=0),
    "zero3 offload": zero(3, {"precision": "bf16", "offload": "all", "accum": 2, **CHECKPOINTED}),
    "fsdp trainer": fsdp("trainer", precision="bf16", accum=3, grad_checkpointing=True),
    "fsdp whole": fsdp("trainer", precision="fp32", reshard_after_forward=False, freeze_layers=2),
    "fsdp plain": fsdp("plain", precision="bf16", accum=2, zero_grad="before-backward"),
    "fsdp offload": fsdp("plain", precision="fp32", offload="all", **CHECKPOINTED),
    "fsdp adapters": fsdp("plain", precision="fp32", train="lora"),
}
ROTATED = dict(zip(FAMILIES, itertools.cycle(ENGINES)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", MODELS)
def test_every_engine_makes_the_same_events(model: str, engine: str) -> None:
    hold({"model": model, "bs": 2, **ENGINES[engine]})


@pytest.mark.parametrize(("family", "engine"), ROTATED.items(), ids=str)
def test_every_family_makes_the_same_events_under_an_engine(family: str, engine: str) -> None:
    hold({"model": FAMILIES[family], "bs": 2, **ENGINES[engine]})


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_makes_the_same_events_under_every_engine(family: str, engine: str) -> None:
    """CLIP's first layer norm is trained before frozen blocks: their graph keeps whole weights that a hook gathered."""
    shares = (family, engine) != ("hf_clip", "zero3 frozen")
    hold({"model": FAMILIES[family], "bs": 2, **ENGINES[engine]}, shares=shares)


@pytest.mark.parametrize("engine", ["zero1 overlap", "zero2", "zero3"])
def test_evaluations_and_last_steps_share_plays_too(engine: str) -> None:
    hold_course({"model": VIT, "bs": 2, "train_samples": 15, **ENGINES[engine]})


def test_an_evaluation_of_units_shares_plays_too() -> None:
    hold_course({"model": VIT, "bs": 2, "eval_bs": 3, **ENGINES["fsdp trainer"]})


@pytest.mark.parametrize("engine", ["zero1", "zero2", "zero3", "fsdp"])
def test_twelve_blocks_in_two_steps_cost_three(engine: str, played: list[str]) -> None:
    plan, settings = plan_of({"model": VIT, "parallel": engine, "gpus": 2, "zero_options": (("rank", 0),)})
    play_once(plan, settings, num_last=1)
    assert [row.rpartition(".")[2] for row in played] == ["0", "1", "11"]


class Scaled(Module):
    """x times a weight."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.weight = scope.parameter("weight", 256)

    def forward(self, x: Tensor) -> Tensor:
        return ops.mul(x, self.weight)


def blocks_of(parameter: Any) -> list[Scaled]:
    """Five of them."""
    return [Scaled(parameter.scope.row(f"block{i}")) for i in range(5)]


def run_blocks(x: Tensor, blocks: list[Scaled]) -> None:
    """Forward and backward through the blocks."""
    x.run.start_phase("forward", kind="activations")
    x = ops.mul(x, 2.0)
    for block in blocks:
        x = block(x)
    x.run.start_phase("backward", kind="temporaries")
    backward(x, ones_like(x))
    for block in blocks:
        block.weight.accumulator.grad = None


def test_a_hook_is_called_for_every_block_where_it_would_be(run, parameter, played):
    """One that lets go of every second gradient, and takes memory for it in the row of the block that runs."""
    told: list[AccumulateGrad] = []
    kept: list[Tensor] = []

    def hook(leaf: AccumulateGrad) -> None:
        told.append(leaf)
        if len(told) % 2:
            kept.append(Tensor.empty(run, (len(told),), leaf.grad.dtype))
            leaf.grad = None

    x, blocks = parameter(2, 256), blocks_of(parameter)
    run.grad_hook = hook
    found = []
    for share in (False, True):
        told.clear()
        repeats = Repeats(blocks if share else (), full_passes=1, num_last=1)
        first, events = len(run.allocations), len(run.events)
        run_blocks(x, blocks)
        x.accumulator.grad = None
        numbered = [e - first if e >= 0 else ~(~e - first) for e in run.events[events:]]
        found.append((run.allocations[first:], numbered, list(told)))
    assert found[0] == found[1]
    assert len(played) == 2
    assert repeats.num_open == 0


def test_what_a_hook_made_and_the_graph_kept_cannot_be_repeated(run, parameter):
    """Whole weights that come with the forward pass of a module and go with it, but for those that autograd saved."""

    def hook(module: Module, begins: bool) -> None:
        if isinstance(module, Scaled):
            run_of = Tensor.empty(run, (256,), module.weight.dtype) if begins else shards[module]
            module.weight.storage = run_of.storage

    x, blocks = parameter(2, 256), blocks_of(parameter)
    shards = {block: block.weight.detach() for block in blocks}
    run.module_hook = hook
    run_blocks(x, blocks)
    Repeats(blocks, full_passes=1, num_last=1)
    with pytest.raises(NotRepeatable):
        run_blocks(x, blocks)
