"""Optimizers that the rehearsal makes only where their package is installed, and those that it cannot make."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("timm")

import vitmem
from vitmem.errors import NotModelled
from vitmem.optimizers import OPTIMIZERS
from vitmem.settings import TrainSettings
from vitmem.validate.meta import measure
from vitmem.validate.optim import _MAKERS

TINY = {"model": "vit_tiny_patch16_224", "bs": 1, "depth": 1}


def test_every_optimizer_that_is_made_is_in_the_estimators_table():
    assert set(_MAKERS) <= {name for name, row in OPTIMIZERS.items() if not row.refused}


def test_an_optimizer_that_cannot_be_made_is_named():
    with pytest.raises(NotModelled, match="optimizer 'adamw_8bit' cannot be rehearsed"):
        measure(TrainSettings.of(**TINY, optim="adamw_8bit"))


@pytest.mark.parametrize("loop", ["trainer", "plain", "timm"])
@pytest.mark.parametrize("optim", ["schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd"])
def test_schedule_free_optimizers_to_the_byte(optim, loop):
    pytest.importorskip("schedulefree")
    settings = {**TINY, "optim": optim, "loop": loop, "precision": "fp32"}
    estimate, measured = vitmem.estimate(**settings), measure(TrainSettings.of(**settings))
    assert {name: estimate.phases[name].tensor_bytes for name in measured.phases} == measured.phases
    assert estimate.states.optimizer_bytes == measured.states.optimizer_bytes
    assert {kind: size for kind, size in estimate.at_tensor_peak.items() if size and kind in measured.at_peak} == {
        kind: size for kind, size in measured.at_peak.items() if size
    }
