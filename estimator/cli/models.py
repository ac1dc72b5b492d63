"""``vitmem models``."""

from __future__ import annotations

import click

from ..errors import UnknownName, did_you_mean
from .output import emit, json_option, out_options, target_of

__all__ = ["command"]


@click.command("models")
@click.argument("pattern", required=False, metavar="[PATTERN]")
@json_option
@out_options
def command(pattern: str | None, as_json: bool, out: str | None, force: bool) -> None:
    """The models that are known by name, those that match PATTERN if there is one.

    PATTERN is a part of a name or has wildcards: 'swin*384'. A folder with a config.json works as a model too, and
    with the extra 'validate' any other name of timm and torchvision.
    """
    from .. import __version__, catalog
    from ..report.models import models_report

    target = target_of(out, force)
    names = catalog.names(pattern)
    if not names:
        raise UnknownName(f"no model matches {pattern!r}{did_you_mean(pattern or '', catalog.names())}")
    per_image = catalog.bytes_per_image()
    report = models_report([(catalog.resolve(name), per_image.get(name)) for name in names], version=__version__)
    emit(report, as_json=as_json, target=target)
