"""A GPU that a second node claims while the first still reports it: a finding, never a merge."""

import msgspec
import psycopg

from fakes.batches import NOON_MS, accelerator, batch
from fakes.collector import running
from gpuledger_agent.wire import Samples


def test_what_a_second_node_says_of_a_gpu_that_another_holds_is_not_taken_over(dsn):
    """Threat: forged usage. Model and health stay as the holder tells them; once it shows the GPU no more, it moved."""
    with running(dsn) as collector, psycopg.connect(dsn, autocommit=True) as connection:

        def face():
            return connection.execute("SELECT model, health FROM accelerator").fetchone()

        collector.send(batch(1, accelerators=1, start_ms=NOON_MS, samples=Samples()))
        told = face()
        forged = msgspec.structs.replace(accelerator(0, "node-1"), model="Tesla T4", health="failed")
        hour = NOON_MS + 3_600_000
        for seq, start_ms, there, expected in (
            (1, NOON_MS, 1, told),
            (2, hour, 2, told),  # it has moved; what pages show follows with the next batch
            (3, hour + 60_000, 2, ("Tesla T4", "failed")),
        ):
            claim = batch(seq, node="node-2", accelerators=1, start_ms=start_ms, samples=Samples())
            assert collector.send(msgspec.structs.replace(claim, accelerators=[forged]))[0] == 200
            assert face() == expected
            assert connection.execute("SELECT count(*) FROM capacity").fetchone() == (there,)


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
        found = connection.execute("SELECT kind, subject, first_ms, last_ms FROM claim").fetchall()
        assert found == [("node", "node-2", NOON_MS + 60_000, NOON_MS + 240_000)]
        # Two weeks later it is past; today it is what doctor says first.
        connection.execute("UPDATE claim SET last_ms = extract(epoch FROM now()) * 1000")
    assert command("token", "create", "--role", "agent", "--node", "*").exit_code == 0
    shown = command("doctor")
    assert "with 1 of the tokens any node can be reported" in shown.output
    assert shown.exit_code == 1
    assert "GPU-node-1-0 is reported by node-1 and node-2 at once; it stays with the first" in shown.output
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE claim SET last_ms = 0")
    assert "at once" not in command("doctor").output
