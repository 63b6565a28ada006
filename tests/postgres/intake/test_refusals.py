"""Who is refused is told: numbers to everybody who can reach the port, names to `gpuledger doctor`."""

import json
import subprocess
import time

import psycopg
import pytest

from fakes.collector import JSON, running
from fakes.processes import BIN, environment
from fakes.replicas import until
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.intake import Reservation
from gpuledger_collector.api.limits import OverQuota
from gpuledger_collector.api.refusals import RECENT_SECONDS, TooMuchInProgress
from gpuledger_collector.ingest.batches.commit import Unavailable
from gpuledger_collector.storage.access import tokens

AT = 1_760_000_000


def bearer(dsn, node):
    with psycopg.connect(dsn) as connection:
        token = Token(0, node, "agent", node, None, "", made_ms=round(time.time() * 1000))
        return {**JSON, "Authorization": f"Bearer {tokens.create(connection, token)[1]}"}


def post(collector, headers):
    body = json.dumps({"source": "s", "at": AT, "waiting": []}).encode()
    return collector.request("POST", "/v1/queue", body, headers)[0]


@pytest.mark.slow
def test_refused_senders_are_counted_and_doctor_names_them(dsn):
    """/readyz stays ready with a note, /metrics counts by route and limit; neither has a name."""
    with running(dsn, require_tokens=True, node_queue_readings_per_hour=1) as collector:
        collector.parts.intake.quotas.queue_readings.steady = lambda: 0.0
        assert "note" not in collector.request("GET", "/readyz")[2]
        heads = [bearer(dsn, f"flooding-{number}") for number in range(2)]
        assert [post(collector, head) for head in heads for _ in range(8)] == (
            [200] * 2 + [429] * 6
        ) * 2
        status, _, answer = collector.request("GET", "/readyz")
        assert (status, answer["status"]) == (200, "ready")
        assert answer["note"].startswith("2 senders exceeded a limit in the last minute")
        metrics = collector.request("GET", "/metrics")[2]
        assert 'gpuledger_ingest_refusals_total{reason="quota",route="queue"} 12.0' in metrics
        assert "flooding" not in metrics + json.dumps(answer)
        refused = "SELECT count(*) FROM quota_use WHERE quota = 'refusals' AND used > 2"

        def both_are_settled():
            with psycopg.connect(dsn) as connection:
                return connection.execute(refused).fetchone() == (2,)

        until(both_are_settled)
    command = [BIN / "gpuledger", "doctor", "--format", "json", "--dsn", dsn]
    findings = json.loads(
        subprocess.run(command, env=environment(), capture_output=True, check=False).stdout
    )
    told = [finding for finding in findings if finding["topic"] == "refused"]
    assert {finding["sentence"].split()[2] for finding in told} == {"flooding-0", "flooding-1"}
    assert all("gpuledger token revoke" in finding["remedy"] for finding in told)


def test_a_summary_is_of_the_last_minute(dsn):
    """One sender, several, all of them, and nobody any more; senders without end take no memory."""
    with running(dsn) as collector:
        refusals, now = collector.parts.intake.refusals, [0.0]
        refusals.steady = lambda: now[0]
        assert refusals.summary() is None
        refusals.note("batches", OverQuota("x", 1, "node-1"))
        assert refusals.summary().startswith("1 sender exceeded")
        refusals.note("batches", TooMuchInProgress("x", "node-2"))
        assert refusals.summary().startswith("2 senders exceeded")
        refusals.note("batches", Unavailable("the writers fail"))
        assert refusals.summary().startswith("2 senders exceeded")
        refusals.note("batches", TooMuchInProgress("x", ""))
        assert refusals.summary().startswith("reports of any sender")
        now[0] = RECENT_SECONDS + 1
        assert refusals.summary() is None
        for number in range(2000):
            refusals.note("batches", OverQuota("x", 1, f"node-{number}"))
        assert refusals.summary().startswith("1,000 senders")


def test_bytes_in_progress_are_told_apart(dsn):
    """Those of one sender concern it alone, those of all everybody."""
    with running(dsn) as collector:
        intake = collector.parts.intake
        intake.max_bytes = 100
        senders = [Principal("agent", name, name) for name in ("a", "b", "c")]
        with Reservation(intake, senders[0]) as first, Reservation(intake, senders[1]) as second:
            with pytest.raises(TooMuchInProgress) as refused:
                first.add(51)
            assert refused.value.payer == "a"
            second.add(49)
            with (
                Reservation(intake, senders[2]) as third,
                pytest.raises(TooMuchInProgress) as refused,
            ):
                third.add(1)
            assert refused.value.payer == ""
