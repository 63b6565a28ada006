"""One node cannot make others wait: its heavy batches are decoded one at a time, written alone, and
all is counted.
"""

import asyncio
import contextlib
import threading
import time

import psycopg
import pytest

from fakes.batches import HOUR_MS, NOON_MS, batch, body_of, free, samples, workload, worst
from fakes.collector import MSGPACK, running
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.api import batches
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.intake import Reservation
from gpuledger_collector.ingest.batches.commit import GroupCommit, Limits, Unavailable
from gpuledger_collector.storage.access import tokens

DAY_MS = 86_400_000
NOW = NOON_MS


class Noting:
    """A store that notes its groups; one with a heavy batch stays in it until it is let go."""

    def __init__(self):
        self.groups: list[list[str]] = []
        self.entered, self.leave = threading.Event(), threading.Event()

    def flush(self, _connection, found, _now, _idle):
        self.groups.append([one.key for one in found])
        if any(one.is_heavy for one in found):
            self.entered.set()
            assert self.leave.wait(30)
        return [one.key for one in found]

    def is_flush_due(self, _ending):
        return False

    def flush_deferred(self, _connection):
        pass

    def forget(self):
        pass


class One:
    size = samples = 1

    def __init__(self, key, is_heavy=False):
        self.key, self.is_heavy = key, is_heavy


class Connection:
    closed = broken = False

    def close(self):
        pass


def test_a_heavy_batch_is_written_alone_and_others_go_past_it():
    """While one is being written light batches are committed, and heavy ones are never in a group."""
    store = Noting()
    commit = GroupCommit(store, Connection, lambda: NOW, Limits())
    commit.start()

    async def story():
        heavy = [commit.submit(One(f"heavy-{number}", True)) for number in range(3)]
        assert await asyncio.to_thread(store.entered.wait, 10)
        light = [commit.submit(One(f"light-{number}")) for number in range(50)]
        assert await asyncio.wait_for(asyncio.gather(*light), 10) == [
            f"light-{number}" for number in range(50)
        ]
        assert not any(future.done() for future in heavy)
        store.leave.set()
        assert await asyncio.wait_for(asyncio.gather(*heavy), 10) == [
            "heavy-0",
            "heavy-1",
            "heavy-2",
        ]

    try:
        asyncio.run(story())
    finally:
        store.leave.set()
        commit.close(5)
    assert [group for group in store.groups if any("heavy" in key for key in group)] == [
        ["heavy-0"],
        ["heavy-1"],
        ["heavy-2"],
    ]


def bound(dsn, node):
    """Headers with a token of this node."""
    with psycopg.connect(dsn) as connection:
        token = Token(0, node, "agent", node, None, "", made_ms=round(time.time() * 1000))
        return MSGPACK | {"Authorization": f"Bearer {tokens.create(connection, token)[1]}"}


def large(seq, node):
    """A batch that is not decoded on the event loop."""
    return batch(
        seq, node, workloads=[workload(f"{number}", name="x" * 900) for number in range(1500)]
    )


def test_a_node_has_one_large_body_decoded_at_a_time(dsn, monkeypatch):
    """However many it sends at once, a second decoder is free for others."""
    at_once, most, lock = {"flood": 0}, [0], threading.Lock()
    true, order = batches.decode, []

    def slow(*given):
        found = true(*given)
        if found.node == "flood":
            with lock:
                at_once["flood"] += 1
                most[0] = max(most[0], at_once["flood"])
            time.sleep(0.4)
            with lock:
                at_once["flood"] -= 1
        order.append(found.node)
        return found

    with running(dsn, require_tokens=True) as collector:
        flood, other = bound(dsn, "flood"), bound(dsn, "other")
        collector.post(body_of(batch(0, "other")), other)  # its token is known from now on
        monkeypatch.setattr(batches, "decode", slow)
        senders = [
            threading.Thread(target=collector.post, args=(body_of(large(seq, "flood")), flood))
            for seq in range(6)
        ]
        for sender in senders:
            sender.start()
        time.sleep(0.2)
        status, _ = collector.post(body_of(large(1, "other")), other)
        assert status == 200
        assert order.count("flood") <= 2
        for sender in senders:
            sender.join(30)
    assert most == [1]
    assert collector.parts.intake.payers == {}


def test_a_node_cannot_hold_all_that_may_be_under_way(dsn):
    """What one node has under way is bounded apart: it is turned away, and others are not."""
    with running(dsn, require_tokens=True) as collector:
        intake = collector.parts.intake
        intake.max_bytes = 4_000_000
        with Reservation(intake, Principal("agent", "flood", "flood")) as held:
            held.add(1_900_000)
            with (
                pytest.raises(Unavailable, match="too many bytes of flood are in progress"),
                Reservation(intake, Principal("agent", "flood", "flood")) as more,
            ):
                more.add(200_000)
            with Reservation(intake, Principal("agent", "other", "other")) as others:
                others.add(1_900_000)
        assert (intake.in_progress, intake.payers) == (0, {})


def test_what_a_batch_lists_and_becomes_is_counted(dsn):
    """Accelerators and workloads, and bytes after decompression, have quotas; another node is not
    concerned.
    """
    many = [workload(f"{number}", name="x" * 900) for number in range(700)]
    for settings, name in (
        ({"node_names_per_second": 10}, "accelerators and workloads"),
        ({"node_inflated_bytes_per_second": 10_000}, "decompressed bytes"),
    ):
        with running(dsn, **settings) as collector:
            for quota in (
                collector.parts.intake.quotas.names,
                collector.parts.intake.quotas.inflated_bytes,
            ):
                quota.steady = lambda: 0.0
            node = name.replace(" ", "-")
            assert collector.send(batch(1, node, workloads=many))[0] == 200
            status, answer = collector.send(batch(2, node, workloads=many))
            assert (status, name in answer["detail"]) == (429, True)
            assert collector.send(batch(1, f"{node}-other"))[0] == 200


def test_new_names_are_counted_by_the_hour(dsn):
    """Who has brought too many new ones goes on with those that are known, and is told how long to
    wait.
    """
    with running(dsn, node_new_names_per_hour=100) as collector:
        collector.parts.intake.quotas.new_names.steady = lambda: 0.0
        assert collector.send(batch(1))[0] == 200
        many = [workload(f"first-{number}") for number in range(500)]
        assert collector.send(batch(2, workloads=many))[0] == 200
        status, head, answer = collector.request(
            "POST", "/v1/batches", body_of(batch(3, workloads=[workload("one-more")])), MSGPACK
        )
        assert (status, answer["detail"]) == (429, "node-1 sends more than 100 new names an hour")
        assert int(head["Retry-After"]) > 3600
        assert collector.send(batch(3))[0] == 200
        assert collector.send(batch(1, "node-2", workloads=[workload("one-more")]))[0] == 200
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM workload").fetchone() == (502,)


def test_an_interval_counts_for_each_hour_that_it_reaches_into(dsn):
    """Each of those hours is folded again: a day of one accelerator is not one entry but
    twenty-four.
    """
    with running(dsn, node_samples_per_second=1) as collector:
        collector.parts.intake.quotas.samples.steady = lambda: 0.0
        whole_days = [free(place, NOON_MS - DAY_MS, NOON_MS) for place in range(3)]
        made = batch(1, accelerators=3, usage_intervals=whole_days, samples=samples(1, []))
        assert collector.send(made)[0] == 200
        assert collector.send(batch(2))[0] == 429


def test_new_days_are_counted_by_the_hour(dsn):
    """The same of days: a replay of years comes in portions, and what is under way now is taken."""

    def days(seq, first):
        at = [NOON_MS - (first + number) * DAY_MS for number in range(10)]
        return batch(
            seq,
            accelerators=1,
            usage_intervals=[free(0, day, day + 60_000) for day in at],
            samples=samples(1, []),
        )

    with running(dsn, node_new_days_per_hour=5) as collector:
        collector.parts.intake.quotas.new_days.steady = lambda: 0.0
        assert collector.send(batch(1))[0] == 200
        assert collector.send(days(2, 1))[0] == 200
        status, answer = collector.send(days(3, 11))
        assert (status, answer["detail"]) == (429, "node-1 sends more than 5 new days an hour")
        assert collector.send(batch(3, start_ms=NOON_MS + HOUR_MS))[0] == 200


@pytest.mark.long
@pytest.mark.timeout(900)
def test_at_one_nodes_worst_another_does_not_wait_for_it(dsn):
    """A node sends the heaviest batches that are taken, on eight connections, for half a minute."""
    bodies = [body_of(worst(seq, "flood")) for seq in range(4)]
    answers, slowest = [], 0.0
    with running(dsn, require_tokens=True) as collector:
        flood, other = bound(dsn, "flood"), bound(dsn, "other")
        assert collector.post(body_of(batch(0, "other")), other)[0] == 200
        end = time.monotonic() + 30

        def send(place):
            while time.monotonic() < end:
                with contextlib.suppress(OSError):
                    begun = time.monotonic()
                    status = collector.post(bodies[place % len(bodies)], flood)[0]
                    answers.append((status, time.monotonic() - begun))

        senders = [threading.Thread(target=send, args=(place,)) for place in range(8)]
        for sender in senders:
            sender.start()
        seq = 1
        while time.monotonic() < end:
            begun = time.monotonic()
            assert (
                collector.post(
                    body_of(batch(seq, "other", start_ms=NOON_MS + seq * 60_000)), other
                )[0]
                == 200
            )
            slowest = max(slowest, time.monotonic() - begun)
            seq += 1
            time.sleep(0.05)
        for sender in senders:
            sender.join(60)
    # Whatever the machine: a part of the time that the heaviest batch takes on it.
    heaviest = max(seconds for status, seconds in answers if status == 200)
    print(
        f"slowest answer {slowest:.2f} s of {seq}; the heaviest batch {heaviest:.2f} s of"
        f" {len(answers)}"
    )
    assert slowest < heaviest / 2
