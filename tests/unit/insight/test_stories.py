"""The simulated fleet's anomalies: found from its own schedule, and with the right cause."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from decimal import Decimal
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from gpuledger_agent.sources.fleet import BLOCK_MS, RUNAWAY, STORM, Fleet
from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.insight.findings import WorkloadUsage
from gpuledger_collector.insight.notifications.finding_rules import deduplication_key_of
from gpuledger_collector.services.anomaly_search import find_anomalies

HOUR = 3_600_000
DAY = 24 * HOUR
RATES = {"H100": "6.88", "A100": "3.43", "L40S": "1.86", "L4": "0.80"}
FULL = {"training": 0.9, "research": 0.8, "nightly": 0.8, "serving": 0.3, "starved": 0.3}
"""Busy part of a shape's time; of the others none."""


class Schedule:
    """The simulated fleet's schedule as the hourly ledger would have it; findings are kept in
    memory.
    """

    def __init__(self, start: int, end: int) -> None:
        self.facts: dict[int, WorkloadFacts] = {}
        self.kept: dict[str, object] = {}
        self.uses = list(self._uses(start, end))

    def _uses(self, start: int, end: int):
        numbers: dict[str, int] = {}
        held: dict[tuple[int, int, str, str, str], dict[int, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        fleet = Fleet(7)
        for node in fleet.nodes:
            for lane in node.lanes:
                holds = [
                    hold
                    for block in range(start // BLOCK_MS, end // BLOCK_MS + 1)
                    for hold in fleet.holds(lane, block * BLOCK_MS)
                ]
                for hold in holds:
                    known = hold.workload
                    number = numbers.setdefault(known.id, len(numbers) + 1)
                    self.facts[number] = WorkloadFacts(
                        number, "simulated", known.user, None, known.name, known.tags
                    )
                    first, last = max(hold.start_ms, start), min(hold.end_ms, end)
                    for hour in range(first // HOUR * HOUR, last, HOUR):
                        part = min(last, hour + HOUR) - max(first, hour)
                        busy = round(part * FULL.get(hold.shape, 0.0))
                        for slot in lane.slots:
                            card = node.accelerators[slot]
                            held[hour, number, "pool", card.model, node.name][slot] += [
                                part,
                                card.gpu_micro,
                                busy,
                            ]
        for key, slots in sorted(held.items()):
            parts = [(sum(one[::3]), one[1], sum(one[2::3])) for one in slots.values()]
            yield WorkloadUsage(
                *key,
                sum(part * micro for part, micro, _ in parts),
                max(part for part, _, _ in parts),
                sum(micro for _, micro, _ in parts),
                sum(busy for _, _, busy in parts),
                sum(part - busy for part, _, busy in parts),
            )

    standby = False

    @contextmanager
    def transaction(self, _lock):
        """The stand-ins hold no connection."""
        yield None

    def stores(self):
        """Stand-ins for the storage modules that the search calls; each function takes the
        connection first.
        """
        prices = [
            Price(None, "", model, "on_demand", Decimal(rate), "USD", 0)
            for model, rate in RATES.items()
        ]
        return {
            "minutes": SimpleNamespace(hourly_use=self._hourly_use, coverage=self._coverage),
            "findings": SimpleNamespace(
                overlapping=self._overlapping,
                upsert=self._put,
                drop=self._drop,
                set_progress=lambda *_: None,
            ),
            "prices": SimpleNamespace(price_book=lambda *_: PriceBook(prices)),
            "rules": SimpleNamespace(current=lambda _: []),
            "workloads": SimpleNamespace(
                facts=lambda _, ids: {one: self.facts[one] for one in ids}
            ),
        }

    def _hourly_use(self, _connection, start, end):
        return [use for use in self.uses if start <= use.rating_interval_ms < end]

    def _coverage(self, _connection, start, end):
        return {("pool", hour): 1.0 for hour in range(start, end, HOUR)}

    def _overlapping(self, _connection, _kind, start, end):
        return [one for one in self.kept.values() if one.since_ms < end and one.until_ms > start]

    def _put(self, _connection, findings):
        self.kept |= {one.key: one for one in findings}
        return len(findings)

    def _drop(self, _connection, keys):
        for key in keys:
            del self.kept[key]


def search(schedule, until: int) -> None:
    """Find the schedule's anomalies as the hourly job does."""
    with patch.multiple("gpuledger_collector.services.anomaly_search", **schedule.stores()):
        find_anomalies(schedule, until)


def begin(story, after: int) -> int:
    """When a story begins for the first time at or after an instant."""
    return after + (story.start_ms - after) % story.cycle_ms


START = 20_720 * DAY
DAYS = 34


@pytest.fixture(scope="module")
def findings():
    made = Schedule(START, START + DAYS * DAY)
    search(made, START + DAYS * DAY)
    return list(made.kept.values())


def test_a_runaway_is_named_with_its_money(findings):
    """The job that goes on for 44 hours on every card it gets, once there is a past; nothing else
    is one.
    """
    (one,) = [one for one in findings if one.evidence["cause"] == "runaway"]
    assert (one.team, one.evidence["workloads"]) == ("data", ["reindex-all-retry"])
    assert 0 <= one.since_ms - begin(RUNAWAY, START) - RUNAWAY.cycle_ms <= 4 * HOUR
    assert (
        "ran for 44 hours on 4 GPUs; workloads of data as large lasted" in one.evidence["sentence"]
    )
    assert one.cost_micro > 300_000_000


def test_a_storm_is_found_by_its_runs_though_it_costs_little(findings):
    """54 runs of ten minutes on one card: an episode of its own, with the money of exactly those
    nine hours.
    """
    found = [one for one in findings if one.state == "storm"]
    assert [one.since_ms for one in found] == [
        begin(STORM, START),
        begin(STORM, START) + STORM.cycle_ms,
    ]
    for one in found:
        assert one.evidence["sentence"].startswith(
            "54 runs of asr-eval of 10 minutes each in 9 hours; workloads of "
        )
        assert (one.team, one.evidence["cause"]) == ("speech", "retry storm")
        assert one.cost_micro == round(9 * Decimal(RATES["L40S"]) * 1_000_000)
        assert one.opened_ms - one.since_ms == 100 * 60_000
        # Mails tell storms apart by their keys.
        assert deduplication_key_of(one.key, "speech:USD") == "speech:USD:asr-eval"


def test_every_episode_says_what_is_behind_it(findings):
    """A known nature, a sentence with numbers, names that exist, and no storm beside an episode
    that tells it.
    """
    kinds = {
        "runaway",
        "retry storm",
        "plateau",
        "leak",
        "new workload",
        "price",
        "scale-up",
        "many small",
    }
    for one in findings:
        assert one.evidence["cause"] in kinds
        assert any(notification.isdigit() for notification in one.evidence["sentence"])
        assert one.evidence["workloads"] or one.evidence["cause"] == "price"
    keys = [one.key for one in findings]
    assert len(keys) == len(set(keys))


def test_a_second_look_finds_the_same():
    """Judged again, nothing is added, dropped or renamed."""
    made = Schedule(START, START + 20 * DAY)
    search(made, START + 20 * DAY)
    before = dict(made.kept)
    search(made, START + 20 * DAY)
    assert made.kept == before
