"""The estimator against the real models, rehearsed: equal to the byte, in total, by phase, by kind and by layer.

The reference is :mod:`vitmem.validate.meta`, which imports nothing of the estimator's engine. The default run takes a
third of the cases of ``tests/matrix``; ``-m slow`` the others, and every catalogued name in several settings.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("timm")
pytest.importorskip("transformers")

import vitmem
from matrix import CASES
from vitmem import catalog
from vitmem.settings import TrainSettings
from vitmem.timeline import NOT_TENSORS
from vitmem.validate.meta import measure


def assert_equal_to_the_byte(settings):
    estimate, measured = vitmem.estimate(**settings), measure(TrainSettings.of(**settings))
    assert estimate.model.num_parameters == measured.num_parameters
    assert estimate.model.num_trainable_parameters == measured.num_trainable_parameters
    # kinds first: a difference there says which tensor to look for
    kinds = {kind: size for kind, size in estimate.at_tensor_peak.items() if size and kind not in NOT_TENSORS}
    assert kinds == {kind: size for kind, size in measured.at_peak.items() if size}
    rows = {row.name: (row.parameter_bytes, row.saved_activation_bytes) for row in estimate.layers}
    expected = {row.name: (row.parameter_bytes, row.saved_activation_bytes) for row in measured.layers}
    assert {name: row for name, row in rows.items() if any(row)} == {n: row for n, row in expected.items() if any(row)}
    assert {name: estimate.phases[name].tensor_bytes for name in measured.phases} == measured.phases
    states = estimate.states
    assert states.gradient_bytes == measured.states.gradient_bytes
    assert states.optimizer_bytes == measured.states.optimizer_bytes
    assert states.saved_activation_bytes == measured.states.saved_activation_bytes
    assert (estimate.peak.tensor_bytes, estimate.peak.phase) == (measured.peak_bytes, measured.peak_phase)


def name_of(settings):
    return " ".join(f"{value}" if key == "model" else f"{key}={value}" for key, value in settings.items())


def test_no_case_is_there_twice():
    assert len({name_of(settings) for settings in CASES}) == len(CASES)


#: Every third case runs by default, spread over all subjects; the others are slow.
SPREAD = [
    pytest.param(settings, id=name_of(settings), marks=() if place % 3 == 0 else pytest.mark.slow)
    for place, settings in enumerate(CASES)
]


@pytest.mark.parametrize("settings", SPREAD)
def test_a_step_to_the_byte(settings):
    assert_equal_to_the_byte(settings)


SWEEP = [
    {"precision": "fp16", "bs": 2},
    {"precision": "bf16", "bs": 3, "attn": "eager", "loop": "plain"},
    {"precision": "fp32", "bs": 1, "loop": "timm", "drop_path": 0.1},
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", SWEEP, ids=name_of)
@pytest.mark.parametrize("name", catalog.names())
def test_every_name_to_the_byte(name, settings):
    model = catalog.resolve(name)
    own = {key: value for key, value in settings.items() if key != "drop_path" or model.library == "timm"}
    if model.family == "torchvision_vit":
        own.pop("attn", None)  # it has no eager attention
    own_depth = "swin" in model.family or "num_kv_heads" in model.config  # in stages, or told block by block
    assert_equal_to_the_byte({"model": name, **({} if own_depth else {"depth": 2}), **own})
