"""gpuledger doctor on what was declared, runs out or drifts apart: each fault made, found, and gone
with its cause.
"""

import datetime as dt
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuledger_collector import wiring
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.cli import remediation
from gpuledger_collector.settings import Settings

CLI = Path(remediation.__file__).parent
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "doctor.md"
HOUR_AGO = "(extract(epoch FROM now()) * 1000)::bigint - 3700000"
BUDGET = (
    "INSERT INTO budget (name, owner, period, amount_micro, currency, terms, recorded_at) "
    "VALUES ('vision', '{{}}', 'month', 1, 'USD', '{{\"recipients\": [{}]}}', now())"
)
COMMITMENT = (
    "INSERT INTO commitment (name, gpus, upfront_micro, rate_per_gpu_hour, currency, starts_ms,"
    " ends_ms, recorded_at) SELECT 'year', 1, 0, 1, 'USD', 0, floor(extract(epoch FROM now()) /"
    " 3600)::bigint * 3600000 {} 172800000, now()"
)
POOL = (
    "INSERT INTO scaling_pool (pool, terms, recorded_at) VALUES ('train', '{\"limits\": {},"
    ' "lead_ms": 1, "mode": "act", "money_per_hour": null}\', now())'
)
NODE = (
    "INSERT INTO node (name, first_seen_at, last_seen_at, agent_version) VALUES ('n1', now(),"
    " now(), '{}')"
)
DISPUTE = (
    "INSERT INTO dispute (owner, start_ms, end_ms, reason, state, opened_ms, opened_by, gpu_ns,"
    " cost, evidence, seal) VALUES ('{}', 0, 86400000, 'r', 'open', 0, 'ada', 0, '[]', '{}', 's')"
)
FAULTS = [
    (
        "INSERT INTO billing_zone (zone, from_ms, recorded_at) VALUES ('Mars/Base', 0, now())",
        "billing_zone",
        {},
        "zone",
        "bad",
        "no data of the billing zone Mars/Base",
        "tzdata",
    ),
    (
        COMMITMENT.format("-"),
        "commitment",
        {},
        "commitment",
        "bad",
        "year ended on",
        "[[commitment]]",
    ),
    (
        COMMITMENT.format("+"),
        "commitment",
        {},
        "commitment",
        "note",
        "year ends on",
        "[[commitment]]",
    ),
    (
        BUDGET.format(""),
        "budget",
        {},
        "messages",
        "bad",
        "budget vision notifies nobody",
        "recipients =",
    ),
    (
        BUDGET.format('"a@example.com"'),
        "budget",
        {},
        "messages",
        "bad",
        "no way to send one is set",
        "mail_server",
    ),
    (
        BUDGET.format('"slack:ops"'),
        "budget",
        {},
        "messages",
        "bad",
        "hooks_file is not set",
        "hooks_file",
    ),
    (
        (
            "INSERT INTO queue_reading (source, at_ms, workloads, gpu_micro, waiting, received_at) "
            f"VALUES ('slurm:c1', {HOUR_AGO}, 0, 0, '[]', now())"
        ),
        "queue_reading",
        {},
        "queue",
        "bad",
        "the queue of slurm:c1 was last read 61 min ago",
        "gpuledger-queue.timer",
    ),
    (
        POOL,
        "scaling_pool",
        {},
        "scaling",
        "bad",
        "no rate of the price book covers it",
        "gpuledger prices set",
    ),
    (
        DISPUTE,
        "dispute",
        {"GPULEDGER_KEEP_USAGE_INTERVAL_DAYS": "40"},
        "retention",
        "bad",
        "keep_usage_interval_days = 40",
        "gpuledger disputes resolve",
    ),
    (
        NODE.format("99.1.0"),
        "node",
        {},
        "versions",
        "bad",
        "n1 (99.1.0)",
        "upgrade the collector first",
    ),
    (NODE.format("0.0.9"), "node", {}, "versions", "note", "n1 (0.0.9)", "apt install"),
]


def topics(run):
    """What the doctor finds, by topic, and how it ends."""
    code, told, _ = run("doctor", "--format", "json")
    return code, {one["topic"]: one for one in json.loads(told)}


def test_each_fault_is_found_and_goes_with_its_cause(fleet, run, monkeypatch):
    """Made one after the other in one ledger, each is named with its cure, and gone when it is
    undone.
    """
    for statement, table, environment, topic, verdict, words, cure in FAULTS:
        assert topic not in topics(run)[1], statement
        with monkeypatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            fleet.connection.execute(statement.encode())
            found = topics(run)[1]
        assert found[topic]["verdict"] == verdict
        assert words in found[topic]["sentence"]
        assert cure in found[topic]["remedy"]
        undone = (
            "UPDATE dispute SET state = 'rejected', resolved_ms = 1"
            if table == "dispute"
            else f"DELETE FROM {table}"
        )
        fleet.connection.execute(undone.encode())


def test_what_is_cured_is_not_told(fleet, run, tmp_path, monkeypatch):
    """A way to send, a rate for the pool, evidence kept for ever: the same rows need no cure."""
    monkeypatch.setenv("GPULEDGER_MAIL_DIR", str(tmp_path))
    for statement in (BUDGET.format('"a@example.com"'), POOL, DISPUTE):
        fleet.connection.execute(statement.encode())
    run(
        "prices",
        "set",
        "--rate",
        "1",
        "--currency",
        "USD",
        "--from",
        "2025-01-01",
        "--pool",
        "train",
    )
    code, found = topics(run)
    assert not {"messages", "scaling", "retention", "clock", "certificate"} & set(found)
    assert code == 0, found


def test_two_clocks_that_differ_are_told(fleet, run, monkeypatch):
    """The collector's clock runs a minute ahead of the database's."""
    real = wiring.read_clock
    monkeypatch.setattr(wiring, "read_clock", lambda: real() + 60_000)
    code, found = topics(run)
    assert (code, found["clock"]["verdict"]) == (1, "bad")
    assert found["clock"]["sentence"].endswith("60 s apart")
    assert "NTP" in found["clock"]["remedy"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize(("days", "verdict"), [(400, "ok"), (13, "bad"), (20_000, "ok")])
def test_a_certificate_that_ends_soon_is_told(tmp_path, days, verdict):
    """Its end is read from the file as openssl reads it, in both forms of time; two weeks before it
    there is a cure.
    """
    pem = tmp_path / "server.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            tmp_path / "server.key",
            "-out",
            pem,
            "-days",
            str(days),
            "-subj",
            "/CN=collector",
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    asked = subprocess.run(
        ["openssl", "x509", "-enddate", "-noout", "-in", pem], check=True, capture_output=True
    )
    said = asked.stdout.decode().strip().removeprefix("notAfter=")
    ends = remediation.expiry(pem.read_text())
    assert ends == dt.datetime.strptime(said, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=dt.UTC)
    now_ms = round(ends.timestamp() * 1000) - days * DAY_MS
    settings = Settings(tls_certificate_file=pem, tls_key_file=tmp_path / "server.key")
    assert settings.tls_certificate_file is not None
    (found,) = remediation.certificate(settings.tls_certificate_file, now_ms)
    assert found.verdict == verdict
    (ended,) = remediation.certificate(pem, now_ms + (days + 1) * DAY_MS)
    assert "agents refuse the collector" in ended.sentence
    cut = tmp_path / "cut.pem"
    for text in ("", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"):
        cut.write_text(text)
        (broken,) = remediation.certificate(cut, now_ms)
        assert broken.verdict == "bad"
        assert "cannot be read" in broken.sentence


def test_the_guide_has_every_topic():
    """Each topic that the code can find stands in docs/guides/doctor.md, and no other does."""
    source = "".join((CLI / name).read_text() for name in ("doctor.py", "remediation.py"))
    found = set(re.findall(r'\b(?:ok|note|bad)\(\s*"([a-z]+)"', source))
    assert len(found) > 15
    assert set(re.findall(r"^\| `([a-z]+)` \|", GUIDE.read_text(), re.M)) == found
