"""Every table that a command prints: a name in it begins no formula in a CSV and moves no cursor in
a terminal.
"""

import csv
import enum
import io
import os
import pty
import re
import subprocess
import sys

import psycopg
import pytest
import typer
from psycopg import sql
from rich.errors import MarkupError
from typer.testing import CliRunner

from fakes import two_teams as made
from fakes.postgres import fresh_database
from fakes.two_teams import NOW_MS, day, two_teams
from gpuledger_collector.cli import build

pytestmark = pytest.mark.slow

HOSTILE = "=HYPERLINK(A1)"
FORMULA = set("=+-@\t\r\n")
NUMBER = re.compile(r"-?\d[\d.:,e+-]*( \w+)?")
DAYS = ("--from", day(-4), "--to", day(-1))
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)
FORGED = "FORGED  ok"
ESCAPES = f"\x1b]0;owned\x07\x1b[8m\x1b[2J\u202eda\r\u2028{FORGED}\n{FORGED}\x85{FORGED}"
"""A title, concealed text, an emptied screen, the other reading order, and lines that no command
wrote.
"""
MARKUP = "[/x]:moon:"
"""To rich, a tag that was never opened, and a picture."""


def commands(group, path=()):
    """Every command of the tree with the forms that it prints; groups that are commands themselves
    too.
    """
    for option in group.params:
        kind = option.type_descriptor.annotation
        if (
            "--format" in getattr(option, "opts", ())
            and isinstance(kind, type)
            and issubclass(kind, enum.Enum)
        ):
            yield " ".join(path), {one.value for one in kind}
    for name, below in getattr(group, "commands", {}).items():
        yield from commands(below, (*path, name))


FORMS = dict(commands(typer.main.get_command(build())))
# Needs a provider's bill; what it books is a row of `adjustments list`.
FORMS.pop("adjustments true-up")
ARGUMENTS = {
    "accelerators": DAYS,
    "chargeback": (*DAYS, "--by", "team,user"),
    "reconcile": DAYS,
    "corrections": ("--period", day(-1)[:7]),
    "apply": ("{declared}", "--dry-run"),
    "what-if": ("--prices", "{prices}", *DAYS),
    "privacy show": (f"{HOSTILE}-user",),
    "export samples": DAYS,
    "tags check": DAYS,
    "runs": DAYS,
    "runs show": (f"{HOSTILE}-job", "--by", "day"),
    "scale backtest": ("{series}",),
    "plan storage": ("--gpus", "8"),
    "disputes show": ("1",),
    "disputes lines": (*DAYS, "--owner", f"team={HOSTILE}"),
    "receipt": (f"{HOSTILE}-job",),
    "periods": (),
    "close": ("--period", "2020-01", "--dry-run"),
    "forecast": ("--horizon", "6h"),
    "profiles check": ("{page}",),
}
"""What a command must be given; the others print something as they are."""
WITHOUT_LEDGER = {
    *(f"plan {name}" for name in ("memory", "network", "storage", "training")),
    "profiles check",
    "profiles list",
    "scale backtest",
}
SHOWING = {
    "accelerators",
    "chargeback",
    "idle",
    "budgets",
    "runs",
    "prices list",
    "notifications list",
    "token list",
    "outbox list",
    "scale history",
    "forecast spend",
}
"""Commands whose CSV is known to hold the hostile name: what keeps the test from looking at
nothing.
"""


@pytest.fixture(scope="module")
def printed(postgres, tmp_path_factory):
    """A function that runs a command on a ledger in which every name of people and machines is
    hostile.
    """
    folder = tmp_path_factory.mktemp("declared")
    with pytest.MonkeyPatch.context() as patch, fresh_database(postgres) as dsn:
        patch.setattr(made, "FOREIGN", HOSTILE)
        with two_teams(dsn, folder), psycopg.connect(dsn) as connection:
            more_names(connection)
        (folder / "prices.toml").write_text(
            (folder / "declared.toml").read_text().partition("[[budget]]")[0]
        )
        (folder / "series.csv").write_text(f"ts,series,value\n{day(-2)}T00:00:00Z,{HOSTILE},1\n")
        (folder / "page.prom").write_text(
            f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-1",modelName="{HOSTILE}"}} 1\n'
        )
        places = {
            "page": folder / "page.prom",
            "declared": folder / "declared.toml",
            "prices": folder / "prices.toml",
            "series": folder / "series.csv",
        }

        def run(command, form):
            given = [one.format(**places) for one in ARGUMENTS.get(command, ())]
            return CliRunner().invoke(
                build(), [*command.split(), *given, "--format", form, *to(command, dsn)]
            )

        yield run, dsn


def more_names(connection):
    """A row of hostile texts in tables that the two teams leave empty; the other columns hold what
    they must.
    """
    for table, given in (
        ("price", {"currency": "USD", "purchase": "on_demand"}),
        ("token", {"role": "finance", "node": None}),
        ("notification", {"kind": "idle"}),
        ("outbox", {"state": "dead"}),
        ("scaling_decision", {"policy": "young", "made_ms": NOW_MS}),
        ("queue_reading", {}),
        ("backtest", {"grouped": "pool"}),
        ("scaling_pool", {"terms": "{}"}),
    ):
        columns = connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid ="
            " %s::regclass AND attnum > 0 AND attidentity = '' AND NOT attisdropped AND (attnotnull"
            " AND NOT atthasdef OR attname = ANY(%s))",
            (table, ["node", "gpu_model", "pool", "subject", "recipient", *given]),
        ).fetchall()
        plain = {
            "text": HOSTILE,
            "jsonb": "{}",
            "boolean": False,
            "timestamp with time zone": "2026-01-01 00:00Z",
        }
        values = {name: given.get(name, plain.get(kind, 1)) for name, kind in columns}
        connection.execute(
            sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                sql.Identifier(table),
                sql.SQL(", ").join(map(sql.Identifier, values)),
                sql.SQL(", ").join(sql.Placeholder() * len(values)),
            ),
            list(values.values()),
        )
    connection.execute("UPDATE finding SET subject = %s WHERE team = %s", (HOSTILE, HOSTILE))


def to(command, dsn):
    """Give the database to the commands that read one."""
    return () if command in WITHOUT_LEDGER else ("--dsn", dsn)


@pytest.mark.parametrize("command", sorted(name for name, forms in FORMS.items() if "csv" in forms))
def test_no_cell_of_a_csv_begins_a_formula(printed, command):
    """Threat: formulas in a CSV. Every command that writes one, found by itself."""
    result = printed[0](command, "csv")
    assert result.exit_code in {0, 1}, (result.output, result.exception)
    rows = list(csv.reader(io.StringIO(result.stdout)))
    for cell in (cell for row in rows for cell in row):
        assert cell[:1] not in FORMULA or NUMBER.fullmatch(cell), (command, cell)
    if command in SHOWING:
        assert HOSTILE in result.stdout, result.stdout


def test_no_name_moves_the_cursor(printed):
    """Threat: control characters and markup in names.

    Every form of every command shows escapes, also in a pipe.
    """
    run, dsn = printed
    with psycopg.connect(dsn) as connection:
        for column in (
            "workload.name",
            "workload.user_name",
            "owner.team",
            "owner.user_name",
            "node.name",
            "finding.team",
            "budget.name",
            "token.name",
            "notification.subject",
            "outbox.recipient",
            "outbox.subject",
            "price.pool",
            "charge.pool",
            "charge.node",
            "accelerator.model",
            "accelerator.uuid",
            "capacity.pool",
            "ledger_day.pool",
            "scaling_decision.pool",
            "queue_reading.source",
            "backtest.series",
        ):
            table, name = column.split(".")
            connection.execute(
                sql.SQL("UPDATE {} SET {} = left({}, 20) || %s").format(
                    *map(sql.Identifier, (table, name, name))
                ),
                (MARKUP + ESCAPES,),
            )
    shown = {}
    for command, forms in FORMS.items():
        for form in forms - {"parquet"}:
            result = run(command, form)
            shown[command, form] = result.output
            assert not isinstance(result.exception, (UnicodeError, MarkupError)), command
    assert sum("\\u001b" in text for text in shown.values()) >= 30
    assert not [command for command, text in shown.items() if CONTROL.search(text)]
    assert not [
        command
        for command, text in shown.items()
        if re.search(f"^[ │]*{FORGED}", text, re.MULTILINE)
    ]
    assert not [
        command for command, text in shown.items() if "\N{WAXING GIBBOUS MOON SYMBOL}" in text
    ]


def test_a_terminal_is_shown_no_control_characters():
    """The command on a real terminal: our colors stay, what a name brings along is an escape,
    concealing too.
    """
    code = (
        "from gpuledger_collector.cli import common; import typer; app ="
        " typer.Typer();app.command()(lambda: print('\x1b[1mbold\x1b[0m"
        " \x1b[8m\x1b[37;47m\x1b]0;owned\x07\x1b[2J\u202e'));common.run(lambda: app)"
    )
    ours, theirs = pty.openpty()
    command, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONUTF8": "1"}
    subprocess.run(command, stdout=theirs, check=True, env=environment)
    os.close(theirs)
    concealed = b"\\u001b[8m\\u001b[37;47m\\u001b]0;owned\\u0007\\u001b[2J\\u202e"
    assert b"\x1b[1mbold\x1b[0m " + concealed in os.read(ours, 1000)
    os.close(ours)
    piped = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment).stdout
    assert b"\\u001b[1mbold\\u001b[0m " + concealed in piped
