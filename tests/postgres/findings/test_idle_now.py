"""`idle --now` beside a collector: what its job stored is what a full search up to then finds."""

import datetime as dt

import pytest

from fakes.fleet import HOUR, OCTOBER
from fakes.idle_day import MINUTE, furnish
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.idle_context import IdleContext
from gpuledger_collector.services.idle_search import JOB, find_idle

NOW = ("idle", "--now", "--format", "json")
TIMES = [8 * HOUR, 10 * HOUR + 31 * MINUTE, 16 * HOUR + 59 * MINUTE, 23 * HOUR]


@pytest.fixture
def at(monkeypatch):
    """Sets the clock of commands."""
    return lambda ms: monkeypatch.setattr(
        "gpuledger_collector.cli.session.clock_ms", lambda: OCTOBER + ms
    )


def search_as_job(fleet, database, times, outcome="done"):
    """Run the search as the schedule of a collector does, and note it as a run."""
    context = IdleContext()
    for ms in times:
        find_idle(database, OCTOBER + ms, context)
        started = dt.datetime.fromtimestamp((OCTOBER + ms) / 1000, dt.UTC)
        fleet.connection.execute(
            "INSERT INTO job_run (job, started_at, ended_at, outcome) VALUES (%s, %s, %s, %s)",
            (JOB, started, started, outcome),
        )


@pytest.mark.parametrize("searched", TIMES)
def test_what_the_job_stored_is_what_a_full_search_finds(
    fleet, findings, ledger, run, at, searched
):
    """Minutes later, whatever has arrived since: the rows of a search of everything up to then."""
    furnish(fleet)
    fold_usage(ledger)
    search_as_job(fleet, findings, [HOUR, searched - 5 * MINUTE, searched])
    at(searched + 4 * MINUTE)
    stored = run(*NOW)
    fleet.connection.execute("TRUNCATE finding, finding_progress")
    at(searched)
    assert run(*NOW, "--search") == stored
    assert stored[0] == 0
    assert "GPU-0003" in stored[1]


def test_it_says_up_to_when_the_job_has_searched(fleet, findings, ledger, run, at):
    """In the table; and with --search nothing is older than the command."""
    furnish(fleet)
    fold_usage(ledger)
    search_as_job(fleet, findings, [12 * HOUR])
    at(12 * HOUR + 4 * MINUTE)
    assert "as the collector found it up to 2025-10-01T12:00:00Z" in run("idle", "--now")[1]
    assert "as the collector found it" not in run("idle", "--now", "--search")[1]
    assert run("idle", "--days", "2", "--search")[0] == 2


@pytest.mark.parametrize(
    ("why", "later", "outcome"),
    [("too old", 11 * MINUTE, "done"), ("not to its end", MINUTE, "failed")],
)
def test_a_search_that_does_not_stand_for_now_is_made_again(
    fleet, findings, ledger, run, at, why, later, outcome
):
    """The command searches itself, as where no collector runs."""
    furnish(fleet)
    fold_usage(ledger)
    search_as_job(fleet, findings, [12 * HOUR], outcome)
    at(12 * HOUR + later)
    assert "as the collector found it" not in run("idle", "--now")[1], why
    (until_ms,) = fleet.rows("SELECT until_ms FROM finding_progress WHERE kind = 'idle'")[0]
    assert until_ms == OCTOBER + 12 * HOUR + later


@pytest.mark.parametrize(("hour", "is_stored"), [(11, True), (9, False)])
def test_old_evidence_that_came_late_is_searched(fleet, findings, ledger, run, at, hour, is_stored):
    """That of the last two hours comes late after every full hour, and waits for the job."""
    furnish(fleet)
    fold_usage(ledger)
    search_as_job(fleet, findings, [12 * HOUR + 2 * MINUTE])
    fleet.connection.execute(
        "UPDATE gpu_minute SET utilization_ratio = 0.7 WHERE accelerator_id = %s AND minute_ms >="
        " %s",
        (fleet.accelerator(3), OCTOBER + hour * HOUR),
    )
    fleet.connection.execute(
        "INSERT INTO finding_progress (kind, until_ms) VALUES ('idle_late', %s)",
        (OCTOBER + hour * HOUR,),
    )
    at(12 * HOUR + 6 * MINUTE)
    assert ("GPU-0003" in run(*NOW)[1]) is is_stored
