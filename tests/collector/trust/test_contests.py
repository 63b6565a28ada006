"""A GPU that a second node claims while the first still reports it: a finding, never a merge."""

import msgspec
import psycopg

from fakes.batches import NOON_MS, accelerator, batch
from fakes.collector import running
from gpuledger_agent.wire import Samples


def test_doctor_names_a_gpu_on_two_nodes(dsn, command):
    """Threat: forged usage. The accelerator stays where it was, the metric counts, doctor says which and where."""
    with running(dsn) as collector:
        for seq in range(1, 4):
            start = NOON_MS + seq * 60_000
            collector.send(batch(seq, accelerators=1, start_ms=start, samples=Samples()))
            copied = batch(seq, node="node-2", accelerators=1, start_ms=start, samples=Samples())
            collector.send(msgspec.structs.replace(copied, accelerators=[accelerator(0, "node-1")]))
        assert "gpuledger_ingest_contested_accelerators_total 3.0" in collector.request("GET", "/metrics")[2]
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT first_ms, last_ms, reports FROM contest").fetchall()
        assert found == [(NOON_MS + 60_000, NOON_MS + 180_000, 3)]
        # Two weeks later it is past; today it is what doctor says first.
        connection.execute("UPDATE contest SET last_ms = extract(epoch FROM now()) * 1000")
    assert command("token", "create", "--role", "agent", "--node", "*").exit_code == 0
    shown = command("doctor")
    assert "with 1 of the tokens any node can be reported" in shown.output
    assert shown.exit_code == 1
    assert "GPU-node-1-0 is reported by node-1 and node-2 at once; it stays with the first" in shown.output
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE contest SET last_ms = 0")
    assert "at once" not in command("doctor").output
