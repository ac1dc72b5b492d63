"""``vitmem gpus``."""

from __future__ import annotations

import click

from ..errors import UnknownName, did_you_mean
from .output import emit, json_option, out_options, target_of

__all__ = ["command"]


@click.command("gpus")
@click.argument("pattern", required=False, metavar="[PATTERN]")
@json_option
@out_options
def command(pattern: str | None, as_json: bool, out: str | None, force: bool) -> None:
    """The GPUs that are known by name, those that match PATTERN if there is one.

    PATTERN is a part of a name or has wildcards: 'rtx30*'. Another GPU is given by its memory: --memory 24GiB.
    """
    from .. import __version__, gpus
    from ..report.gpus import gpus_report

    target = target_of(out, force)
    names = gpus.names(pattern)
    if not names:
        raise UnknownName(f"no gpu matches {pattern!r}{did_you_mean(pattern or '', gpus.names())}")
    rows = [gpus.find(name) for name in names]
    report = gpus_report([(row, gpus.context_of(row)) for row in rows], version=__version__)
    emit(report, as_json=as_json, target=target)
