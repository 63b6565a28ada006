"""GET /v1/...: the ledger over HTTP, with the commands' numbers, for those who may read."""

import datetime as dt
import json

import pytest

from fakes.collector import running
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, parse_instant
from gpuledger_collector.services import forecasts
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database
from gpuledger_collector.wiring import read_clock

NOW_MS = read_clock()
TODAY = NOW_MS // DAY_MS * DAY_MS


def day(number):
    return dt.datetime.fromtimestamp(TODAY / 1000, dt.UTC).date() + dt.timedelta(days=number)


def batch(node="n1", seq=1, hours=24 * 12, epoch="0192aaaa-0000-7000-8000-000000000001"):
    """Twelve days of one GPU: held by day, free by night, up to the last full hour."""
    end = NOW_MS // HOUR_MS * HOUR_MS
    usage_intervals = []
    for hour in range(hours):
        start = end - (hours - hour) * HOUR_MS
        usage_interval = {"accelerator": 0, "start_ms": start, "end_ms": start + HOUR_MS}
        if hour % 24 < 10:
            usage_interval |= {
                "state": "held",
                "workload": 0,
                "held_ms": HOUR_MS,
                "busy_ms": HOUR_MS // 2,
                "idle_ms": HOUR_MS // 2,
            }
        else:
            usage_interval |= {"state": "unallocated"}
        usage_intervals.append(usage_interval)
    return {
        "version": 1,
        "node": node,
        "epoch": epoch,
        "seq": seq,
        "heartbeat": {"agent_version": "0", "source": "simulated", "status": "ok"},
        "accelerators": [
            {
                "uuid": f"GPU-{node}",
                "device_uuid": f"GPU-{node}",
                "index": 0,
                "model": "NVIDIA L4",
                "pool": "train",
            }
        ],
        "workloads": [{"id": "1", "kind": "slurm", "tags": {"team": "vision"}}],
        "usage_intervals": usage_intervals,
    }


@pytest.fixture
def collector(dsn):
    with running(dsn) as made:
        status, answer = made.post(
            json.dumps(batch()).encode(), {"Content-Type": "application/json"}
        )
        assert status == 200, answer
        refresh(Database(dsn), ALWAYS, NOW_MS)
        yield made


def get(collector, path, **headers):
    status, answered, content = collector.request("GET", path, headers=headers)
    return status, content, answered


def test_chargeback_is_that_of_the_command(collector):
    """Rows and totals by team; unpriced usage is a row of its own; the notes say up to when it is
    rated.
    """
    status, made, _ = get(collector, f"/v1/chargeback?from={day(-5)}&to={day(-2)}&by=team")
    assert status == 200
    (row,) = made["rows"]
    assert (row["team"], row["gpu_hours"], row["cost"]) == ("(unpriced)", "72.000000", None)
    assert made["notes"][0] == f"rated up to {day(-2)}T00:00:00Z"


def test_a_period_by_its_name_is_that_of_its_days(collector):
    """A month as `--period` writes it, for the chargeback and for runs."""
    name = f"{day(0)}"[:7]
    year, number = int(name[:4]), int(name[5:])
    days = f"from={name}-01&to={year + number // 12}-{number % 12 + 1:02d}-01"
    for path in ("/v1/chargeback", "/v1/runs"):
        assert (
            get(collector, f"{path}?period={name}")[:2] == get(collector, f"{path}?{days}")[:2]
        ), path
    assert get(collector, f"/v1/chargeback?period={name[:4]}")[0] == 200


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (f"from={day(-5)}&to={day(-2)}&by=teem", "cannot group by 'teem'"),
        (f"from={day(-2)}&to={day(-5)}", "is empty"),
        (f"from=yesterday&to={day(0)}", "is not a date"),
        ("from=2020-01-01&to=2026-01-01", "at most 400 days"),
        (f"to={day(0)}", "from"),
        ("", "give either period, or from and to"),
        (f"period=2026-10&to={day(0)}", "give either period, or from and to"),
        ("period=FY2027", "no fiscal year is declared"),
        ("period=October", "is not a period"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_sentence(collector, query, words):
    """422 and the reason; never a 500."""
    status, made, _ = get(collector, f"/v1/chargeback?{query}")
    assert status == 422
    assert words in json.dumps(made)


def test_accelerators_and_nodes_come_in_pages(collector):
    """Each page says where the next one begins; together they hold every item once."""
    for number in range(2, 5):
        made = batch(f"n{number}", hours=2, epoch=f"0192aaaa-0000-7000-8000-00000000000{number}")
        assert (
            collector.post(json.dumps(made).encode(), {"Content-Type": "application/json"})[0]
            == 200
        )
    for path, key, names in (
        ("/v1/nodes?", "name", ["n1", "n2", "n3", "n4"]),
        (
            f"/v1/accelerators?from={day(-20)}&to={day(1)}&",
            "uuid",
            ["GPU-n1", "GPU-n2", "GPU-n3", "GPU-n4"],
        ),
    ):
        found, after, pages = [], "", 0
        while after is not None:
            status, made, _ = get(collector, f"{path}limit=3&after={after}")
            assert status == 200
            found += [item[key] for item in made["items"]]
            after, pages = made["next"], pages + 1
        assert found == names
        assert pages == 2
    _, made, _ = get(collector, f"/v1/accelerators?from={day(-5)}&to={day(-4)}")
    assert made["items"][0]["held_ms"] + made["items"][0]["unallocated_ms"] == DAY_MS


def test_a_node_that_is_silent_is_not_ok(dsn, collector):
    """Its last heartbeat said ok; ten minutes later nobody knows."""
    (node,) = get(collector, "/v1/nodes")[1]["items"]
    assert node["status"] == "ok"
    later = parse_instant(node["last_seen_at"]) + 11 * 60_000
    with running(dsn, clock=lambda: later) as another:
        (node,) = get(another, "/v1/nodes")[1]["items"]
    assert node["status"] == "silent"


def test_forecast_and_scaling_speak_of_pools(collector):
    """Quantiles hour by hour; scaling is one object with numbers; an unknown pool is a 404."""
    status, made, _ = get(collector, "/v1/forecast?horizon_hours=6&pool=train")
    assert status == 200
    assert [item["pool"] for item in made["items"]] == ["train"]
    assert len(made["items"][0]["points"]) == 6
    status, advice, _ = get(collector, "/v1/scaling/train")
    assert status == 200
    assert isinstance(advice["desired_gpus"], float)
    assert advice["desired_gpus"] >= advice["demand_gpus"]
    # Those of a pool of several alone have a headroom of their own.
    assert advice.pop("models") == []
    assert all(isinstance(value, str | float | int) for value in advice.values())
    assert {name for name, value in advice.items() if isinstance(value, bool)} == {
        "limited",
        "acting",
    }
    assert get(collector, "/v1/scaling/none")[0] == 404


def test_pools_of_less_demand_are_counted(collector, dsn, monkeypatch):
    """Those of most demand are forecast, and another one when it is asked for: a node may name
    pools by the hundred.
    """
    monkeypatch.setattr(forecasts, "MOST_POOLS", 1)
    status, made, _ = get(collector, "/v1/forecast?horizon_hours=6")
    assert (status, [item["pool"] for item in made["items"]], made["left_out"]) == (
        200,
        ["train"],
        0,
    )
    small = batch("n2", hours=24)
    small["accelerators"][0]["pool"] = "batch"
    assert (
        collector.post(json.dumps(small).encode(), {"Content-Type": "application/json"})[0] == 200
    )
    refresh(Database(dsn), ALWAYS, NOW_MS)
    for query, pool, left_out in (("", "train", 1), ("&pool=batch", "batch", 0)):
        _, made, _ = get(collector, f"/v1/forecast?horizon_hours=6{query}")
        assert ([item["pool"] for item in made["items"]], made["left_out"]) == ([pool], left_out)


def test_stale_demand_gives_no_number(dsn):
    """When evidence stopped days ago the answer is 503 with Retry-After, and the caller falls back
    to reacting.
    """
    made = batch(hours=48)
    for usage_interval in made["usage_intervals"]:
        usage_interval["start_ms"] -= 5 * DAY_MS
        usage_interval["end_ms"] -= 5 * DAY_MS
    with running(dsn) as collector:
        assert (
            collector.post(json.dumps(made).encode(), {"Content-Type": "application/json"})[0]
            == 200
        )
        refresh(Database(dsn), ALWAYS, NOW_MS)
        status, answer, headers = get(collector, "/v1/scaling/train")
    assert status == 503
    assert "desired_gpus" not in answer
    assert headers["Retry-After"] == "5"


def test_readers_need_their_token(dsn, tmp_path):
    """With a token file only its tokens read; an agent's token is none; others are told what is
    asked for.
    """
    path = tmp_path / "readers"
    path.write_text("one\ntwo\n")
    with running(dsn, reader_token_file=path) as collector:
        assert get(collector, "/v1/nodes")[0] == 401
        assert get(collector, "/v1/nodes", Authorization="Bearer three")[0] == 401
        assert get(collector, "/v1/nodes", Authorization="Basic two")[0] == 401
        assert get(collector, "/v1/nodes", Authorization="Bearer two")[0] == 200
        assert get(collector, "/healthz")[0] == 200


def test_beyond_loopback_nobody_reads_without_a_token_file(dsn):
    """A reachable collector without reader tokens keeps the ledger to itself and says which setting
    opens it.
    """
    with running(dsn, listen="0.0.0.0:8440") as collector:
        status, answer, _ = get(collector, "/v1/nodes")
    assert status == 403
    assert "reader_token_file" in answer["detail"]
