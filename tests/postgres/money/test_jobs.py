"""Fold and rate: idempotent, whatever the order, the repetition and the interruptions."""

import random
from contextlib import contextmanager

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Fleet, Held
from fakes.minutes import roll_up_minutes
from gpuledger_collector.accounting.period import Period, parse_instant
from gpuledger_collector.services import hourly_usage
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.rating import rate_usage
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.upkeep import create_partitions
from gpuledger_collector.storage.billing.reports import displaced_imports
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import usage
from gpuledger_collector.storage.ledger.placements import settle
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import partitions

PRICES = (
    "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency, effective_from_ms,"
    " recorded_at) VALUES ('', 'H100', 'on_demand', 2.49, 'USD', 0, now()), ('', 'H100',"
    " 'on_demand', 1.999999999, 'USD', %s, now())"
)
TWO_DAYS = Period(OCTOBER, OCTOBER + 2 * DAY)
BATCHES = [
    [
        Held(1, 1, 0, HOUR, busy=HOUR // 2, idle=HOUR // 4, energy=999_999_999),
        Held(2, None, 0, HOUR, "unallocated"),
    ],
    [Held(1, 2, HOUR, HOUR + 1_234_567, idle=1_000_001), Held(2, 1, HOUR, 2 * HOUR, busy=7)],
    [Held(1, 3, 23 * HOUR + 59, 24 * HOUR), Held(2, None, 5 * HOUR, 6 * HOUR, "unavailable")],
    [Held(1, 3, 24 * HOUR, 24 * HOUR + 100), Held(2, 4, 12 * HOUR + 5, 13 * HOUR - 7, idle=11)],
]


def furnish(fleet: Fleet) -> None:
    """Two accelerators from midnight on, and a price that changes at 12:34:56.789 of the first day."""
    fleet.connection.execute(PRICES, (OCTOBER + 12 * HOUR + 34 * 60_000 + 56_789,))
    fleet.capacity(1, 0)
    fleet.capacity(2, 0, 2 * DAY)


@pytest.fixture
def expected(fleet: Fleet, ledger: Database) -> list[tuple[object, ...]]:
    """The ledger when everything happens in order and once."""
    furnish(fleet)
    for batch in BATCHES:
        fleet.evidence(batch)
    refresh(ledger, TWO_DAYS, NOW_MS)
    return fleet.dump()


def wipe(fleet: Fleet) -> None:
    for table in (
        "usage_interval",
        "hour_recompute",
        "day_recompute",
        "usage_hour",
        "charge",
        "ledger_day",
        "conservation_check",
    ):
        fleet.connection.execute(f"TRUNCATE {table}")
    fleet._seq = 0


def test_every_proof_holds_to_the_micro_unit(expected, fleet) -> None:
    """Each day's charges add up to capacity x rate, and its states to the capacity."""
    rows = fleet.rows(
        "SELECT capacity_ns, held_ns + unallocated_ns + unavailable_ns + unobserved_ns, "
        "capacity_cost = charged_cost, holds FROM conservation_check"
    )
    assert [(row[0] == row[1], row[2], row[3]) for row in rows] == [(True, True, True)] * 2
    assert [int(row[0]) for row in rows] == [2 * DAY * 1_000_000] * 2


def test_a_second_run_finds_nothing_to_do(expected, fleet, ledger) -> None:
    """Up to date is up to date: no day is rated again, and the ledger stays."""
    assert refresh(ledger, TWO_DAYS, NOW_MS) == 0
    assert fleet.dump() == expected


@pytest.mark.parametrize("seed", range(3))
def test_order_duplicates_and_late_batches_do_not_matter(expected, fleet, ledger, seed) -> None:
    """Batches in any order, some twice, with runs in between: the same ledger."""
    wipe(fleet)
    drawn = random.Random(seed)
    order = [*range(len(BATCHES)), drawn.randrange(len(BATCHES))]
    drawn.shuffle(order)
    for number in order:
        # The batch key makes a repeated batch carry the sequence number of the first.
        fleet._seq = number
        fleet.evidence(BATCHES[number])
        if drawn.random() < 0.5:
            refresh(ledger, TWO_DAYS, NOW_MS)
    refresh(ledger, TWO_DAYS, NOW_MS)
    assert fleet.dump() == expected


class Stopping:
    """A database that dies at its n-th statement, before or after it was carried out."""

    standby = False

    def __init__(self, database: Database, steps: int, late: bool) -> None:
        self.database, self.steps, self.late = database, steps, late

    @contextmanager
    def transaction(self, *needed_locks, **options):
        with self.database.transaction(*needed_locks, **options) as connection:
            yield _StoppingConnection(connection, self)

    @contextmanager
    def sharing_connection(self):
        yield self


class _StoppingConnection:
    def __init__(self, connection, database) -> None:
        self._connection, self._database = connection, database

    def __getattr__(self, name):
        method = getattr(self._connection, name)
        if not callable(method):
            return method

        def call(*arguments, **options):
            self._database.steps -= 1
            if self._database.steps == 0 and not self._database.late:
                raise KeyboardInterrupt
            answer = method(*arguments, **options)
            if self._database.steps == 0:
                raise KeyboardInterrupt
            return answer

        return call


@pytest.mark.parametrize("stride", [47, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("late", [False, True])
def test_stopped_after_any_step_and_run_again(expected, fleet, ledger, late, stride) -> None:
    """Whatever step the jobs die at, the next run ends with the same ledger."""
    for steps in range(1, 600, stride):
        wipe(fleet)
        for batch in BATCHES:
            fleet.evidence(batch)
        stopping = Stopping(ledger, steps, late)
        try:
            refresh(stopping, TWO_DAYS, NOW_MS)
        except KeyboardInterrupt:
            refresh(ledger, TWO_DAYS, NOW_MS)
            assert fleet.dump() == expected
        else:
            assert steps > 15
            return
    pytest.fail("the jobs never came to their end")


def test_marks_that_arrive_during_a_fold_are_kept(fleet, ledger) -> None:
    """A fold removes the marks that its snapshot showed, and only those."""
    furnish(fleet)
    fleet.evidence(BATCHES[0])
    with ledger.transaction(Lock.LEDGER) as connection:
        marks = usage.recompute_requests(connection, TWO_DAYS)
        fleet.evidence([Held(1, 9, 30 * 60_000, HOUR)])
        assert usage.recompute_requests(connection, TWO_DAYS) == marks
        usage.remove_recompute_requests(connection, [mark.id for mark in marks])
    assert len(fleet.rows("SELECT * FROM hour_recompute")) == 1
    assert fold_usage(ledger) == 1


@pytest.mark.parametrize(
    ("max_requests", "batches"), [(100, 2), (3, 5)], ids=["by hour", "by request"]
)
def test_requests_that_repeat_are_folded_once(
    fleet, ledger, monkeypatch, max_requests, batches
) -> None:
    """A batch is so many accelerator-hours, however often they were requested; more requests than
    fit into memory are left to the next batch.
    """
    furnish(fleet)
    for _ in range(5):
        fleet.evidence([Held(number, 9, 0, HOUR) for number in (1, 2, 3)])
    monkeypatch.setattr(hourly_usage, "BATCH", 2)
    monkeypatch.setattr(hourly_usage, "MAX_REQUESTS", max_requests)
    folded = []
    whole = hourly_usage.fold_requested

    def fold(connection, requests, database):
        folded.append([request.accelerator_id for request in requests])
        return whole(connection, requests, database)

    monkeypatch.setattr(hourly_usage, "fold_requested", fold)
    fold_usage(ledger)
    assert fleet.rows("SELECT * FROM hour_recompute") == []
    assert len([batch for batch in folded if batch]) == batches


def test_late_evidence_rates_its_day_again(expected, fleet, ledger) -> None:
    """An hour that was unobserved becomes held when its batch arrives days later."""
    before = sum(row[0] for row in fleet.rows("SELECT unobserved_ns FROM conservation_check"))
    fleet.evidence([Held(2, 8, 20 * HOUR, 21 * HOUR)])
    assert refresh(ledger, TWO_DAYS, NOW_MS) == 1
    after = sum(row[0] for row in fleet.rows("SELECT unobserved_ns FROM conservation_check"))
    assert before - after == HOUR * 1_000_000
    assert fleet.rows("SELECT bool_and(holds) FROM conservation_check") == [(True,)]


def test_a_collector_that_stops_leaves_the_rest_of_the_days_to_the_next_run(fleet, ledger) -> None:
    """Asked to stop after one day of two, rating and folding end; whoever comes next does what is
    left.
    """
    furnish(fleet)
    fleet.evidence(BATCHES[0])
    assert fold_usage(ledger, stopping=lambda: True) == 0
    asked = iter([False, True])
    assert rate_usage(ledger, NOW_MS, TWO_DAYS, stopping=lambda: next(asked)) == 1
    assert fleet.rows("SELECT count(*) FROM conservation_check") == [(1,)]
    assert rate_usage(ledger, NOW_MS, TWO_DAYS) == 1
    assert fleet.rows("SELECT count(*), bool_and(holds) FROM conservation_check") == [(2, True)]


def test_today_is_rated_up_to_now_and_again_later(fleet, ledger) -> None:
    """A day that is not over is rated up to now, and rated on when time has passed."""
    furnish(fleet)
    fleet.evidence(BATCHES[0])
    for hours in (2, 5):
        rate_usage(ledger, OCTOBER + hours * HOUR, TWO_DAYS)
        assert fleet.rows(
            "SELECT until_ms, capacity_ns::bigint, holds FROM conservation_check"
        ) == [(OCTOBER + hours * HOUR, 2 * hours * HOUR * 1_000_000, True)]


def test_evidence_from_a_fast_clock_waits_for_its_time(fleet, ledger) -> None:
    """A few minutes ahead are rated with their hour; hours ahead are charged to nobody before they
    have come.
    """
    furnish(fleet)
    fleet.evidence([Held(1, 1, HOUR, 2 * HOUR), Held(2, 1, 20 * HOUR, 21 * HOUR)])
    rate_usage(ledger, OCTOBER + 2 * HOUR - 60_000, TWO_DAYS)
    proof = (
        "SELECT until_ms, capacity_ns::bigint, held_ns::bigint, holds FROM conservation_check WHERE"
        " day_ms = %s"
    )
    until = fleet.rows(proof, OCTOBER)[0]
    assert until == (
        OCTOBER + 2 * HOUR + 9 * 60_000,
        2 * (2 * HOUR + 9 * 60_000) * 1_000_000,
        HOUR * 1_000_000,
        True,
    )
    rate_usage(ledger, NOW_MS, TWO_DAYS)
    assert fleet.rows(proof, OCTOBER) == [
        (OCTOBER + DAY, 2 * DAY * 1_000_000, 2 * HOUR * 1_000_000, True)
    ]


def test_an_accelerator_that_moves_in_mid_hour_is_rated_where_it_was(fleet, ledger) -> None:
    """Each place gets its own milliseconds of the hour of the move, and the proof holds."""
    fleet.connection.execute(PRICES, (OCTOBER + 12 * HOUR,))
    fleet.capacity(1, 0, 90 * 60_000, pool="a", node="n1")
    fleet.capacity(1, 100 * 60_000, 3 * HOUR, pool="b", node="n2")
    fleet.evidence([Held(1, 1, HOUR, 90 * 60_000)], node="n1")
    fleet.evidence([Held(1, 2, 100 * 60_000, 2 * HOUR)], node="n2")
    refresh(ledger, TWO_DAYS, NOW_MS)
    held = fleet.rows("SELECT pool, node, gpu_ns FROM charge WHERE state = 'held' ORDER BY 1")
    assert held == [("a", "n1", 30 * 60_000 * 1_000_000), ("b", "n2", 20 * 60_000 * 1_000_000)]
    assert fleet.rows(
        "SELECT bool_and(holds), sum(capacity_ns)::bigint FROM conservation_check"
    ) == [(True, (90 + 80) * 60_000 * 1_000_000)]


def test_imported_counts_yield_to_observed_accelerators(fleet, ledger, run, written) -> None:
    """An accelerator that is seen in the pool later takes the place of one imported GPU, for
    exactly that time.
    """
    usage = "workload_id,start,end,gpus,pool\nj,2025-10-01T00:00:00Z,2025-10-01T10:00:00Z,3,train\n"
    assert run("import", "usage", written("u.csv", usage))[0] == 0
    refresh(ledger, TWO_DAYS, NOW_MS)
    imported = "SELECT sum(gpu_ns)::bigint FROM charge WHERE accelerator_id IS NULL"
    assert fleet.rows(imported) == [(3 * 10 * HOUR * 1_000_000,)]
    inventory = (
        "node,uuid,gpu_model,pool,in_at,out_at\n"
        "n1,GPU-0001,H100,train,2025-10-01T04:00:00Z,2025-10-01T06:00:00Z\n"
    )
    assert run("import", "inventory", written("i.csv", inventory))[0] == 0
    refresh(ledger, TWO_DAYS, NOW_MS)
    assert fleet.rows(imported) == [(3 * 10 * HOUR * 1_000_000,)]
    fleet.evidence([Held(1, 5, 4 * HOUR, 6 * HOUR)])
    refresh(ledger, TWO_DAYS, NOW_MS)
    assert fleet.rows(imported) == [((3 * 8 + 2 * 2) * HOUR * 1_000_000,)]
    _, _, err = run("chargeback", "--from", "2025-10-01", "--to", "2025-10-02")
    assert (
        "accelerators were seen in pool 'train': their time takes the place of as much usage of 1"
        " imported" in err
    )


def test_imports_that_overlap_observed_accelerators_are_counted_once(fleet, run, written) -> None:
    """Neither those that end when the accelerators come or begin when they go, nor those of another
    pool.
    """
    usage = """workload_id,start,end,gpus,pool
before,2025-10-01T00:00:00Z,2025-10-01T04:00:00Z,1,train
across,2025-10-01T03:00:00Z,2025-10-01T08:00:00Z,1,train
inside,2025-10-01T05:00:00Z,2025-10-01T05:30:00Z,1,train
pause,2025-10-01T06:00:00Z,2025-10-01T07:00:00Z,1,train
open,2025-10-01T07:30:00Z,,1,train
other,2025-10-01T05:00:00Z,2025-10-01T05:30:00Z,1,serve
"""
    assert run("import", "usage", written("u.csv", usage))[0] == 0
    inventory = """node,uuid,gpu_model,pool,in_at,out_at
n1,GPU-0001,H100,train,2025-10-01T04:00:00Z,2025-10-01T06:00:00Z
n1,GPU-0002,H100,train,2025-10-01T04:30:00Z,2025-10-01T05:15:00Z
n1,GPU-0003,H100,train,2025-10-01T07:00:00Z,
"""
    assert run("import", "inventory", written("i.csv", inventory))[0] == 0
    start = parse_instant("2025-10-01T00:00:00Z")
    assert displaced_imports(fleet.connection, Period(start, start + DAY)) == [("train", 3)]
    assert displaced_imports(fleet.connection, Period(start, start + 4 * HOUR)) == []


def test_partitions_are_made_ahead_once(fleet, ledger) -> None:
    """Today and three days after it get their partitions in both big tables; again there is nothing
    to make.
    """
    assert create_partitions(ledger, NOW_MS) == 8
    assert create_partitions(ledger, NOW_MS) == 0


def test_partitions_are_created_although_a_deadlock_ends_the_first_try(ledger, monkeypatch) -> None:
    """The transaction that a server chose to end is begun again."""
    ensure, tries = partitions.ensure, []

    def ended_once(connection, table, days_ms):
        made = ensure(connection, table, days_ms)
        tries.append(table)
        if tries.count(table) == 1:
            connection.execute("DO $$BEGIN RAISE SQLSTATE '40P01'; END$$")
        return made

    monkeypatch.setattr(partitions, "ensure", ended_once)
    assert create_partitions(ledger, NOW_MS) == 8
    assert sorted(tries) == sorted([*partitions.PARTITIONED] * 2)


def test_minutes_are_means_of_their_samples(fleet, ledger, run, written) -> None:
    """The minute rollup counts samples and averages what was read; absent readings do not count as
    zero.
    """
    samples = (
        "ts,uuid,gpu_utilization_ratio,gpu_power_watts\n"
        "2025-10-01T00:00:05Z,GPU-0001,0.5,100\n2025-10-01T00:00:55Z,GPU-0001,1,\n2025-10-01T00:01:00Z,GPU-0001,,300\n"
    )
    path = written("s.csv", samples)
    assert "3 added" in run("import", "samples", path)[1]
    assert "0 added, 0 updated, 3 unchanged" in run("import", "samples", path)[1]
    minutes = "SELECT minute_ms, samples, utilization_ratio, power_watts FROM gpu_minute ORDER BY 1"
    expected = [(OCTOBER, 2, 0.75, 100.0), (OCTOBER + 60_000, 1, None, 300.0)]
    fold_usage(ledger)
    assert fleet.rows(minutes) == expected
    fleet.connection.execute("DELETE FROM gpu_minute")
    assert roll_up_minutes(ledger, TWO_DAYS) == 1
    assert fleet.rows(minutes) == expected


def test_an_accelerator_that_shows_up_late_is_capacity_of_every_day_since(fleet, ledger) -> None:
    """A node's old spool arrives when later days are rated already: they are rated again, with its
    unobserved time.
    """
    furnish(fleet)
    fleet.evidence([Held(1, 1, 0, HOUR), Held(1, 1, DAY, DAY + HOUR)])
    refresh(ledger, TWO_DAYS, NOW_MS)
    fleet.evidence([Held(7, 1, HOUR, HOUR + 1)], node="n7")
    fleet.connection.execute("DELETE FROM hour_recompute")
    settle(fleet.connection, [fleet.accelerator(7)], OCTOBER + HOUR)
    assert refresh(ledger, TWO_DAYS, NOW_MS) == 2
    with ledger.transaction(Lock.LEDGER) as connection:
        sheet = reconcile(connection, TWO_DAYS)
    assert sheet.holds
    assert [day.capacity_ns for day in sheet.days] == [
        (3 * DAY - HOUR) * 1_000_000,
        3 * DAY * 1_000_000,
    ]
    settle(fleet.connection, [fleet.accelerator(7)], OCTOBER + HOUR)
    assert refresh(ledger, TWO_DAYS, NOW_MS) == 0
