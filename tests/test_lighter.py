"""Lighter models: each fits as it is asked for, and nothing that is a little larger does."""

from __future__ import annotations

from typing import Any

import pytest
import vitmem
from vitmem.advice.lighter import lighter_models
from vitmem.advice.plan import LighterModel
from vitmem.advice.trials import Trials
from vitmem.cli import main
from vitmem.pipeline import resolved
from vitmem.settings import TrainSettings

ASKED = {"model": "vit_base_patch16_224", "bs": 16, "memory": "2900MiB", "precision": "bf16"}


@pytest.fixture(scope="module")
def found() -> tuple[LighterModel, ...]:
    settings = resolved(TrainSettings.of(**ASKED))[1]
    trials = Trials(settings)
    assert not trials(settings).fits
    return lighter_models(trials, settings)


def estimate(model: LighterModel, **changes: Any) -> vitmem.Estimate:
    return vitmem.estimate(**{**ASKED, "res": 224, "model": model.name, **model.changes, **changes})


def fits(found: vitmem.Estimate) -> bool:
    assert found.verdict is not None
    return bool(found.verdict["fits"] == "yes")


def test_every_row_fits_and_is_what_the_estimate_says(found: tuple[LighterModel, ...]) -> None:
    for model in found:
        whole = estimate(model)
        assert fits(whole), model.name
        assert whole.model.num_parameters == model.num_parameters


def test_a_swin_stands_beside_the_vits(found: tuple[LighterModel, ...]) -> None:
    families = {estimate(model).model.family for model in found if not model.changes}
    assert {"timm_vit"} < families
    assert any("swin" in family for family in families)


def test_a_pruned_model_keeps_as_many_blocks_as_fit(found: tuple[LighterModel, ...]) -> None:
    pruned = {name: model for model in found for name in model.changes}
    assert set(pruned) >= {"depth", "mlp_ratio"}
    depth = pruned["depth"].changes["depth"]
    assert 1 < depth < 12
    assert not fits(estimate(pruned["depth"], depth=depth + 1))
    assert all(model.loses for model in pruned.values())
    assert pruned["mlp_ratio"].changes["mlp_ratio"] == 2


def test_a_model_in_stages_has_no_number_of_blocks_to_prune() -> None:
    settings = resolved(TrainSettings.of("swin_tiny_patch4_window7_224", bs=16, memory="2GiB", precision="bf16"))[1]
    names = [name for model in lighter_models(Trials(settings), settings) for name in model.changes]
    assert "depth" not in names
    assert "heads" not in names


def test_the_table_names_what_was_pruned(capsys: Any) -> None:
    line = ["recommend", ASKED["model"], "--bs", "16", "--memory", "2900MiB", "--precision", "bf16", "--no-ladder"]
    assert main([*map(str, line), "--allow", "alloc-conf"]) == 3
    shown = capsys.readouterr().out
    assert "pruned: --mlp-ratio 2" in shown
    assert max(map(len, shown.splitlines())) <= 80
