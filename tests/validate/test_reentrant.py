"""Re-entrant checkpointing: what the libraries refuse, the estimator refuses too."""

from __future__ import annotations

import pytest
import vitmem
from vitmem.errors import InvalidRequest
from vitmem.settings import TrainSettings
from vitmem.validate.meta import measure

REENTRANT = {"grad_checkpointing": True, "checkpoint_reentrant": True, "bs": 1, "depth": 2}


@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "beit_base_patch16_224", "vit_relpos_base_patch16_224"])
def test_keywords_are_refused_by_torch(name):
    for answer in (lambda: vitmem.estimate(name, **REENTRANT), lambda: measure(TrainSettings.of(name, **REENTRANT))):
        with pytest.raises(InvalidRequest, match="keyword"):
            answer()


def test_who_gets_no_gradient_is_said():
    cut_off = vitmem.estimate(train="lora", **REENTRANT)
    assert any("get no gradient" in line for line in cut_off.warnings)
    assert not any("get no gradient" in line for line in vitmem.estimate(**REENTRANT).warnings)
