"""Tables in narrow terminals, the one rule of time, and the sections of `gpuledger --help`."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from operator import itemgetter

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from gpuledger_collector.accounting.period import UTC_DAYS, Period, date_range
from gpuledger_collector.cli import PANELS, build, doctor, forecast, terminal
from gpuledger_collector.cli.common import Refusal, duration_ms, time_range
from gpuledger_collector.cli.options import Format
from gpuledger_collector.cli.output import report_text, table_text
from gpuledger_collector.cli.remediation import bad, note, ok
from gpuledger_collector.export.budgets import STANDINGS
from gpuledger_collector.export.chargeback import ALLOCATIONS, ALWAYS_SHOWN, MEASURES
from gpuledger_collector.export.findings import ANOMALIES, IDLE
from gpuledger_collector.export.recommendations import ADVICE
from gpuledger_collector.export.report import Kind, Report, key_column

TABLES = {
    "anomalies": ANOMALIES.columns,
    "budgets": STANDINGS.columns,
    "chargeback": (
        key_column("team"),
        key_column("project"),
        *(
            replace(column, is_optional=column.name not in ALWAYS_SHOWN)
            for column in (*MEASURES, *ALLOCATIONS)
        ),
    ),
    "forecast": forecast.TABLE.columns,
    "idle": IDLE.columns,
    "recommend": ADVICE.columns,
}
NUMBER = "1234567.89"
TEXT = "a rather long name of something"


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", TABLES)
def test_numbers_never_wrap(name, width) -> None:
    """Every number that is shown is in one piece, and no line is wider than the terminal."""
    columns = [
        replace(column, value=itemgetter(True), kind=Kind.DECIMAL)
        if column.is_number
        else replace(column, value=itemgetter(False), kind=Kind.TEXT)
        for column in TABLES[name]
    ]
    text = table_text(columns, [(TEXT, NUMBER)] * 2, width)
    shown = {word for line in text.splitlines()[1:] for word in line.split() if word[:1].isdigit()}
    assert shown == {NUMBER}
    assert max(map(len, text.splitlines())) <= width


def test_a_pipe_gets_all_columns() -> None:
    """Without a terminal nothing is folded or left out; texts in CSV begin no formula, negative
    numbers stay.
    """
    report = Report(
        "things", (key_column("name"), key_column("cost", Kind.DECIMAL, is_optional=True))
    )
    rows = [{"name": "=1+1", "cost": "-5.00"}, {"name": None, "cost": None}]
    wide = report_text(Format.table, report, [{"name": TEXT * 20, "cost": 1}], None)
    assert wide.splitlines()[1] == f"{TEXT * 20}     1"
    assert report_text(Format.csv, report, rows, None) == "name,cost\n'=1+1,-5.00\n,\n"


NOW_MS = date_range("2026-10-15", "2026-10-16").start_ms + 7_200_000


@pytest.mark.parametrize(
    ("given", "days"),
    [
        ({}, ("2026-10-01", "2026-11-01")),
        ({"period": "2026-02"}, ("2026-02-01", "2026-03-01")),
        ({"period": "2026-Q3"}, ("2026-07-01", "2026-10-01")),
        ({"period": "2026-Q4"}, ("2026-10-01", "2027-01-01")),
        ({"period": "2026"}, ("2026-01-01", "2027-01-01")),
        ({"start": "2026-10-03", "end": "2026-10-05"}, ("2026-10-03", "2026-10-05")),
        ({"days": 7}, ("2026-10-08", "2026-10-16")),
        ({"start": "2026-10-03"}, ("2026-10-03", "2026-10-16")),
    ],
)
def test_one_rule_of_time(given, days) -> None:
    """A period by name, dates, or so many days up to now; this month when nothing is asked for."""
    asked = time_range(given.get("period"), given.get("start"), given.get("end"), given.get("days"))
    assert asked.resolve(UTC_DAYS, NOW_MS) == date_range(*days)


@pytest.mark.parametrize(
    "given",
    [
        ("2026-13", None, None, None),
        ("2026-Q5", None, None, None),
        ("26", None, None, None),
        ("2026-10", None, None, 3),
        (None, None, "2026-10-01", None),
        (None, "yesterday", None, None),
        (None, "2026-10-01", "2026-10-02", 3),
    ],
)
def test_times_that_are_none_are_refused(given) -> None:
    """In one sentence, before any database is opened."""
    with pytest.raises(Refusal):
        time_range(*given)


def test_a_range_that_begins_tomorrow_is_refused() -> None:
    """It ends today, in the zone of the bill."""
    with pytest.raises(Refusal, match="--from: the range 2026-10-16 to 2026-10-16 is empty"):
        time_range(None, "2026-10-16", None).resolve(UTC_DAYS, NOW_MS)


def test_durations() -> None:
    """Weeks to milliseconds."""
    assert [duration_ms(text, "--delay") for text in ("10m", "1.5h", "2w")] == [
        600_000,
        5_400_000,
        1_209_600_000,
    ]
    assert Period(0, 1).ms == 1


def test_help_has_a_section_for_each_panel() -> None:
    """Every command of the table stands in its section with its summary, and can be loaded."""
    shown = CliRunner().invoke(build(), ["--help"]).stdout
    command = get_command(build())
    assert re.findall(r"^([A-Z][a-z ]+):$", shown, re.M) == ["Options", *PANELS]
    for panel, entries in PANELS.items():
        section = shown.partition(f"\n{panel}:\n")[2].partition("\n\n")[0]
        assert re.findall(r"^  (\S+)", section, re.M) == [entry.name for entry in entries]
        assert all(command.commands[entry.name].help for entry in entries)


def test_brackets_of_help_stay() -> None:
    """What looks like markup is text."""
    assert "[[exchange]]" in CliRunner().invoke(build(), ["chargeback", "--help"]).stdout
    assert "<" not in CliRunner().invoke(build(), ["forecast", "--help"]).stdout


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_what_needs_no_command_imports_none(arguments) -> None:
    """Help and version load no module of a command, no database driver and no table library."""
    code = (
        "import json, sys\nfrom gpuledger_collector.__main__ import main\n"
        f"sys.argv = ['gpuledger', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint(json.dumps(sorted(sys.modules)))"
    )
    environment = {**os.environ, "COLUMNS": "100"}
    shown = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    modules = set(json.loads(shown.stdout.splitlines()[-1]))
    assert not modules & {
        "rich.console",
        "psycopg",
        "sqlalchemy",
        "numpy",
        "pandas",
        "pydantic",
        "fastapi",
    }
    assert not {entry.module for entries in PANELS.values() for entry in entries} & {
        name.rpartition(".")[2] for name in modules if name.startswith("gpuledger_collector.cli.")
    }


def test_forms_are_one_enum() -> None:
    """Lists have the same forms everywhere."""
    assert [form.value for form in Format] == ["table", "csv", "json"]


def test_doctor_colors_its_marks_on_a_terminal_alone(monkeypatch) -> None:
    """Bad, note and ok each in a color of their own, which the shield lets pass; none with NO_COLOR
    or in a pipe.
    """
    findings = [
        bad("disk", "is full", "free some"),
        note("price", "ends soon", "set one"),
        ok("agents", "report"),
    ]

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def printed(stream: io.StringIO) -> str:
        monkeypatch.setattr(sys, "stdout", stream)
        doctor.print_findings(findings)
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    colored = printed(Terminal())
    assert re.findall("\x1b\\[([0-9;]+)m", colored)[::2] == ["1;31", "33", "32"]
    assert terminal.plain(colored, colors=True) == colored
    in_a_pipe = printed(io.StringIO())
    assert in_a_pipe == re.sub("\x1b\\[[0-9;]*m", "", colored)
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(Terminal()) == in_a_pipe
