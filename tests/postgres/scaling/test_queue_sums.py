"""Kept sums of queues are what the readings themselves say, whoever wrote them; nothing is answered
otherwise.
"""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.profiles import examples
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, format_instant
from gpuledger_collector.insight.queue_rows import QueueRow, WaitingRow
from gpuledger_collector.scheduled_jobs import scheduled_jobs
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.capacity import demand, queues, scaling
from gpuledger_collector.storage.database import Database
from gpuledger_collector.wiring import read_clock
from gpuledger_common.instants import to_datetime

NOW_MS = 1_760_000_000_000
MINUTE = 60_000
KEYS = {"pool": "pool", "model": "gpu_model", "team": "team", "user": "user"}
NAMES = st.sampled_from(["", "train", "infer", "NULL", 'a"b', "{x,y}", "\\", "zürich pool"])
WAITING = st.builds(
    WaitingRow,
    st.just("job"),
    st.integers(0, 10**12),
    pool=NAMES,
    gpu_model=NAMES,
    team=NAMES,
    user=NAMES,
)
AT = st.sampled_from(
    [
        NOW_MS - ago
        for ago in (
            -1,
            0,
            1,
            MINUTE,
            HOUR_MS,
            HOUR_MS + 1,
            5 * HOUR_MS,
            DAY_MS,
            DAY_MS + 1,
            40 * DAY_MS,
            56 * DAY_MS,
            56 * DAY_MS + 1,
            61 * DAY_MS,
        )
    ]
)
WRITTEN = st.tuples(
    st.sampled_from(["slurm:a", "slurm:b", "k8s"]),
    AT,
    st.lists(WAITING, max_size=5),
    st.sampled_from(["new", "old"]),
)
OLD = """INSERT INTO queue_reading AS old (source, at_ms, workloads, gpu_micro, waiting, received_at)
    VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (source, at_ms) DO UPDATE SET workloads = excluded.workloads,
    gpu_micro = excluded.gpu_micro, waiting = excluded.waiting, received_at = excluded.received_at
    WHERE old.waiting IS DISTINCT FROM excluded.waiting"""
"""How a collector of before the sums keeps a reading."""


@pytest.fixture
def connection(dsn):
    with Database(dsn).connect() as made:
        yield made


def write(connection, source, at_ms, waiting, version, now_ms=NOW_MS):
    row = QueueRow(source, at_ms, tuple(waiting))
    if version == "new":
        queues.add(connection, [row], now_ms)
        return
    total = sum(one.gpu_micro for one in waiting)
    connection.execute(
        OLD,
        (source, at_ms, len(waiting), total, row.sums_json(), to_datetime(now_ms)),
    )


def said(connection, group, start_ms, end_ms):
    """Source -> instant -> group -> millionths of a GPU, from what waits and from nothing else."""
    found = defaultdict(dict)
    query = "SELECT source, at_ms, waiting FROM queue_reading WHERE at_ms >= %s AND at_ms < %s"
    for source, at_ms, waiting in connection.execute(query, (start_ms, end_ms)):
        sums = defaultdict(int)
        for item in waiting:
            sums[item[KEYS[group]]] += item["gpu_micro"]
        found[source][at_ms] = dict(sums)
    return dict(found)


def silent(readings, pool):
    """The sentence of the first source that names the pool and was last read 1 to 24 hours ago."""
    for source in sorted(readings):
        newest = max(readings[source])
        named = any(pool in sums for sums in readings[source].values())
        if named and HOUR_MS < NOW_MS - newest <= DAY_MS:
            read = format_instant(newest)
            return f"the queue of {source!r} was last read at {read}, so what waits is not known"
    return ""


def told(database, group, start_ms, end_ms):
    with database.connect() as opened:
        return demand.queues(opened, start_ms, end_ms, group)


def as_said(found):
    """The same of what is read, in GPUs; instants must ascend."""
    for one in found:
        assert np.all(np.diff(one.at_ms) > 0)
    return {
        one.source: {
            at_ms: {
                name: gpus[place] for name, gpus in one.gpus.items() if np.isfinite(gpus[place])
            }
            for place, at_ms in enumerate(one.at_ms.tolist())
        }
        for one in found
    }


def in_gpus(readings):
    return {
        source: {
            at_ms: {name: micro / 1_000_000 for name, micro in sums.items()}
            for at_ms, sums in mine.items()
        }
        for source, mine in readings.items()
    }


def check(connection, database):
    """Each group over the whole time and a part of it to the last digit, and every pool's silence."""
    for start_ms, end_ms in ((0, 2 * NOW_MS), (NOW_MS - DAY_MS, NOW_MS)):
        for group in KEYS:
            assert as_said(told(database, group, start_ms, end_ms)) == in_gpus(
                said(connection, group, start_ms, end_ms)
            )
    readings = said(connection, "pool", NOW_MS - 56 * DAY_MS, NOW_MS + 1)
    with database.connect() as opened:
        for pool in ("train", "infer", ""):
            assert scaling.silence(opened, pool, NOW_MS) == silent(readings, pool)


@examples(12)
@given(written=st.lists(WRITTEN, max_size=12))
def test_sums_are_what_the_readings_say_whoever_wrote_them(connection, database, written):
    """New collectors and those of before write and replace in turn; missing sums change no answer,
    nor does making them, and afterwards each kept sum is that of its row.
    """
    connection.execute("DELETE FROM queue_reading")
    for number, one in enumerate(written):
        write(connection, *one, now_ms=NOW_MS + number * 1000)
    check(connection, database)
    queues.sum_missing(connection, NOW_MS)
    assert queues.sum_missing(connection, NOW_MS) == 0
    check(connection, database)
    rows = connection.execute(
        "SELECT pools, pool_gpu_micro, waiting, gpu_micro FROM queue_reading WHERE summed_at ="
        " received_at"
    ).fetchall()
    for pools, micro, waiting, total in rows:
        assert sum(micro) == total
        assert set(pools) == {item["pool"] for item in waiting}


def test_a_kept_sum_is_read_and_one_of_another_reading_is_not(connection, database):
    """What is read is the kept sum; it is passed over as soon as an older collector replaces the
    reading.
    """
    job = WaitingRow("job", 2_000_000, pool="train")
    write(connection, "slurm", NOW_MS, [job], "new")
    connection.execute("UPDATE queue_reading SET pool_gpu_micro = '{7000000}'")
    assert as_said(told(database, "pool", 0, NOW_MS + 1)) == {"slurm": {NOW_MS: {"train": 7.0}}}
    write(
        connection,
        "slurm",
        NOW_MS,
        [job, WaitingRow("other", 500_000, pool="infer")],
        "old",
        NOW_MS + 1,
    )
    expected = {"slurm": {NOW_MS: {"train": 2.0, "infer": 0.5}}}
    assert as_said(told(database, "pool", 0, NOW_MS + 1)) == expected
    assert queues.sum_missing(connection, NOW_MS) == 1
    kept = connection.execute("SELECT pools, pool_gpu_micro FROM queue_reading").fetchall()
    assert kept == [(["infer", "train"], [500_000, 2_000_000])]


def test_the_daily_tidying_sums_what_came_before_the_sums(connection, database):
    """The last 60 days; what is older is never asked for all the time, and is summed where it is
    read.
    """
    now_ms = read_clock()
    for days in (0, 1, 56, 59, 61):
        write(
            connection, "slurm", now_ms - days * DAY_MS, [WaitingRow("job", 1, pool="train")], "old"
        )
    made = scheduled_jobs(Settings(), database)
    next(one for one in made if one.name == "tidy").work()
    left = connection.execute(
        "SELECT at_ms FROM queue_reading WHERE summed_at IS DISTINCT FROM received_at"
    ).fetchall()
    assert left == [(now_ms - 61 * DAY_MS,)]
    assert (
        sorted(as_said(told(database, "pool", 0, now_ms + 1))["slurm"])[0] == now_ms - 61 * DAY_MS
    )


def test_a_row_that_is_no_list_holds_up_no_other(connection, database):
    """Somebody's hand may have written it: nothing waits in it, as before, and the rest is summed."""
    write(connection, "slurm", NOW_MS - 1, [WaitingRow("job", 1_000_000, pool="train")], "old")
    connection.execute(OLD, ("slurm", NOW_MS, 0, 0, "{}", to_datetime(NOW_MS)))
    expected = {"slurm": {NOW_MS - 1: {"train": 1.0}, NOW_MS: {}}}
    for _ in range(2):
        assert as_said(told(database, "pool", 0, NOW_MS + 1)) == expected
        queues.sum_missing(connection, NOW_MS)
