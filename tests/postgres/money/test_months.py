"""The ledger of months: each is the sum of its days, or is not there; whoever writes, in whatever
order.
"""

import contextlib
import threading

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from fakes.profiles import examples
from gpuledger_collector.accounting.period import UTC_DAYS, Period
from gpuledger_collector.services.rating import rate_usage
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage import locks, row_level_security
from gpuledger_collector.storage.billing import months, rated_days, reports
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Lock

pytestmark = pytest.mark.slow

SEPTEMBER, NOVEMBER = OCTOBER - 30 * DAY, OCTOBER + 31 * DAY
MONTHS = [UTC_DAYS.month(name) for name in ("2025-09", "2025-10")]
KEPT = (
    "SELECT start_ms, end_ms, count(*), sum(gpu_ns), sum(cost_micro) FROM ledger_month GROUP BY 1,"
    " 2 ORDER BY 1"
)
LINE = (
    "INSERT INTO ledger_day (day_ms, owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns,"
    " idle_ns, unknown_ns, cost_micro, idle_cost_micro, energy_mj, list_cost_micro,"
    " contracted_cost_micro) VALUES (%s, %s, %s, %s, 'H100', %s, %s, 3, 2, 1, %s, %s, %s, %s, %s)"
)
BY = ((), ("team",), ("project", "pool"), ("model", "user"))
known = st.none() | st.integers(-(10**17), 10**17)
LINES = st.tuples(
    st.sampled_from(["held", "unallocated"]),
    st.sampled_from(["", "a"]),
    st.sampled_from([None, "EUR", "USD"]),
    st.integers(0, 10**19),
    known,
    known,
    st.none() | st.integers(0, 10**20),
    known,
    known,
)
DAYS = st.integers(-31, 40)
WRITES = st.lists(
    st.one_of(
        st.tuples(
            st.just("lines"),
            DAYS,
            st.lists(st.tuples(st.integers(0, 3), LINES), min_size=1, max_size=4),
        ),
        st.tuples(
            st.just("UPDATE ledger_day SET gpu_ns = gpu_ns + 1 WHERE day_ms = %s"), DAYS, st.none()
        ),
        st.tuples(
            st.just("UPDATE ledger_day SET day_ms = day_ms + 1728000000 WHERE day_ms = %s"),
            DAYS,
            st.none(),
        ),
        st.tuples(st.just("DELETE FROM ledger_day WHERE day_ms = %s"), DAYS, st.none()),
        st.tuples(st.just("DELETE FROM ledger_day WHERE day_ms >= %s"), DAYS, st.none()),
        st.tuples(st.just("TRUNCATE ledger_day"), st.none(), st.none()),
        st.tuples(st.just("add up"), st.none(), st.none()),
    ),
    max_size=12,
)


@pytest.fixture
def owners(fleet):
    """Three owners and nobody, by place."""
    rows = fleet.rows(
        "INSERT INTO owner (org, team, project) VALUES ('o', 't1', 'p1'), ('o', 't1', 'p2'), ('o',"
        " 't2', 'p1') RETURNING id"
    )
    return [*(row[0] for row in rows), None]


def added_up(ledger, now_ms=NOW_MS):
    """Add up what is missing; how many months."""
    made = 0
    while True:
        with ledger.transaction(Lock.LEDGER) as connection:
            if not months.add_up(connection, lambda: zones.calendar(connection), now_ms):
                return made
        made += 1


def added_one(connection):
    """The same in a transaction of a connection that is there."""
    with connection.transaction():
        return months.add_up(connection, lambda: UTC_DAYS, NOW_MS)


def asked(fleet, period):
    """The report's lines by several dimensions."""
    return [reports.charged_lines(fleet.connection, period, by) for by in BY]


def from_days(fleet, period):
    """The same while there are no months."""
    with fleet.connection.transaction(force_rollback=True):
        fleet.connection.execute("DELETE FROM ledger_month")
        return asked(fleet, period)


@examples(15)
@given(WRITES)
def test_a_month_is_the_sum_of_its_days_after_any_writes(fleet, owners, writes):
    """Days written, changed, moved, removed in any order, months added up in between: all of it, or
    nothing.
    """
    for table in ("ledger_day", "correction"):
        fleet.connection.execute(f"TRUNCATE {table}")
    fleet.connection.execute(
        "INSERT INTO correction (booked_day_ms, recorded_ms, day_ms, start_ms, end_ms, state,"
        " gpu_ns, busy_ns, idle_ns, unknown_ns, owner_id, currency, cost_micro) VALUES (%s, 1, 0,"
        " 0, 1, 'held', -7, 0, 0, 0, %s, 'USD', -9)",
        (OCTOBER, owners[0]),
    )
    for kind, at, lines in [*writes, ("add up", None, None)]:
        day_ms = None if at is None else OCTOBER + at * DAY
        if kind == "add up":
            while added_one(fleet.connection):
                pass
        elif kind == "lines":
            with fleet.connection.transaction():
                for owner, line in lines:
                    state, pool, currency, gpu_ns, *amounts = line
                    fleet.connection.execute(
                        LINE, (day_ms, owners[owner], state, pool, currency, gpu_ns, *amounts)
                    )
        else:
            fleet.connection.execute(kind, () if day_ms is None else (day_ms,))
        assert months.inconsistent(fleet.connection, Period(0, NOW_MS)) == []
    for month in MONTHS:
        assert asked(fleet, month) == from_days(fleet, month)
    there = {row[0] for row in fleet.rows(KEPT)}
    rated = {
        UTC_DAYS.month(UTC_DAYS.month_of(day)).start_ms
        for (day,) in fleet.rows("SELECT day_ms FROM ledger_day")
    }
    assert there == {start for start in rated if start < NOVEMBER}


@pytest.fixture
def rated(fleet, ledger):
    """An accelerator held on three days of October and one of November, priced, rated, October
    added up.
    """
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', 'H100', 'on_demand', 2.5, 'USD', 0, now())"
    )
    fleet.capacity(1, 0, 33 * DAY)
    fleet.evidence([Held(1, 1, day * DAY, day * DAY + HOUR) for day in (0, 5, 30, 31)])
    refresh(ledger, Period(OCTOBER, NOW_MS), NOW_MS)
    return fleet


def test_rating_adds_up_months_that_are_over_and_no_other(rated, ledger):
    """October is there after rating, November is not; what the report says is what the days say."""
    assert [row[:2] for row in rated.rows(KEPT)] == [(OCTOBER, NOVEMBER)]
    assert (
        rated.rows(KEPT)[0][3:]
        == rated.rows(
            "SELECT sum(gpu_ns), sum(cost_micro) FROM ledger_day WHERE day_ms < %s", NOVEMBER
        )[0]
    )
    assert asked(rated, MONTHS[1]) == from_days(rated, MONTHS[1])
    query = reports._MONTH_OR_DAYS.format(
        own="l.owner_id, l.state, l.currency", amends="''", only=""
    )
    plan = "\n".join(
        row[0]
        for row in rated.rows(
            f"EXPLAIN (ANALYZE, TIMING OFF) {query}".replace("%(start)s", str(OCTOBER)).replace(
                "%(end)s", str(NOVEMBER)
            )
        )
    )
    days = plan[
        (
            plan.index("ledger_day_day_ms")
            if "ledger_day_day_ms" in plan
            else plan.index("on ledger_day")
        ) :
    ]
    assert "never executed" in days.partition("\n")[0], plan


def test_a_day_that_is_rated_again_takes_its_month_with_it(rated, ledger):
    """In the transaction that writes the day the month goes, or stays when that is undone; then the
    report reads days, and the next rating adds the month up.
    """
    before = rated.rows(KEPT)
    with contextlib.suppress(KeyboardInterrupt), ledger.transaction(Lock.LEDGER) as connection:
        connection.execute("DELETE FROM ledger_day WHERE day_ms = %s", (OCTOBER,))
        assert connection.execute("SELECT FROM ledger_month").fetchone() is None
        raise KeyboardInterrupt
    rated.evidence([Held(1, 2, 3 * DAY, 3 * DAY + HOUR)])
    with ledger.transaction(Lock.LEDGER) as connection:
        rated_days.request_recompute(connection, [OCTOBER + 3 * DAY])
    assert rated.rows(KEPT) == before
    assert rate_usage(ledger, NOW_MS, stopping=iter([False, True]).__next__) == 1
    assert rated.rows(KEPT) == []
    held = [line for line in asked(rated, MONTHS[1])[0] if line.state == "held"]
    assert sum(line.gpu_ns for line in held) == 4 * HOUR * 1_000_000
    rate_usage(ledger, NOW_MS)
    assert rated.rows(KEPT)[0][:2] == (OCTOBER, NOVEMBER)
    assert asked(rated, MONTHS[1]) == from_days(rated, MONTHS[1])


def test_another_zone_has_other_months(rated, ledger):
    """Days of the zone before and their months go together; the months that come then have its
    bounds.
    """
    with rated.connection.transaction():
        zones.replace_zone(rated.connection, "Europe/Berlin", NOW_MS)
    assert rated.rows(KEPT) == []
    refresh(ledger, Period(SEPTEMBER, NOW_MS), NOW_MS)
    (month,) = [row[:2] for row in rated.rows(KEPT)]
    assert month == (OCTOBER - 2 * HOUR, NOVEMBER - HOUR)
    assert asked(rated, Period(*month)) == from_days(rated, Period(*month))


REFUSED = (
    "UPDATE ledger_month SET cost_micro = cost_micro + 1",
    "UPDATE ledger_month SET start_ms = start_ms + 86400000",
    "UPDATE ledger_month SET owner_id = NULL",
    "UPDATE ledger_month SET energy_mj = coalesce(energy_mj, 0) + 1",
    "DELETE FROM ledger_month WHERE state = 'held'",
    (
        "INSERT INTO ledger_month SELECT start_ms, end_ms, owner_id, state, 'other', gpu_model,"
        " currency, 1, 1, 1, 1 FROM ledger_month LIMIT 1"
    ),
    (
        "INSERT INTO ledger_month SELECT start_ms - 86400000, end_ms, owner_id, state, pool,"
        " gpu_model, currency, 1, 1, 1, 1 FROM ledger_month LIMIT 1"
    ),
)


def test_a_month_that_is_not_the_sum_of_its_days_is_refused(rated):
    """Under the role that owns the tables; a whole month may go, for then days are read."""
    before = rated.rows(KEPT)
    for statement in REFUSED:
        with pytest.raises(psycopg.Error, match="not the sum of its days"):
            rated.connection.execute(statement)
        assert rated.rows(KEPT) == before, statement
    rated.connection.execute("DELETE FROM ledger_month")


def test_reconcile_finds_a_month_that_somebody_wrote_past_the_triggers(rated, run):
    """It ends with 1 and says which month and what to do; what it says to do is the cure."""
    code, out, _ = run("reconcile", "--period", "2025-10")
    assert (code, "as added up" in out) == (0, False)
    rated.connection.execute("ALTER TABLE ledger_month DISABLE TRIGGER USER")
    rated.connection.execute(
        "UPDATE ledger_month SET cost_micro = cost_micro + 1 WHERE state = 'held'"
    )
    rated.connection.execute("ALTER TABLE ledger_month ENABLE TRIGGER USER")
    code, out, _ = run("reconcile", "--from", "2025-10-03", "--to", "2025-10-04")
    assert code == 1
    (said,) = [
        line
        for line in out.splitlines()
        if "2025-10 as added up is NOT the sum of its days" in line
    ]
    assert (
        '"untrue_months": [\n    "2025-10"\n  ]'
        in run("reconcile", "--period", "2025-10", "--format", "json")[1]
    )
    rated.connection.execute(said[said.index("DELETE") : said.index(";")])
    assert run("reconcile", "--period", "2025-10")[0] == 0
    assert rated.rows(KEPT)[0][:2] == (OCTOBER, NOVEMBER)


def test_a_closed_month_is_read_from_its_sum_with_the_corrections_booked_in_it(rated, ledger, run):
    """What is closed is added up too, stays so when late evidence is booked elsewhere, and cannot
    be changed.
    """
    assert run("close", "--period", "2025-10")[0] == 0
    rated.connection.execute("DELETE FROM ledger_month")
    refresh(ledger, MONTHS[1], NOW_MS)
    before = asked(rated, MONTHS[1])
    assert len(rated.rows(KEPT)) == 1
    rated.evidence([Held(1, 2, 3 * DAY, 3 * DAY + HOUR)])
    refresh(ledger, MONTHS[1], NOW_MS)
    assert rated.rows("SELECT count(*) > 0 FROM correction") == [(True,)]
    assert asked(rated, MONTHS[1]) == before == from_days(rated, MONTHS[1])


def test_whoever_is_in_the_midst_of_writing_days_holds_the_month_up(rated, ledger):
    """Uncommitted days of one without the ledger's lock: no month is made from before them.

    Then it is, with them.

    The other way round: who changes a day waits until the month is committed, and then takes it
    away.
    """
    rated.connection.execute("DELETE FROM ledger_month")
    with psycopg.connect(ledger.dsn) as other:
        other.execute("UPDATE ledger_day SET gpu_ns = gpu_ns + 1 WHERE day_ms = %s", (OCTOBER,))
        with ledger.transaction(Lock.LEDGER) as connection:
            assert not months.add_up(connection, lambda: zones.calendar(connection), NOW_MS)
    assert added_up(ledger) == 1
    assert months.inconsistent(rated.connection, MONTHS[1]) == []
    rated.connection.execute("DELETE FROM ledger_month")
    with psycopg.connect(ledger.dsn, autocommit=True) as other:
        change = threading.Thread(
            target=other.execute,
            args=("UPDATE ledger_day SET gpu_ns = gpu_ns + 1 WHERE day_ms = %s", (OCTOBER,)),
        )
        with ledger.transaction(Lock.LEDGER) as connection:
            assert months.add_up(connection, lambda: zones.calendar(connection), NOW_MS)
            change.start()
            change.join(0.2)
            assert change.is_alive()
        change.join(10)
        assert not change.is_alive()
    assert rated.rows(KEPT) == []


def test_a_unit_of_an_older_collector_is_waited_for(rated, ledger):
    """Its snapshot, taken under the ledger's lock, would not show a month made beside it: so none
    is made beside it.
    """
    rated.connection.execute("DELETE FROM ledger_month")
    made: list[int] = []
    with psycopg.connect(ledger.dsn, autocommit=True) as old:
        adding = threading.Thread(target=lambda: made.append(added_up(ledger)))
        with locks.snapshot(old, Lock.LEDGER):
            old.execute("SELECT FROM ledger_day")
            adding.start()
            adding.join(0.2)
            assert adding.is_alive()
            lines = old.execute(
                "DELETE FROM ledger_day WHERE day_ms = %s RETURNING *", (OCTOBER,)
            ).fetchall()
            with old.cursor().copy("COPY ledger_day FROM STDIN") as copy:
                for line in lines[1:]:
                    copy.write_row(line)
        adding.join(10)
    assert made == [1]
    assert months.inconsistent(rated.connection, MONTHS[1]) == []


def test_a_viewer_reads_its_own_lines_of_the_month_and_no_others(rated, ledger):
    """Behind the wall of rows: the same report from the month as from its days, and no line of
    another owner.
    """
    rated.evidence([Held(1, 2, 3 * DAY, 3 * DAY + HOUR)])
    refresh(ledger, MONTHS[1], NOW_MS)
    assert row_level_security.enable(rated.connection) == ""

    def seen():
        with row_level_security.as_viewer(rated.connection, {"team": "team-1"}):
            teams = rated.rows(
                "SELECT DISTINCT o.team FROM ledger_month LEFT JOIN owner o ON o.id = owner_id"
            )
            return teams, asked(rated, MONTHS[1])

    teams, lines = seen()
    assert teams == [("team-1",)]
    assert {line.keys for line in lines[1]} == {("team-1",)}
    assert len(rated.rows("SELECT DISTINCT owner_id FROM ledger_month")) == 3
    rated.connection.execute("DELETE FROM ledger_month")
    assert seen() == ([], lines)
