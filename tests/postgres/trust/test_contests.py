"""A GPU that a second node claims while the first still reports it: a finding, never a merge."""

import itertools

import msgspec
import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.batches import NOON_MS, accelerator, batch, free, held, samples, workload
from fakes.collector import running
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.storage.database import Database
from gpuledger_common.wire import Samples


def test_what_a_second_node_says_of_a_gpu_that_another_holds_is_not_taken_over(dsn):
    """Threat: forged usage.

    Model and health stay as the holder tells them; once it shows the GPU no more, it moved.
    """
    with running(dsn) as collector, psycopg.connect(dsn, autocommit=True) as connection:

        def face():
            return connection.execute("SELECT model, health FROM accelerator").fetchone()

        collector.send(batch(1, accelerators=1, start_ms=NOON_MS, samples=Samples()))
        told = face()
        forged = msgspec.structs.replace(
            accelerator(0, "node-1"), model="Tesla T4", health="failed"
        )
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
    """Threat: forged usage.

    The accelerator stays where it was, the metric counts, doctor says which and where.
    """
    with running(dsn) as collector:
        for seq in range(1, 4):
            start = NOON_MS + seq * 60_000
            collector.send(batch(seq, accelerators=1, start_ms=start, samples=Samples()))
            copied = batch(seq, node="node-2", accelerators=1, start_ms=start, samples=Samples())
            collector.send(msgspec.structs.replace(copied, accelerators=[accelerator(0, "node-1")]))
        assert (
            "gpuledger_ingest_contested_accelerators_total 3.0"
            in collector.request("GET", "/metrics")[2]
        )
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT kind, subject, first_ms, last_ms FROM refused_claim"
        ).fetchall()
        assert found == [("node", "node-2", NOON_MS + 60_000, NOON_MS + 240_000)]
        # Two weeks later it is past; today it is what doctor says first.
        connection.execute("UPDATE refused_claim SET last_ms = extract(epoch FROM now()) * 1000")
    assert command("token", "create", "--role", "agent", "--node", "*").exit_code == 0
    shown = command("doctor")
    assert "with 1 of the tokens any node can be reported" in shown.output
    assert shown.exit_code == 1
    assert (
        "GPU-node-1-0 is reported by node-1 and node-2 at once; it stays with the first"
        in shown.output
    )
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE refused_claim SET last_ms = 0")
    assert "at once" not in command("doctor").output


FORGED = st.fixed_dictionaries(
    {
        "accelerator": st.sampled_from(["GPU-node-1-0", "GPU-node-1-1", "GPU-node-2-0"]),
        "face": st.fixed_dictionaries(
            {},
            optional={
                "model": st.just("Tesla T4"),
                "health": st.just("failed"),
                "pool": st.just("other"),
            },
        ),
        "state": st.sampled_from(["held", "unallocated"]),
        "job": st.sampled_from(["job-1", "job-2"]),
        "minutes": st.tuples(st.integers(1, 58), st.integers(1, 20)),
        "readings": st.booleans(),
    }
)
HOLDER = """
    SELECT jsonb_agg(t ORDER BY t::text) FROM (
        SELECT to_jsonb(a) - 'last_seen_at' FROM accelerator a WHERE uuid LIKE 'GPU-node-1-%'
        UNION ALL SELECT to_jsonb(n) FROM node n WHERE name = 'node-1'
        UNION ALL SELECT to_jsonb(b) FROM ingest_batch b JOIN node n ON n.id = b.node_id WHERE name = 'node-1'
        UNION ALL SELECT to_jsonb(x) FROM {table} x JOIN accelerator a ON a.id = x.accelerator_id
            WHERE uuid LIKE 'GPU-node-1-%'
    ) AS of_the_holder (t)
"""
TABLES = ("usage_hour", "capacity", "gpu_sample", "gpu_latest")
"""What bills are made of, and what pages and detectors read."""
MINUTE = 60_000


def payload(seq, forged):
    """What the token of node-2 sends: claims within the hour that node-1 has reported whole."""
    place, minutes = NOON_MS + forged["minutes"][0] * MINUTE, forged["minutes"][1]
    end = min(place + minutes * MINUTE, NOON_MS + 59 * MINUTE)
    uuid = forged["accelerator"]
    card = accelerator(0, "node-2", uuid=uuid, device_uuid=uuid, **forged["face"])
    span = held(0, place, end) if forged["state"] == "held" else free(0, place, end)
    readings = (
        samples(1, [place + 1], gpu_utilization_ratio=[0.0]) if forged["readings"] else Samples()
    )
    made = batch(
        seq,
        "node-2",
        0,
        workloads=[workload(forged["job"])],
        usage_intervals=[span],
        samples=readings,
    )
    return msgspec.structs.replace(made, accelerators=[card])


def test_no_payload_of_a_node_changes_what_another_is_billed_by(dsn):
    """Threat: forged usage.

    Whatever node-2 claims of the GPUs of node-1, their hours and capacity stay.
    """
    with running(dsn) as collector, psycopg.connect(dsn, autocommit=True) as look:
        whole = [held(number, NOON_MS, NOON_MS + 60 * MINUTE) for number in range(2)]
        instants = range(NOON_MS, NOON_MS + 60 * MINUTE, MINUTE)
        assert (
            collector.send(batch(1, usage_intervals=whole, samples=samples(2, instants)))[0] == 200
        )
        sequence = itertools.count(1)

        def of_the_holder():
            fold_usage(Database(dsn))
            return {table: look.execute(HOLDER.format(table=table)).fetchone() for table in TABLES}

        before = of_the_holder()
        assert all(str(rows).count("accelerator_id") >= 2 for rows in before.values())

        @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(FORGED, min_size=1, max_size=4))
        def attack(forged):
            for each in forged:
                assert collector.send(payload(next(sequence), each))[0] in {200, 422}
            assert of_the_holder() == before

        attack()
