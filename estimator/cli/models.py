"""``vitmem models``."""

from __future__ import annotations

import json

import click

from ..errors import UnknownName, did_you_mean
from .output import json_option

__all__ = ["command"]


@click.command("models")
@click.argument("pattern", required=False, metavar="[PATTERN]")
@json_option
def command(pattern: str | None, as_json: bool) -> None:
    """The models that are known by name, those that match PATTERN if there is one.

    A folder with a config.json works as a model too.
    """
    from .. import __version__, catalog
    from ..result import SCHEMA_VERSION

    names = list(catalog.names(pattern)) if pattern else list(catalog.names())
    if pattern and not names:
        raise UnknownName(f"no model matches {pattern!r}{did_you_mean(pattern, catalog.names())}")
    if as_json:
        head = {"schema_version": SCHEMA_VERSION, "vitmem_version": __version__}
        click.echo(json.dumps({**head, "models": names}, indent=2))
    else:
        click.echo("\n".join(names))
