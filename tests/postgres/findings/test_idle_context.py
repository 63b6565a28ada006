"""A search that keeps its context finds what a search finds that reads everything again."""

import math
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pytest
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
LATE_OF_ALL = """
INSERT INTO late_evidence SELECT a.id, late.hour_ms, NULL, late.change FROM accelerator a,
    (SELECT min(late_ms) AS hour_ms, max(change) AS change FROM late_evidence) AS late
    WHERE late.hour_ms IS NOT NULL
ON CONFLICT (accelerator_id) DO UPDATE SET late_ms = excluded.late_ms
"""
FINDINGS = "SELECT * FROM finding WHERE kind = 'idle' ORDER BY key"
SURE, EVIDENCE = 12, 16
"""Places of `confidence` and `evidence` in a finding."""


def findings_of(fleet):
    """All columns but the number of the row."""
    return [row[1:] for row in fleet.rows(FINDINGS)]


def measured(finding):
    """How sure a finding is and what was read meanwhile: means over the minutes that a search has
    read, eight hours before its window of a spell that is longer.
    """
    sure, evidence = finding[SURE], finding[EVIDENCE]
    return [math.nan if value is None else value for value in (sure, evidence["utilization_ratio"])]


def exactly(finding):
    """All of a finding but that."""
    evidence = {
        name: value for name, value in finding[EVIDENCE].items() if name != "utilization_ratio"
    }
    return [
        evidence if place == EVIDENCE else cell
        for place, cell in enumerate(finding)
        if place != SURE
    ]


def worked(fleet, card, start, end):
    """Say of a card that is idle all day that it worked."""
    fleet.connection.execute(
        "DELETE FROM gpu_minute WHERE accelerator_id = %s AND minute_ms >= %s AND minute_ms < %s",
        (fleet.accelerator(card), OCTOBER + start, OCTOBER + end),
    )
    minutes(fleet, card, start, end, 0.9)
    fleet.connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT %s, generate_series(%s::bigint,"
        " %s::bigint, 3600000)",
        (fleet.accelerator(card), OCTOBER + start - start % HOUR, OCTOBER + end - 1),
    )


class Ledger:
    """A ledger, its search, and what its cards have not told yet; without a context all cards are
    searched again where one was late.
    """

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
        if self.context is None:
            self.fleet.connection.execute(LATE_OF_ALL)
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
# The last search of a spell that is longer than the context has not read all of it.
@example(
    [
        *[("cut", 1), (5, IDLE), (130, IDLE), *[(5, IDLE)] * 4, (130, (0.0, 0.0, 0.9))],
        *[("late", 0.0), (55, (0.02, 0.0, 0.02))],
    ]
)
@examples(12)
def test_both_find_the_same(postgres, steps):
    """By chance: busy and idle, cut off and back with late evidence, at any rhythm of searches. One
    reads everything of every card again, the other what it has not kept of cards that were late.
    """
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
            assert list(map(exactly, found)) == list(map(exactly, expected))
            for mine, other in zip(found, expected, strict=True):
                assert measured(mine) == pytest.approx(measured(other), abs=0.02, nan_ok=True)
        assert expected


def test_hours_long_over_are_read_once(fleet, findings, ledger, monkeypatch):
    """The second search reads from an hour before its window, which begins an hour early at the
    begin of an hour; late evidence of a card makes it read what it kept with this one again.
    """
    furnish(fleet)
    fold_usage(ledger)
    read, starts = minute_rollup.read, []

    def watched(connection, start_ms, end_ms, ids):
        starts.append(((start_ms - OCTOBER) / HOUR, [*ids]))
        return read(connection, start_ms, end_ms, ids)

    monkeypatch.setattr(minute_rollup, "read", watched)
    context = IdleContext()
    for at in (20 * HOUR + 10 * MINUTE, 20 * HOUR + 40 * MINUTE, 21 * HOUR + 5 * MINUTE):
        find_idle(findings, OCTOBER + at, context)
    # The first one searches everything. Its window begins at the first hour, before which nothing
    # is kept.
    everyone = starts[0][1]
    assert starts == [(0, everyone), (12, everyone), (19, everyone)]
    starts.clear()
    worked(fleet, 3, 3 * HOUR, 4 * HOUR)
    fold_usage(ledger)
    find_idle(findings, OCTOBER + 21 * HOUR + 9 * MINUTE, context)
    find_idle(findings, OCTOBER + 21 * HOUR + 12 * MINUTE, context)
    # First the card that was late, with its own hours before; then all, and then only what is new.
    late = [fleet.accelerator(3)]
    assert starts == [(0, late), (12, everyone), (19, everyone)]
    starts.clear()
    find_idle(findings, OCTOBER + 21 * HOUR + 40 * MINUTE, context)
    assert starts == [(19, everyone)]


def test_late_evidence_of_one_node_leaves_what_was_kept_of_others(
    fleet, findings, ledger, monkeypatch
):
    """Of cards that are searched together with none that was late nothing is read again."""
    monkeypatch.setattr("gpuledger_collector.services.idle_search.ACCELERATORS_AT_ONCE", 2)
    furnish(fleet)
    fold_usage(ledger)
    context = IdleContext()
    for at in (20 * HOUR + 20 * MINUTE, 20 * HOUR + 40 * MINUTE):
        find_idle(findings, OCTOBER + at, context)
    kept = set(context._groups)
    worked(fleet, 1, 3 * HOUR, 4 * HOUR)
    fold_usage(ledger)
    with findings.transaction(read_only=True) as connection:
        context.begin_window(connection, sorted(kept))
    assert kept - set(context._groups) == {ids for ids in kept if fleet.accelerator(1) in ids}
    assert len(kept) > 1


def test_evidence_of_the_hour_that_has_just_ended_is_in_time(fleet, findings, ledger):
    """Ten minutes after the hour it is searched anyway, and noted as late for nobody."""
    furnish(fleet)
    fold_usage(ledger)
    find_idle(findings, OCTOBER + 12 * HOUR + 9 * MINUTE)
    worked(fleet, 3, 11 * HOUR + 40 * MINUTE, 12 * HOUR)
    fold_usage(ledger)
    late = "SELECT accelerator_id, late_ms, again_ms FROM late_evidence"
    assert fleet.rows(late) == []
    find_idle(findings, OCTOBER + 12 * HOUR + 18 * MINUTE)
    third = fleet.accelerator(3)
    ended = "SELECT resolved_ms FROM finding WHERE accelerator_id = %s ORDER BY since_ms"
    assert fleet.rows(ended, third)[0] == (OCTOBER + 11 * HOUR + 40 * MINUTE,)
    # Now the search has passed the hour, and goes back to it.
    worked(fleet, 3, 11 * HOUR + 20 * MINUTE, 11 * HOUR + 40 * MINUTE)
    fold_usage(ledger)
    assert fleet.rows(late) == [(third, OCTOBER + 11 * HOUR, None)]
    find_idle(findings, OCTOBER + 12 * HOUR + 20 * MINUTE)
    assert fleet.rows(late) == [(third, None, None)]
    assert fleet.rows(ended, third)[0] == (OCTOBER + 11 * HOUR + 20 * MINUTE,)


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
