"""Configurations that nobody chose: the estimator and the rehearsed real model agree, or both refuse.

Drawn anew for every seed (``VITMEM_SEED``, by default fixed so that a failure can be looked at): every family, native
and foreign resolutions, squares and rectangles, sizes that do not divide, every precision, loop, attention and dropout.
"""

from __future__ import annotations

import os
import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("timm")
pytest.importorskip("transformers")

from vitmem import catalog
from vitmem.errors import InvalidRequest, NotModelled, VitmemError
from vitmem.pipeline import play_settings
from vitmem.settings import CHOICES, TrainSettings
from vitmem.timeline import NOT_TENSORS
from vitmem.validate.meta import measure

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("VITMEM_SEED", "20261130"))
COUNT = int(os.environ.get("VITMEM_RANDOM", "320"))


def by_family():
    """Family -> its names, smallest first."""
    families = {}
    for name in sorted(catalog.names(), key=lambda name: catalog.resolve(name).num_parameters or 0):
        families.setdefault(catalog.resolve(name).family, []).append(name)
    return families


def drawn(rng, families):
    """One configuration; what a family does not take is refused by both sides, which is looked at too."""
    family = rng.choice(sorted(families))
    in_stages = "swin" in family
    names = families[family]
    name = rng.choice(names[: max(2, len(names) // 2)] if in_stages else names)
    settings = {"model": name, "bs": rng.randint(1, 5), "precision": rng.choice(CHOICES["precision"])}
    settings["loop"] = rng.choice(CHOICES["loop"])
    settings["attn"] = rng.choice(["auto", "auto", "eager", "sdpa"])
    if not in_stages:
        settings["depth"] = rng.randint(1, 3)
    if rng.random() < 0.6:
        settings["res"] = resolution(rng, catalog.resolve(name).native_size)
    return settings | {key: draw(rng) for key, (chance, draw) in OPTIONAL.items() if rng.random() < chance}


def resolution(rng, native):
    """Half of the time a multiple of 32, else anything; a third of them rectangles."""
    step = rng.choice([32, 1])
    sides = [max(48, rng.randint(64, native[0] * 3 // 2) // step * step) for _ in range(2)]
    return "x".join(map(str, sides if rng.random() < 0.3 else sides[:1]))


#: Those that can be stepped with what the tests install.
OPTIMIZERS = ["adamw_torch", "adamw_torch_fused", "sgd", "sgd-momentum", "adafactor", "adagrad", "rmsprop"]

OPTIONAL = {
    "optim": (0.5, lambda rng: rng.choice(OPTIMIZERS)),
    "accum": (0.2, lambda rng: rng.randint(2, 3)),
    "zero_grad": (0.2, lambda rng: rng.choice(CHOICES["zero_grad"])),
    "grad_checkpointing": (0.25, lambda rng: True),
    "dropout": (0.2, lambda rng: 0.1),
    "attn_dropout": (0.2, lambda rng: 0.1),
    "drop_path": (0.2, lambda rng: rng.choice([0.0, 0.2])),
    "patch_drop": (0.05, lambda rng: 0.25),
    "num_classes": (0.2, lambda rng: rng.randint(2, 300)),
    "mlp_ratio": (0.1, lambda rng: rng.choice([2.0, 3.0])),
    "train": (0.1, lambda rng: "linear-probe"),
    "freeze_layers": (0.1, lambda rng: rng.randint(0, 1)),
    "window": (0.1, lambda rng: rng.choice([4, 6, 8])),
    "patch": (0.1, lambda rng: rng.choice([8, 16, 32])),
}


def cases():
    rng, families = random.Random(SEED), by_family()
    return [drawn(rng, families) for _ in range(COUNT)]


def title(settings):
    return " ".join(f"{value}" if key == "model" else f"{key}={value}" for key, value in settings.items())


@pytest.mark.parametrize("settings", cases(), ids=title)
def test_the_estimator_and_the_real_model_agree(settings):
    try:
        estimate = play_settings(TrainSettings.of(**settings))
    except InvalidRequest:
        with pytest.raises(VitmemError):
            measure(TrainSettings.of(**settings))
        return
    except NotModelled as reason:
        pytest.skip(str(reason))
    measured = measure(TrainSettings.of(**settings))
    kinds = {kind: size for kind, size in estimate.at_tensor_peak.items() if size and kind not in NOT_TENSORS}
    assert kinds == {kind: size for kind, size in measured.at_peak.items() if size}
    assert {name: estimate.phases[name].tensor_bytes for name in measured.phases} == measured.phases
    assert estimate.states.saved_activation_bytes == measured.states.saved_activation_bytes
    assert (estimate.peak.tensor_bytes, estimate.peak.phase) == (measured.peak_bytes, measured.peak_phase)
