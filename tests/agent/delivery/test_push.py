"""Push: every answer has its reaction, and a batch leaves the spool only when it may."""

import email.utils
import http.server
import json
import ssl
import subprocess
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.sink import sink
from gpuledger_agent.push import Http, Pusher, Reply, backoff, reaction, retry_after, split_batch
from gpuledger_agent.spool import Spool
from gpuledger_common import wire
from gpuledger_common.batches import BatchMaker, pack, unpack
from gpuledger_common.meter import MeteredInterval
from gpuledger_common.readings import Accelerator, Holder, Sample, Workload
from gpuledger_common.settings import SettingsError

NOW = 1_790_812_800_000
GPU = Accelerator("GPU-a", "GPU-a", 0, "NVIDIA L4")
COMMITTED = Reply(200, {}, b'{"status":"committed"}')
REFUSED = b'{"status":"refused","detail":"not msgpack"}'
JOBS = tuple(Holder(Workload(str(number), "slurm")) for number in range(3))


def make(spans=4):
    """Batches of some spans, each shared by three workloads, and as many samples."""

    def batch(epoch, seq):
        maker = BatchMaker([GPU], "p", {})
        many = [
            MeteredInterval("GPU-a", "held", JOBS, NOW + 9 * at, NOW + 9 * at + 9, 9, 0, 0, 30)
            for at in range(spans)
        ]
        rows = [
            (
                NOW + at,
                Sample(
                    "GPU-a", 0, {"gpu_power_watts": float(at), "gpu_energy_joules_total": 0.1 * at}
                ),
            )
            for at in range(spans)
        ]
        beat = wire.Heartbeat("0", "simulated", "ok")
        return pack(
            maker.batch("n1", epoch, seq, beat, maker.usage_intervals(many), maker.samples(rows))
        )

    return batch


@pytest.fixture
def spool(tmp_path):
    made = Spool(tmp_path, 64 * 1024 * 1024, NOW, free_floor=0)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("status", "step"),
    [
        (401, "probe"),
        (403, "probe"),
        (413, "split"),
        (409, "dead_letter"),
        (400, "undecodable"),
        (415, "undecodable"),
        (408, "retry"),
        (425, "retry"),
        (429, "retry"),
        (500, "retry"),
        (502, "retry"),
        (503, "retry"),
        (None, "retry"),
    ],
)
def test_every_answer_has_its_reaction(status, step):
    """What can pass is retried, what cannot is buried, what is too large is split."""
    assert reaction(Reply(status, {}, REFUSED), 0).step == step


@pytest.mark.parametrize(
    ("status", "body", "step"),
    [
        (200, b'{"status":"committed"}', "ack"),
        (200, b'{"status":"duplicate"}', "ack"),
        (422, b'{"status":"partial","rejected":[]}', "ack"),
        (200, b"<html>Welcome</html>", "retry"),
        (200, b"", "retry"),
        (200, b'{"status":"com', "retry"),
        (422, b'{"detail":[]}', "retry"),
        (200, b'{"status":"refused"}', "retry"),
        (200, b'{"status":"committed","detail":"\xff"}', "retry"),
        (204, b"", "retry"),
        pytest.param(200, b'{"a":' * 100_000, "retry", id="200-brackets-retry"),
        (409, b"", "retry"),
        (400, b"<html>Bad Request</html>", "retry"),
        (400, b'{"status":"committed"}', "retry"),
    ],
)
def test_only_a_collectors_whole_answer_ends_a_batch(status, body, step):
    """A captive portal's 200, an empty or a torn answer has committed nothing: the batch stays."""
    assert reaction(Reply(status, {}, body), 0).step == step


@pytest.mark.parametrize("status", [301, 302, 307, 400, 404, 405, 409, 410, 413, 415, 421, 451])
def test_a_proxy_that_is_set_up_wrongly_buries_nothing(spool, status):
    """Its pages are not a collector's answers: hours of them cost nothing, and when it is mended
    all arrives.
    """
    for _ in range(3):
        spool.add(make(1), NOW)
    page = Reply(status, {"location": "https://elsewhere"}, b"<html>no such page</html>")
    replies = [page] * 40
    pusher = Pusher(
        spool, lambda *_: replies.pop() if replies else COMMITTED, lambda: NOW, lambda: 1.0
    )
    waits = [pusher.step() for _ in range(40)]
    assert waits[-1] == 60
    assert (status == 413 and pusher.problem == "batch too large") or str(status) in pusher.problem
    assert (spool.counts().dead, spool.dead_letters()) == (0, [])
    while pusher.step() is not None:
        pass
    counts = spool.counts()
    assert (counts.pending, counts.dead, counts.is_conserved) == (0, 0, True)
    assert counts.acked == (6 if status == 413 else 3)


def test_waiting_follows_the_server_or_full_jitter():
    """Retry-After in both forms, capped at 15 minutes; else a random part of a growing ceiling, at
    most a minute.
    """
    assert retry_after("7", 0) == 7
    assert retry_after("86400", 0) == 900
    assert retry_after(email.utils.formatdate(1_000_030, usegmt=True), 1_000_000) == 30
    assert retry_after(email.utils.formatdate(900_000, usegmt=True), 1_000_000) == 0
    assert retry_after("soon", 0) is None
    assert [backoff(attempt, 1.0) for attempt in (0, 1, 5, 6, 99)] == [1, 2, 32, 60, 60]
    assert backoff(5, 0.0) == 0
    assert reaction(Reply(503, {"retry-after": "3"}), 0).wait_s == 3
    assert reaction(Reply(503), 0).wait_s is None


@given(
    st.text()
    | st.integers(0, 10**30).map(str)
    | st.datetimes().map(lambda at: f"{at:%a, %d %b %Y %H:%M:%S} -0000")
)
def test_any_retry_after_gives_a_wait_that_ends(text):
    """Whatever a proxy writes there: at most 15 minutes, or nothing usable; never an error that
    stops delivery.
    """
    wait_s = retry_after(text, 1_790_812_800.0)
    assert wait_s is None or 0 <= wait_s <= 900


def test_what_is_acknowledged_is_what_was_spooled(spool):
    """Everything arrives once, byte for byte, newest and oldest in turn, with the time of sending."""
    for _ in range(5):
        spool.add(make(), NOW)
    with sink() as target:
        pusher = Pusher(spool, Http(target.url).post, lambda: NOW)
        while pusher.step() is not None:
            pass
        assert [batch.seq for batch in target.batches] == [1, 5, 2, 4, 3]
        assert target.headers[0]["X-GPULedger-Sent-At"] == str(NOW)
    assert (spool.counts().acked, spool.counts().pending) == (5, 0)


def test_a_reply_that_is_cut_off_leads_to_the_same_bytes_again(spool):
    """The collector committed but its answer was lost: the batch is sent again unchanged, and acked
    once.
    """
    spool.add(make(), NOW)
    replies = [None, (200, {}, b'{"status":"duplicate"}')]
    with sink() as target:
        target.answers = lambda _: replies.pop(0)
        pusher = Pusher(spool, Http(target.url).post, lambda: NOW, lambda: 0.0)
        assert pusher.step() == 0.0
        assert spool.counts().pending == 1
        pusher.step()
        assert len(target.batches) == 2
        assert len(target.committed()) == 1
    assert (spool.counts().acked, spool.counts().is_conserved) == (1, True)


def test_nobody_listening_keeps_everything(spool):
    """A refused connection loses nothing and says what it was."""
    spool.add(make(), NOW)
    pusher = Pusher(spool, Http("http://127.0.0.1:1").post, lambda: NOW, lambda: 0.5)
    assert pusher.step() == 1.0
    assert pusher.step() == 2.0
    assert "ConnectionRefusedError" in pusher.problem
    assert spool.counts().pending == 1


def test_a_token_file_that_holds_more_is_said_without_its_content(spool, tmp_path):
    """http.client quotes a header that it refuses; a token must not come into a log that way."""
    spool.add(make(), NOW)
    place = tmp_path / "token"
    place.write_text("geheim\ngeheim too\n")
    pusher = Pusher(spool, Http("http://127.0.0.1:1", place).post, lambda: NOW, lambda: 0.5)
    pusher.step()
    assert "holds more than a token" in pusher.problem
    assert "geheim" not in pusher.problem
    assert spool.counts().pending == 1


def test_an_empty_token_file_is_said(spool, tmp_path):
    """Nothing is sent without a token that should be there."""
    spool.add(make(), NOW)
    place = tmp_path / "token"
    place.write_text("\n")
    pusher = Pusher(spool, Http("http://127.0.0.1:1", place).post, lambda: NOW, lambda: 0.5)
    pusher.step()
    assert pusher.problem == f"token_file: {place} is empty; write this node's token into it"
    assert spool.counts().pending == 1


def test_a_private_authority_needs_ca_file_and_the_error_says_so(tmp_path):
    """Without ca_file it is named; with one of another authority that one is named; with the right
    one it passes.
    """
    certificate, other = (own_certificate(tmp_path, name) for name in ("collector", "other"))
    with tls_server(certificate) as port:
        for ca_file, words in (
            (None, "set ca_file to the PEM certificate of your private authority"),
            (other[0], f"ca_file {other[0]} is not of the authority that signed it"),
        ):
            reply = Http(f"https://localhost:{port}", ca_file=ca_file).post(b"", NOW)
            assert reply.status is None
            assert reply.error.startswith("the certificate of localhost is not trusted (")
            assert words in reply.error
        assert (
            Http(f"https://localhost:{port}", ca_file=certificate[0]).post(b"", NOW).status == 501
        )


def own_certificate(folder, name):
    """A certificate that signs itself, and its key."""
    files = folder / f"{name}.pem", folder / f"{name}.key"
    make = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
        " subjectAltName=DNS:localhost"
    )
    subprocess.run(
        [*make.split(), "-out", files[0], "-keyout", files[1]], check=True, capture_output=True
    )
    return files


@contextmanager
def tls_server(files):
    """A server that speaks TLS and knows no method."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    server = http.server.ThreadingHTTPServer(("localhost", 0), http.server.BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_refused_records_go_to_the_dead_letters_with_their_reasons(spool):
    """422: the rest is committed, so the batch is acked; what was refused is kept for a person."""
    spool.add(make(), NOW)
    answer = {
        "status": "partial",
        "rejected": [{"record": "usage_intervals[2]", "reason": "ends before it starts"}],
    }
    pusher = Pusher(spool, lambda *_: Reply(422, {}, json.dumps(answer).encode()), lambda: NOW)
    pusher.step()
    assert spool.dead_letters() == [(1, "usage_intervals[2]", "ends before it starts")]
    assert (spool.counts().acked, spool.counts().dead) == (1, 0)


@pytest.mark.parametrize("status", [409, 400, 415])
def test_what_can_never_be_delivered_is_dead_lettered_and_others_pass(spool, status):
    """Other bytes under a known number, or a batch that cannot be decoded: neither stops the queue."""
    for _ in range(2):
        spool.add(make(), NOW)
    bad = spool.next("oldest").seq
    answers = {bad: Reply(status, {}, REFUSED)}
    pusher = Pusher(
        spool, lambda body, _: answers.get(unpack(body).seq, COMMITTED), lambda: NOW, lambda: 0.0
    )
    for _ in range(8):
        pusher.step()
    counts = spool.counts()
    assert (counts.acked, counts.dead, counts.pending, counts.is_conserved) == (1, 1, 0, True)
    assert spool.dead_letters()[0][:2] == (bad, "batch")


def test_an_undecodable_batch_has_three_chances(spool):
    """Twice it is kept, the third refusal buries it."""
    spool.add(make(), NOW)
    pusher = Pusher(spool, lambda *_: Reply(400, {}, REFUSED), lambda: NOW, lambda: 0.0)
    states = []
    for _ in range(3):
        pusher.step()
        states.append(spool.counts().pending)
    assert states == [1, 1, 0]


def test_a_bad_token_loses_nothing(spool):
    """401: everything stays, one probe a minute, and the problem is said."""
    spool.add(make(), NOW)
    pusher = Pusher(spool, lambda *_: Reply(401), lambda: NOW)
    assert pusher.step() == 60
    assert "token" in pusher.problem
    assert spool.counts().pending == 1


@pytest.mark.parametrize("spans", [1, 2, 3, 7])
def test_a_batch_that_is_too_large_is_split_without_loss(spool, spans):
    """413: two new batches hold all records; the holders of one span stay together; the old number
    is accounted for.
    """
    spool.add(make(spans), NOW)
    whole = unpack(spool.next("oldest").body)
    with sink() as target:
        target.answers = lambda batch: (
            (413, {}, b"") if batch.seq == 1 else (200, {}, COMMITTED.body)
        )
        pusher = Pusher(spool, Http(target.url).post, lambda: NOW)
        while pusher.step() is not None:
            pass
        halves = sorted(
            (batch for batch in target.batches if batch.seq > 1), key=lambda batch: batch.seq
        )
    assert [
        usage_interval for half in halves for usage_interval in half.usage_intervals
    ] == whole.usage_intervals
    assert [at for half in halves for at in half.samples.at_ms] == whole.samples.at_ms
    for name, column in whole.samples.columns.items():
        parts = [half.samples.columns[name].values for half in halves if half.samples.at_ms]
        assert b"".join(parts) == column.values
    spans_of = [
        {
            (usage_interval.start_ms, usage_interval.end_ms)
            for usage_interval in half.usage_intervals
        }
        for half in halves
    ]
    assert not spans_of[0] & spans_of[1]
    counts = spool.counts()
    assert (counts.produced, counts.acked, counts.dropped, counts.is_conserved) == (3, 2, 1, True)


def test_one_record_that_is_too_large_is_dead_lettered(spool):
    """What cannot be halved is not split for ever: where the collector says so, it is a dead
    letter.
    """
    batch = unpack(make(1)("e", 1))
    single = wire.Batch(
        1,
        "n1",
        "e",
        1,
        batch.heartbeat,
        batch.accelerators,
        batch.workloads,
        batch.usage_intervals[:1],
    )
    assert split_batch(single) is None
    spool.add(lambda epoch, seq: pack(single), NOW)
    pusher = Pusher(spool, lambda *_: Reply(413, {}, REFUSED), lambda: NOW)
    assert pusher.step() == 0.0
    assert spool.dead_letters() == [(1, "batch", "batch too large")]


def test_the_loop_stops_when_told(spool):
    """`drain` sends what waits, then idles, and ends with the event."""
    spool.add(make(), NOW)
    stop, moved = threading.Event(), []
    pusher = Pusher(spool, lambda *_: COMMITTED, lambda: NOW)

    def move():
        moved.append(1)
        if spool.counts().pending == 0:
            stop.set()

    pusher.drain(stop, threading.Event(), move)
    assert moved
    assert spool.counts().acked == 1


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "localhost:8440", "http://", "", "http://h:99999", "http://h:a", "http://[::1"],
)
def test_an_address_that_is_none_is_refused(url):
    """The sentence shows the form."""
    with pytest.raises(SettingsError, match="collector_url"):
        Http(url)
