"""Defines a group of commands that are imported when they are called."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Subcommand(NamedTuple):
    """A subcommand that is not imported yet.

    Attributes:
        target: the click command, as `module:name`.
        summary: the beginning of its help, without the full stop.
    """

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group whose help, and the completion of a subcommand's name, import no subcommand."""

    def __init__(self, *args: Any, subcommands: Mapping[str, Subcommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.subcommands = dict(subcommands)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands."""
        return list(self.subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand. Return None if there is none of this name."""
        if cmd_name not in self.subcommands:
            return None
        command: click.Command = pkgutil.resolve_name(self.subcommands[cmd_name].target)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand that `args` begin with. Name the nearest one if there is none."""
        if args[0] not in self.subcommands:
            from tasks.config.loading import close_match

            ctx.fail(f"No such command {args[0]!r}{close_match(args[0], self.subcommands)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of subcommands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self.subcommands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the subcommands and the group's own options that begin with `incomplete`."""
        names = [
            CompletionItem(name, help=command.summary)
            for name, command in self.subcommands.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
