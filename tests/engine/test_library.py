"""A play that uses what blocks did in earlier ones is the play that it is alone."""

from __future__ import annotations

from typing import Any

import pytest
from vitmem import play
from vitmem.engine import Library, NotRepeatable, library
from vitmem.engine.signature import Parts, signature
from vitmem.engine.state import is_plain
from vitmem.gpus import find
from vitmem.pipeline import resolved
from vitmem.play import Played, play_once
from vitmem.settings import TrainSettings

pytestmark = pytest.mark.usefixtures("own_library")

MODELS: list[dict[str, Any]] = [
    {"model": "vit_tiny_patch16_224", "depth": 4},
    {"model": "facebook/dinov2-small", "depth": 4},
    {"model": "swin_tiny_patch4_window7_224"},
    {"model": "xcit_nano_12_p16_224", "depth": 3},  # convolutions in its blocks, and workspaces that nobody knows
    {"model": "cait_xxs24_224", "depth": 3},  # two kinds of blocks
]
#: What may and what may not change what a block does.
NEIGHBOURS: list[dict[str, Any]] = [
    {},
    {"bs": 3, "optim": "sgd", "eval_bs": 2},
    {"accum": 3, "train_samples": 7},
    {"zero_grad": "before-backward", "loop": "plain", "ema": True},
    {"freeze_layers": 1},
    {"attn_dropout": 0.1, "drop_path": 0.1},
    {"grad_checkpointing": True, "checkpoint_layers": 2},
    {"precision": "fp32", "gpu": "t4"},
    {"sdpa_kernel": "math"},
    {"torch": "2.1"},
    {"train": "lora"},
]


def known_of(settings: dict[str, Any]) -> Any:
    """All that is read of a run."""
    plan, found = resolved(TrainSettings.of(**{"bs": 2, "precision": "bf16", "loop": "trainer", **settings}))
    gpu = find(found.gpu).kernel_view if found.gpu else None
    played = Played(plan, found, gpu)
    products = [product._replace(born=-1) for product in played.step.run.products]
    return played.course, played.step.run.unknown, products, played.step.attention_kernel, played.step.scope.unused


#: The same for engines on several GPUs, whose hooks are called anew.
ENGINES: list[dict[str, Any]] = [
    {"parallel": "ddp"},
    {"parallel": "zero1"},
    {"parallel": "zero1", "zero_options": (("overlap_comm", True),), "accum": 2},
    {"parallel": "zero2"},
    {"parallel": "zero2", "zero_options": (("rank", 1), ("reduce_bucket_size", 100_000))},
    {"parallel": "zero2", "zero_options": (("reduce_bucket_size", 100_000), ("rank", 0)), "bs": 3},
    {"parallel": "zero3", "freeze_layers": 1},
    {"parallel": "zero3", "zero_options": (("stage3_param_persistence_threshold", 1_000),), "freeze_layers": 1},
    {"parallel": "zero3", "offload": "all", "grad_checkpointing": True},
    {"parallel": "fsdp"},
    {"parallel": "fsdp", "loop": "plain", "accum": 3},
    {"parallel": "fsdp", "reshard_after_forward": False},
]


@pytest.mark.parametrize("model", ["google/vit-base-patch16-224"])
def test_engines_after_others_are_what_they_are_alone(model: str) -> None:
    alone = []
    settings: list[dict[str, Any]] = [{"model": model, "depth": 4, "gpus": 2, **engine} for engine in ENGINES]
    for one in settings:
        library.clear()
        alone.append(known_of(one))
    library.clear()
    for order in (settings, settings[::-1]):
        for one in order:
            assert known_of(one) == alone[settings.index(one)], one


def test_another_rank_costs_the_block_that_makes_the_workspaces(played: list[str]) -> None:
    for rank in range(2):
        played.clear()
        settings = {"model": "vit_tiny_patch16_224", "parallel": "zero2", "gpus": 2, "bs": 2}
        play.play(*resolved(TrainSettings.of(**settings, zero_options=(("rank", rank),))))
    assert set(played) == {"blocks.0"}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model["model"]))
def test_plays_after_others_are_what_they_are_alone(model: dict[str, Any]) -> None:
    alone = []
    for settings in NEIGHBOURS:
        library.clear()
        alone.append(known_of(model | settings))
    library.clear()
    for order in (NEIGHBOURS, NEIGHBOURS, NEIGHBOURS[::-1]):
        for settings in order:
            assert known_of(model | settings) == alone[NEIGHBOURS.index(settings)], settings


def test_a_known_model_is_played_but_for_the_block_that_makes_the_workspaces(played: list[str]) -> None:
    plan, settings = resolved(TrainSettings(model="vit_tiny_patch16_224", depth=5))
    play.play(plan, settings)
    first, played[:] = [*played], []
    play.play(plan, settings)
    assert {*first} > {*played} == {"blocks.0"}


def test_what_does_not_fit_is_forgotten_and_the_play_made_anew() -> None:
    plan, settings = resolved(TrainSettings(model="vit_tiny_patch16_224", depth=4))
    play.play(plan, settings)
    seen = []

    def make(num_last: int, of_others: Library | None) -> int:
        play_once(plan, settings, num_last=num_last, library=of_others)
        seen.append((num_last, of_others is not None and of_others.was_used))
        if seen[-1][1]:
            raise NotRepeatable
        return num_last

    assert play.shared(settings, None, make) == 1
    assert seen == [(1, True), (1, False)]


def test_a_library_is_bounded() -> None:
    last = library._MOST_STATES
    for context in range(last + 1):
        Library(context).known("block").states[0] = 0
    Library("other").known("block")
    assert len(library._kept) == last // 2
    crowded = Library(last).known("block")
    crowded.states.update(dict.fromkeys(range(last + 1), 0))
    assert not Library(last).known("block").states


def test_only_plain_values_mean_the_same_in_another_run(run: Any, parameter: Any) -> None:
    from vitmem.families.nn import Linear

    def plain(**attributes: Any) -> bool:
        parts, block = Parts(), Linear(parameter.scope, 4, 4)
        vars(block).update(attributes)
        signature(block, parts)
        return parts.is_plain

    assert plain(rate=0.1, act=known_of, sizes=(1, (2, None)))
    for other in (lambda: run, parameter.__call__, object(), [object()]):
        assert not plain(other=other)
    assert is_plain((parameter(2), None, (3, 4.0)))
    assert not is_plain((parameter(2), (known_of,)))
