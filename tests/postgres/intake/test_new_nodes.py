"""A node that is heard of for the first time, where no agent needs a token: said in the log, on the
page, by doctor.
"""

import json
import logging
import time

import pytest

from fakes.collector import JSON, running
from fakes.ledger import fleet, run
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.services import new_nodes
from gpuledger_collector.storage.access import tokens
from gpuledger_collector.storage.database import Database

__all__ = ["fleet", "run"]


def body(node, seq=1):
    """A batch of a node with an hour that nobody held."""
    start = (time.time_ns() // 1_000_000 // HOUR_MS - 2) * HOUR_MS
    interval = {
        "accelerator": 0,
        "state": "unallocated",
        "start_ms": start,
        "end_ms": start + HOUR_MS,
    }
    batch = {
        "version": 1,
        "node": node,
        "epoch": "0192aaaa-0000-7000-8000-000000000001",
        "seq": seq,
        "heartbeat": {"agent_version": "0", "source": "nvml", "status": "ok", "detail": ""},
        "accelerators": [
            {"uuid": f"GPU-{node}", "device_uuid": f"GPU-{node}", "index": 0, "model": "NVIDIA L4"}
        ],
        "workloads": [],
        "usage_intervals": [interval],
    }
    return json.dumps(batch).encode()


def warnings(caplog):
    """What the log says of new nodes."""
    return [
        record.getMessage()
        for record in caplog.records
        if "for the first time" in record.getMessage()
    ]


def of_doctor(run):
    """What doctor says of them."""
    _, out, _ = run("doctor", "--format", "json")
    return [finding for finding in json.loads(out) if "for the first time" in finding["sentence"]]


def test_a_node_that_nobody_was_asked_about_is_said(dsn, run, caplog) -> None:
    """Once in the log, however often it reports and after a restart; on the overview and by doctor
    with the cure.
    """
    caplog.set_level(logging.WARNING)
    with running(dsn) as collector:
        for node, seq in (("other-site-1", 1), ("other-site-1", 2), ("gpu-02", 1)):
            assert collector.post(body(node, seq), JSON)[0] == 200
        assert warnings(caplog) == [
            new_nodes.sentence(["other-site-1"]),
            new_nodes.sentence(["gpu-02"]),
        ]
        page = collector.request("GET", "/")[2]
        assert (
            "heard of for the first time: gpu-02, other-site-1; no token is asked for here"
            in page.lower()
        )
        assert new_nodes.CURE in page
    caplog.clear()
    with running(dsn) as collector:
        assert collector.post(body("gpu-02", 2), JSON)[0] == 200
    assert warnings(caplog) == []
    (finding,) = of_doctor(run)
    assert (finding["verdict"], finding["remedy"]) == ("note", new_nodes.CURE)
    assert "gpu-02, other-site-1" in finding["sentence"]


def test_a_day_later_it_is_known(dsn, run, fleet) -> None:
    """Neither page nor doctor names it; nor one of the inventory, of which no agent spoke."""
    fleet.connection.execute(
        "INSERT INTO node (name, first_seen_at, last_seen_at, source) VALUES "
        "('old', now() - interval '25 hours', now(), 'nvml'), ('bought', now(), now(), 'inventory')"
    )
    assert of_doctor(run) == []
    with running(dsn) as collector:
        assert "for the first time" not in collector.request("GET", "/")[2]


@pytest.mark.parametrize("how", ["a token exists", "tokens are required"])
def test_where_agents_need_tokens_nothing_is_said(dsn, run, caplog, monkeypatch, how) -> None:
    """A token is what tells one's own nodes from others."""
    caplog.set_level(logging.WARNING)
    token = Token(0, "fleet", "agent", None, None, "", made_ms=time.time_ns() // 1_000_000)
    with Database(dsn).transaction() as connection:
        _, secret = tokens.create(connection, token)
        if how == "tokens are required":
            monkeypatch.setenv("GPULEDGER_REQUIRE_TOKENS", "true")
    with running(dsn, require_tokens=how == "tokens are required") as collector:
        assert (
            collector.post(body("gpu-01"), {**JSON, "Authorization": f"Bearer {secret}"})[0] == 200
        )
        assert "for the first time" not in collector.request("GET", "/")[2]
    assert warnings(caplog) == []
    assert of_doctor(run) == []
