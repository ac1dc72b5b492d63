"""Equal blocks share one play: event by event what playing every block does, or NotRepeatable."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from vitmem import catalog, ops
from vitmem.engine import Module, NotRepeatable, Repeats, Tensor, backward
from vitmem.engine.autograd import ones_like
from vitmem.errors import VitmemError
from vitmem.families import Plan
from vitmem.pipeline import resolved
from vitmem.play import Played, play, play_once, train
from vitmem.settings import TrainSettings

from tests.matrix import CASES

FAMILIES = {catalog.resolve(name).family: name for name in catalog.names()}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"loop": "timm", "precision": "bf16", "grad_checkpointing": True, "checkpoint_layers": 2, "accum": 3},
    {"loop": "plain", "precision": "fp32", "freeze_layers": 1, "zero_grad": "before-backward"},
    {"precision": "bf16", "train": "lora"},
]


def plan_of(settings: dict[str, Any]) -> tuple[Plan, TrainSettings]:
    """The plan and settings, or a skip where the library or the scope refuses them."""
    try:
        return resolved(TrainSettings.of(**settings))
    except VitmemError as reason:
        pytest.skip(str(reason))


def hold(settings: dict[str, Any], *, shares: bool = True) -> None:
    """Playing with and without sharing comes to the same ledger, and to all else that is read from a run."""
    plan, found = plan_of(settings)
    try:
        full = play_once(plan, found)
    except VitmemError as reason:
        pytest.skip(str(reason))
    shared = play(plan, found)
    assert bool(shared.repeats) is shares
    assert shared.settings == found
    assert shared.run.ledger() == full.run.ledger()
    assert shared.run.unknown == full.run.unknown
    assert [p._replace(born=-1) for p in shared.run.products] == [p._replace(born=-1) for p in full.run.products]
    assert (shared.attention_kernel, shared.scope.unused) == (full.attention_kernel, full.scope.unused)


def hold_course(settings: dict[str, Any]) -> None:
    """:func:`hold`, for what comes after the steps, too."""
    plan, found = plan_of(settings)
    course = Played(plan, found).course
    assert course == train(play_once(plan, found), evaluates=course.evaluation is not None).course


@pytest.mark.parametrize("settings", SETTINGS, ids=["default", "checkpointed", "frozen", "adapters"])
@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)
def test_every_family_makes_the_same_events(model: str, settings: dict[str, Any]) -> None:
    hold({"model": model, "bs": 2, **settings})


COURSES: list[dict[str, Any]] = [
    {"train_samples": 5},
    {"loop": "timm", "precision": "bf16", "ema": True},
    {"loop": "plain", "precision": "bf16", "accum": 3, "train_samples": 9, "eval_bs": 3},
]


@pytest.mark.parametrize("settings", COURSES, ids=["trainer", "timm", "plain"])
@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)
def test_evaluations_and_last_steps_share_plays_too(model: str, settings: dict[str, Any]) -> None:
    hold_course({"model": model, "bs": 2, **settings})


@pytest.mark.slow
@pytest.mark.parametrize("settings", CASES, ids=str)
def test_every_case_of_the_matrix_makes_the_same_events(settings: dict[str, Any]) -> None:
    hold(settings)


@pytest.mark.slow
@pytest.mark.parametrize("model", catalog.names())
def test_every_name_makes_the_same_events(model: str) -> None:
    hold({"model": model})


def test_what_comes_after_the_steps_costs_a_block_of_every_batch_size(played: list[str]) -> None:
    plan, settings = plan_of({"model": "vit_base_patch16_224", "eval_bs": 16, "eval_samples": 40, "train_samples": 12})
    train(play_once(plan, settings, num_last=1), evaluates=True)
    assert played[3:] == ["blocks.0", "blocks.11", "blocks.0", "blocks.0"]


def test_twelve_blocks_in_two_steps_cost_three(played: list[str]) -> None:
    plan, settings = plan_of({"model": "vit_base_patch16_224"})
    play_once(plan, settings, num_last=1)
    # the first makes cuBLAS's workspace too, the second is what the others repeat, the last goes backward first
    assert played == ["blocks.0", "blocks.1", "blocks.11"]


def test_swin_repeats_the_two_kinds_of_a_stage_apart(played: list[str]) -> None:
    plan, settings = plan_of({"model": "swin_tiny_patch4_window7_224"})
    play_once(plan, settings, num_last=1)
    assert [row for row in played if row.startswith("layers.2")] == [f"layers.2.blocks.{i}" for i in (0, 1, 4, 5)]


class Block(Module):
    """gelu(x) + x; ``leaks`` keeps the activation for good in its third block."""

    def __init__(self, scope: Any, leaks: list[Tensor] | None = None) -> None:
        super().__init__(scope)
        self.leaks = leaks

    def forward(self, x: Tensor) -> Tensor:
        h = ops.gelu(x)
        if self.leaks is not None:
            self.leaks.append(h.detach())
        return ops.add(h, x)


def run_blocks(parameter: Any, blocks: list[Block]) -> None:
    """Forward and backward through the blocks."""
    x = ops.mul(parameter(256), 2.0)
    for block in blocks:
        x = block(x)
    x.run.start_phase("backward", kind="temporaries")
    backward(x, ones_like(x))


def test_a_block_entered_again_makes_the_events_of_one_played(run, parameter, watch, played):
    blocks = [Block(parameter.scope) for _ in range(5)]
    watch.reset()
    run_blocks(parameter, blocks)
    sizes, living = watch.sizes(), watch.living()
    repeats = Repeats(blocks, full_passes=1, num_last=1)
    watch.reset()
    run_blocks(parameter, blocks)
    assert (watch.sizes(), watch.living()) == (sizes, living)
    assert len(played) == 2
    assert repeats.num_open == 0


def test_what_a_block_keeps_for_itself_cannot_be_repeated(run, parameter):
    blocks = [Block(parameter.scope, leaks=[]) for _ in range(5)]
    Repeats(blocks, full_passes=1, num_last=1)
    with pytest.raises(NotRepeatable):
        run_blocks(parameter, blocks)


def test_blocks_of_another_width_are_another_kind(run, parameter, played):
    class Wide(Module):
        def __init__(self, scope: Any, width: int) -> None:
            super().__init__(scope)
            self.scale = scope.parameter(f"scale{width}", width)

        def forward(self, x: Tensor) -> Tensor:
            return ops.mul(x, self.scale)

    blocks: list[Any] = [Wide(parameter.scope, width) for width in (256, 1, 256, 1, 256)]
    Repeats(blocks, full_passes=1, num_last=1)
    run_blocks(parameter, blocks)
    assert len(played) == 4  # of either kind the first and the last


@pytest.mark.parametrize("model", ["swin_tiny_patch4_window7_224", "microsoft/swin-tiny-patch4-window7-224"])
def test_blocks_share_with_accumulation_too(model: str) -> None:
    """A block that stands alone in its state is played once for each gradient it finds."""
    plan, found = plan_of({"model": model, "bs": 2, "accum": 3})
    shared, full = play_once(plan, found, num_last=2), play_once(plan, found)
    assert shared.run.ledger() == full.run.ledger()


def test_a_play_leaves_nothing_to_the_garbage_collector() -> None:
    plan, found = plan_of({"model": "vit_tiny_patch16_224", "bs": 2})
    gc.collect()
    gc.disable()
    try:
        step = play(plan, found)
        step.dispose()
        del step
        assert gc.collect() < 10
    finally:
        gc.enable()
