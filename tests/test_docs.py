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


LORA = (DOCS / "what-lora-saves.md").read_text(encoding="utf-8")
LORA_ROWS = re.findall(r"^\| `(--train [^`]+)` \| (.+) \|$", LORA, re.MULTILINE)
REPORTED = re.findall(r"^\| ([\w ]+) \| ([\d.]+) GB \| `(--train [^`]+)` \| ([\d.]+) GB \|$", LORA, re.MULTILINE)


def settings_of_flags(flags):
    words = flags.removeprefix("--").replace("--", "").split()
    pairs = dict(zip(words[::2], words[1::2])) if "grad-checkpointing" not in words else {"train": words[1]}
    settings = {name.replace("-", "_"): int(value) if value.isdigit() else value for name, value in pairs.items()}
    return settings | ({"grad_checkpointing": True} if "grad-checkpointing" in words else {})


def test_lora_is_compared_in_six_ways():
    assert len(LORA_ROWS) == 6
    assert len(REPORTED) == 3


@pytest.mark.parametrize(("flags", "cells"), LORA_ROWS)
def test_what_lora_saves_is_the_estimates(flags, cells):
    settings = settings_of_flags(flags)
    estimate = vitmem.estimate("facebook/dinov2-base", res=224, bs=16, precision="bf16", **settings)
    states = estimate.states
    figures = [
        states.parameter_bytes,
        states.gradient_bytes + states.optimizer_bytes,
        states.saved_activation_bytes,
        estimate.peak.allocated_bytes,
    ]
    trainable = f"{estimate.model.num_trainable_parameters:,}"
    assert cells.split(" | ") == [trainable, *(format_bytes(figure) for figure in figures)]


@pytest.mark.parametrize(("reported", "flags", "ours"), [row[1:] for row in REPORTED])
def test_the_report_is_met_as_far_as_it_says(reported, flags, ours):
    estimate = vitmem.estimate(
        "vit_small_patch14_dinov2",
        res=224,
        bs=64,
        num_classes=100,
        loop="plain",
        optim="adamw_torch",
        **settings_of_flags(flags),
    )
    assert f"{estimate.peak.reserved_bytes / 1e9:.2f}" == ours
    assert abs(float(ours) - float(reported)) < 0.16


def test_the_python_of_a_recommendation_runs(capsys):
    (code,) = re.findall(r"```python\n(.+?)```", (DOCS / "recommend.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.startswith("1 128 2 ")
