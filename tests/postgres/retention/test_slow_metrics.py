"""Packed slow metrics: boards read what was written, wherever it is and whenever it came."""

import itertools

import pytest
from dashboards.sql import errors, slow_changes
from hypothesis import example, given
from hypothesis import strategies as st

from fakes.fleet import DAY, HOUR, OCTOBER
from fakes.postgres import fresh_database
from fakes.profiles import examples
from gpuledger_collector.ingest.batches.slow_values import write_changes
from gpuledger_collector.services.upkeep import SLOW_METRICS_WAIT_MS, pack_slow_metrics
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import slow_metrics

CHANGES = slow_changes("true")
METRICS = ("gpu_power_limit_watts", "gpu_xid_errors_total")
NEWEST = (
    "SELECT DISTINCT ON (accelerator_id, metric) accelerator_id, metric, at_ms, value FROM {}"
    " ORDER BY accelerator_id, metric, at_ms DESC"
)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def database(postgres):
    with fresh_database(postgres) as dsn:
        yield Database(dsn)


@pytest.fixture(scope="module")
def connection(database):
    with database.connect() as opened:
        yield opened


def never():
    return False


def accelerator(connection):
    uuid = f"GPU-{next(_numbers)}"
    connection.execute("DELETE FROM accelerator")
    connection.execute("TRUNCATE gpu_state, gpu_state_hour")
    return connection.execute(
        "INSERT INTO accelerator (uuid, device_uuid, model, gpu_micro) VALUES (%s, %s, '', 1000000)"
        " RETURNING id",
        (uuid, uuid),
    ).fetchone()[0]


def read(connection):
    """All changes as boards read them; -0.0 is not 0.0."""
    return sorted(map(repr, connection.execute(f"SELECT * FROM {CHANGES} s").fetchall()))


def counts(connection):
    """Rows that are not packed, and packed changes."""
    return connection.execute(
        "SELECT (SELECT count(*) FROM gpu_state), (SELECT coalesce(sum(cardinality(value)), 0)::int"
        " FROM gpu_state_hour)"
    ).fetchone()


# Few instants, on both sides of the bounds of hours and days, so that many are written again.
INSTANTS = st.builds(
    lambda day, hour, at: OCTOBER + day * DAY + hour * HOUR + at,
    st.integers(0, 1),
    st.sampled_from([0, 1, 23]),
    st.sampled_from([0, 1, 60_000, HOUR - 1]),
)
VALUES = st.sampled_from([0.0, -0.0, 1.0, 0.1, 700.0, float("inf")])
WRITES = st.lists(st.tuples(st.sampled_from(METRICS), INSTANTS, VALUES), max_size=8)
PACKS = st.sampled_from([0, HOUR, 2 * HOUR, DAY, DAY + HOUR, 3 * DAY])
EXPIRY = st.sampled_from([HOUR, DAY, DAY + HOUR])


@given(st.lists(st.one_of(WRITES, PACKS, st.tuples(EXPIRY)), max_size=8))
@example(
    [
        [
            (METRICS[0], OCTOBER, 1.0),
            (METRICS[0], OCTOBER + 1, 0.0),
            (METRICS[0], OCTOBER + 2, 1.0),
        ],
        HOUR,
        [(METRICS[0], OCTOBER + 1, -0.0)],
        HOUR,
        (HOUR,),
    ]
)
@examples(40)
def test_what_is_read_is_what_was_written(database, connection, steps):
    """By chance: written, late, written again, packed at any time and expired; the latest value is
    always a row, and after an expiry the value in force at its bound is still known.
    """
    card = accelerator(connection)
    written = {}
    for step in steps:
        if isinstance(step, int):
            slow_metrics.pack(database, OCTOBER + step, never)
        elif isinstance(step, tuple):
            bound = OCTOBER + step[0]
            holds = {
                metric: max(key for key in written if key[0] == metric and key[1] < bound)
                for metric, at in written
                if at < bound
            }
            gone = [key for key in written if key[1] < bound and key != holds[key[0]]]
            # One that is in both places counts twice.
            assert slow_metrics.expire(database, bound, never) >= len(gone)
            for key in gone:
                del written[key]
        else:
            changes = [(card, metric, at, value) for metric, at, value in step]
            write_changes(connection, changes)
            written |= {(metric, at): float(value) for metric, at, value in step}
        expected = [(card, metric, at, value) for (metric, at), value in written.items()]
        assert read(connection) == sorted(map(repr, expected))
        newest = connection.execute(NEWEST.format("gpu_state")).fetchall()
        assert newest == connection.execute(NEWEST.format(f"{CHANGES} s")).fetchall()


def write(connection, card, instants):
    write_changes(connection, [(card, METRICS[0], at, float(at % 97)) for at in instants])


def test_an_hour_is_packed_when_late_changes_of_it_have_come(database, connection):
    """Not before a quarter of an hour has passed; the last change stays a row; a second run finds
    nothing, and a late one joins its hour.
    """
    card = accelerator(connection)
    write(connection, card, range(OCTOBER, OCTOBER + 2 * HOUR, 60_000))
    before = read(connection)
    due = OCTOBER + HOUR + SLOW_METRICS_WAIT_MS
    assert pack_slow_metrics(database, due - 1) == 0
    assert pack_slow_metrics(database, due) == 60
    assert counts(connection) == (60, 60)
    assert pack_slow_metrics(database, due + 9 * DAY) == 59
    assert counts(connection) == (1, 119)
    assert pack_slow_metrics(database, due + 9 * DAY) == 0
    assert read(connection) == before
    write(connection, card, [OCTOBER + 30_000])
    assert pack_slow_metrics(database, due) == 1
    assert connection.execute("SELECT count(*) FROM gpu_state_hour").fetchone() == (2,)
    assert len(read(connection)) == len(before) + 1


def test_days_of_before_are_packed_some_at_a_time(database, connection, monkeypatch):
    """A run that stops leaves the rest to the next, and one beside another does nothing."""
    card = accelerator(connection)
    write(connection, card, range(OCTOBER, OCTOBER + 3 * DAY, HOUR // 2))
    before, asked = read(connection), iter([False, False, True])
    assert slow_metrics.pack(database, OCTOBER + 9 * DAY, lambda: next(asked)) == 48
    with database.try_hold(Lock.STATES):
        assert slow_metrics.pack(database, OCTOBER + 9 * DAY, never) == 0
    assert read(connection) == before
    assert slow_metrics.pack(database, OCTOBER + 9 * DAY, never) == 95
    assert read(connection) == before


def test_a_run_that_ends_in_the_middle_changes_nothing(database, connection, monkeypatch):
    """Rows go in the transaction that packs them."""
    card = accelerator(connection)
    write(connection, card, range(OCTOBER, OCTOBER + HOUR, 60_000))
    before = counts(connection)
    monkeypatch.setattr(slow_metrics, "_DELETE_PACKED", "SELECT 1 / 0")
    with pytest.raises(Exception, match="division by zero"):
        slow_metrics.pack(database, OCTOBER + DAY, never)
    assert counts(connection) == before


def test_only_what_reads_back_equal_is_deleted(database, connection, monkeypatch):
    """A change written again between the two statements stays, and counts as written last."""
    card = accelerator(connection)
    write(connection, card, [OCTOBER, OCTOBER + 1, OCTOBER + 2])
    monkeypatch.setattr(
        slow_metrics,
        "_PACK",
        slow_metrics._PACK.replace("array_agg(value", "array_agg(value + offset_ms %% 2"),
    )
    assert slow_metrics.pack(database, OCTOBER + DAY, never) == 1
    monkeypatch.undo()
    assert counts(connection) == (2, 2)
    value = float((OCTOBER + 1) % 97)
    assert repr((card, METRICS[0], OCTOBER + 1, value)) in read(connection)
    assert slow_metrics.pack(database, OCTOBER + DAY, never) == 1
    assert repr((card, METRICS[0], OCTOBER + 1, value)) in read(connection)
    assert counts(connection) == (1, 2)


def test_boards_mark_errors_of_packed_hours(database, connection):
    """The mark of an Xid stays where it is when its hour is packed."""
    card = accelerator(connection)
    connection.execute("DELETE FROM capacity")
    connection.execute(
        "INSERT INTO capacity (accelerator_id, pool, in_ms, source) VALUES (%s, '', 0, '')", (card,)
    )
    write_changes(
        connection,
        [(card, METRICS[1], OCTOBER + place * HOUR, 79.0 + place) for place in range(3)],
    )
    (mark,) = errors("true")
    query = mark["target"]["rawSql"]
    for bound, at_ms in (("From", OCTOBER), ("To", OCTOBER + DAY)):
        query = query.replace(f"$__unixEpochNano{bound}()", f"{at_ms * 1_000_000}")
    before = connection.execute(query).fetchall()
    assert len(before) == 3
    assert slow_metrics.pack(database, OCTOBER + DAY, never) == 2
    assert connection.execute(query).fetchall() == before
