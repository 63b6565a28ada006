"""Packed days of usage intervals: every reader sees the same rows, wherever they lie and wherever
packing stops.
"""

import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psycopg
import pytest
from hypothesis import given

from fakes.first_interval_format import first_format
from fakes.interval_rows import DAY, rows
from fakes.postgres import fresh_database
from fakes.profiles import examples
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.ingest.remote_write.metering import EPOCH, delete_usage_intervals
from gpuledger_collector.ingest.remote_write.store import SLOT_MS
from gpuledger_collector.services.upkeep import (
    ArchiveRetention,
    PackedEvidence,
    merge_partitions,
    pack_samples,
    pack_usage_intervals,
)
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import interval_packing, partitions, usage_evidence
from gpuledger_collector.storage.telemetry.interval_codec import ABSENT, NUMBERS, STATES
from gpuledger_collector.storage.telemetry.interval_columns import FORMAT
from gpuledger_collector.storage.telemetry.interval_packing import EvidenceDamaged

AFTER = 37
NOW = DAY + 40 * DAY_MS
STORAGE = Path(usage_evidence.__file__).parents[1]
COLUMNS = ", ".join(usage_evidence.COLUMNS)


@pytest.fixture(scope="module")
def database(postgres):
    with fresh_database(postgres) as dsn:
        yield Database(dsn)


@pytest.fixture
def empty(database):
    with database.connect() as connection:
        connection.execute(
            "TRUNCATE usage_interval, usage_interval_day, hour_recompute, expired_day,"
            " billing_period CASCADE"
        )
        partitions.ensure(connection, "usage_interval", [DAY - DAY_MS, DAY, DAY + DAY_MS])
    return database


def put(database, intervals, accelerator_id=1):
    with (
        database.transaction() as connection,
        connection.cursor().copy(f"COPY usage_interval ({COLUMNS}) FROM STDIN") as copy,
    ):
        for row in intervals:
            copy.write_row(columns_of(row, accelerator_id))


def columns_of(row, accelerator_id):
    value = {name: int(row[name]) for name in NUMBERS}
    halves = (value[name].to_bytes(8, "big", signed=True) for name in ("epoch_high", "epoch_low"))
    known = {name: None if number == ABSENT else number for name, number in value.items()}
    known |= {
        "accelerator_id": accelerator_id,
        "state": STATES[value["state"]],
        "epoch": uuid.UUID(bytes=b"".join(halves)),
    }
    return [known[name] for name in usage_evidence.COLUMNS]


def minutes(count=30, *, accelerators=(1, 2, 7), seed=0):
    """Rows of `usage_interval`: minutes that adjoin, with energy that varies."""
    return [
        (
            *(accelerator, 12, "held", DAY + place * 60_000, DAY + (place + 1) * 60_000),
            *(60_000, 45_000, 15_000, 0, 25_000_000 + place * 7_919 % 100_000 + seed),
            *(3, uuid.UUID(int=accelerator), 900 + place + seed, accelerator, None, 5),
        )
        for accelerator in accelerators
        for place in range(count)
    ]


def put_rows(database, some):
    with (
        database.transaction() as connection,
        connection.cursor().copy(f"COPY usage_interval ({COLUMNS}) FROM STDIN") as copy,
    ):
        for row in some:
            copy.write_row(row)


def seen(database, since=DAY - DAY_MS, until=DAY + 2 * DAY_MS):
    with database.connect() as connection:
        return sorted(
            map(
                repr,
                connection.execute(
                    f"SELECT {COLUMNS} FROM {usage_evidence.intervals(since, until)} AS s"
                ),
            )
        )


def count(database, table):
    with database.connect() as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def pack(database, now_ms=NOW, **given):
    return pack_usage_intervals(database, AFTER, now_ms, **given)


@given(intervals=rows())
@examples(25)
def test_packed_and_unpacked_are_the_same_rows(empty, intervals):
    """Every column of every row, by the server's own unpacking, and back as rows."""
    with empty.connect() as connection:
        connection.execute("TRUNCATE usage_interval, usage_interval_day")
    put(empty, intervals)
    before = seen(empty)
    assert pack(empty) == PackedEvidence(len(intervals), (DAY,))
    assert count(empty, "usage_interval") == 0
    assert seen(empty) == before
    with empty.transaction() as connection:
        assert interval_packing.unpack(connection, [1], [DAY])
        assert not interval_packing.unpack(connection, [1], [DAY])
    assert seen(empty) == before
    assert count(empty, "usage_interval") == len(intervals)


def pack_as_at_first(database):
    """Pack every row of the day in the first format, as a collector of before did."""
    with database.transaction() as connection:
        rows = connection.cursor(binary=True).execute(
            f"DELETE FROM usage_interval RETURNING accelerator_id, {interval_packing._RECORD}"
        )
        for accelerator_id, intervals in interval_packing._by_accelerator(rows.fetchall()).items():
            values = {
                "accelerator_id": accelerator_id,
                "day_ms": DAY,
                "packed_at": "2025-01-01Z",
                **first_format(intervals, DAY),
            }
            connection.execute(
                f"INSERT INTO usage_interval_day ({', '.join(values)})"
                f" VALUES ({', '.join(f'%({name})s' for name in values)})",
                values,
            )


def formats(database):
    with database.connect() as connection:
        query = "SELECT format, count(*)::int FROM usage_interval_day GROUP BY 1"
        return dict(connection.execute(query).fetchall())


@given(intervals=rows())
@examples(12)
def test_days_that_were_packed_at_first_are_read_and_packed_again(empty, intervals):
    """Every row, before and after, whatever came late; its rows can be had in both formats."""
    with empty.connect() as connection:
        connection.execute("TRUNCATE usage_interval, usage_interval_day")
    put(empty, intervals)
    before = seen(empty)
    pack_as_at_first(empty)
    assert formats(empty) == {1: 1}
    assert seen(empty) == before
    put(empty, intervals[:2])
    both = seen(empty)
    assert len(both) == len(before) + len(intervals[:2])
    assert pack(empty) == PackedEvidence(len(both), (DAY,))
    assert formats(empty) == {FORMAT: 1}
    assert seen(empty) == both
    assert pack(empty).intervals == 0


def test_packing_again_goes_on_where_it_stopped(empty, monkeypatch):
    """Some accelerators at a time; what is packed either way is seen once, and unpacked from both."""
    monkeypatch.setattr(interval_packing, "SLICE", 1)
    put_rows(empty, minutes())
    before = seen(empty)
    pack_as_at_first(empty)
    assert pack(empty, stopping=lambda: FORMAT in formats(empty)).intervals == 30
    assert formats(empty) == {1: 2, FORMAT: 1}
    assert seen(empty) == before
    with empty.transaction() as connection:
        assert interval_packing.unpack(connection, [1, 7], [DAY])
    assert seen(empty) == before
    assert pack(empty).intervals == 90
    assert formats(empty) == {FORMAT: 3}
    assert seen(empty) == before


def test_intervals_are_not_compared_with_each_context_of_their_day(empty):
    """Also where the server knows how few sources a day has: jobs of seconds are thousands of
    contexts.
    """
    put_rows(empty, minutes())
    pack(empty)
    query = f"EXPLAIN SELECT count(*) FROM {usage_evidence.intervals(DAY, DAY + DAY_MS)} AS s"
    with empty.connect() as connection:
        connection.execute("ANALYZE usage_interval, usage_interval_day")
        plan = "\n".join(line for (line,) in connection.execute(query))
    assert "Join Filter" not in plan
    assert "Merge Cond" in plan or "Hash Cond" in plan


def test_late_intervals_are_merged_into_their_day(empty):
    """Seen beside the packed ones until then; repetitions stay repetitions."""
    put_rows(empty, minutes(30))
    pack(empty)
    late = minutes(10, seed=1) + minutes(2)
    put_rows(empty, late)
    both = seen(empty)
    assert len(both) == 90 + len(late)
    assert pack(empty).intervals == len(late)
    assert seen(empty) == both
    assert count(empty, "usage_interval_day") == 3


def test_a_day_waits_until_no_agent_may_send_evidence_of_it(empty):
    """Nor is a day packed with an hour that is still to be folded."""
    put_rows(empty, minutes())
    assert pack(empty, DAY + 38 * DAY_MS + 1).intervals == 0
    with empty.connect() as connection:
        connection.execute(
            "INSERT INTO hour_recompute (accelerator_id, hour_ms) VALUES (1, %s)",
            (DAY + 24 * 3_600_000,),
        )
        assert pack(empty).intervals == 0
        connection.execute("TRUNCATE hour_recompute")
    assert pack(empty, DAY + 39 * DAY_MS).intervals == 90


def test_a_row_that_the_format_does_not_hold_stays(empty):
    """It is read as before, and does not keep the others from being packed."""
    absurd = list(minutes(1, accelerators=(1,))[0])
    absurd[usage_evidence.COLUMNS.index("energy_mj")] = 2**62
    put_rows(empty, [*minutes(5), tuple(absurd)])
    before = seen(empty)
    assert pack(empty).intervals == 15
    assert pack(empty).intervals == 0
    assert seen(empty) == before
    assert count(empty, "usage_interval") == 1


@pytest.mark.parametrize("step", ["_packed", "_columns", "pack"])
def test_an_interrupted_run_loses_nothing(empty, monkeypatch, step):
    """In the second transaction: the first stays, and the next run does the rest."""
    monkeypatch.setattr(interval_packing, "SLICE", 1)
    put_rows(empty, minutes())
    before = seen(empty)
    true, calls = getattr(interval_packing, step), []

    def faulty(*given):
        calls.append(given)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return true(*given)

    monkeypatch.setattr(interval_packing, step, faulty)
    with pytest.raises(KeyboardInterrupt):
        pack(empty)
    assert seen(empty) == before
    assert 0 < count(empty, "usage_interval_day") < 3
    monkeypatch.setattr(interval_packing, step, true)
    pack(empty)
    assert seen(empty) == before
    assert count(empty, "usage_interval") == 0


def test_a_process_that_is_killed_loses_nothing(empty):
    """SIGKILL in the middle of a slice, rows deleted and not committed."""
    put_rows(empty, minutes())
    before = seen(empty)
    code = (
        "import os, signal, sys\n"
        "from gpuledger_collector.storage.database import Database\n"
        "from gpuledger_collector.storage.telemetry import interval_packing\n"
        "true, calls = interval_packing.pack, []\n"
        "def killed(*given):\n"
        "    calls.append(given)\n"
        "    if len(calls) == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return true(*given)\n"
        "interval_packing.pack, interval_packing.SLICE = killed, 1\n"
        f"interval_packing.pack_day(Database(sys.argv[1]), {DAY}, {NOW})\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, empty.dsn], env=os.environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert count(empty, "usage_interval_day") == 1
    assert seen(empty) == before
    assert pack(empty).intervals == 60
    assert seen(empty) == before


def test_damage_is_found_and_nothing_is_deleted(empty):
    """A bit of a packed column: late rows stay rows, and neither unpacking nor packing hides it."""
    put_rows(empty, minutes(accelerators=(1,)))
    pack(empty)
    late = minutes(3, accelerators=(1,), seed=1)
    put_rows(empty, late)
    with empty.connect() as connection:
        connection.execute(
            "UPDATE usage_interval_day SET energy = set_byte(energy, 4, get_byte(energy, 4) # 1)"
        )
    with pytest.raises(EvidenceDamaged, match="accelerator 1 on 2024-10-04"):
        pack(empty)
    assert count(empty, "usage_interval") == 3
    with empty.transaction() as connection, pytest.raises(EvidenceDamaged):
        interval_packing.unpack(connection, [1], [DAY])


def test_a_snapshot_from_before_still_sees_the_rows(empty):
    """The emptied partition stays for a day, and goes with the next run after it."""
    put_rows(empty, minutes())
    before = seen(empty)
    name = partitions.partition_name("usage_interval", DAY)
    with empty.transaction(read_only=True) as connection:
        connection.execute("SELECT count(*) FROM accelerator")
        pack(empty)
        pack(empty, NOW + 1000)
        query = f"SELECT {COLUMNS} FROM {usage_evidence.intervals(DAY, DAY + DAY_MS)} AS s"
        assert sorted(map(repr, connection.execute(query))) == before
    with empty.connect() as connection:
        query = "SELECT to_regclass(%s) IS NOT NULL"
        assert connection.execute(query, (name,)).fetchone() == (True,)
        pack(empty, NOW + DAY_MS)
        assert connection.execute(query, (name,)).fetchone() == (False,)
    assert seen(empty) == before


def test_while_another_process_packs_nothing_happens(empty):
    """The lock is that of merging and of retention."""
    put_rows(empty, minutes())
    with empty.hold(Lock.PACKING):
        assert pack(empty).intervals == 0
    assert pack(empty, stopping=lambda: True).intervals == 0
    assert pack(empty).intervals == 90


def test_nothing_is_packed_while_versions_are_mixed(empty):
    """A collector of the version before would see no evidence of a packed day."""
    put_rows(empty, minutes())
    with empty.connect() as connection:
        for revision in ("0031", "0033"):
            connection.execute(
                "INSERT INTO replica (id, host, version, revision, started_at, seen_at, last_error)"
                " VALUES (gen_random_uuid(), 'h', 'v', %s, now(), now(), '')",
                (revision,),
            )
        assert pack(empty).intervals == 0
        connection.execute("DELETE FROM replica WHERE revision = '0031'")
        assert pack(empty).intervals == 90
        connection.execute("TRUNCATE replica")


def test_packed_days_of_a_merged_month_are_read_and_expire(dsn):
    """A month in one partition; `keep_usage_interval_days` removes packed days of closed months."""
    empty = Database(dsn)
    with empty.connect() as connection:
        partitions.ensure(connection, "usage_interval", [DAY, DAY + DAY_MS])
    put_rows(empty, minutes())
    late = NOW + 120 * DAY_MS
    merge_partitions(empty, ["usage_interval"], late)
    before = seen(empty)
    assert pack(empty, late).intervals == 90
    assert seen(empty) == before
    keep = ArchiveRetention(3, 0, 40)
    assert pack_samples(empty, keep, late).expired_days == ()
    with empty.connect() as connection:
        connection.execute(
            "INSERT INTO billing_period (name, start_ms, end_ms, closed_ms, closed_by, level, lines, seal,"
            " receipt) VALUES ('2024-10', %s, %s, 0, '', 'team', 0, '', '{}')",
            (DAY - 3 * DAY_MS, DAY + 28 * DAY_MS),
        )
    assert DAY in pack_samples(empty, keep, late).expired_days
    assert seen(empty) == []
    assert count(empty, "usage_interval_day") == 0


def test_scrapes_that_are_metered_again_replace_packed_intervals(empty):
    """An import of the past: the intervals of its slots go, all others stay, and none is there
    twice.
    """
    metered = [
        (*row[:11], EPOCH, row[3] // SLOT_MS, *row[13:]) for row in minutes(3, accelerators=(1, 2))
    ]
    put_rows(empty, [*metered, *minutes(3, accelerators=(1,))])
    before = seen(empty)
    pack(empty)
    slot = metered[1][3] // SLOT_MS * SLOT_MS
    with empty.transaction() as connection:
        delete_usage_intervals(connection, {1: {slot}})
    gone = {row for row in metered if row[0] == 1 and row[12] == slot // SLOT_MS}
    assert gone
    assert len(seen(empty)) == len(before) - len(gone)
    assert count(empty, "usage_interval_day") == 1
    with empty.transaction() as connection:
        delete_usage_intervals(connection, {1: {slot}})
    assert len(seen(empty)) == len(before) - len(gone)


READS = re.compile(r"\b(?:FROM|JOIN|USING)\s+(?:ONLY\s+)?usage_interval\b(?!_)", re.IGNORECASE)
ROOM = {
    "storage/telemetry/usage_evidence.py",
    "storage/telemetry/interval_packing.py",
    "ingest/remote_write/metering.py",
}
"""Where rows are read as rows: the room itself, and who packs, unpacks and replaces them."""


def test_no_statement_goes_around_the_room():
    """Neither of the collector nor of a board: it would miss packed days."""
    package = STORAGE.parent
    boards = package.parents[1] / "dashboards"
    readers = {
        str(path.relative_to(package.parents[1]))
        for folder in (package, boards)
        for path in folder.rglob("*")
        if path.suffix in {".py", ".json", ".sql"}
        and READS.search(" ".join(path.read_text(encoding="utf-8").replace('"', " ").split()))
    }
    assert readers == {f"collector/gpuledger_collector/{name}" for name in ROOM}


def test_a_session_that_ends_leaves_all_rows(empty, monkeypatch):
    """The backend dies before COMMIT."""
    put_rows(empty, minutes())
    before = seen(empty)
    true = interval_packing._columns

    def ended(packed):
        with empty.connect() as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in"
                " transaction' AND datname = current_database() AND query ILIKE '%usage_interval%'"
            )
        return true(packed)

    monkeypatch.setattr(interval_packing, "_columns", ended)
    with pytest.raises(psycopg.OperationalError):
        pack(empty)
    assert seen(empty) == before
    assert count(empty, "usage_interval_day") == 0
