"""Idle findings: the same however the minutes are cut, with money to the micro-unit, and gone when
the work is back.
"""

from __future__ import annotations

import contextlib
import csv
import io
import threading
import time
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Fleet, Held
from fakes.idle_day import CHANGE, MINUTE, furnish, minutes
from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.storage.findings import late_evidence
from gpuledger_collector.storage.telemetry import minutes as minute_rollup


def dump(fleet: Fleet) -> list[tuple[object, ...]]:
    return list(
        fleet.rows(
            "SELECT subject, state, team, since_ms, opened_ms, until_ms, resolved_ms, currency,"
            " cost_micro, per_day_micro, evidence->'wasted_gpu_ns' FROM finding WHERE kind = 'idle'"
            " ORDER BY key"
        )
    )


def test_each_state_is_found_with_its_owner_and_beginning(fleet, findings):
    """The resting job since its last work, the free card, the one never used; nothing of the warm
    replica.
    """
    furnish(fleet)
    find_idle(findings, OCTOBER + DAY)
    found = {row[0]: row for row in dump(fleet)}
    assert {uuid: row[1] for uuid, row in found.items()} == {
        "GPU-0001": "gone_idle",
        "GPU-0002": "unallocated",
        "GPU-0003": "never_used",
    }
    assert found["GPU-0001"][2:4] == ("vision", OCTOBER + 6 * HOUR)
    assert found["GPU-0003"][2:4] == ("robotics", OCTOBER)
    assert [row[6] for row in found.values()] == [None] * 3


def test_money_is_quantity_times_rate_to_the_micro_unit(fleet, findings):
    """Each rating interval is priced by the rate in force in it, also where a rate changes inside a
    minute.
    """
    furnish(fleet)
    find_idle(findings, OCTOBER + DAY)
    (cost,) = fleet.rows("SELECT cost_micro FROM finding WHERE state = 'gone_idle'")
    first, second = Decimal("2.49"), Decimal("1.999999999")
    expected = 4 * cost_micro(gpu_ns(1_000_000, HOUR), first)
    expected += cost_micro(gpu_ns(1_000_000, CHANGE - 10 * HOUR), first)
    expected += cost_micro(gpu_ns(1_000_000, 11 * HOUR - CHANGE), second)
    expected += 13 * cost_micro(gpu_ns(1_000_000, HOUR), second)
    assert cost[0] == expected


@pytest.mark.parametrize("steps", [[HOUR], [7 * MINUTE, 95 * MINUTE, 400 * MINUTE], [DAY]])
def test_however_the_search_is_cut_the_findings_are_the_same(fleet, findings, steps):
    """Every hour, at odd minutes, or once: the same findings to the micro-unit; a further run
    changes nothing.
    """
    furnish(fleet)
    at, number = OCTOBER, 0
    while at < OCTOBER + DAY:
        at = min(at + steps[number % len(steps)], OCTOBER + DAY)
        number += 1
        find_idle(findings, at)
    made = dump(fleet)
    find_idle(findings, OCTOBER + DAY)
    assert dump(fleet) == made
    fleet.connection.execute("TRUNCATE finding, finding_progress")
    find_idle(findings, OCTOBER + DAY)
    assert [(*row[:4], *row[5:]) for row in dump(fleet)] == [(*row[:4], *row[5:]) for row in made]


def test_work_resolves_a_finding_and_idleness_opens_another(fleet, findings):
    """What works again is resolved at that minute and keeps its cost; the next rest is a finding of
    its own.
    """
    furnish(fleet)
    minutes(fleet, 1, DAY, DAY + 3 * HOUR, 0.8)
    minutes(fleet, 1, DAY + 3 * HOUR, DAY + 6 * HOUR, 0.0)
    for hour in range(24, 30):
        fleet.evidence([Held(1, 1, hour * HOUR, hour * HOUR + HOUR)])
    find_idle(findings, OCTOBER + DAY)
    find_idle(findings, OCTOBER + DAY + 6 * HOUR)
    rows = [row for row in dump(fleet) if row[0] == "GPU-0001"]
    assert len(rows) == 2
    assert OCTOBER + DAY <= rows[0][6] <= OCTOBER + DAY + 10 * MINUTE
    assert rows[1][3] == OCTOBER + DAY + 3 * HOUR
    assert rows[1][6] is None


def test_evidence_that_is_late_at_a_full_hour_ends_nothing(fleet, findings):
    """Of the new hour nothing has arrived yet: what was idle until then is, for half an hour."""
    furnish(fleet)
    for seconds in (0, 30, 300, 1_740):
        find_idle(findings, OCTOBER + DAY + seconds * 1000)
        assert [row[6] for row in dump(fleet)] == [None] * 3, seconds
    find_idle(findings, OCTOBER + DAY + 40 * MINUTE)
    assert {row[6] for row in dump(fleet)} == {OCTOBER + DAY}


def test_silence_is_no_finding(fleet, findings):
    """A node whose agent stops is not idle: the finding ends where it was last seen, and nothing is
    added.
    """
    furnish(fleet)
    find_idle(findings, OCTOBER + DAY + 12 * HOUR)
    for row in dump(fleet):
        assert OCTOBER + DAY - HOUR <= row[5] <= OCTOBER + DAY
    total = sum(dict(dump(fleet)[0][10]).values())
    assert total <= gpu_ns(1_000_000, DAY)


def test_without_a_rate_there_is_no_cost(fleet, findings):
    """Unpriced is never zero."""
    furnish(fleet)
    fleet.connection.execute("TRUNCATE price CASCADE")
    find_idle(findings, OCTOBER + DAY)
    assert {row[7:10] for row in dump(fleet)} == {(None, None, None)}


def test_the_command_lists_them(fleet, findings, run):
    """CSV with every finding, a table with the sum, exit 1 when asked for; unknown states are
    refused.
    """
    furnish(fleet)
    find_idle(findings, OCTOBER + DAY)
    code, out, _ = run("idle", "--days", "36500", "--format", "csv", "--exit-code")
    assert code == 1
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {(row["state"], row["team"]) for row in rows} == {
        ("gone_idle", "vision"),
        ("never_used", "robotics"),
        ("unallocated", ""),
    }
    assert all(Decimal(row["cost"]) > 0 for row in rows)
    code, out, _ = run("idle", "--days", "36500", "--team", "vision")
    assert code == 0
    assert "1 finding, 0 ongoing" in out
    dated = run("idle", "--from", "2025-10-01", "--to", "2025-10-02", "--format", "csv")
    assert dated[:2] == (0, run("idle", "--days", "36500", "--format", "csv")[1])
    assert run("idle", "--from", "2025-09-24", "--to", "2025-10-01", "--exit-code")[0] == 0
    open_ended = run("idle", "--from", "2025-10-01", "--format", "csv")
    assert open_ended[:2] == dated[:2]
    for more in (("--days", "7", "--to", "2025-10-02"), ("--now", "--to", "2025-10-02")):
        assert run("idle", "--from", "2025-10-01", *more)[0] == 2, more
    code, _, err = run("idle", "--state", "lazy")
    assert code == 2
    assert "gone_idle" in err


@pytest.mark.parametrize("lag", [3 * HOUR, DAY])
def test_what_a_node_that_was_cut_off_tells_later_opens_its_hours_again(
    fleet, findings, ledger, lag
):
    """Evidence of ten hours comes hours or a day after the searches have passed: the same findings
    as in time.
    """
    furnish(fleet)
    fold_usage(ledger)
    gone = (OCTOBER + 4 * HOUR, OCTOBER + 14 * HOUR)
    kept = {}
    for table, at in (("gpu_minute", "minute_ms"), ("usage_interval", "start_ms")):
        where = f"accelerator_id IN (1, 3) AND {at} >= %s AND {at} < %s"
        fleet.connection.execute(
            f"CREATE TEMP TABLE late_{table} AS SELECT * FROM {table} WHERE {where}", gone
        )
        fleet.connection.execute(f"DELETE FROM {table} WHERE {where}", gone)
        kept[table] = where
    minutes(fleet, 2, DAY, DAY + lag, 0.0, processes=0)
    for hour in range(24, 24 + lag // HOUR):
        fleet.evidence([Held(2, None, hour * HOUR, hour * HOUR + HOUR, "unallocated")])
    for hour in range(1, 24 + lag // HOUR + 1, 5):
        find_idle(findings, OCTOBER + hour * HOUR)
    find_idle(findings, OCTOBER + DAY + lag)
    wrong = dump(fleet)

    for table in kept:
        fleet.connection.execute(f"INSERT INTO {table} SELECT * FROM late_{table}")
    fleet.connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT a, h FROM unnest(ARRAY[1, 3])"
        " AS a, generate_series(%s::bigint, %s::bigint - 1, 3600000) AS h",
        gone,
    )
    fold_usage(ledger)
    find_idle(findings, OCTOBER + DAY + lag)
    made = dump(fleet)
    assert made != wrong
    left = fleet.rows("SELECT kind, until_ms > 0 FROM finding_progress ORDER BY 1")
    assert left == [("idle", True), ("idle_changes", True)]
    fleet.connection.execute("TRUNCATE finding, finding_progress")
    find_idle(findings, OCTOBER + DAY + lag)
    assert [(*row[:4], *row[5:]) for row in made] == [(*row[:4], *row[5:]) for row in dump(fleet)]


def test_evidence_in_time_moves_no_search_back(fleet, findings, ledger):
    """What is folded in the hour that the search is in is looked at anyway: no mark of anything
    late.
    """
    furnish(fleet)
    find_idle(findings, OCTOBER + 23 * HOUR + 10 * MINUTE)
    fleet.connection.execute(
        "DELETE FROM hour_recompute WHERE hour_ms < %s", (OCTOBER + 23 * HOUR,)
    )
    fold_usage(ledger)
    assert fleet.rows("SELECT kind FROM finding_progress") == [("idle",)]


def test_a_job_whose_process_has_ended_has_gone_idle_and_was_not_never_used(
    fleet, findings, ledger
):
    """Its process ends and its memory is freed after six hours: one finding of one state, however
    long it goes on.
    """
    furnish(fleet)
    fleet.connection.execute(
        "DELETE FROM gpu_minute WHERE accelerator_id = 1 AND minute_ms >= %s", (OCTOBER + 6 * HOUR,)
    )
    minutes(fleet, 1, 6 * HOUR, DAY, 0.0, processes=0)
    fleet.connection.execute(
        "UPDATE usage_interval SET busy_ms = held_ms WHERE accelerator_id = 1 AND start_ms < %s",
        (OCTOBER + 6 * HOUR,),
    )
    fold_usage(ledger)
    for hour in range(1, 25):
        find_idle(findings, OCTOBER + hour * HOUR)
    rows = [row for row in dump(fleet) if row[0] in {"GPU-0001", "GPU-0003"}]
    assert [(row[0], row[1], row[3] - OCTOBER) for row in rows] == [
        ("GPU-0001", "gone_idle", 6 * HOUR),
        ("GPU-0003", "never_used", 0),
    ]


def test_hours_without_any_evidence_are_left_out(fleet, findings, monkeypatch) -> None:
    """A search right after a fleet's first day gives what it would with the hours before, in which
    nothing was.
    """
    for number in (1, 2, 3, 4):
        fleet.capacity(number, 0)
    # A fault and a holder that are older than the first sample, and a job that holds on from before
    # the context.
    fleet.evidence(
        [
            Held(1, None, 2 * HOUR, 5 * HOUR + 7 * MINUTE, state="unavailable"),
            Held(2, 1, HOUR, 8 * HOUR),
        ]
    )
    fleet.evidence(
        [Held(3, 2, 4 * HOUR, 8 * HOUR), Held(4, None, 5 * HOUR, 8 * HOUR, state="unallocated")]
    )
    for number in (2, 3, 4):
        minutes(fleet, number, 4 * HOUR + 11 * MINUTE, 8 * HOUR, 0.0, processes=int(number == 3))
    cut = []
    first_hour = minute_rollup.first_hour

    def noted(connection, since_ms):
        cut.append(first_hour(connection, since_ms))
        return cut[-1]

    monkeypatch.setattr(minute_rollup, "first_hour", noted)
    find_idle(findings, OCTOBER + 8 * HOUR)
    assert cut == [OCTOBER + HOUR]
    made = dump(fleet)
    assert {row[1] for row in made} >= {"faulty", "never_used", "unallocated"}
    fleet.connection.execute("TRUNCATE finding, finding_progress")
    monkeypatch.setattr(minute_rollup, "first_hour", lambda connection, since_ms: since_ms)
    find_idle(findings, OCTOBER + 8 * HOUR)
    assert dump(fleet) == made


def test_without_any_node_nothing_is_known(fleet, run) -> None:
    """Imported usage says nothing of what GPUs did: no count of 0 stands for it.

    A node that reported is searched.
    """
    for arguments in ((), ("--now",), ("--by", "team")):
        code, out, err = run("idle", *arguments)
        assert code == 0, err
        assert (
            out.splitlines()[-1]
            == "not known: no node has reported what its GPUs do, and imported usage does not say"
        )
    fleet.node("n1")
    assert run("idle")[1].splitlines()[-1].startswith("0 findings, 0 ongoing")
    # It was heard of long ago: of this moment nothing is known.
    silent = "1 of 1 nodes are silent: what is idle on them now is not known."
    assert run("idle", "--now")[1].splitlines()[-1] == silent


class Watched:
    """A ledger after each of whose transactions something is called."""

    standby = False

    def __init__(self, database, after) -> None:
        self._database, self._after = database, after

    @contextlib.contextmanager
    def transaction(self, lock, **options):
        with self._database.transaction(lock, **options) as connection:
            yield connection
        self._after()


def test_a_slower_run_takes_back_nothing_of_a_faster_one(fleet, findings, monkeypatch):
    """One begins three windows, another ends all three: what it found to be ongoing stays so all
    the time.
    """
    furnish(fleet)
    minutes(fleet, 1, DAY, 2 * DAY + 3 * HOUR, 0.0)
    fleet.evidence([Held(1, 1, hour * HOUR, hour * HOUR + HOUR) for hour in range(24, 51)])
    monkeypatch.setattr("gpuledger_collector.services.idle_search.WINDOW_ACCELERATOR_DAYS", 1)
    monkeypatch.setattr("gpuledger_collector.services.idle_search.MAX_WINDOW_DAYS", 1)
    at, seen = OCTOBER + 2 * DAY + 3 * HOUR, []

    def after() -> None:
        if not seen:
            find_idle(findings, at)
        seen.append(dump(fleet))

    find_idle(Watched(findings, after), at)
    assert len(seen) > 1
    assert at in {row[5] for row in seen[0]}
    assert all(rows == seen[0] for rows in seen)


def test_a_search_that_goes_back_shows_no_day_in_between(fleet, findings, monkeypatch):
    """What was ongoing at the end of an earlier day, and went on to work, is idle at no time while
    days are searched again: readers see what the newest evidence says.
    """
    furnish(fleet)
    minutes(fleet, 1, DAY, DAY + 3 * HOUR, 0.8)
    minutes(fleet, 1, DAY + 3 * HOUR, 2 * DAY + 6 * HOUR, 0.0)
    fleet.evidence([Held(1, 1, hour * HOUR, hour * HOUR + HOUR) for hour in range(24, 54)])
    monkeypatch.setattr("gpuledger_collector.services.idle_search.MAX_WINDOW_DAYS", 1)
    monkeypatch.setattr("gpuledger_collector.services.idle_search.ACCELERATORS_AT_ONCE", 1)
    at, seen = OCTOBER + 2 * DAY + 6 * HOUR, []
    find_idle(findings, at)
    before = dump(fleet)
    assert [row[0] for row in before].count("GPU-0001") == 2
    assert [row[0] for row in before if row[6] is None] == ["GPU-0001"]
    # As a collector of the version before notes it: of the whole fleet.
    fleet.connection.execute("INSERT INTO finding_progress VALUES ('idle_late', %s)", (OCTOBER,))
    find_idle(Watched(findings, lambda: seen.append(dump(fleet))), at)
    assert len(seen) > 3
    assert all(rows == before for rows in seen)
    assert fleet.rows("SELECT kind FROM finding_progress ORDER BY 1") == [
        ("idle",),
        ("idle_changes",),
    ]
    assert fleet.rows("SELECT count(*), count(late_ms), count(again_ms) FROM late_evidence") == [
        (4, 0, 0)
    ]


def test_evidence_that_arrives_during_a_search_is_not_forgotten(fleet, findings):
    """What is noted while earlier late evidence is searched stays noted, whichever hour it is of;
    an interrupted search begins again where it began.
    """
    furnish(fleet)
    find_idle(findings, OCTOBER + DAY)
    first, second = fleet.accelerator(1), fleet.accelerator(2)

    def note(*hours: tuple[int, int]) -> None:
        with findings.transaction() as connection:
            late_evidence.note(connection, [(one, OCTOBER + at) for one, at in hours])

    note((first, 2 * HOUR), (first, 3 * HOUR))
    arrived = [((first, 5 * HOUR), (second, 4 * HOUR))]

    def arrive() -> None:
        if arrived:
            note(*arrived.pop())
            raise InterruptedError

    with pytest.raises(InterruptedError):
        find_idle(Watched(findings, arrive), OCTOBER + DAY)
    noted = "SELECT * FROM late_evidence ORDER BY 1"
    assert fleet.rows(noted) == [
        (first, OCTOBER + 5 * HOUR, OCTOBER + 2 * HOUR, 2),
        (second, OCTOBER + 4 * HOUR, None, 2),
    ]
    find_idle(findings, OCTOBER + DAY)
    assert fleet.rows(noted) == [(first, None, None, 2), (second, None, None, 2)]


def test_a_search_waits_for_a_fold_that_notes_what_it_has_searched(fleet, findings):
    """The note comes while it searches, and is committed once the search wants to say that it is done:
    it stays, and what was searched is.
    """
    furnish(fleet)
    find_idle(findings, OCTOBER + DAY)
    first = fleet.accelerator(1)
    with findings.transaction() as connection:
        late_evidence.note(connection, [(first, OCTOBER + 2 * HOUR)])
    noted, folds = threading.Event(), []

    def fold() -> None:
        with findings.transaction(one_snapshot=True) as connection:
            late_evidence.note(connection, [(first, OCTOBER + 5 * HOUR)])
            noted.set()
            # Until the search waits for this row, or has failed.
            time.sleep(1.0)

    def begin_to_fold() -> None:
        if not folds:
            folds.append(threading.Thread(target=fold))
            folds[0].start()
            assert noted.wait(60)

    find_idle(Watched(findings, begin_to_fold), OCTOBER + DAY)
    folds[0].join(60)
    assert fleet.rows("SELECT * FROM late_evidence") == [(first, OCTOBER + 5 * HOUR, None, 2)]
