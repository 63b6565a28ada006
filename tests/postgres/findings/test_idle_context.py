"""A search that keeps its context finds what a search finds that reads everything again."""

from contextlib import ExitStack
from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from fakes.fleet import DAY, HOUR, OCTOBER, Fleet, Held
from fakes.idle_day import MINUTE, furnish, minutes
from fakes.postgres import fresh_database
from fakes.profiles import examples
from gpuledger_collector.services import idle_context
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.idle_context import IdleContext
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import minutes as minute_rollup

CARDS = (1, 2, 3)
FINDINGS = "SELECT * FROM finding WHERE kind = 'idle' ORDER BY key"


def findings_of(fleet):
    """All columns but the number of the row."""
    return [row[1:] for row in fleet.rows(FINDINGS)]


class Ledger:
    """A ledger, its search, and what its cards have not told yet."""

    def __init__(self, dsn, context):
        self.database, self.context, self.fleet = Database(dsn), context, Fleet(dsn)
        self.at, self.silent_since, self.holes = 0, {}, []
        for card in CARDS:
            self.fleet.capacity(card, 0)
            self.fleet.workload(card, team="vision")

    def tell(self, card, since, until, utilization):
        """Minutes and holdings, in pieces of an hour at most and one over the full hour."""
        minutes(self.fleet, card, since, until, utilization)
        cuts = sorted({since, *range(since - since % HOUR + 90 * MINUTE, until, HOUR), until})
        self.fleet.evidence([Held(card, card, *span) for span in pairwise(cuts)])

    def pass_time(self, length, readings):
        """What the cards that are not cut off do until then, and a search."""
        for card, utilization in zip(CARDS, readings, strict=True):
            if card not in self.silent_since:
                self.tell(card, self.at, self.at + length, utilization)
        self.at += length
        self.search()

    def cut_off(self, card):
        self.silent_since.setdefault(card, self.at)

    def go_on(self, card):
        """Report again, and what was missed later."""
        since = self.silent_since.pop(card, self.at)
        if since < self.at:
            self.holes.append((card, since, self.at))

    def tell_late(self, utilization):
        """What every card missed."""
        for card in tuple(self.silent_since):
            self.go_on(card)
        for hole in self.holes:
            self.tell(*hole, utilization)
        self.holes.clear()
        self.search()

    def search(self):
        fold_usage(self.database)
        find_idle(self.database, OCTOBER + self.at, self.context)


READINGS = st.tuples(*[st.sampled_from([0.0, 0.02, 0.9])] * len(CARDS))
STEPS = st.one_of(
    st.tuples(st.sampled_from([5, 7, 55, 60, 61, 130]), READINGS),
    st.tuples(st.just("cut"), st.sampled_from(CARDS)),
    st.tuples(st.just("on"), st.sampled_from(CARDS)),
    st.tuples(st.just("late"), st.sampled_from([0.0, 0.9])),
)
IDLE, BUSY = (0.0, 0.0, 0.0), (0.9, 0.9, 0.9)


@given(st.lists(STEPS, max_size=14))
@example([(100, BUSY), ("cut", 1), *[(60, IDLE)] * 9, (7, BUSY), ("late", 0.9), (7, IDLE)])
@example([(100, IDLE), *[(55, BUSY)] * 4, ("cut", 2), (5, IDLE), ("late", 0.0), (5, IDLE)])
# The hole of ten minutes is bridged until it is known that the card worked in it.
@example(
    [
        *[(93, BUSY), ("cut", 2), (7, BUSY), ("late", 0.9), (40, IDLE), ("cut", 1), (10, IDLE)],
        *[("on", 1), (70, IDLE), (1, IDLE), (1, IDLE), ("late", 0.9), (25, IDLE)],
    ]
)
@examples(12)
def test_both_find_the_same(postgres, steps):
    """By chance: busy and idle, cut off and back with late evidence, at any rhythm of searches."""
    with ExitStack() as stack:
        ledgers = [
            Ledger(stack.enter_context(fresh_database(postgres)), context)
            for context in (None, IdleContext())
        ]
        for ledger in ledgers:
            stack.callback(ledger.fleet.connection.close)
        for step in [(500, (0.9, 0.0, 0.02)), *steps]:
            for ledger in ledgers:
                match step:
                    case "cut", card:
                        ledger.cut_off(card)
                    case "on", card:
                        ledger.go_on(card)
                    case "late", utilization:
                        ledger.tell_late(utilization)
                    case length, readings:
                        ledger.pass_time(length * MINUTE, readings)
            expected, found = (findings_of(ledger.fleet) for ledger in ledgers)
            assert found == expected
        assert expected


def test_hours_long_over_are_read_once(fleet, findings, ledger, monkeypatch):
    """The second search reads from an hour before its window; late evidence makes it read all."""
    furnish(fleet)
    fold_usage(ledger)
    read, starts = minute_rollup.read, []

    def watched(connection, start_ms, end_ms, ids):
        starts.append((start_ms - OCTOBER) / HOUR)
        return read(connection, start_ms, end_ms, ids)

    monkeypatch.setattr(minute_rollup, "read", watched)
    context = IdleContext()
    for at in (20 * HOUR + 10 * MINUTE, 20 * HOUR + 40 * MINUTE, 21 * HOUR + 5 * MINUTE):
        find_idle(findings, OCTOBER + at, context)
    # The first one searches everything. Its window begins at the first hour, before which nothing
    # is kept.
    assert starts == [0, 12, 19]
    starts.clear()
    minutes(fleet, 5, 3 * HOUR, 4 * HOUR, 0.9)
    fleet.evidence([Held(5, 3, 3 * HOUR, 4 * HOUR)])
    fold_usage(ledger)
    find_idle(findings, OCTOBER + 21 * HOUR + 9 * MINUTE, context)
    find_idle(findings, OCTOBER + 21 * HOUR + 12 * MINUTE, context)
    assert starts[-2:] == [13, 20]


def test_what_is_kept_is_bounded(fleet, findings):
    """Accelerators beyond the bound are read again each time, and those that left are forgotten."""
    furnish(fleet)
    nothing, everything = IdleContext(most_bytes=0), IdleContext()
    for at in range(12 * HOUR + 5 * MINUTE, 13 * HOUR, 10 * MINUTE):
        find_idle(findings, OCTOBER + at, nothing)
        find_idle(findings, OCTOBER + at, everything)
    assert nothing._groups == {}
    assert len(everything._groups) == 1
    with findings.transaction() as connection:
        everything.begin_window(connection, [])
    assert everything._groups == {}


def test_records_are_restored(fleet, findings):
    """Every bit of them; none are none."""
    furnish(fleet)
    with findings.transaction() as connection:
        evidence = idle_context.read_evidence(connection, OCTOBER, OCTOBER + DAY, [1, 2, 3, 4])
    for rows in (evidence.minutes, evidence.intervals, evidence.minutes[:0]):
        restored = idle_context._Packed.pack(rows).unpack()
        assert restored.dtype == rows.dtype
        assert restored.tobytes() == np.ascontiguousarray(rows).tobytes()
