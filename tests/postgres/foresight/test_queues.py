"""Queues of schedulers: taken in over HTTP and from files, and part of demand from then on."""

import asyncio
import json

import numpy as np
import pytest

from fakes.collector import JSON, running
from fakes.fleet import HOUR, NOW_MS, OCTOBER, Held
from gpuledger_collector.ingest import queue_readings
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.capacity import demand

pytestmark = pytest.mark.slow


@pytest.fixture
def collector(dsn):
    with running(dsn) as made:
        yield made


def post(collector, body):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, answer = collector.request("POST", "/v1/queue", content, JSON)
    return status, answer


WAITS = {
    "workload_id": "7",
    "gpus": 2.5,
    "pool": "train",
    "gpu_model": "h100",
    "team": "seg",
    "submitted": 1_759_000_000,
}


def test_a_reading_counts_once_and_may_be_put_right(collector, database):
    """Committed, then known, then replaced; what waits is summed by whose it is, an empty queue is
    a reading too.
    """
    body = {
        "source": "slurm:east",
        "at": 1_760_000_000,
        "waiting": [WAITS, WAITS | {"workload_id": "8", "gpus": 1}],
    }
    assert post(collector, body) == (200, {"status": "committed"})
    assert post(collector, body) == (200, {"status": "duplicate"})
    assert post(collector, body | {"at": "2025-10-09T09:00:00Z", "waiting": []}) == (
        200,
        {"status": "committed"},
    )
    rows = (
        database.connect()
        .execute("SELECT at_ms, workloads, gpu_micro, waiting FROM queue_reading ORDER BY at_ms")
        .fetchall()
    )
    assert [tuple(row[:3]) for row in rows] == [
        (1_760_000_000_000, 2, 3_500_000),
        (1_760_000_400_000, 0, 0),
    ]
    (item,) = rows[0][3]
    assert (item["pool"], item["team"], item["gpu_micro"], item["workloads"]) == (
        "train",
        "seg",
        3_500_000,
        2,
    )
    assert item["oldest_ms"] == 1_759_000_000_000
    assert post(collector, body | {"waiting": [WAITS]}) == (200, {"status": "committed"})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"nonsense", "no reading"),
        ({"source": "s", "at": 1_760_000_000}, "waiting"),
        ({"source": "", "at": 1_760_000_000, "waiting": []}, "source"),
        ({"source": "s", "at": "yesterday", "waiting": []}, "yesterday"),
        ({"source": "s", "at": 5e9, "waiting": []}, "at:"),
        ({"source": "s", "at": 1_760_000_000, "waiting": [WAITS | {"gpus": 0}]}, "waiting[0].gpus"),
        (
            {"source": "s", "at": 1_760_000_000, "waiting": [WAITS, WAITS | {"workload_id": ""}]},
            "waiting[1]",
        ),
    ],
)
def test_what_is_no_reading_is_refused_with_its_place(collector, body, words):
    """400 and where it is wrong."""
    status, answer = post(collector, body)
    assert status == 400
    assert words in answer["detail"]


def test_a_queue_is_json_and_no_form(collector):
    """415 for what a page of the web may post without asking, to a collector on its reader's
    machine.
    """
    body = json.dumps({"source": "s", "at": 1_760_000_000, "waiting": []}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert collector.request("POST", "/v1/queue", body, {"Content-Type": kind})[0] == 415
    assert (
        collector.request(
            "POST", "/v1/queue", body, {"Content-Type": "application/json; charset=utf-8"}
        )[0]
        == 200
    )


def test_only_agents_may_tell_a_queue(dsn, tmp_path):
    """With tokens asked for, a request without one is 401."""
    with running(dsn, require_tokens=True) as collector:
        assert post(collector, {"source": "s", "at": 1_760_000_000, "waiting": []})[0] == 401


def test_a_large_queue_holds_up_nobody_else(collector, monkeypatch):
    """It is read beside the event loop, and its body counts among what may be under way: 503 when
    that is too much.
    """
    body, read, loops = (
        {"source": "s", "at": 1_760_000_000, "waiting": [WAITS]},
        queue_readings.decode_reading,
        [],
    )
    monkeypatch.setattr(
        queue_readings,
        "decode_reading",
        lambda *told: loops.append(asyncio._get_running_loop()) or read(*told),
    )
    assert post(collector, body)[0] == 200
    assert loops == [None]
    collector.parts.intake.max_bytes = 10
    status, headers, _ = collector.request("POST", "/v1/queue", json.dumps(body).encode(), JSON)
    assert (status, headers["Retry-After"]) == (503, "5")
    assert collector.parts.intake.in_progress == 0


def test_a_file_of_readings(run, tmp_path, database):
    """CSV by source and instant; the same twice changes nothing; a bad row is named with file, line
    and column.
    """
    good = tmp_path / "queue.csv"
    good.write_text(
        "at,workload_id,gpus,pool,source\n1760000000,a,2,train,slurm\n1760000000,b,1,train,slurm\n"
        "1760003600,,0,,slurm\n"
    )
    assert "2 added" in run("import", "queue", good)[1]
    assert "2 unchanged" in run("import", "queue", good)[1]
    bad = tmp_path / "bad.csv"
    bad.write_text("at,workload_id,gpus\n1760000000,a,-1\n1760000000,,3\n")
    code, _, said = run("import", "queue", bad)
    assert code == 2
    assert f"{bad}:2:gpus" in said
    assert f"{bad}:3:workload_id" in said


def values_of(database, group, hours, step=HOUR, begin=0):
    with database.connect() as connection:
        found = demand.demand(connection, OCTOBER + begin, OCTOBER + hours * HOUR, group, step)
    return {one.name: one for one in found}


@pytest.fixture
def held(fleet, ledger):
    """Two GPUs for four hours: one of team-1 all the time, one of team-2 for 90 minutes, unseen in
    the fourth hour.
    """
    for number in (1, 2):
        fleet.capacity(number, 0)
    minutes = HOUR // 60
    fleet.evidence([Held(1, 1, at * HOUR, (at + 1) * HOUR) for at in range(4)])
    fleet.evidence(
        [Held(2, 2, 0, 90 * minutes), Held(2, None, 90 * minutes, 3 * HOUR, "unallocated")]
    )
    refresh(ledger, ALWAYS, NOW_MS)
    return fleet


def test_demand_by_pool_owner_and_five_minutes(held, database):
    """Held GPUs by pool, by team and by five minutes are the same; where half was not seen all are
    unknown.
    """
    pool = values_of(database, "pool", 4)["train"]
    np.testing.assert_allclose(pool.values, [2.0, 1.5, 1.0, np.nan])
    teams = values_of(database, "team", 4)
    np.testing.assert_allclose(teams["team-1"].values, [1.0, 1.0, 1.0, np.nan])
    np.testing.assert_allclose(teams["team-2"].values, [1.0, 0.5, 0.0, np.nan])
    assert values_of(database, "model", 4)["NVIDIA H100 80GB HBM3"].values[0] == 2.0
    fine = values_of(database, "pool", 4, 300_000)["train"]
    np.testing.assert_allclose(fine.values, [2.0] * 18 + [1.0] * 18 + [np.nan] * 12)
    fine_team = values_of(database, "team", 4, 300_000)["team-2"]
    np.testing.assert_allclose(fine_team.values, [1.0] * 18 + [0.0] * 18 + [np.nan] * 12)
    with pytest.raises(KeyError):
        values_of(database, "shoe", 4)


def test_doubled_evidence_is_no_doubled_demand(held, database):
    """Two nodes that report the same GPU at once: five minutes of it are five minutes."""
    held.evidence([Held(1, 1, 0, HOUR)], node="n2")
    assert values_of(database, "pool", 1, 300_000)["train"].values[0] == 2.0


def test_what_waits_is_demand_from_its_first_reading_on(held, database, run, tmp_path):
    """Before the first reading what is held; then held and queued, by pool and by team."""
    at = (OCTOBER + HOUR + HOUR // 2) // 1000
    rows = [
        f"{at},a,2,train,team-2,slurm",
        f"{at},b,1,train,team-1,slurm",
        f"{at + 3600},,0,,,slurm",
    ]
    (tmp_path / "queue.csv").write_text(
        "at,workload_id,gpus,pool,team,source\n" + "\n".join(rows) + "\n"
    )
    assert run("import", "queue", tmp_path / "queue.csv")[0] == 0
    np.testing.assert_allclose(values_of(database, "pool", 3)["train"].values, [2.0, 1.5 + 3, 1.0])
    np.testing.assert_allclose(values_of(database, "team", 3)["team-2"].values, [1.0, 0.5 + 2, 0.0])
    np.testing.assert_allclose(values_of(database, "team", 3)["team-1"].values, [1.0, 1.0 + 1, 1.0])
