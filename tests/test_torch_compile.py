"""docs/torch-compile.md: its rules and its figures are those of the real compiled models in ``data/measurements``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import vitmem
from vitmem.errors import NotModelled
from vitmem.units import format_bytes

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "torch-compile.md").read_text(encoding="utf-8")
ROWS = json.loads((ROOT / "data" / "measurements" / "compiled_a100-40g.json").read_text())["rows"]


class Vit(NamedTuple):
    """Width, heads, patch and image size of a plain ViT of 12 blocks with fused attention; ``scaled`` by LayerScale."""

    dim: int
    heads: int
    patch: int
    native: int
    scaled: bool = False


VITS = {
    "vit_base_patch16_224": Vit(768, 12, 16, 224),
    "vit_tiny_patch16_224": Vit(192, 3, 16, 224),
    "vit_small_patch16_224": Vit(384, 6, 16, 224),
    "vit_small_patch14_dinov2": Vit(384, 6, 14, 518, scaled=True),
    "facebook/deit-tiny-patch16-224": Vit(192, 3, 16, 224),
    "facebook/dinov2-base": Vit(768, 12, 14, 518, scaled=True),
    "facebook/dinov2-small": Vit(384, 6, 14, 518, scaled=True),
    "google/vit-base-patch16-224": Vit(768, 12, 16, 224),
}
UNLIKE = {"attn", "train", "grad_checkpointing"}
BY_RULE = [row for row in ROWS if row["settings"]["model"] in VITS and not UNLIKE & row["settings"].keys()]


def title(row):
    shown = {key: value for key, value in row["settings"].items() if key != "compile"}
    return " ".join(f"{value}" if key == "model" else f"{key}={value}" for key, value in shown.items())


def sizes(settings):
    """Image height and width in pixels."""
    height, _, width = str(settings.get("res", VITS[settings["model"]].native)).partition("x")
    return int(height), int(width or height)


class Rule:
    """The page's list for one configuration, in bytes. M rows of C channels; a statistic is one fp32 number a row."""

    def __init__(self, settings):
        usual = {"depth": 12, "loop": "trainer", "freeze_layers": None, "drop_path": 0, "dropout": 0}
        self.settings = {**usual, **settings}
        self.vit = VITS[settings["model"]]
        self.library = "transformers" if "/" in settings["model"] else "timm"
        height, width = sizes(settings)
        self.pixels, self.grid = height * width, (height // self.vit.patch, width // self.vit.patch)
        self.tokens = self.grid[0] * self.grid[1] + 1
        self.rows = settings["bs"] * self.tokens
        self.pure = settings["precision"].startswith("pure")
        self.size = 4 if settings["precision"] == "fp32" else 2
        self.activation = self.rows * self.vit.dim * self.size
        self.residual = self.rows * self.vit.dim * (2 if self.pure else 4)
        self.statistic = self._statistic()

    def _statistic(self):
        """inductor pads rows of more than 1024 numbers to 128 bytes; the last row ends where it ends."""
        pad = -self.tokens % 32 if self.tokens > 1024 else 0
        return 4 * (self.rows + pad * (self.settings["bs"] - 1))

    def norm_input(self):
        return self.residual + self.statistic * (2 if self.pure else 1)

    def attention(self):
        batch, heads = self.settings["bs"], self.vit.heads
        if self.size == 2:
            return 4 * self.activation + 4 * batch * heads * self.tokens + 24
        return 4 * self.activation + 4 * batch * heads * (-(-self.tokens // 32) * 32) + 16

    def block(self):
        mlp = 2 * 4 * self.activation
        scaled = 2 * self.activation if self.vit.scaled else 0
        return 2 * self.norm_input() + 2 * self.activation + self.attention() + mlp + scaled

    @property
    def interpolates(self):
        """transformers' DINOv2 keeps the position embeddings of its own size."""
        native = {self.vit.native}
        return self.library == "transformers" and self.vit.scaled and set(sizes(self.settings)) != native

    @property
    def copies_the_image(self):
        """Autocast does; inductor does while the forward has fewer than 300 operators."""
        short = self.settings["depth"] <= 3 and not self.interpolates
        return self.settings["precision"] in {"bf16", "fp16"} or short

    def embeddings(self):
        """The image's copy, and the first norm's input with its two statistics; interpolation keeps its indices."""
        image = 3 * self.settings["bs"] * self.pixels * self.size if self.copies_the_image else 0
        interpolated = 8 * 4 * sum(self.grid) + 4 * self.tokens * self.vit.dim if self.interpolates else 0
        return image + interpolated + self.residual + 2 * self.statistic - self.norm_input()

    def head(self):
        batch, dim = self.settings["bs"], self.vit.dim
        pooled = batch * dim * self.size * (2 if self.vit.scaled and self.library == "transformers" else 1)
        if (self.size == 4 or self.pure) and not (self.vit.scaled and self.library == "transformers"):
            pooled = self.residual  # a view of the norm's whole output
        return self.norm_input() + pooled

    def masks(self):
        """A byte for every element that dropout sees, and one per image and branch for stochastic depth."""
        depth, batch = self.settings["depth"], self.settings["bs"]
        dropout = (2 * depth + 1) * self.rows * self.vit.dim if self.settings["dropout"] else 0
        return dropout + (2 * (depth - 1) * batch if self.settings["drop_path"] else 0)

    def loss(self):
        """accelerate compiles it in: two numbers an image, 16-bit logits, and timm's mean its divisor."""
        if self.settings["loop"] != "trainer":
            return 0
        logits = 1000 * self.settings["bs"] * 2 if self.size == 2 else 0
        return logits + 8 * self.settings["bs"] + (4 if self.library == "timm" else 0)

    def total(self):
        frozen = self.settings["freeze_layers"]
        blocks = (self.settings["depth"] - (frozen or 0)) * self.block()
        start = self.embeddings() if frozen is None else -self.statistic  # nobody wants a gradient before it
        return blocks + start + self.head() + self.masks() + self.loss()


def test_there_are_enough_rows_for_the_rule():
    assert len(BY_RULE) >= 20


@pytest.mark.parametrize("row", BY_RULE, ids=title)
def test_a_compiled_vit_keeps_what_the_page_lists(row):
    assert Rule(row["settings"]).total() == row["compiled"]["saved_activation_bytes"]


@pytest.mark.parametrize("row", BY_RULE, ids=title)
def test_the_weights_that_it_keeps_are_autocasts_copies(row):
    """Of every matrix that is multiplied, of no bias; without autocast the patch convolution's, laid out anew."""
    rule, settings = Rule(row["settings"]), row["settings"]
    dim, depth = rule.vit.dim, rule.settings["depth"] - settings.get("freeze_layers", 0)
    patch = 0 if "freeze_layers" in settings else 3 * rule.vit.patch**2 * dim
    head = 1000 * dim * (2 if rule.vit.scaled and rule.library == "transformers" else 1)
    blocks = depth * 12 * dim * dim
    if settings["precision"] in {"bf16", "fp16"}:
        expected = 2 * (blocks + head + patch)
    else:
        expected = patch * rule.size if rule.copies_the_image else 0
    assert row["compiled"]["saved_weight_bytes"] == expected


TABLE = re.findall(r"^\| `(?!vitmem)([^`]+)` \| (.+) \|$", PAGE, re.MULTILINE)
OPTIONS = {"--bs": int, "--res": int, "--precision": str, "--loop": str, "--attn": str, "--depth": int}


def settings_of(command):
    model, *words = command.split()
    return {"model": model, **{k.strip("-"): OPTIONS[k](v) for k, v in zip(words[::2], words[1::2])}, "compile": True}


def test_the_page_compares_models():
    assert len(TABLE) >= 4


@pytest.mark.parametrize(("command", "cells"), TABLE)
def test_the_pages_figures(command, cells):
    settings = settings_of(command)
    (row,) = [row for row in ROWS if row["settings"] == settings]
    eager = vitmem.estimate(**{k: v for k, v in settings.items() if k != "compile"}, gpu="a100-40g")
    assert cells.split(" | ") == [
        format_bytes(eager.states.saved_activation_bytes),
        format_bytes(row["compiled"]["saved_activation_bytes"]),
        format_bytes(eager.peak.allocated_bytes),
        format_bytes(row["allocated_bytes"]),
    ]


def test_the_refusal_names_the_page():
    with pytest.raises(NotModelled, match=r"--compile.*docs/torch-compile\.md"):
        vitmem.estimate("vit_tiny_patch16_224", compile=True)
