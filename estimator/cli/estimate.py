"""``vitmem estimate``."""

from __future__ import annotations

from typing import Any

import click

from ..errors import DoesNotFit
from .options import SectionedCommand, model_argument, setting_options, settings_of
from .output import emit, json_option, out_options, target_of

__all__ = ["command"]


@click.command("estimate", cls=SectionedCommand)
@model_argument
@setting_options
@json_option
@out_options
def command(*, model: str | None, as_json: bool, out: str | None, force: bool, **given: Any) -> int:
    """What one training step needs: the peak, what it is made of, layer by layer.

    MODEL is a timm name, a Hugging Face id, torchvision/NAME or a folder with a config.json;
    google/vit-base-patch16-224 if left out.
    Exit codes: 0 done (and it fits), 2 bad usage, 3 does not fit, 4 cannot say.
    """
    target = target_of(out, force)
    settings = settings_of(model, given)
    from ..pipeline import estimate_settings
    from ..report.estimate import estimate_report

    estimate = estimate_settings(settings)
    emit(estimate_report(estimate), as_json=as_json, target=target)
    fits = None if estimate.verdict is None else estimate.verdict["fits"]
    return DoesNotFit.exit_code if fits == "no" else 0
