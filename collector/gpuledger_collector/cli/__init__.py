"""The gpuledger command.

Each module of this package adds its commands to the app in `register(app)` and imports what they need inside them, so
that `gpuledger --help` answers at once. A new group of commands is one line in `COMMANDS`.
"""

from __future__ import annotations

from importlib import import_module

import typer

from gpuledger_collector.cli.common import run

COMMANDS = (
    "gpuledger_collector.cli.demo",
    "gpuledger_collector.cli.serve",
    "gpuledger_collector.cli.accelerators",
    "gpuledger_collector.cli.doctor",
    "gpuledger_collector.cli.db",
    "gpuledger_collector.cli.privacy",
    "gpuledger_collector.cli.imports",
    "gpuledger_collector.cli.export",
    "gpuledger_collector.cli.prices",
    "gpuledger_collector.cli.tags",
    "gpuledger_collector.cli.chargeback",
    "gpuledger_collector.cli.statement",
    "gpuledger_collector.cli.focus",
    "gpuledger_collector.cli.reconcile",
    "gpuledger_collector.cli.close",
    "gpuledger_collector.cli.disputes",
    "gpuledger_collector.cli.apply",
    "gpuledger_collector.cli.budgets",
    "gpuledger_collector.cli.outbox",
    "gpuledger_collector.cli.notifications",
    "gpuledger_collector.cli.token",
    "gpuledger_collector.cli.audit",
    "gpuledger_collector.cli.idle",
    "gpuledger_collector.cli.anomalies",
    "gpuledger_collector.cli.recommend",
    "gpuledger_collector.cli.what_if",
    "gpuledger_collector.cli.receipt",
    "gpuledger_collector.cli.runs",
    "gpuledger_collector.cli.forecast",
    "gpuledger_collector.cli.scale",
    "gpuledger_collector.cli.plan",
    "gpuledger_collector.cli.completion",
)
"""Modules with a `register(app: typer.Typer) -> None`, in the order of `--help`."""


def build() -> typer.Typer:
    """The app with every command."""
    app = typer.Typer(
        name="gpuledger",
        help="A second-exact ledger of who held, used and wasted every GPU of a fleet, and what it cost.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(top)
    for name in COMMANDS:
        import_module(name).register(app)
    return app


def print_version(wanted: bool) -> None:
    """Print the version and end, when asked to."""
    if wanted:
        from gpuledger_collector import __version__

        print(f"gpuledger {__version__}")
        raise typer.Exit


def top(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=print_version, is_eager=True),
) -> None:
    """A second-exact ledger of who held, used and wasted every GPU of a fleet, and what it cost."""


def main() -> None:
    """Run the command line; every failure that a person can cure is one sentence and an exit code."""
    run(build)
