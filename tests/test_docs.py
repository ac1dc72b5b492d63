"""Figures in the documentation are those that the commands give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import vitmem
from vitmem.units import format_bytes

DOCS = Path(__file__).parents[1] / "docs"
CASE = (DOCS / "dinov2-and-clip-at-512.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \| (.+) \|$", CASE, re.MULTILINE)
COLUMNS = [("fp32", "eager"), ("fp32", "sdpa"), ("bf16", "eager"), ("bf16", "sdpa")]


def test_the_case_compares_three_models():
    assert len(ROWS) == 3


@pytest.mark.parametrize(("model", "cells"), ROWS)
def test_the_cases_figures_are_the_estimates(model, cells):
    estimates = [vitmem.estimate(model, res=512, bs=8, precision=p, attn=attn) for p, attn in COLUMNS]
    assert cells.split(" | ") == [format_bytes(estimate.peak.allocated_bytes) for estimate in estimates]
    tokens = 1025 if "clip" in model else 1301
    assert {estimate.model.num_tokens for estimate in estimates} == {tokens}


def test_the_size_that_does_not_divide_is_named():
    (height, width) = vitmem.estimate("vit_base_patch14_reg4_dinov2", res=512, bs=1).warnings
    assert height == "height 512 is no multiple of the patch size 14: the library ignores 8 pixels; 504 and 518 are"
    assert width.startswith("width 512")
    assert vitmem.estimate("vit_base_patch14_reg4_dinov2", res=518, bs=1).model.num_tokens == 1374
