"""POST /v1/batches: what is committed, what is refused, what is counted once."""

import gzip
import json
import random
import socket
import threading
import uuid

import msgspec
import psycopg
import pytest

from fakes.batches import (
    EPOCH,
    HOUR_MS,
    NOON_MS,
    accelerator,
    as_json,
    batch,
    body_of,
    free,
    held,
    samples,
    workload,
)
from fakes.collector import JSON, MSGPACK, running
from fakes.postgres import fresh_database
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_common.compression import zstd
from gpuledger_common.wire import MAX_BODY_BYTES, MAX_DECODED_BYTES, Column, Samples, encode


@pytest.fixture
def collector(dsn):
    with running(dsn) as started:
        yield started


def rows(dsn: str, query: str) -> list[tuple]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


def test_a_batch_is_committed_before_it_is_answered(collector):
    """After a 200 every record is there: samples, usage intervals, dictionary rows, marks,
    capacity, latest, heartbeat.
    """
    status, answer = collector.send(batch())
    assert (status, answer) == (200, {"status": "committed"})
    assert rows(collector.dsn, "SELECT samples, usage_intervals, rejected FROM ingest_batch") == [
        (12, 2, None)
    ]
    assert rows(collector.dsn, "SELECT count(*), min(at_ms), max(at_ms) FROM gpu_sample") == [
        (12, NOON_MS, NOON_MS + 50_000)
    ]
    assert rows(
        collector.dsn,
        "SELECT a.uuid, w.key, w.tags ->> 'team', s.held_ms, s.busy_ms, n.name, s.record FROM"
        " usage_interval s JOIN accelerator a ON a.id = s.accelerator_id JOIN workload w ON w.id ="
        " s.workload_id JOIN node n ON n.id = s.node_id ORDER BY s.record",
    ) == [
        ("GPU-node-1-0", "slurm::job-1", "vision", 60_000, 60_000, "node-1", 0),
        ("GPU-node-1-1", "slurm::job-1", "vision", 60_000, 60_000, "node-1", 1),
    ]
    assert rows(collector.dsn, "SELECT DISTINCT hour_ms FROM hour_recompute") == [(NOON_MS,)]
    assert (
        rows(collector.dsn, "SELECT pool, in_ms, out_ms, source FROM capacity")
        == [("default", NOON_MS, None, "agent")] * 2
    )
    assert rows(
        collector.dsn, "SELECT at_ms, state, gpu_utilization_ratio FROM gpu_latest ORDER BY 3"
    ) == [
        (NOON_MS + 50_000, "held", pytest.approx(10 / 12)),
        (NOON_MS + 50_000, "held", pytest.approx(11 / 12)),
    ]
    assert rows(
        collector.dsn, "SELECT status, agent_version, heartbeat ->> 'produced' FROM node"
    ) == [("ok", "0.1.0", "1")]


def test_the_same_batch_again_changes_nothing(collector):
    """A duplicate is answered 200 and says so; nothing is counted twice."""
    sent = batch()
    collector.send(sent)
    for _ in range(3):
        assert collector.send(sent) == (200, {"status": "duplicate"})
    assert rows(
        collector.dsn,
        "SELECT (SELECT count(*) FROM usage_interval), (SELECT count(*) FROM gpu_sample)",
    ) == [(2, 12)]
    assert rows(collector.dsn, "SELECT count(*) FROM ingest_conflict") == [(0,)]


def everything(dsn):
    """The rows of every table, counted."""
    tables = rows(
        dsn,
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind"
        " = 'r'",
    )
    # What is left of a quota is written now and then, for every request alike, and expires.
    return {
        name: rows(dsn, f'SELECT count(*) FROM "{name}"')
        for (name,) in tables
        if name != "quota_use"
    }


@pytest.mark.parametrize("times", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_many_replays_of_many_batches_add_nothing(collector, times):
    """Threat: replay.

    Batches of two nodes in any order, again and again: no table has a row more.
    """
    chance = random.Random(times)
    bodies = [
        body_of(batch(seq, f"node-{seq % 2}", start_ms=NOON_MS + seq * 60_000))
        for seq in range(1, 11)
    ]
    for body in bodies:
        assert collector.post(body)[0] == 200
    before = everything(collector.dsn)
    for _ in range(times):
        assert collector.post(chance.choice(bodies)) == (200, {"status": "duplicate"})
    assert everything(collector.dsn) == before


def test_other_bytes_under_a_known_key_are_refused_and_recorded(collector):
    """409, a row in ingest_conflict, and the first batch stays what it was."""
    collector.send(batch())
    status, answer = collector.send(batch(start_ms=NOON_MS + HOUR_MS))
    assert status == 409
    assert answer["status"] == "refused"
    assert rows(collector.dsn, "SELECT node_name, epoch, seq FROM ingest_conflict") == [
        ("node-1", uuid.UUID(EPOCH), 1)
    ]
    assert rows(collector.dsn, "SELECT DISTINCT start_ms FROM usage_interval") == [(NOON_MS,)]


def test_recompression_does_not_make_other_bytes(collector):
    """The hash is that of the batch, not of its transport: gzip, zstd and plain are the same batch."""
    plain = encode(batch())
    assert collector.post(zstd.compress(plain, 1))[1]["status"] == "committed"
    assert collector.post(zstd.compress(plain, 9))[1]["status"] == "duplicate"
    assert (
        collector.post(gzip.compress(plain), {**MSGPACK, "Content-Encoding": "gzip"})[1]["status"]
        == "duplicate"
    )
    assert (
        collector.post(plain, {"Content-Type": "application/msgpack"})[1]["status"] == "duplicate"
    )


def test_json_is_the_same_envelope(collector):
    """What curl sends by hand, lists with nulls for columns, becomes the same rows."""
    column = Column("f8", [0.5, None])
    made = batch(
        accelerators=1,
        usage_intervals=[held(0, NOON_MS, NOON_MS + 1000)],
        samples=Samples([0, 0], [NOON_MS, NOON_MS + 500], {"gpu_power_watts": column}),
    )
    assert collector.post(as_json(made), JSON) == (200, {"status": "committed"})
    assert rows(collector.dsn, "SELECT at_ms, gpu_power_watts FROM gpu_sample ORDER BY at_ms") == [
        (NOON_MS, 0.5),
        (NOON_MS + 500, None),
    ]


def test_good_records_are_kept_and_bad_ones_named(collector):
    """422 lists each refused record with its reason; the rest is committed; the same batch gets the
    same answer.
    """
    minute = NOON_MS + 60_000
    made = batch(
        accelerators=3,
        usage_intervals=[
            held(0, NOON_MS, minute),
            held(9, NOON_MS, minute),
            held(1, minute, NOON_MS),
            held(1, NOON_MS, minute, workload=7),
            held(1, NOON_MS, minute, busy_ms=5),
            held(2, NOON_MS, minute, held_ms=30_000, busy_ms=30_000),
            free(2, NOON_MS, minute),
        ],
        samples=samples(4, [NOON_MS], gpu_utilization_ratio=[0.1, 0.2, 0.3, 0.4]),
    )
    status, answer = collector.send(made)
    assert (status, answer["status"]) == (422, "partial")
    refused = {refusal["record"]: refusal["reason"] for refusal in answer["rejected"]}
    assert set(refused) == {
        *[f"usage_intervals[{place}]" for place in (1, 2, 3, 4, 5)],
        "samples[3]",
    }
    assert "accelerators[9]" in refused["usage_intervals[1]"]
    assert "30000 of 60000" in refused["usage_intervals[5]"]
    assert collector.send(made) == (422, answer)
    assert rows(collector.dsn, "SELECT record, state FROM usage_interval ORDER BY 1") == [
        (0, "held"),
        (1, "present"),  # of the second accelerator only samples are left
        (6, "unallocated"),
    ]
    assert rows(collector.dsn, "SELECT count(*) FROM gpu_sample") == [(3,)]


def test_a_record_of_the_wrong_type_does_not_take_the_batch_along(collector):
    """A text where a number belongs is refused alone, in JSON and in msgpack."""
    for seq, (pack, headers) in enumerate(
        [(msgspec.json.encode, JSON), (msgspec.msgpack.encode, MSGPACK)]
    ):
        made = msgspec.to_builtins(
            batch(seq=seq, start_ms=NOON_MS + seq * HOUR_MS), builtin_types=(bytes,)
        )
        made["usage_intervals"][1]["start_ms"] = "noon"
        made["accelerators"].append({"uuid": 5})
        made["samples"] = {
            "accelerator": [0],
            "at_ms": [NOON_MS],
            "columns": {
                "gpu_power_watts": {"kind": "f4", "values": [1.0]},
                "gpu_utilization_ratio": {"kind": "f4", "values": {"a": 1}},
                "gpu_unheard_of": {"kind": "f4", "values": [1.0]},
                "gpu_temperature_celsius": {"kind": "f4", "values": [1.0, 2.0]},
            },
        }
        body = pack(made)
        status, answer = collector.post(
            zstd.compress(body) if "zstd" in headers.values() else body, headers
        )
        assert status == 422
        assert {refusal["record"] for refusal in answer["rejected"]} == {
            "usage_intervals[1]",
            "accelerators[2]",
            "samples.columns[gpu_utilization_ratio]",
            "samples.columns['gpu_unheard_of']",
            "samples.columns['gpu_temperature_celsius']",
        }
    assert rows(collector.dsn, "SELECT count(*) FROM usage_interval") == [(2,)]
    assert rows(collector.dsn, "SELECT DISTINCT gpu_power_watts FROM gpu_sample") == [(1.0,)]


def test_holders_that_share_an_accelerator_share_its_time(collector):
    """Parts that add up to the span are kept; parts that do not are refused together."""
    minute = NOON_MS + 60_000
    made = batch(
        accelerators=1,
        workloads=[workload("a"), workload("b")],
        usage_intervals=[
            held(0, NOON_MS, minute, 0, held_ms=20_000, busy_ms=20_000),
            held(0, NOON_MS, minute, 1, held_ms=40_000, busy_ms=0, idle_ms=40_000),
            held(0, minute, minute + 100, 0, held_ms=50, busy_ms=50),
            held(0, minute, minute + 100, 1, held_ms=49, busy_ms=49),
        ],
    )
    status, answer = collector.send(made)
    assert status == 422
    assert [refusal["record"] for refusal in answer["rejected"]] == [
        "usage_intervals[2]",
        "usage_intervals[3]",
    ]
    assert rows(collector.dsn, "SELECT sum(held_ms) FROM usage_interval") == [(60_000,)]


def test_a_node_without_a_gpu_is_kept_by_its_heartbeat(collector):
    """No accelerator, no usage interval, no sample: the node is known all the same."""
    assert (
        collector.send(batch(accelerators=0, workloads=[], usage_intervals=[], samples=Samples()))[
            0
        ]
        == 200
    )
    assert rows(collector.dsn, "SELECT name FROM node") == [("node-1",)]


def test_the_heartbeat_of_an_older_batch_does_not_overwrite_a_newer_one(collector):
    """Backlog that drains late says nothing about now."""
    newest = batch(seq=9)
    older = batch(seq=3, heartbeat=msgspec.structs.replace(newest.heartbeat, status="no_driver"))
    collector.send(newest)
    collector.send(older)
    assert rows(collector.dsn, "SELECT status, heartbeat ->> 'seq' FROM node") == [("ok", "9")]


def test_the_clock_skew_of_a_node_is_kept(collector):
    """X-GPULedger-Sent-At is compared with our clock."""
    status, _ = collector.post(
        body_of(batch()), {**MSGPACK, "X-GPULedger-Sent-At": "1790856000000"}
    )
    assert status == 200
    assert rows(collector.dsn, "SELECT (heartbeat ->> 'clock_skew_ms')::bigint <> 0 FROM node") == [
        (True,)
    ]


def test_late_evidence_moves_capacity_back_and_another_node_ends_it(collector):
    """An accelerator is there from its first evidence on, wherever it stands and in whatever order
    batches come.
    """
    gpu = [accelerator(0, pool="train")]
    later = NOON_MS + HOUR_MS
    collector.send(
        batch(1, usage_intervals=[free(0, later, later + 10)], samples=Samples(), accelerators=1)
    )
    before = batch(
        2, usage_intervals=[free(0, NOON_MS, NOON_MS + 10)], samples=Samples(), accelerators=1
    )
    collector.send(before)
    assert rows(collector.dsn, "SELECT pool, in_ms, out_ms FROM capacity") == [
        ("default", NOON_MS, None)
    ]
    moved = msgspec.structs.replace(
        batch(
            3,
            node="node-2",
            usage_intervals=[free(0, NOON_MS + 5 * HOUR_MS, NOON_MS + 5 * HOUR_MS + 10)],
        ),
        accelerators=gpu,
        samples=Samples(),
    )
    collector.send(moved)
    assert rows(
        collector.dsn,
        "SELECT n.name, c.pool, in_ms, out_ms FROM capacity c JOIN node n ON n.id = node_id ORDER"
        " BY in_ms",
    ) == [
        ("node-1", "default", NOON_MS, NOON_MS + 5 * HOUR_MS),
        ("node-2", "train", NOON_MS + 5 * HOUR_MS, None),
    ]


def test_a_uuid_on_two_nodes_at_once_stays_where_it_was(collector):
    """A copied UUID is counted as a contest; the inventory does not flap."""
    for seq in range(1, 4):
        start = NOON_MS + seq * 60_000
        collector.send(batch(seq, accelerators=1, start_ms=start, samples=Samples()))
        copied = batch(seq, node="node-2", accelerators=1, start_ms=start, samples=Samples())
        collector.send(msgspec.structs.replace(copied, accelerators=[accelerator(0, "node-1")]))
    assert rows(collector.dsn, "SELECT count(*) FROM capacity") == [(1,)]
    assert (
        "gpuledger_ingest_contested_accelerators_total 3.0"
        in collector.request("GET", "/metrics")[2]
    )


def test_slow_metrics_are_written_when_they_change(collector):
    """gpu_state has a row for each change, not for each sample; late and repeated readings do not
    add rows.
    """
    values = [350.0, 350.0, None, 400.0, 400.0, 400.0]
    column = {"gpu_power_limit_watts": values}
    instants = [NOON_MS + 10_000 * step for step in range(6)]
    made = batch(1, accelerators=1, samples=samples(1, instants, **column))
    collector.send(made)
    expected = [(NOON_MS, 350.0), (NOON_MS + 30_000, 400.0)]
    query = (
        "SELECT at_ms, value FROM gpu_state WHERE metric = 'gpu_power_limit_watts' ORDER BY at_ms"
    )
    assert rows(collector.dsn, query) == expected
    collector.send(
        batch(
            2, accelerators=1, samples=samples(1, [NOON_MS + 60_000], gpu_power_limit_watts=[400.0])
        )
    )
    assert rows(collector.dsn, query) == expected


def test_the_latest_sample_is_never_replaced_by_an_older_one(collector):
    """Batches arrive in any order; pages about now show the newest."""
    late = NOON_MS + HOUR_MS
    collector.send(batch(2, accelerators=1, start_ms=late))
    collector.send(
        batch(
            1,
            accelerators=1,
            start_ms=NOON_MS,
            usage_intervals=[free(0, NOON_MS, NOON_MS + 60_000)],
        )
    )
    assert rows(collector.dsn, "SELECT at_ms, state FROM gpu_latest") == [(late + 50_000, "held")]


def test_numbers_that_are_none_are_absent(collector):
    """NaN and infinities become NULL, never 0; an absent integer too."""
    made = batch(
        accelerators=1,
        samples=Samples(
            [0, 0, 0],
            [NOON_MS, NOON_MS + 1, NOON_MS + 2],
            {
                "gpu_power_watts": Column(
                    "f4", b"\x00\x00\x80\x7f" + b"\x00\x00\xc0\x7f" + b"\x00\x00\x80\x3f"
                ),
                "gpu_clocks_event_reasons_bitmask": Column("i8", [None, 7, 0]),
            },
        ),
    )
    assert collector.send(made)[0] == 200
    assert rows(
        collector.dsn,
        "SELECT gpu_power_watts, gpu_clocks_event_reasons_bitmask FROM gpu_sample ORDER BY at_ms",
    ) == [(None, None), (None, 7), (1.0, 0)]


def test_many_at_once_are_committed_together_and_each_once(collector):
    """Concurrent senders, each sending every batch twice: every batch counts once."""

    def send(node: str) -> None:
        for seq in range(1, 6):
            for _ in range(2):
                assert collector.send(batch(seq, node=node, accelerators=1))[0] == 200

    threads = [threading.Thread(target=send, args=(f"node-{number}",)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(
        collector.dsn,
        "SELECT (SELECT count(*) FROM ingest_batch), (SELECT count(*) FROM usage_interval)",
    ) == [(60, 60)]


def test_a_body_that_never_ends_is_expired(dsn):
    """A sender that stalls is answered 408 and its place is free again."""
    with running(dsn) as collector:
        collector.parts.intake.body_seconds = 0.2
        with socket.create_connection(("127.0.0.1", collector.port)) as slow:
            head = "POST /v1/batches HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            slow.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_a_body_without_a_length_is_bounded_too(collector):
    """Chunked transfer beyond the bound ends with 413, not with memory."""

    def chunks():
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b"x" * 2**20

    status, _, answer = collector.request("POST", "/v1/batches", chunks(), MSGPACK)
    assert status == 413
    assert answer["status"] == "refused"


MALFORMED = {
    "empty": (b"", MSGPACK, 400),
    "not zstd": (b"hello", MSGPACK, 400),
    "half a frame": (zstd.compress(b"x" * 10_000)[:-4], MSGPACK, 400),
    "two frames": (zstd.compress(b"x") * 2, MSGPACK, 400),
    "zstd of nothing": (zstd.compress(b""), MSGPACK, 400),
    "not gzip": (b"hello", {**MSGPACK, "Content-Encoding": "gzip"}, 400),
    "not msgpack": (zstd.compress(b"\xc1\xc1"), MSGPACK, 400),
    "not an object": (zstd.compress(msgspec.msgpack.encode([1, 2])), MSGPACK, 400),
    "not JSON": (b"{", JSON, 400),
    "JSON of bad UTF-8": (b'{"node": "\xff"}', JSON, 400),
    "a lone surrogate": (as_json(batch()).replace(b'"ada"', b'"\\ud800"'), JSON, 400),
    "deep JSON": (b"[" * 100_000, JSON, 400),
    "JSON without a key": (b'{"version": 1}', JSON, 400),
    "zstd bomb": (zstd.compress(b"\0" * (MAX_DECODED_BYTES + 1)), MSGPACK, 413),
    "gzip bomb": (
        gzip.compress(b"\0" * (MAX_DECODED_BYTES + 1), 1),
        {**MSGPACK, "Content-Encoding": "gzip"},
        413,
    ),
    "announced too large": (b"x" * (MAX_BODY_BYTES + 1), MSGPACK, 413),
    "no content type": (b"{}", {}, 415),
    "another content type": (b"{}", {"Content-Type": "text/plain"}, 415),
    "another encoding": (b"{}", {**JSON, "Content-Encoding": "br"}, 415),
    "sent at noon": (as_json(batch()), {**JSON, "X-GPULedger-Sent-At": "noon"}, 400),
    "another version": (as_json(batch(version=2)), JSON, 400),
    "no node": (as_json(batch(node="")), JSON, 400),
    "node with a newline": (as_json(batch(node="a\nb")), JSON, 400),
    "epoch is no UUID": (as_json(batch(epoch="one")), JSON, 400),
    "negative seq": (as_json(batch(seq=-1)), JSON, 400),
    "giant seq": (as_json(batch(seq=1)).replace(b'"seq":1', b'"seq":' + b"9" * 40), JSON, 400),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bodies_get_a_sentence(malformed_collector, name):
    """What cannot be a batch is a 4xx that says why, and leaves nothing behind."""
    body, headers, expected = MALFORMED[name]
    status, answer = malformed_collector.post(body, headers)
    assert status == expected
    assert answer["status"] == "refused"
    assert answer["detail"]


@pytest.fixture(scope="module")
def malformed_collector(postgres):
    with fresh_database(postgres) as made, running(made) as started:
        yield started


TWISTED = {
    "NUL in a uuid": ("accelerators", 0, {"uuid": "a\0b"}),
    "empty uuid": ("accelerators", 0, {"uuid": ""}),
    "repeated uuid": ("accelerators", 1, {"uuid": "GPU-node-1-0"}),
    "share over one": ("accelerators", 0, {"gpu_micro": 2_000_000}),
    "giant index": ("accelerators", 0, {"index": 2**40}),
    "giant memory": ("accelerators", 0, {"memory_bytes": 2**80}),
    "NUL in a tag": ("workloads", 0, {"tags": {"team": "a\0"}}),
    "no kind": ("workloads", 0, {"kind": ""}),
    "giant tag": ("workloads", 0, {"tags": {"team": "x" * 5000}}),
    "ancient start": ("usage_intervals", 0, {"start_ms": -(2**70)}),
    "start in a year": ("usage_intervals", 0, {"start_ms": 10**15, "end_ms": 10**15 + 60_000}),
    "two days": ("usage_intervals", 0, {"end_ms": NOON_MS + 48 * HOUR_MS}),
    "negative energy": ("usage_intervals", 0, {"energy_mj": -1}),
    "giant energy": ("usage_intervals", 0, {"energy_mj": 2**90}),
    "negative idle": ("usage_intervals", 0, {"idle_ms": -1, "busy_ms": 60_001}),
    "held by nobody": ("usage_intervals", 0, {"workload": None}),
    "free and held": ("usage_intervals", 0, {"state": "unallocated"}),
    "unknown state": ("usage_intervals", 0, {"state": "sleeping"}),
    "negative accelerator": ("usage_intervals", 0, {"accelerator": -1}),
    "no object": ("usage_intervals", 0, 5),
}


@pytest.mark.parametrize("name", TWISTED)
def test_twisted_records_are_refused_alone(collector_of_many, name):
    """Each bad record is named in a 422, its good neighbors are committed, and never is there a
    5xx.
    """
    kind, place, change = TWISTED[name]
    made = msgspec.to_builtins(batch(node=f"node-{list(TWISTED).index(name)}", samples=Samples()))
    for number, one in enumerate(made["accelerators"]):
        one["uuid"] = f"GPU-node-1-{number}" if kind == "accelerators" else f"GPU-{name}-{number}"
    made[kind][place] = {**made[kind][place], **change} if isinstance(change, dict) else change
    status, answer = collector_of_many.post(json.dumps(made).encode(), JSON)
    assert (status, answer["status"]) == (422, "partial")
    assert any(refusal["record"].startswith(f"{kind}[") for refusal in answer["rejected"])
    assert all(refusal["reason"] for refusal in answer["rejected"])


@pytest.fixture(scope="module")
def collector_of_many(postgres):
    with fresh_database(postgres) as made, running(made) as started:
        yield started


def test_days_without_end_are_not_made(collector):
    """One batch cannot make more than 40 days of partitions; the days beyond are refused by record."""
    day = 24 * HOUR_MS
    first = NOON_MS - 60 * day
    made = batch(
        accelerators=1,
        usage_intervals=[
            free(0, first + number * day, first + number * day + 10) for number in range(45)
        ],
        samples=Samples([0] * 50, [first + number * day for number in range(50)], {}),
    )
    status, answer = collector.send(made)
    assert status == 422
    assert len(answer["rejected"]) == 5 + 10
    assert rows(collector.dsn, "SELECT count(*) FROM usage_interval") == [(40,)]
    made_of = (
        "SELECT count(*) FROM pg_inherits WHERE inhparent IN ('usage_interval'::regclass,"
        " 'gpu_sample'::regclass)"
    )
    assert rows(collector.dsn, made_of)[0][0] <= 80  # and fewer where a whole month is old


def test_tokens_are_asked_for_when_they_are_set(dsn, tmp_path):
    """Without a token, or with a wrong one, a batch is 401 and not committed."""
    (tmp_path / "tokens").write_text("first-token\nsecond-token\n")
    with running(dsn, agent_token_file=tmp_path / "tokens") as collector:
        for header in (
            {},
            {"Authorization": "Bearer guess"},
            {"Authorization": "Basic second-token"},
        ):
            status, headers, answer = collector.request(
                "POST", "/v1/batches", body_of(batch()), {**MSGPACK, **header}
            )
            assert status == 401
            assert headers["WWW-Authenticate"] == "Bearer"
            assert answer["status"] == "refused"
        good = {**MSGPACK, "Authorization": "Bearer second-token"}
        assert collector.post(body_of(batch()), good)[0] == 200


def test_without_a_database_the_agent_is_asked_to_come_back(dsn):
    """503 with Retry-After, never a 2xx and never a 500; health says alive, readiness says why not."""
    with running("host=127.0.0.1 port=1 user=x dbname=x") as collector:
        status, headers, answer = collector.request(
            "POST", "/v1/batches", body_of(batch()), MSGPACK
        )
        assert status == 503
        assert int(headers["Retry-After"]) > 0
        assert "database" in answer["detail"]
        assert collector.request("GET", "/healthz")[0] == 200
        status, _, answer = collector.request("GET", "/readyz")
        assert status == 503
        assert "cannot be reached" in answer["reason"]


def test_a_full_queue_turns_batches_away(dsn):
    """More bytes than may wait is a 503 at once."""
    with running(dsn, queue_bytes=100) as collector:
        status, headers, _ = collector.request("POST", "/v1/batches", body_of(batch()), MSGPACK)
        assert status == 503
        assert "Retry-After" in headers


def test_a_lost_connection_is_made_anew(collector):
    """When the server drops our connection the agent is told to come back, and the next try is
    committed.
    """
    collector.send(batch(1))
    with psycopg.connect(collector.dsn, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ="
            " 'gpuledger-ingest'"
        )
    statuses = [collector.send(batch(2, start_ms=NOON_MS + HOUR_MS))[0] for _ in range(3)]
    assert set(statuses) <= {200, 503}
    assert statuses[-1] == 200
    assert rows(collector.dsn, "SELECT count(*) FROM ingest_batch") == [(2,)]


def test_what_was_remembered_of_a_replaced_database_is_forgotten(collector):
    """Ids that the database no longer knows, and days that were dropped, are learnt again."""
    collector.send(batch(1))
    with psycopg.connect(collector.dsn) as connection:
        connection.execute(
            "TRUNCATE node, accelerator, workload, capacity, ingest_batch, gpu_latest CASCADE"
        )
        for table in partitions.PARTITIONED:
            name = partitions.holding(connection, table, partitions.day_of(NOON_MS)).name
            connection.execute(f"DROP TABLE {name}")
    assert collector.send(batch(2))[0] == 200
    assert rows(
        collector.dsn, "SELECT count(*) FROM usage_interval JOIN node ON node.id = node_id"
    ) == [(2,)]


def test_metrics_and_documentation_are_served(collector):
    """/metrics tells what happened, /openapi.json describes the JSON form, /readyz is ready."""
    collector.send(batch())
    text = collector.request("GET", "/metrics")[2]
    assert 'gpuledger_ingest_batches_total{status="committed"} 1.0' in text
    assert "gpuledger_ingest_samples_total 12.0" in text
    assert collector.request("GET", "/readyz")[0] == 200
    schema = collector.request("GET", "/openapi.json")[2]
    assert {"Batch", "WireUsageInterval", "Answer"} <= set(schema["components"]["schemas"])
    body = schema["paths"]["/v1/batches"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"]["$ref"].endswith("/Batch")


def test_a_usage_interval_names_its_workload_by_scope(collector):
    """Ids of processes are unique on one node only, those of a scheduler everywhere."""
    made = [workload("42", kind="process"), workload("42", kind="slurm")]
    usage_intervals = [held(0, NOON_MS, NOON_MS + 10), held(1, NOON_MS, NOON_MS + 10, 1)]
    for node in ("node-1", "node-2"):
        collector.send(batch(node=node, workloads=made, usage_intervals=usage_intervals))
    assert rows(collector.dsn, "SELECT key FROM workload ORDER BY 1") == [
        ("process:node-1:42",),
        ("process:node-2:42",),
        ("slurm::42",),
    ]
