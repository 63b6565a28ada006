"""Years, quarters and fiscal years: one rule for the command line, HTTP and pages, and months for
what is closed.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.fleet import DAY, HOUR, Fleet, Held
from gpuledger_collector.accounting.period import date_range
from gpuledger_collector.storage.ledger import zones

Run = Callable[..., tuple[int, str, str]]
JULY = 'fiscal_year_begins = "July"\n'


@pytest.fixture
def october(fleet: Fleet, run: Run) -> Fleet:
    """A GPU for an hour on the first of October 2025, and another on the first of November, at 1
    USD.
    """
    fleet.capacity(1, 0, 32 * DAY)
    fleet.evidence([Held(1, 1, 0, HOUR), Held(1, 1, 31 * DAY, 31 * DAY + HOUR)])
    assert run("prices", "set", "--rate", "1", "--currency", "USD", "--from", "2025-01-01")[0] == 0
    return fleet


def hours(run: Run, period: str) -> str:
    code, out, err = run("chargeback", "--period", period, "--format", "csv")
    assert code == 0, err
    return {row["team"]: row["gpu_hours"] for row in csv.DictReader(io.StringIO(out))}.get(
        "team-1", ""
    )


def test_a_fiscal_year_is_a_period_like_others(
    october: Fleet, run: Run, written: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """FY2026 begins in July 2025; its second quarter has October to December; the calendar year has
    the same hours.
    """
    code, _, err = run("chargeback", "--period", "FY2026")
    assert code == 2
    assert (
        '--period: no fiscal year is declared: apply a file with fiscal_year_begins = "July"' in err
    )
    path = written("fiscal.toml", JULY)
    assert (
        run("apply", path)[1]
        == "fiscal year: 1 added, 0 superseded, 0 unchanged; no bill changes\n"
    )
    assert (
        run("apply", path)[1]
        == "fiscal year: 0 added, 0 superseded, 1 unchanged; no bill changes\n"
    )
    assert [hours(run, name) for name in ("FY2026", "FY2026-Q2", "2025", "2025-Q4", "2025-10")] == [
        "2.000000"
    ] * 4 + ["1.000000"]
    assert [hours(run, name) for name in ("FY2025", "FY2026-Q1")] == ["", ""]
    assert run("reconcile", "--period", "FY2026")[0] == 0
    assert (
        "FY2026-Q2 has several: --all --dir DIR writes them all"
        in (run("statement", "--owner", "team-1", "--period", "FY2026-Q2")[2])
    )
    assert run("statement", "--all", "--dir", tmp_path / "pages", "--period", "FY2026-Q2")[0] == 0
    assert [folder.name for folder in sorted((tmp_path / "pages").iterdir())][:2] == [
        "2025-10",
        "2025-11",
    ]
    exported = run("export", "config")[1]
    assert JULY in exported
    assert (
        "fiscal year: 0 added, 0 superseded, 1 unchanged"
        in run("apply", written("again.toml", exported))[1]
    )
    assert zones.calendar(october.connection).period("FY2026") == date_range(
        "2025-07-01", "2026-07-01"
    )


def test_days_of_a_fiscal_year_are_those_of_the_billing_zone(
    run: Run, written, fleet: Fleet
) -> None:
    """It begins at midnight in the zone."""
    assert run("apply", written("both.toml", JULY + 'billing_zone = "Europe/Berlin"\n'))[0] == 0
    period = zones.calendar(fleet.connection).period("FY2026-Q1")
    assert (period.end_ms - period.start_ms) // HOUR == 92 * 24
    assert (period.start_ms // HOUR) % 24 == 22


@pytest.mark.parametrize("period", ["2025", "2025-Q4", "FY2026"])
def test_a_close_is_of_one_month(october: Fleet, run: Run, period: str) -> None:
    """A longer period is refused in a sentence, and closes nothing."""
    code, _, err = run("close", "--period", period)
    assert code == 2
    assert f"a close is of one month, and {period} has several: close each of them" in err
    assert october.rows("SELECT count(*) FROM billing_period") == [(0,)]


def test_a_fiscal_year_begins_in_a_month(run: Run, written: Callable[[str, str], Path]) -> None:
    """Other words are refused with the ones that there are."""
    path = written("bad.toml", "fiscal_year_begins = 7\n")
    code, _, err = run("apply", path)
    assert code == 2
    assert f"{path}:fiscal_year_begins: '7' is not one of January, February" in err


def test_json_of_a_year_adds_up_its_months(october: Fleet, run: Run) -> None:
    """A year's total is that of its months."""
    totals = [
        json.loads(run("chargeback", "--period", name, "--format", "json")[1])["totals"][0][
            "cost_micro"
        ]
        for name in ("2025", "2025-10", "2025-11")
    ]
    assert totals[0] == totals[1] + totals[2] == 32 * 24 * 10**6
