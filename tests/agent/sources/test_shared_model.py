"""The simulated fleet's shared model: its tenants ask for no more than its replicas count."""

import csv

from gpuledger_agent.sources.fleet import BLOCK_MS, DAY_MS, Fleet
from gpuledger_agent.sources.shared_model import (
    READ_EVERY_MS,
    REPLICAS,
    ReplicaCounters,
    asked_lines,
    first_counted_ms,
    replica_tokens,
    served_tokens,
)
from gpuledger_common.readings import HOUR_MS

FIRST_MS = 5_200 * BLOCK_MS
DAY = range(FIRST_MS, FIRST_MS + DAY_MS, HOUR_MS)


def test_the_gateway_counts_a_little_less_than_the_server() -> None:
    """In every hour and of every kind; the rest bypasses the gateway. Three teams ask, and a key
    without a team.
    """
    rows = list(csv.DictReader(asked_lines(FIRST_MS, FIRST_MS + DAY_MS)))
    assert {row["tenant"] for row in rows} == {"nlp", "data", "speech", ""}
    for hour_ms in DAY:
        hour = [row for row in rows if int(row["start"]) * 1000 == hour_ms]
        served = served_tokens(hour_ms)
        for column, count in (
            ("input", served.prompt),
            ("cached", served.cached),
            ("output", served.output),
        ):
            asked = sum(int(row[f"{column}_tokens"]) for row in hour)
            assert 0.85 * count < asked < count
    assert all(int(row["cached_tokens"]) <= int(row["input_tokens"]) for row in rows)


def test_only_whole_hours_are_asked_for() -> None:
    """So that a part of an hour is never counted as all of it."""
    lines = list(asked_lines(FIRST_MS + 1, FIRST_MS + 3 * HOUR_MS - 1))
    assert {line.split(",")[0] for line in lines[1:]} == {str((FIRST_MS + HOUR_MS) // 1000)}


def test_replicas_count_what_was_served_and_begin_anew_with_their_workload() -> None:
    """Their counters add up to the fleet's tokens, never fall, and start at zero in the next block."""
    assert sum(replica_tokens(FIRST_MS, number).prompt for number in range(REPLICAS)) == (
        served_tokens(FIRST_MS).prompt
    )
    fleet = Fleet()
    counters = ReplicaCounters(fleet, fleet.node("h100-03"))
    for at_ms in range(FIRST_MS, FIRST_MS + BLOCK_MS + 1, READ_EVERY_MS):
        counters.read(at_ms)
    series = {}
    for reading in counters.take():
        series.setdefault((reading.workload.id, reading.counter), []).append(reading.value)
    assert counters.take() == []
    values = list(series.values())
    assert all(line == sorted(line) for line in values)
    assert len(values) == 2 * 2 * REPLICAS, "two counters of each replica in two blocks"
    assert all(line[0] == 0 for line in values)
    last_ms = FIRST_MS + BLOCK_MS - READ_EVERY_MS
    expected = sum(served_tokens(at_ms).output for at_ms in range(FIRST_MS, last_ms, HOUR_MS))
    counted = sum(line[-1] for (_, name), line in series.items() if name == "generated_tokens")
    assert 0.99 * expected < counted < expected


def test_counters_that_a_collector_would_refuse_are_not_read() -> None:
    """They begin with a whole day, of which none is older than it takes."""
    now_ms = FIRST_MS + 40 * DAY_MS + 4 * HOUR_MS
    first_ms = first_counted_ms(now_ms)
    assert first_ms % DAY_MS == 0
    assert 29 * DAY_MS <= now_ms - first_ms < 30 * DAY_MS
    fleet = Fleet()
    counters = ReplicaCounters(fleet, fleet.node("h100-03"), first_ms)
    for at_ms in (first_ms - READ_EVERY_MS, first_ms):
        counters.read(at_ms)
    assert {reading.at_ms for reading in counters.take()} == {first_ms}


def test_a_node_without_the_model_counts_nothing() -> None:
    """Other services have counters of their own, which nobody reads here."""
    fleet = Fleet()
    counters = ReplicaCounters(fleet, fleet.node("l4-01"))
    counters.read(FIRST_MS)
    assert counters.take() == []
