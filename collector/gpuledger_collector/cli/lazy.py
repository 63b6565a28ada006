"""A command group that knows its commands by a table, and imports a command's module only when it
is needed.

`gpuledger --help` and the shell's completion read the table. Running a command, or asking for its
own help, imports that module and no other; so a command module imports what it needs at its top,
however heavy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gpuledger_collector.cli.parameters import absent_is_false, adapt_parameters


class Entry(NamedTuple):
    """A command in the table: its name, the module of this package that has it, and its line in
    `--help`.
    """

    name: str
    module: str
    summary: str


class LazyCommands(Mapping[str, Any]):
    """The commands of a table by name, each imported when it is first looked up."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = load(self._entries[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def load(entry: Entry) -> Any:
    """Import a command.

    A module's `app` is the command or group of that name, or has it among others.
    """
    command = get_command(import_module(f"gpuledger_collector.cli.{entry.module}").app)
    # A module of several top-level commands is a group without a name of its own.
    if command.name != entry.name and isinstance(command, TyperGroup):
        command = command.commands[entry.name]
    adapt_parameters(command)
    return command


class LazyGroup(TyperGroup):
    """A group over panels of entries: `--help` shows a section for each panel."""

    panels: ClassVar[Mapping[str, tuple[Entry, ...]]] = {}

    def __init__(self, **options: Any) -> None:
        self._entries = {entry.name: entry for entries in self.panels.values() for entry in entries}
        super().__init__(**{**options, "commands": LazyCommands(self._entries)})

    def get_help_option(self, ctx: Any) -> Any:
        """`--help` of the group itself."""
        return absent_is_false(super().get_help_option(ctx))

    def list_commands(self, _ctx: Any) -> list[str]:
        """The names, in the order of the table."""
        return list(self._entries)

    def get_command(self, _ctx: Any, cmd_name: str) -> TyperCommand | None:
        """A stand-in with the name and the summary, which is all that help and completion show."""
        entry = self._entries.get(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=entry.summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that these arguments call, imported."""
        # The base class finds the stand-in, and suggests a name after a typing error.
        name, _, rest = super().resolve_command(ctx, args)
        return name, self.commands.get(name) if name else None, rest

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write a section for each panel."""
        for panel, entries in self.panels.items():
            with formatter.section(panel):
                formatter.write_dl([(entry.name, entry.summary) for entry in entries])
