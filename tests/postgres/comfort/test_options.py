"""What every command owes its user: a dry run where it changes something, and a form for programs
where it lists.

A new command stands in none of these lists, and fails the first test until somebody has decided
what it is.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from gpuledger_collector.cli import build

CHANGES = {
    "adjustments credit",
    "adjustments debit",
    "adjustments reverse",
    "adjustments true-up",
    "apply",
    "budgets ack",
    "budgets replay",
    "close",
    "db distribute",
    "db grant-reader",
    "db pack",
    "db revoke-reader",
    "db upgrade",
    "disputes answer",
    "disputes open",
    "disputes resolve",
    "import bill",
    "import inference",
    "import inventory",
    "import litellm",
    "import prices",
    "import queue",
    "import sacct",
    "import shares",
    "import samples",
    "import usage",
    "nodes retire",
    "notifications ack",
    "notifications write",
    "outbox send",
    "prices set",
    "privacy erase",
    "queues read",
    "recommend accept",
    "recommend reject",
    "runs report",
    "start",
    "token create",
    "token revoke",
    "token rotate",
}
"""They change the ledger, or write to people."""
TELLS = {
    "adjustments list",
    "adjustments true-up",
    "accelerators",
    "actions dry-run",
    "actions list",
    "anomalies",
    "apply",
    "audit list",
    "budgets",
    "budgets list",
    "chargeback",
    "close",
    "corrections",
    "db check",
    "db partitions",
    "disputes lines",
    "disputes list",
    "disputes show",
    "doctor",
    "export samples",
    "focus check",
    "forecast",
    "forecast history",
    "forecast spend",
    "idle",
    "inference list",
    "inference servers",
    "inference weights",
    "nodes list",
    "notifications list",
    "outbox list",
    "periods",
    "plan capacity",
    "plan memory",
    "plan network",
    "plan storage",
    "plan training",
    "prices list",
    "prices models",
    "privacy show",
    "profiles check",
    "profiles list",
    "queues evictions",
    "queues list",
    "queues names",
    "queues quotas",
    "receipt",
    "recommend",
    "reconcile",
    "runs",
    "runs show",
    "scale advise",
    "scale backtest",
    "scale history",
    "tags check",
    "token list",
    "what-if",
}
"""They list or report."""
NEITHER = {
    "actions run": "its dry run is a command: gpuledger actions dry-run",
    "audit verify": "a verdict by its exit code, and one head to be noted by hand",
    "completion": "prints a script for a shell",
    "db backup": "writes one new file or member, and replaces none without --force",
    "db restore": "fills an empty database only: there is nothing to be changed by mistake",
    "examples": "writes a new folder only",
    "demo": "a ledger of its own in a folder of its own",
    "export config": "TOML, for `gpuledger apply`",
    "export erp": "CSV in the columns that its template names",
    "focus periods": "CSV, as FOCUS wants it",
    "jobs": "a process that runs until it is ended",
    "mcp": "a server that only reads",
    "profiles show": "TOML, to begin a profile with",
    "serve": "a server; --check-config is its dry run",
    "statement": "a page of HTML for people; `chargeback --format` has its numbers for programs",
}


def commands(group: Any, *path: str) -> Iterator[tuple[str, set[str]]]:
    """Every command that does something by itself, and its options; a group that can be called
    alone is one, too.
    """
    if hasattr(group, "commands"):
        if path and group.invoke_without_command:
            yield (
                " ".join(path),
                {option for parameter in group.params for option in parameter.opts},
            )
        for name, one in sorted(group.commands.items()):
            yield from commands(one, *path, name)
    else:
        yield " ".join(path), {option for parameter in group.params for option in parameter.opts}


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """Options of each command."""
    return dict(commands(typer.main.get_command(build())))


def test_every_command_is_decided_on(options):
    """What changes something, what lists, and what does neither for a reason: together these are
    all commands.
    """
    assert set(options) == CHANGES | TELLS | set(NEITHER)
    assert not set(NEITHER) & (CHANGES | TELLS)


def test_what_changes_something_can_be_tried_first(options):
    """--dry-run, everywhere."""
    assert {name for name in CHANGES if "--dry-run" not in options[name]} == set()
    assert {name for name, given in options.items() if "--dry-run" in given} <= CHANGES


def test_what_lists_speaks_to_programs(options):
    """--format, everywhere."""
    assert {name for name in TELLS if "--format" not in options[name]} == set()
