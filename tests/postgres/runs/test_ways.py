"""The ways in which counters come: in a batch, by remote write, and told by the run over HTTP."""

import json
import time

import msgspec
import psycopg
import pytest

from fakes.batches import HOUR_MS, batch, body_of, held, workload
from fakes.collector import JSON, running
from fakes.prometheus import STALE, WRITE, Point, headers, one, snappy, two
from gpuledger_agent.push import split_batch
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.access.tokens import create
from gpuledger_collector.storage.database import Database
from gpuledger_common.compression import zstd
from gpuledger_common.wire import Count, Samples, encode

pytestmark = pytest.mark.slow

NOW = int(time.time()) * 1000
T = NOW - NOW % HOUR_MS - HOUR_MS
MINUTE = 60_000


@pytest.fixture
def collector(dsn):
    with running(dsn) as started:
        yield started


def rows(collector, query, *values):
    with psycopg.connect(collector.dsn) as connection:
        return connection.execute(query, values).fetchall()


def counts(minutes=range(11), counter="generated_tokens", **changes):
    return [
        Count(
            0,
            "http://127.0.0.1:8000/metrics",
            counter,
            T + minute * MINUTE,
            minute * 100,
            "m=a",
            "vllm",
            **changes,
        )
        for minute in minutes
    ]


def holding(**changes):
    return batch(
        accelerators=1, samples=Samples(), usage_intervals=[held(0, T, T + 10 * MINUTE)], **changes
    )


HOURS = (
    "SELECT s.via, s.source, s.counter, h.hour_ms, h.units, h.covered_ms FROM counter_hour h "
    "JOIN counter_series s ON s.id = series_id ORDER BY 1, 2, 3, 4"
)


def test_counters_of_a_batch_are_counted_once(collector):
    """The batch again is a duplicate; another batch with the same readings changes nothing."""
    assert collector.send(holding(counts=counts()))[1]["status"] == "committed"
    expected = [
        ("agent", "http://127.0.0.1:8000/metrics", "generated_tokens", T, 1_000, 10 * MINUTE)
    ]
    assert rows(collector, HOURS) == expected
    assert collector.send(holding(counts=counts()))[1]["status"] == "duplicate"
    assert collector.send(holding(counts=counts(), seq=2))[1]["status"] == "committed"
    assert rows(collector, HOURS) == expected
    assert rows(
        collector, "SELECT w.key FROM counter_series JOIN workload w ON w.id = workload_id"
    ) == [("slurm::job-1",)]


def test_late_batches_in_any_order_count_the_same(collector):
    """The middle comes last: the pairs around it are made again."""
    for seq, minutes in enumerate((range(7, 11), range(4), range(4, 7)), start=1):
        assert collector.send(holding(counts=counts(minutes), seq=seq))[0] == 200
    assert rows(collector, HOURS)[0][4:] == (1_000, 10 * MINUTE)


def test_bad_counters_are_named_and_the_rest_is_kept(collector):
    """Each refusal has its record; usage intervals and good counters stay."""
    made = [
        *counts(),
        Count(9, "u", "steps", T, 1),
        Count(0, "u", "dreams", T, 1),
        Count(0, "", "steps", T, 1),
        Count(0, "u", "steps", T, -1),
        Count(0, "u", "steps", T - 40 * 86_400_000, 1),
        Count(0, "u", "steps", T, 2**53 + 1),
    ]
    status, answer = collector.send(holding(counts=made))
    assert (status, answer["status"]) == (422, "partial")
    assert [one["record"] for one in answer["rejected"]] == [
        f"counts[{place}]" for place in range(11, 17)
    ]
    assert rows(collector, HOURS)[0][4] == 1_000
    assert rows(collector, "SELECT count(*) FROM usage_interval") == [(1,)]


def test_old_and_new_agents_and_collectors_understand_each_other(collector):
    """An envelope without counters is as it was, byte for byte; a field that nobody knows yet is
    passed over.
    """
    plain = msgspec.msgpack.decode(encode(holding()))
    assert "counts" not in plain
    assert collector.send(holding())[1]["status"] == "committed"
    later = {
        **plain,
        "seq": 7,
        "counts": [
            {
                "workload": 0,
                "source": "u",
                "counter": "steps",
                "at_ms": T,
                "value": 1,
                "color": "red",
            }
        ],
        "dreams": [1, 2],
    }
    assert collector.post(zstd.compress(msgspec.msgpack.encode(later)))[1]["status"] == "committed"
    broken = {**plain, "seq": 8, "counts": [{"workload": "x"}]}
    status, answer = collector.post(zstd.compress(msgspec.msgpack.encode(broken)))
    assert (status, [one["record"] for one in answer["rejected"]]) == (422, ["counts[0]"])


def test_a_batch_that_is_split_keeps_its_counters_once():
    """Halves of a batch that was too large."""
    first, second = split_batch(batch(counts=counts()))
    assert (len(first.counts), len(second.counts)) == (11, 0)


def series(name, **labels):
    given = {
        "__name__": name,
        "instance": "10.0.0.7:8000",
        "job": "vllm",
        "model_name": "llama",
        "namespace": "chat",
        "pod": "vllm-0",
        **labels,
    }
    return tuple(sorted(given.items()))


def write(collector, points, version=1):
    body = snappy(one(points) if version == 1 else two(points))
    status, answer, text = collector.request("POST", WRITE, body, headers(version))
    return status, int(answer["X-Prometheus-Remote-Write-Samples-Written"]), text


@pytest.mark.parametrize("version", [1, 2])
def test_counters_by_remote_write_go_to_their_pod_once(collector, version):
    """Two replicas of a Prometheus send the same counters; gauges, aborted requests and others are
    passed over.
    """
    for minute in range(11):
        at = T + minute * MINUTE
        points = [
            Point(
                series("vllm:generation_tokens_total", prometheus_replica="a"), minute * 100.0, at
            ),
            Point(
                series("vllm:generation_tokens_total", prometheus_replica="b"),
                minute * 100.0 + 50,
                at + 30_000,
            ),
            Point(series("vllm:request_success_total", finished_reason="stop"), float(minute), at),
            Point(series("vllm:request_success_total", finished_reason="abort"), 77.0, at),
            Point(series("vllm:num_requests_running"), 3.0, at),
            Point(series("vllm:prompt_tokens_total", namespace="", pod=""), 9.0, at),
        ]
        assert write(collector, points, version)[:2] == (204, 3)
        assert write(collector, points, version)[:2] == (204, 3)
    assert rows(collector, HOURS) == [
        ("remote_write", "10.0.0.7:8000", "generated_tokens", T, 1_050, 10 * MINUTE + 30_000),
        ("remote_write", "10.0.0.7:8000", "inferences", T, 10, 10 * MINUTE),
    ]
    assert rows(
        collector, "SELECT DISTINCT w.key FROM counter_series JOIN workload w ON w.id = workload_id"
    ) == [("kubernetes::chat/vllm-0",)]


def test_gpu_seconds_by_remote_write_are_milliseconds_of_their_category(collector):
    """Of all ranks; a category that moves no token is passed over."""
    name = "sglang:gpu_execution_seconds_total"
    for minute in range(3):
        points = [
            Point(
                series(name, category=category, tp_rank=rank), 1.2504 * minute, T + minute * MINUTE
            )
            for category in ("forward_decode", "forward_prefill", "forward_idle")
            for rank in ("0", "1")
        ]
        assert write(collector, points)[:2] == (204, 4)
    assert rows(
        collector, "SELECT DISTINCT engine, part FROM counter_series ORDER BY part LIMIT 1"
    ) == [("sglang", "category=forward_decode,model_name=llama,tp_rank=0")]
    by_counter = (
        "SELECT counter, sum(units)::bigint, max(covered_ms) FROM counter_hour JOIN counter_series s"
        " ON s.id = series_id GROUP BY 1 ORDER BY 1"
    )
    assert rows(collector, by_counter) == [
        ("decode_gpu_ms", 5_000, 2 * MINUTE),
        ("prefill_gpu_ms", 5_000, 2 * MINUTE),
    ]


def test_counters_go_to_the_workload_that_an_agent_knows_by_uid(collector):
    """The agent's tags stay as they are, and the counters are its workload's."""
    pod = workload(
        "0b1c-uid", kind="kubernetes", tags={"namespace": "chat", "pod": "vllm-0", "team": "chat"}
    )
    collector.send(
        batch(
            accelerators=1,
            samples=Samples(),
            workloads=[pod],
            usage_intervals=[held(0, T, T + MINUTE)],
        )
    )
    assert write(collector, [Point(series("sglang:num_requests_total"), 5.0, T)])[0] == 204
    found = rows(
        collector,
        "SELECT w.key, w.tags ->> 'team' FROM counter_series JOIN workload w ON w.id = workload_id",
    )
    assert found == [("kubernetes::0b1c-uid", "chat")]


def test_impossible_counters_are_refused_and_stale_ones_pass(collector):
    """Too old and too far ahead is a 400 with the good ones committed; the end of a series is no
    reading.
    """
    name = series("tgi_request_success")
    points = [
        Point(name, 1.0, T),
        Point(name, STALE, T + MINUTE),
        Point(name, 2.0, T - 40 * 86_400_000),
        Point(name, 2.5, T + 2 * MINUTE),
    ]
    status, written, text = write(collector, points)
    assert (status, written) == (400, 2)
    assert "more than 30 days old" in text
    assert rows(collector, "SELECT at_ms, value FROM counter_reading") == [(T, 1)]


def told(collector, run, token=None, **body):
    given = JSON | ({} if token is None else {"Authorization": f"Bearer {token}"})
    status, _, answer = collector.request(
        "POST", f"/v1/runs/{run}/progress", json.dumps(body).encode(), given
    )
    return status, answer


def at(ms):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def test_a_run_tells_its_progress(collector):
    """Totals by key, id or name; doubled and in any order; a restart from a checkpoint counts
    nothing back.
    """
    collector.send(holding())
    for minute, steps in ((0, 100), (10, 150), (5, 120), (10, 150), (20, 110), (30, 130)):
        assert (
            told(collector, "job-1", steps=steps, tokens=steps * 4_096, at=at(T + minute * MINUTE))[
                0
            ]
            == 202
        )
    assert [row[2:] for row in rows(collector, HOURS)] == [
        ("steps", T, 70, 20 * MINUTE),
        ("tokens", T, 70 * 4_096, 20 * MINUTE),
    ]
    assert told(collector, "nobody", steps=1)[0] == 404
    assert told(collector, "job-1")[0] == 400
    assert told(collector, "job-1", steps=1, at="yesterday")[0] == 400
    assert told(collector, "job-1", steps=-1)[0] == 422
    assert told(collector, "job-1", steps=1, dreams=2)[0] == 422


def test_progress_needs_a_token_of_its_node(collector):
    """An agent's token for any node, or for the node on which the run holds something; no reader's."""
    collector.send(holding())
    with psycopg.connect(collector.dsn) as connection:
        secrets = {
            name: create(connection, Token(0, name, role, node, None, "", NOW))[1]
            for name, role, node in (
                ("any", "agent", None),
                ("here", "agent", "node-1"),
                ("there", "agent", "node-2"),
                ("reader", "finance", None),
            )
        }
    time.sleep(1.1)
    outcomes = {
        name: told(collector, "job-1", secret, steps=1)[0] for name, secret in secrets.items()
    }
    assert outcomes == {"any": 202, "here": 202, "there": 404, "reader": 403}
    assert told(collector, "job-1", steps=1)[0] == 401


def test_an_agents_token_cannot_tell_whether_a_run_of_another_node_exists(collector):
    """A run elsewhere, one of a name that nobody has, and several of one name elsewhere: the same
    answer.
    """
    twins = [workload(f"job-{number}", name="twin") for number in (1, 2)]
    collector.send(
        batch(
            accelerators=2,
            samples=Samples(),
            workloads=twins,
            usage_intervals=[held(number, T, T + 10 * MINUTE, number) for number in (0, 1)],
        )
    )
    with psycopg.connect(collector.dsn) as connection:
        secret = create(connection, Token(0, "there", "agent", "node-2", None, "", NOW))[1]
    time.sleep(1.1)
    names = ("job-1", "slurm::job-1", "twin", "nobody")
    answers = {name: told(collector, name, secret, steps=1) for name in names}
    assert {
        (status, str(answer).replace(name, "NAME")) for name, (status, answer) in answers.items()
    } == {(404, str(answers["nobody"][1]).replace("nobody", "NAME"))}
    assert rows(collector, "SELECT count(*) FROM counter_series") == [(0,)]


def test_runs_are_listed_over_http(collector):
    """The same items as the command's JSON; a wrong date is a 400."""
    status, _, answer = collector.request("GET", "/v1/runs?from=2025-10-01&to=2025-10-02")
    assert (status, answer) == (200, {"items": [], "left_out": 0})
    assert collector.request("GET", "/v1/runs?from=yesterday&to=2025-10-02")[0] == 400


def test_the_wire_of_a_body_with_counters_is_small(collector):
    """Ten counters of an endpoint a minute are under a kilobyte on the wire."""
    made = [
        Count(
            0,
            "http://127.0.0.1:8000/metrics",
            "inferences",
            T,
            123_456 + place,
            f"engine=0,finished_reason=r{place},model_name=meta-llama/Llama-3.1-8B-Instruct",
            "vllm",
        )
        for place in range(10)
    ]
    assert len(body_of(holding(counts=made))) - len(body_of(holding())) < 1_000


def test_a_viewer_lists_the_runs_of_its_own_subtree(collector):
    """Another team's run is not there; that of its own comes with the cost of a unit."""
    mine, other = workload("a", tags={"team": "vision"}), workload("b", tags={"team": "nlp"})
    collector.send(
        batch(
            accelerators=2,
            samples=Samples(),
            workloads=[mine, other],
            counts=counts(range(11), "inferences"),
            usage_intervals=[held(0, T, T + 10 * MINUTE, 0), held(1, T, T + 10 * MINUTE, 1)],
        )
    )
    with psycopg.connect(collector.dsn) as connection:
        connection.execute(
            "INSERT INTO price (purchase, rate_per_gpu_hour, currency, effective_from_ms,"
            " recorded_at) VALUES ('on_demand', 6, 'USD', 0, now())"
        )
        secret = create(connection, Token(0, "lead", "viewer", None, {"team": "vision"}, "", NOW))[
            1
        ]
    refresh(Database(collector.dsn), Period(T, NOW), NOW)
    time.sleep(1.1)
    days = f"from={at(T)[:10]}&to={at(NOW + 86_400_000)[:10]}"
    status, _, answer = collector.request(
        "GET", f"/v1/runs?{days}", headers={"Authorization": f"Bearer {secret}"}
    )
    assert (status, [one["id"] for one in answer["items"]]) == (200, ["a"])
    found = answer["items"][0]["unit_cost"]
    assert (found["counter"], found["units"], found["cost"], found["coverage"]) == (
        "inferences",
        1_000,
        "1.000000",
        "1.000000",
    )
