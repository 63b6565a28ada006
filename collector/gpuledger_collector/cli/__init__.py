"""The gpuledger command.

A new command is a module of this package with an `app`, and a line in PANELS.
"""

from __future__ import annotations

import typer
from typer import Option

from gpuledger_collector import __version__
from gpuledger_collector.cli.common import new_app, run
from gpuledger_collector.cli.lazy import Entry, LazyGroup

PANELS = {
    "Bill": (
        Entry("chargeback", "chargeback", "Who pays for what"),
        Entry("statement", "statement", "One owner's month as a page to read, print and keep"),
        Entry(
            "reconcile",
            "reconcile",
            "Prove that the bill covers all capacity, or check a provider's bill",
        ),
        Entry(
            "adjustments",
            "adjustments",
            "Markups, discounts, tiers, credits, and true-ups to a provider's bill",
        ),
        Entry("close", "close", "Close a month and book its invoices"),
        Entry("periods", "close", "Closed months and their seals"),
        Entry("corrections", "close", "What was found about a closed month after its close"),
        Entry("disputes", "disputes", "Lines that owners contest, with their evidence"),
        Entry("runs", "runs", "What runs cost, wasted and produced"),
        Entry("inference", "inference", "What shared model servers cost those who asked"),
        Entry("queues", "queues", "Queues of Kubernetes: quotas, borrowed and lost GPU-hours"),
        Entry("what-if", "what_if", "A period under another price book"),
        Entry("focus", "focus", "Check files in FOCUS, the FinOps Foundation's format"),
    ),
    "Waste": (
        Entry("idle", "idle", "Accelerators that cost money and do nothing"),
        Entry("anomalies", "anomalies", "Spending that stands out, and why"),
        Entry("recommend", "recommend", "What to do about waste, and what came of it"),
        Entry("receipt", "receipt", "What one workload was charged and wasted"),
        Entry("accelerators", "accelerators", "Held, busy and idle hours of each accelerator"),
        Entry("notifications", "notifications", "Who was notified of idle GPUs and anomalies"),
        Entry("actions", "notifications", "GPUs reclaimed automatically, where a team opted in"),
    ),
    "Look ahead": (
        Entry("budgets", "budgets", "How far budgets are spent, and when they run out"),
        Entry(
            "forecast",
            "forecast",
            "GPUs wanted in the next hours, and spending to the end of the month",
        ),
        Entry("scale", "scale", "GPUs to hold now, and what capacity policies would have cost"),
        Entry("plan", "plan", "Memory, days, money, storage and network of a model before it runs"),
    ),
    "Bring in": (
        Entry("start", "start", "From a file of jobs to its bill in one command"),
        Entry(
            "import", "imports", "Usage, prices, inventory, samples, queues and bills from files"
        ),
        Entry("apply", "apply", "Rules, prices, budgets and pools declared in a file"),
        Entry("prices", "prices", "The price book"),
        Entry("tags", "tags", "Check which tags and rules attribute usage"),
    ),
    "Set up": (
        Entry("demo", "demo", "A simulated fleet: its bill, its waste and the proof"),
        Entry("examples", "examples", "Files to try: jobs, Grafana dashboards, alert rules"),
        Entry("serve", "serve", "Run the collector"),
        Entry("jobs", "serve", "Run the collector's scheduled jobs apart from it"),
        Entry("mcp", "mcp", "Answer an assistant's questions about the ledger"),
        Entry("profiles", "profiles", "Exporters that are understood, and what becomes of a page"),
        Entry("doctor", "doctor", "Find likely misconfigurations, with their remedies"),
        Entry("nodes", "nodes", "The nodes of the fleet, and those that leave it"),
        Entry("token", "token", "Tokens of agents and readers"),
        Entry("completion", "completion", "Complete commands and options with TAB"),
    ),
    "Keep": (
        Entry("db", "db", "Schema, partitions, backup and restore"),
        Entry("export", "export", "Samples and declared configuration as files"),
        Entry("audit", "audit", "Who changed what, and whether the log is intact"),
        Entry("privacy", "privacy", "What is stored about a person, and its erasure"),
        Entry("outbox", "outbox", "Messages waiting, sent or failed"),
    ),
}
"""Every command, by the section of `gpuledger --help` that shows it."""


class TopGroup(LazyGroup):
    """The commands of `gpuledger`."""

    panels = PANELS


def build() -> typer.Typer:
    """The app with every command."""
    app = new_app(
        name="gpuledger",
        cls=TopGroup,
        help=(
            "A second-exact ledger of who held, used and wasted every GPU of a fleet, and what it"
            " cost."
        ),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(top)
    return app


def print_version(wanted: bool) -> None:
    """Print the version and exit, when asked to."""
    if wanted:
        print(f"gpuledger {__version__}")
        raise typer.Exit


def top(
    version: bool = Option(
        False, "--version", help="Print the version.", callback=print_version, is_eager=True
    ),
) -> None:
    """A second-exact ledger of who held, used and wasted every GPU of a fleet, and what it cost."""


def main() -> None:
    """Run the command line; a failure that the user can fix is one sentence and an exit code."""
    run(build)
