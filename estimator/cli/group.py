"""A click group that imports a command's module only when the command runs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

from .. import __version__
from ..errors import did_you_mean

__all__ = ["make_group"]


class _LazyGroup(click.Group):
    def __init__(self, table: Mapping[str, str]) -> None:
        super().__init__(
            name="vitmem",
            help="GPU memory of a vision transformer's training step, computed without running it.",
            no_args_is_help=False,
            invoke_without_command=True,
            callback=_help_without_command,
        )
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        command: click.Command = importlib.import_module(f".{cmd_name}", __package__).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.table and not args[0].startswith("-"):
            hint = did_you_mean(args[0], self.table) or f"; there is {', '.join(self.table)}"
            raise click.UsageError(f"no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))


@click.pass_context
def _help_without_command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def make_group(table: Mapping[str, str]) -> click.Group:
    """The ``vitmem`` command; ``table`` maps a sub-command to its one-line help."""
    group = _LazyGroup(table)
    # what deepspeed's launcher says to every program that it starts; the ranks are in the environment too
    click.option("--local_rank", type=int, hidden=True, expose_value=False)(group)
    return click.version_option(__version__, message="vitmem %(version)s")(group)
