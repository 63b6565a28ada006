"""What POST /v1/queue and reports of progress may take: the limits of batches hold there too."""

import contextlib
import json
import socket
import threading
import time
from collections import Counter

import psycopg
import pytest

from fakes.batches import batch, body_of
from fakes.collector import JSON, MSGPACK, running
from fakes.replicas import until
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.api import queue
from gpuledger_collector.api.auth.keys import NEW_SECONDS
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.intake import DECODERS, Reservation
from gpuledger_collector.ingest import queue_readings
from gpuledger_collector.ingest.batches.commit import Unavailable
from gpuledger_collector.storage.access import tokens

pytestmark = pytest.mark.slow
AT = 1_760_000_000


def bearer(dsn, name, node=None):
    """Headers of JSON with an agent's token of this name, bound to a node where one is given."""
    with psycopg.connect(dsn) as connection:
        secret = tokens.create(
            connection, Token(0, name, "agent", node, None, "", made_ms=round(time.time() * 1000))
        )[1]
    return {**JSON, "Authorization": f"Bearer {secret}"}


def reading(waiting=(), at=AT, source="slurm:east"):
    return json.dumps({"source": source, "at": at, "waiting": list(waiting)}).encode()


def workload(number, **names):
    return {"workload_id": str(number), "gpus": 1, **names}


def post(collector, body, headers=JSON):
    status, told, answer = collector.request("POST", "/v1/queue", body, headers)
    return status, told, answer


@contextlib.contextmanager
def unfinished(port, headers, announced, sent, path="/v1/queue"):
    """A request whose body lacks its end, for as long as the block runs."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {announced}\r\n\r\n".encode()
        )
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused while it is sent
            connection.sendall(b" " * sent)
        yield connection


REMOTE_WRITE = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}


@pytest.mark.parametrize(
    ("path", "node", "kind"),
    [
        ("/v1/queue", "flood", JSON),
        ("/v1/inference", None, JSON),
        ("/v1/batches", "flood", MSGPACK),
        ("/api/v1/write", None, REMOTE_WRITE),
    ],
)
def test_a_node_holds_at_most_half_of_the_bytes_in_progress(dsn, path, node, kind):
    """Bodies that never end take half at most, on every route that reports; a neighbor's batch is
    taken meanwhile.
    """
    with running(dsn, require_tokens=True) as collector, contextlib.ExitStack() as open_requests:
        intake = collector.parts.intake
        intake.max_bytes = 1_000_000
        flood = {**bearer(dsn, "flood", node), **kind}
        neighbor = {**bearer(dsn, "neighbor", "neighbor"), **MSGPACK}
        open_requests.enter_context(unfinished(collector.port, flood, 500_000, 450_000, path))
        until(lambda: intake.in_progress == 450_000)
        for _ in range(4):
            refused = open_requests.enter_context(
                unfinished(collector.port, flood, 500_000, 450_000, path)
            )
            assert refused.recv(100).startswith(b"HTTP/1.1 503")
        assert intake.in_progress == 450_000 <= intake.max_bytes // 2
        assert collector.post(body_of(batch(1, "neighbor")), neighbor)[0] == 200
    assert (intake.in_progress, intake.payers) == (0, {})


def test_a_reservation_has_a_payer(dsn):
    """None can be made without one, and senders of remote write are bounded apart as well."""
    with running(dsn) as collector:
        intake = collector.parts.intake
        intake.max_bytes = 1_000_000
        with pytest.raises(TypeError, match="sender"):
            Reservation(intake)
        one, other = Principal("agent", "prometheus-1"), Principal("agent", "prometheus-2")
        with Reservation(intake, one) as held, Reservation(intake, other) as others:
            with pytest.raises(Unavailable, match="too many bytes of prometheus-1 are in progress"):
                held.add(600_000)
            others.add(300_000)


def test_readings_have_a_quota_before_a_byte_of_the_next(dsn):
    """The bucket holds an hour's; another node is not concerned."""
    with running(dsn, require_tokens=True, node_queue_readings_per_hour=2) as collector:
        collector.parts.intake.quotas.queue_readings.steady = lambda: 0.0
        flood, other = bearer(dsn, "flood", "flood"), bearer(dsn, "other", "other")
        assert [post(collector, reading(at=AT + number), flood)[0] for number in range(3)] == [
            200
        ] * 3
        status, told, answer = post(collector, reading(at=AT + 9), flood)
        assert (status, answer["detail"]) == (429, "flood sends more than 2 queue readings an hour")
        assert int(told["Retry-After"]) >= 1800
        with unfinished(collector.port, flood, 500_000, 0) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 429")
        assert post(collector, reading(), other)[0] == 200


@pytest.mark.parametrize(
    ("settings", "quota", "words"),
    [
        ({"node_samples_per_second": 1}, "samples", "more than 1 samples a second"),
        ({"node_bytes_per_second": 100}, "bytes", "more than 100 bytes a second"),
        (
            {"node_queue_bytes_per_hour": 5000},
            "queue_bytes",
            "more than 5000 bytes of queue readings an hour",
        ),
    ],
)
def test_what_a_reading_holds_is_counted(dsn, settings, quota, words):
    """Rows, bytes and what is stored of them: the reading that exceeds a bucket is the last."""
    with running(dsn, **settings) as collector:
        getattr(collector.parts.intake.quotas, quota).steady = lambda: 0.0
        many = [workload(number, user=f"user-{number}") for number in range(200)]
        assert post(collector, reading(many))[0] == 200
        status, _, answer = post(collector, reading(at=AT + 1))
        assert (status, words in answer["detail"]) == (429, True)


def test_a_token_for_any_node_pays_by_its_name(dsn):
    """One that has used up its quota does not stop another."""
    with running(dsn, require_tokens=True, node_queue_readings_per_hour=1) as collector:
        collector.parts.intake.quotas.queue_readings.steady = lambda: 0.0
        east, west = bearer(dsn, "east"), bearer(dsn, "west")
        assert [post(collector, reading(at=AT + number), east)[0] for number in range(3)] == [
            200,
            200,
            429,
        ]
        assert post(collector, reading(), west)[0] == 200


def test_a_queue_is_as_old_as_evidence_may_be(dsn):
    """400 with the setting and the command for older ones, and nothing is stored."""
    with running(dsn, max_evidence_age_days=37) as collector:
        status, _, answer = post(collector, reading([workload(1)], at=AT))
        assert status == 400
        assert "37 days old (max_evidence_age_days)" in answer["detail"]
        assert "gpuledger import queue" in answer["detail"]
        assert post(collector, reading([workload(1)], at=round(time.time())))[0] == 200
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM queue_reading").fetchone() == (1,)


def test_workloads_are_counted_before_they_are_objects(dsn, monkeypatch):
    """A list that is too long is never decoded, whatever its entries are."""
    with running(dsn) as collector:
        monkeypatch.setattr(
            queue_readings.msgspec.json, "decode", lambda *_, **__: pytest.fail("decoded")
        )
        for entry in (b'{"workload_id":"0","gpus":1}', b"{}", b"[]", b"1"):
            body = (
                b'{"source":"s","at":1760000000,"waiting":['
                + b",".join([entry] * (queue_readings.MAX_WAITING + 1))
                + b"]}"
            )
            status, _, answer = post(collector, body)
            assert status == 413
            assert "131072 are allowed" in answer["detail"]
        body = b'{"source":"s","at":1760000000,"waiting":[' + b"," * 2_000_001 + b"]}"
        assert post(collector, body)[0] == 413


def test_one_reading_of_a_sender_is_in_memory_at_a_time(dsn, monkeypatch):
    """Of three that one sends at once two wait as bytes; another sender's is decoded meanwhile, a
    third one's waits.
    """
    may_go, lock, now, most = threading.Event(), threading.Lock(), Counter(), Counter()
    parse = queue_readings.decode_reading

    def parse_slowly(body, *bounds):
        sender = json.loads(body)["source"]
        with lock:
            now.update([sender, "all"])
            most.update({name: max(0, now[name] - most[name]) for name in (sender, "all")})
        may_go.wait(60)
        with lock:
            now.subtract([sender, "all"])
        return parse(body, *bounds)

    monkeypatch.setattr(queue_readings, "decode_reading", parse_slowly)
    with running(dsn, require_tokens=True) as collector, contextlib.ExitStack() as stack:
        intake, statuses = collector.parts.intake, []

        heads = {sender: bearer(dsn, sender, sender) for sender in ("flood", "other", "third")}
        time.sleep(NEW_SECONDS)  # until then a token that nobody knows yet may be refused

        def send(sender, number):
            statuses.append(
                post(collector, reading(at=AT + number, source=sender), heads[sender])[0]
            )

        def begin(sender, count):
            for number in range(count):
                thread = threading.Thread(target=send, args=(sender, number))
                thread.start()
                stack.callback(thread.join, 120)
            size = len(reading(source=sender))
            until(lambda: sender in intake.payers and intake.payers[sender].bytes >= count * size)

        begin("flood", 3)
        until(lambda: now["all"])
        begin("other", 1)
        begin("third", 1)
        until(lambda: now["all"] >= DECODERS)
        may_go.set()
    assert statuses == [200] * 5
    assert most == {"flood": 1, "other": 1, "third": 1, "all": DECODERS}


def test_what_is_stored_of_a_reading_is_bounded(dsn):
    """A few thousand workloads of an owner each, with names as long as they may be, are too much to
    keep.
    """
    with running(dsn) as collector:
        many = [workload(number, team=f"{number:0500d}", user="u" * 500) for number in range(4200)]
        status, _, answer = post(collector, reading(many))
        assert (status, "over 4194304 bytes" in answer["detail"]) == (413, True)
        assert post(collector, reading(many[:1000]))[0] == 200


def test_readings_that_wait_for_the_database_are_few(dsn, monkeypatch):
    """Whoever sends them: two are being stored at once, others wait, and each is answered when a
    lock lasts.
    """
    monkeypatch.setattr(queue, "SESSION", "-c lock_timeout=2000")
    with (
        running(dsn, require_tokens=True) as collector,
        psycopg.connect(dsn, autocommit=True) as watcher,
    ):
        senders = [bearer(dsn, f"node-{number}", f"node-{number}") for number in range(6)]
        statuses: list[int] = []
        with psycopg.connect(dsn) as blocker:
            blocker.execute("LOCK TABLE queue_reading IN ACCESS EXCLUSIVE MODE")
            threads = [
                threading.Thread(
                    target=lambda head=head: statuses.append(post(collector, reading(), head)[0])
                )
                for head in senders
            ]
            for thread in threads:
                thread.start()
            count = (
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gpuledger-queue'"
            )
            most = 0
            while any(thread.is_alive() for thread in threads):
                most = max(most, watcher.execute(count).fetchone()[0])
        assert most == queue.STORES
        assert statuses == [503] * 6


def test_progress_counts_against_the_samples_of_its_node(dsn):
    """429 with Retry-After; the admission of another node is its own."""
    with running(dsn, require_tokens=True, node_samples_per_second=1) as collector:
        collector.parts.intake.quotas.samples.steady = lambda: 0.0
        flood, other = bearer(dsn, "flood", "flood"), bearer(dsn, "other", "other")
        ask = "POST", "/v1/runs/x/progress", b'{"steps": 1}'
        assert [collector.request(*ask, flood)[0] for _ in range(2)] == [404, 429]
        assert collector.request(*ask, other)[0] == 404
        assert collector.request(*ask, {**JSON, "Authorization": "Bearer x"})[0] == 401
