"""Manual pages of `gpuledger` and `gpuledger-agent`, made from their own command lines.

The same definitions make docs/reference/commands.md, the completions and `--help`, so the four
cannot disagree.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MAN = Path(__file__).resolve().parent / "man"
VERSION = str(
    tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
)
EXIT_STATUS = {
    "0": "Success, also when something was found.",
    "1": "A check failed, or something was found and --exit-code was given.",
    "2": "Bad input; the message names it.",
    "3": "The environment lacks something; the message says what.",
}
ENVIRONMENT = {
    "gpuledger": {
        "GPULEDGER_KEY": "Sets any setting (the key in upper case) and overrides the file.",
        "GPULEDGER_CONFIG": "The file of settings, where --config names none.",
        "GPULEDGER_DSN": "Postgres 15 to 18 to use instead of the embedded one.",
    },
    "gpuledger-agent": {
        "GPULEDGER_AGENT_KEY": "Sets any setting (the key in upper case) and overrides the file.",
    },
}
FILES = {
    "gpuledger": {
        "$XDG_DATA_HOME/gpuledger": "Data of the embedded database (default: ~/.local/share/gpuledger).",
    },
    "gpuledger-agent": {
        "/etc/gpuledger/agent.toml": "Settings, each with its meaning and default.",
        "/etc/gpuledger/token": "This node's token for the collector (mode 0600), passed by systemd to the service.",
        "/var/lib/gpuledger-agent": "The spool: what the collector has not acknowledged yet.",
    },
}
SIGNALS = "SIGTERM ends `gpuledger-agent run` in order; SIGHUP makes it read its settings again."


@dataclass(frozen=True)
class Option:
    """An option or argument: its names, what its value is called, and its meaning."""

    names: tuple[str, ...]
    value: str
    meaning: str


@dataclass(frozen=True)
class Command:
    """One command with everything that its `--help` says."""

    path: str
    meaning: str
    options: list[Option] = field(default_factory=list)
    example: str = ""


def escape(text: str) -> str:
    """Text as roff reads it: no request, no escape, hyphens as they are typed."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in text)
    return f"\\&{text}" if text.startswith((".", "'")) else text


def paragraph(text: str) -> list[str]:
    """A paragraph, one sentence a line, as roff wants it."""
    sentences = re.split(r"(?<=[.;:]) (?=[A-Z\[`(-])", " ".join(text.split()))
    return [escape(sentence) for sentence in sentences if sentence]


def items(entries: dict[str, str], font: str = "B") -> list[str]:
    """A list of terms with their meaning."""
    lines = []
    for term, meaning in entries.items():
        lines += [".TP", f".{font} {escape(term)}", *paragraph(meaning)]
    return lines


def option_lines(option: Option) -> list[str]:
    """One option: its names in bold, its value in italics."""
    value = f" \\fI{escape(option.value)}\\fR" if option.value else ""
    if not option.names:
        return [".TP", value.strip(), *paragraph(option.meaning)]
    return [
        ".TP",
        ", ".join(f"\\fB{escape(name)}\\fR" for name in option.names) + value,
        *paragraph(option.meaning),
    ]


def command_lines(command: Command) -> list[str]:
    """One command: its line, what it does, its options and its example."""
    lines = [".TP", f".B {escape(command.path)}", *paragraph(command.meaning)]
    if command.options:
        lines += [
            ".RS",
            *(line for option in command.options for line in option_lines(option)),
            ".RE",
        ]
    if command.example:
        lines += [".IP", ".EX", escape(command.example), ".EE"]
    return lines


def page(
    name: str, summary: str, sections: dict[str, list[Command]], extra: str, see_also: str
) -> str:
    """A manual page of section 1."""
    lines = [
        '.\\" Made from the code by `./dev docs`; edits here are lost.',
        f'.TH {escape(name.upper())} 1 "" "{escape(name)} {VERSION}" "User Commands"',
        # Flush left, without hyphens: words of options and paths are searched for as they are
        # typed.
        ".ad l",
        ".nh",
        ".SH NAME",
        f"{escape(name)} \\- {escape(summary)}",
        ".SH SYNOPSIS",
        f".B {escape(name)}",
        ".I COMMAND",
        ".RI [ OPTION \\&...]",
        ".SH DESCRIPTION",
        *paragraph(extra),
    ]
    for title, commands in sections.items():
        lines += [
            f".SH {escape(title.upper())}",
            *(line for command in commands for line in command_lines(command)),
        ]
    lines += [".SH EXIT STATUS", *items(EXIT_STATUS), ".SH ENVIRONMENT", *items(ENVIRONMENT[name])]
    lines += [".SH FILES", *items(FILES[name], "I"), ".SH SEE ALSO", f".BR {escape(see_also)} (1)"]
    return "\n".join(lines) + "\n"


def collector_page() -> str:
    """gpuledger(1): a section for each panel of `gpuledger --help`."""
    import typer

    from gpuledger_collector.cli import PANELS, build

    root: Any = typer.main.get_command(build())
    sections = {
        panel: [
            below
            for entry in entries
            for below in typer_commands(f"gpuledger {entry.name}", root.commands[entry.name])
        ]
        for panel, entries in PANELS.items()
    }
    text = f"{root.help} Every command has --help with an example."
    summary = "a second-exact ledger of who held, used and wasted every GPU of a fleet"
    return page("gpuledger", summary, sections, text, "gpuledger-agent")


def typer_commands(path: str, command: Any) -> Iterator[Command]:
    """A command and those below it."""
    if hasattr(command, "commands"):
        for name in sorted(command.commands):
            yield from typer_commands(f"{path} {name}", command.commands[name])
        return
    options = [
        Option((), parameter.metavar or parameter.name.upper(), parameter.help or "")
        if parameter.param_type_name == "argument"
        else Option(
            (*parameter.opts, *parameter.secondary_opts),
            "" if parameter.is_flag else str(parameter.metavar or ""),
            parameter.help or "",
        )
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
    ]
    yield Command(path, command.help or "", options, " ".join((command.epilog or "").split()))


def agent_page() -> str:
    """gpuledger-agent(1)."""
    from gpuledger_agent.cli import parser

    root = parser()
    (group,) = [
        action for action in root._actions if isinstance(action, argparse._SubParsersAction)
    ]
    commands = [
        Command(
            f"gpuledger-agent {name}",
            command.description or "",
            [argparse_option(action) for action in command._actions],
            command.epilog or "",
        )
        for name, command in group.choices.items()
    ]
    text = (
        "The agent reads the GPUs of its node through NVML or a dcgm-exporter, asks the schedulers who holds each of "
        "them, and sends both to a GPU Ledger collector. Undelivered data waits in a spool on disk; nothing is charged "
        f"twice, and every loss is counted. Reading GPUs needs no privileges. {SIGNALS} "
        "Every command has --help with an example."
    )
    summary = "sample the GPUs of a node, record who holds them, and deliver the evidence"
    return page("gpuledger-agent", summary, {"commands": commands}, text, "gpuledger")


def argparse_option(action: argparse.Action) -> Option:
    """An option of the agent's parser."""
    value = (
        ""
        if action.nargs == 0
        else str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper())
    )
    return Option(tuple(action.option_strings), value, (action.help or "").replace("%%", "%"))
