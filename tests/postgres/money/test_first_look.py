"""The first report after late evidence under a volume price is the second one, and what one
computes by hand.
"""

import csv
import datetime as dt
import io
import json

import pytest

from fakes.books import Command
from fakes.fleet import DAY, HOUR, NOW_MS, Held
from fakes.furnishing import furnishing
from fakes.worlds import world
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.rating import rate_usage
from gpuledger_common.instants import to_ms

TIER = (
    '[[adjustment]]\nname = "volume"\nkind = "tiered"\nper = "team"\ncurrency = "USD"\n'
    'steps = { "0" = 2.5, "100" = 2.0, "200" = 1.5 }\n'
)
OCTOBER, NOVEMBER = ("--period", "2025-10"), ("--period", "2025-11")
LATE = Held(2, 1, DAY, 2 * DAY), Held(3, 1, DAY, 2 * DAY)
"""48 GPU-hours of the second day."""


def furnish(dsn):
    """Twenty days on each of which a team holds one GPU for 8 hours, rated: 100 h at 2.50 and 60 h
    at 2.00.
    """
    with furnishing(dsn) as (fleet, run, files):
        run("prices", "set", "--rate", "2.5", "--currency", "USD", "--from", "2025-01-01")
        run("apply", files.write("tier.toml", TIER))
        fleet.workload(1, team="vision")
        for accelerator in (1, 2, 3):
            fleet.capacity(accelerator, 0, 20 * DAY)
        fleet.evidence([Held(1, 1, day * DAY, day * DAY + 8 * HOUR) for day in range(20)])
        assert cost(Command(dsn), *OCTOBER) == ("160.000000", "370.00")


@pytest.fixture
@world(furnish)
def october(fleet, monkeypatch):
    """The ledger of `furnish`, at its time."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    return fleet


def cost(run, *asked, correction_of=""):
    """GPU-hours and cost of the team in a chargeback."""
    code, text, wrong = run("chargeback", *asked, "--format", "csv")
    assert code == 0, wrong
    rows = csv.DictReader(io.StringIO(text))
    (row,) = [
        row for row in rows if row["team"] == "vision" and row["correction_of"] == correction_of
    ]
    return row["gpu_hours"], row["cost"]


def test_the_first_chargeback_after_late_evidence_is_the_second(october, run):
    """208 hours: 100 at 2.50, 100 at 2.00 and 8 at 1.50."""
    october.evidence(LATE)
    assert [cost(run, *OCTOBER) for _ in range(2)] == [("208.000000", "462.00")] * 2
    assert run("reconcile", *OCTOBER)[0] == 0


def test_the_end_of_a_month_asked_for_alone_has_the_same_price(october, run):
    """Hours 160 to 208 of the month: 40 at 2.00 and 8 at 1.50; what they follow from is before the
    period.
    """
    october.evidence(LATE)
    assert [cost(run, "--from", "2025-10-15", "--to", "2025-10-21") for _ in range(2)] == [
        ("48.000000", "92.00")
    ] * 2


@pytest.mark.parametrize(
    "asked",
    [
        ("chargeback", *OCTOBER, "--format", "focus"),
        ("chargeback", *OCTOBER, "--by", "team,workload", "--format", "json"),
        ("statement", "--owner", "team=vision", *OCTOBER),
    ],
)
def test_other_reports_rate_as_far_as_the_chargeback(october, run, asked):
    """The first answer is the second one."""
    october.evidence(LATE)
    first, second = run(*asked), run(*asked)
    assert first == second
    assert first[0] == 0, first[2]
    assert cost(run, *OCTOBER) == ("208.000000", "462.00")


def test_one_run_of_the_scheduled_job_is_enough(october, ledger):
    """Pages show what the jobs have rated."""
    october.evidence(LATE)
    fold_usage(ledger)
    # The late day and the 18 after it.
    assert rate_usage(ledger, NOW_MS) == 19
    assert rate_usage(ledger, NOW_MS) == 0
    assert october.rows(
        "SELECT sum(l.cost_micro) FROM ledger_day l JOIN owner o ON o.id = l.owner_id"
    ) == [(462_000_000,)]


def test_days_that_a_stopped_run_left_are_rated_by_the_next(october, ledger):
    """A request outlives the run that made it."""
    october.evidence(LATE)
    fold_usage(ledger)
    assert rate_usage(ledger, NOW_MS, stopping=iter([False] * 4 + [True]).__next__) == 4
    assert rate_usage(ledger, NOW_MS) == 15


def test_the_first_correction_is_the_second(october, run):
    """24 hours found after the close: 160 to 184 of the month, all at 2.00."""
    assert run("close", *OCTOBER)[0] == 0
    october.evidence(LATE[:1])
    shown = [cost(run, *NOVEMBER, correction_of="2025-10") for _ in range(2)]
    assert shown == [("24.000000", "48.00")] * 2
    code, text, _ = run("corrections", *OCTOBER, "--format", "json")
    assert code == 0
    assert [row["cost"] for row in json.loads(text)["rows"] if row["team"] == "vision"] == ["48.00"]


def test_what_a_correction_command_shows_first_is_all(october, run):
    """It is asked for by the month that was closed, not by the one in which it is booked."""
    assert run("close", *OCTOBER)[0] == 0
    october.evidence(LATE[:1])
    first, second = (run("corrections", *OCTOBER, "--format", "csv") for _ in range(2))
    assert first == second
    assert "48.00" in first[1]


def test_today_is_rated_under_a_volume_price(october, run, monkeypatch):
    """A day that has not ended: nothing comes after it yet, in whatever order its evidence arrives."""
    monkeypatch.setattr(
        "gpuledger_collector.wiring.read_clock",
        lambda: to_ms(dt.datetime(2025, 10, 3, 9, tzinfo=dt.UTC)),
    )
    october.evidence([Held(2, 1, 2 * DAY + HOUR, 2 * DAY + 5 * HOUR)])
    assert [cost(run, *OCTOBER)[0] for _ in range(2)] == ["164.000000"] * 2
