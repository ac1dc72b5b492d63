"""A run that a checkpoint begins: the state that ``Optimizer.load_state_dict`` moves, and the first step with it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("timm")
pytest.importorskip("transformers")

import vitmem
from vitmem.optimizers import LOADED_AS_MADE
from vitmem.settings import TrainSettings
from vitmem.validate.meta import resume_bytes

TINY = {"model": "vit_tiny_patch16_224", "depth": 1, "bs": 2}

CASES = [
    *({**TINY, "loop": loop, "precision": precision}
      for loop in ("trainer", "plain", "timm") for precision in ("fp16", "bf16", "pure-bf16")),
    *({**TINY, "loop": "plain", "optim": optim} for optim in sorted(LOADED_AS_MADE)),
    {**TINY, "freeze_layers": 1, "accum": 2},
    {**TINY, "train": "linear-probe", "zero_grad": "keep"},
    {"model": "facebook/vit-mae-base", "depth": 1, "bs": 1},
    *({**TINY, "loop": loop, **added}
      for loop in ("trainer", "plain", "timm") for added in ({"ema": True}, {"train": "lora"})),
]  # fmt: skip


@pytest.mark.parametrize("settings", CASES, ids=lambda s: " ".join(map(str, s.values())))
def test_a_resumed_run_to_the_byte(settings):
    assert vitmem.estimate(**settings).phases["resume"].tensor_bytes == resume_bytes(TrainSettings.of(**settings))


def test_the_first_step_of_a_resumed_run_holds_the_optimizer_state_that_of_a_new_one_does_not():
    # GIVEN activations that are gone before the first step makes the state
    phases = vitmem.estimate(**{**TINY, "bs": 64}).phases
    state = vitmem.estimate(**TINY).states.optimizer_bytes
    assert phases["resume"].tensor_bytes - phases["first_step"].tensor_bytes == state


@pytest.mark.parametrize("optim", ["nadam", "adafactor"])
def test_a_state_that_changes_when_it_is_loaded_is_not_known(optim):
    # nadam's mu_product goes to the GPU, adafactor's scalars and rows become the parameter's type
    estimate = vitmem.estimate(**TINY, optim=optim, loop="plain", precision="pure-bf16")
    assert estimate.phases["resume"] is None
    assert any("resuming" in line for line in estimate.not_modelled)
    assert resume_bytes(TrainSettings.of(**TINY, optim=optim, loop="plain", precision="pure-bf16")) > 0
