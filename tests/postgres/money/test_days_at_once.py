"""Days are rated at the same time: by raters beside each other, by worker processes, and beside
what changes bills.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from fakes.replicas import until
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services import hourly_usage, rating, rating_workers
from gpuledger_collector.services import refresh as refreshing
from gpuledger_collector.services.hourly_usage import fold_usage, ledger_day
from gpuledger_collector.services.rating import rate_day, rate_usage
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.billing import rated_days
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import ServerUnavailable
from gpuledger_collector.storage.locks import Lock

DAYS = [OCTOBER + number * DAY for number in range(6)]
PERIOD = Period(DAYS[0], DAYS[-1] + DAY)
WAITING = (
    "SELECT FROM pg_locks WHERE locktype = 'relation' AND relation = %s::regclass AND NOT granted"
)
TIER = (
    '[[adjustment]]\nname = "volume"\nkind = "tiered"\ncurrency = "USD"\nsteps = { 0 = 2.0, 10 ='
    " 1.0 }\n"
)
RULE = '[[rule]]\nmatch = { account = "nobody" }\nassign = { team = "moved" }\n'


@pytest.fixture
def days(fleet):
    """Six days of two accelerators, each with workloads and so owners that others have and that
    none has.
    """
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', 'H100', 'on_demand', 2.333333333, 'USD', 0,"
        " now())"
    )
    for accelerator in (1, 2):
        fleet.capacity(accelerator, 0, len(DAYS) * DAY)
    for number in range(len(DAYS)):
        fleet.workload(100 + number, team=f"team-{number}")
        begin = number * DAY
        fleet.evidence(
            [Held(1, 100 + number, begin, begin + HOUR), Held(2, 1, begin + HOUR, begin + 2 * HOUR)]
        )
    return fleet


def waits(fleet, lock):
    """Whether somebody waits for a lock."""
    return fleet.rows(WAITING, lock)


def request(fleet):
    """Request all days again."""
    fleet.connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT unnest(%s::bigint[])", (DAYS,)
    )


@pytest.mark.parametrize("many", [6, 7])
def test_postgres_knows_how_many_charges_a_month_has(days, dsn, monkeypatch, many):
    """At once after many days, as a statement that is asked for next is planned by that."""
    monkeypatch.setattr(rating, "MANY_DAYS", many)
    assert rate_usage(Database(dsn), NOW_MS, PERIOD) == len(DAYS)
    ((known, charges),) = days.rows(
        "SELECT (SELECT reltuples::bigint FROM pg_class WHERE oid = 'charge'::regclass), (SELECT"
        " count(*) FROM charge)"
    )
    assert (known == charges) == (many <= len(DAYS))


def test_a_day_waits_for_its_own_lock_and_for_that_of_the_ledger_only(days, ledger, dsn):
    """While one day is rated, the others are folded and rated; nobody takes the ledger meanwhile."""
    with ThreadPoolExecutor(1) as threads, psycopg.connect(dsn) as rater:
        locks.take(rater, locks.of_day(DAYS[0]))
        assert rate_usage(ledger, NOW_MS, Period(DAYS[1], PERIOD.end_ms)) == len(DAYS) - 1
        with pytest.raises(psycopg.errors.LockNotAvailable), psycopg.connect(dsn) as closing:
            closing.execute(f"{locks.statement(Lock.LEDGER)} NOWAIT")
        waiting = threads.submit(rate_usage, ledger, NOW_MS, Period(DAYS[0], DAYS[1]))
        until(lambda: waits(days, locks.of_day(DAYS[0])))
        rater.rollback()
        assert waiting.result(60) == 1
    assert days.rows("SELECT count(*), bool_and(holds) FROM conservation_check") == [
        (len(DAYS), True)
    ]


def test_no_day_is_rated_while_the_ledger_is_locked(days, ledger, dsn):
    """Who closes or declares takes the one lock that all days are part of."""
    with ThreadPoolExecutor(1) as threads, psycopg.connect(dsn) as closing:
        locks.take(closing, Lock.LEDGER)
        waiting = threads.submit(rate_day, ledger, DAYS[3], NOW_MS)
        until(lambda: waits(days, locks.of_day(DAYS[3])))
        closing.rollback()
        waiting.result(60)
    assert days.rows("SELECT day_ms FROM conservation_check") == [(DAYS[3],)]


def test_days_of_a_month_have_locks_of_their_own():
    """No two of 31 days in a row share one."""
    assert len({locks.of_day(OCTOBER + number * DAY) for number in range(31)}) == 31


def test_a_day_that_another_process_has_rated_is_left(days, ledger):
    """Two raters list the same days; the second one finds nothing to do, until something is
    requested again.
    """
    rate_day(ledger, DAYS[0], NOW_MS)
    written = days.rows("SELECT xmin::text FROM conservation_check")
    rate_day(ledger, DAYS[0], NOW_MS)
    assert days.rows("SELECT xmin::text FROM conservation_check") == written
    request(days)
    rate_day(ledger, DAYS[0], NOW_MS)
    assert days.rows("SELECT xmin::text FROM conservation_check") != written
    assert days.rows("SELECT count(*) FROM day_recompute WHERE day_ms = %s", DAYS[0]) == [(0,)]


def test_a_request_that_arrives_while_its_day_is_rated_stays(days, ledger, monkeypatch):
    """What is rated is what one snapshot showed; what came after it is rated by the next run."""
    priced = rating.price_usage

    def late(usage, book):
        request(days)
        return priced(usage, book)

    monkeypatch.setattr(rating, "price_usage", late)
    rate_day(ledger, DAYS[0], NOW_MS)
    assert days.rows("SELECT count(*) FROM day_recompute WHERE day_ms = %s", DAYS[0]) == [(1,)]


def test_an_owner_that_is_new_on_two_days_delays_neither(days, ledger, monkeypatch):
    """The days meet after both have looked for the owner and before either has written."""
    both, known = threading.Barrier(2, timeout=60), rated_days._known_owner_ids

    def meeting(connection, owners):
        found = known(connection, owners)
        if not found:
            both.wait()
        return found

    days.workload(1, team="team-1")
    monkeypatch.setattr(rated_days, "_known_owner_ids", meeting)
    fold_usage(ledger)
    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(rate_day, ledger, day, NOW_MS) for day in DAYS[:2]]:
            future.result(60)
    assert days.rows("SELECT count(*), bool_and(holds) FROM conservation_check") == [(2, True)]
    assert days.rows("SELECT team, count(*) FROM owner GROUP BY 1 HAVING count(*) > 1") == []


def test_processes_add_owners_in_the_same_order(days, ledger):
    """Two that add many of the same owners do not wait for each other, whatever the order of their
    sets.
    """
    owners = [OwnerPath(org="org", team=f"team {number}") for number in range(100)]
    given = [rated_days._as_json(order) for order in (set(owners), owners[::-1])]
    assert given[0] == given[1] == rated_days._as_json(sorted(owners, key=lambda owner: owner.team))


def test_a_rated_day_locks_no_table_while_a_second_session_reads(days, ledger, dsn, run, written):
    """The server cannot see that one session waits for the other: an ALTER TABLE between them would
    wait for ever.
    """
    exclusive = "LOCK TABLE billing_zone, fiscal_year, adjustment IN ACCESS EXCLUSIVE MODE NOWAIT"
    for _ in range(2):
        with ledger_day(ledger, DAYS[0], in_order=True), psycopg.connect(dsn) as altering:
            altering.execute(exclusive)
        assert run("apply", written("tier.toml", TIER))[0] == 0


def test_the_lock_of_a_day_outlasts_the_time_that_a_session_may_be_idle(days, ledger, monkeypatch):
    """One session holds the lock while another one reads and Python rates."""
    usage_of = rating.usage_of

    def slow(connection, *given, **named):
        for _ in range(4):
            connection.execute("SELECT pg_sleep(0.25)")
        return usage_of(connection, *given, **named)

    monkeypatch.setattr(rating, "usage_of", slow)
    rate_day(
        ledger.as_application("slow", "-c idle_in_transaction_session_timeout=500"), DAYS[0], NOW_MS
    )
    assert days.rows("SELECT day_ms FROM conservation_check") == [(DAYS[0],)]


def test_owners_are_forgotten_while_nobody_rates(days, run, dsn):
    """A rater commits an owner before its charges, which would refer to an owner that is gone."""
    with ThreadPoolExecutor(1) as threads, psycopg.connect(dsn) as rater:
        locks.take(rater, locks.of_day(DAYS[0]))
        waiting = threads.submit(run, "privacy", "erase", "nobody")
        until(lambda: waits(days, locks.of_day(DAYS[0])))
        rater.rollback()
        assert waiting.result(60)[0] == 0


def test_days_that_depend_on_each_other_are_rated_under_the_ledgers_lock(
    days, ledger, run, written, dsn
):
    """A tier counts the hours of earlier days of the month, so another day of it may not be rated
    meanwhile.
    """
    assert run("apply", written("tier.toml", TIER))[0] == 0
    with ThreadPoolExecutor(1) as threads, psycopg.connect(dsn) as rater:
        locks.take(rater, locks.of_day(DAYS[0]))
        waiting = threads.submit(rate_day, ledger, DAYS[2], NOW_MS)
        until(lambda: waits(days, locks.of_day(DAYS[0])))
        rater.rollback()
        waiting.result(60)


@pytest.fixture
def shared(monkeypatch):
    """All days but the first go to worker processes, however quickly they are rated."""
    monkeypatch.setattr(rating, "WORKERS_FROM_S", 0)
    monkeypatch.setattr(refreshing, "MOST_WORKERS", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


def test_workers_make_the_same_ledger(days, ledger, shared, monkeypatch):
    """Charge by charge, what one process makes; each day is reported once."""
    with monkeypatch.context() as alone:
        alone.setattr(refreshing, "MOST_WORKERS", 1)
        refresh(ledger, PERIOD, NOW_MS)
    expected = days.dump()
    request(days)
    done, pids = [], days.rows("SELECT DISTINCT xmin::text FROM conservation_check")
    assert refresh(ledger, PERIOD, NOW_MS, lambda *progress: done.append(progress)) == len(DAYS)
    assert done == [(number, len(DAYS)) for number in range(1, len(DAYS) + 1)]
    assert days.dump() == expected
    assert len(pids) == len(DAYS)
    assert days.rows("SELECT count(*) FROM ledger_month") != [(0,)]
    assert multiprocessing.active_children() == []


def test_an_error_of_a_worker_is_the_error_of_the_command(days, ledger):
    """One sentence, as from one process."""
    with pytest.raises(ServerUnavailable, match="cannot be reached"):
        list(
            rating_workers.rate_days(
                Database("host=127.0.0.1 port=1 dbname=none"), DAYS, 2, NOW_MS, None
            )
        )


def test_a_worker_that_is_killed_ends_the_rating_and_not_what_is_rated(days, ledger, dsn):
    """The next run does the days that are left."""
    with ThreadPoolExecutor(1) as threads, psycopg.connect(dsn) as rater:
        locks.take(rater, locks.of_day(DAYS[5]))
        rated = threads.submit(
            lambda: list(rating_workers.rate_days(ledger, DAYS, 1, NOW_MS, None))
        )
        until(lambda: waits(days, locks.of_day(DAYS[5])))
        for child in multiprocessing.active_children():
            os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(rating_workers.WorkerEnded, match="run the command again"):
            rated.result(60)
    assert days.rows("SELECT count(*) FROM conservation_check") == [(5,)]
    assert rate_usage(ledger, NOW_MS, PERIOD) == 1


def running(pid):
    """Whether a process runs: it is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_workers_end_with_the_command(days, ledger, dsn, number, code):
    """Whatever ends it, no worker goes on; SIGTERM ends it without a word, also while its workers
    wait for a lock.
    """
    script = (
        "import sys\n"
        "from gpuledger_collector.services.rating_workers import rate_days\n"
        "from gpuledger_collector.storage.database import Database\n"
        f"list(rate_days(Database(sys.argv[1]), [{DAYS[0]}], 1, {NOW_MS}, None))"
    )
    with psycopg.connect(dsn) as rater:
        locks.take(rater, locks.of_day(DAYS[0]))
        command = subprocess.Popen(
            [sys.executable, "-c", script, dsn], stderr=subprocess.PIPE, text=True
        )
        until(lambda: waits(days, locks.of_day(DAYS[0])))
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        assert children
        command.send_signal(number)
        _, errors = command.communicate(timeout=60)
        assert errors == "" or number == signal.SIGKILL
        assert command.returncode == code
        until(lambda: not any(map(running, children)))


@pytest.mark.parametrize(("handler", "code"), [("default_int_handler", 130), ("SIG_IGN", 0)])
def test_an_interrupt_ends_workers_that_are_starting_without_a_word(
    days, ledger, dsn, tmp_path, handler, code
):
    """The terminal interrupts every process of the command, which says itself that it was
    interrupted. One that a script runs in the background ignores it, and rates its days.
    """
    program, starting = tmp_path / "program.py", tmp_path / "starting"
    program.write_text(
        "import pathlib, sys, time\n"
        "if __name__ == '__mp_main__':\n"
        f"    pathlib.Path({str(starting)!r}).touch()\n"
        "    time.sleep(1)\n"
        "from gpuledger_collector.services.rating_workers import rate_days\n"
        "from gpuledger_collector.storage.database import Database\n"
        "if __name__ == '__main__':\n"
        "    import signal\n"
        f"    signal.signal(signal.SIGINT, signal.{handler})\n"
        "    try:\n"
        f"        list(rate_days(Database(sys.argv[1]), {DAYS[:2]}, 2, {NOW_MS}, None))\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(130)\n"
    )
    command = subprocess.Popen(
        [sys.executable, str(program), dsn],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(starting.exists)
    os.killpg(command.pid, signal.SIGINT)
    assert command.communicate(timeout=60) == (None, "")
    assert command.returncode == code


def test_a_day_whose_fold_meets_another_one_is_folded_again(days, ledger, monkeypatch):
    """Both keep the same claim, which one snapshot refuses to the second of them."""
    failures = iter([psycopg.errors.SerializationFailure(), psycopg.errors.DeadlockDetected()])
    keep = hourly_usage.claims.upsert_contradictions

    def refusing(connection, contradictions):
        for failure in failures:
            raise failure
        keep(connection, contradictions)

    monkeypatch.setattr(hourly_usage.claims, "upsert_contradictions", refusing)
    assert fold_usage(ledger) == 2 * len(DAYS)
    assert rate_usage(ledger, NOW_MS, PERIOD) == len(DAYS)


@pytest.mark.slow
def test_raters_a_rule_change_and_a_close_beside_each_other(
    days, ledger, run, written, monkeypatch
):
    """Nobody waits for ever or fails, and the bill is the one that a single rater makes."""
    paths = [
        written(f"rules-{number}.toml", RULE.replace("nobody", f"nobody-{number}"))
        for number in range(2)
    ]
    refresh(ledger, PERIOD, NOW_MS)
    before = days.rows("SELECT sum(cost_micro), count(*) FROM charge")
    over = threading.Event()

    def rate():
        count = 0
        while not over.is_set():
            count += rate_usage(ledger, NOW_MS)
        return count

    with ThreadPoolExecutor(3) as threads:
        raters = [threads.submit(rate) for _ in range(3)]
        try:
            for number in range(6):
                request(days)
                assert run("apply", paths[number % 2])[0] == 0
            code, _, wrong = run("close", "--period", "2025-10")
            assert code == 0, wrong
            request(days)
            assert run("apply", paths[0])[0] == 0
        finally:
            over.set()
        assert sum(future.result(120) for future in raters) >= len(DAYS)
    rate_usage(ledger, NOW_MS)
    assert days.rows("SELECT count(*) FROM day_recompute") == [(0,)]
    assert days.rows("SELECT sum(cost_micro), count(*) FROM charge") == before
    assert days.rows("SELECT count(*) FROM correction") == [(0,)]
    assert days.rows("SELECT bool_and(holds) FROM conservation_check") == [(True,)]
    assert run("periods", "--verify", "2025-10")[0] == 0
