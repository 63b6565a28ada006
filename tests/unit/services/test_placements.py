"""Capacity rows as places: what rows say of a place is told apart from where they meet."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.ledger_rows import CapacityRow
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.usage import HELD, UsageInterval
from gpuledger_collector.services.hourly_usage import fold_hours
from gpuledger_collector.services.placements import placements_of

ROW = CapacityRow(1, 1_000_000, "H100", "train", "n1", 0, None, "agent")


@st.composite
def rows(draw):
    """Rows of one accelerator in order of time, some of them in the place of the one before."""
    edges = sorted(draw(st.sets(st.integers(0, 100), min_size=2, max_size=6)))
    return [
        replace(
            ROW,
            in_ms=start,
            out_ms=end,
            pool=draw(st.sampled_from(["train", "serve"])),
            source=draw(st.sampled_from(["agent", "import"])),
        )
        for start, end in pairwise(edges)
        if draw(st.integers(0, 3))
    ]


@given(rows(), st.integers(0, 100))
def test_where_two_rows_of_one_place_meet_changes_nothing(whole, at):
    """A row that is cut in two gives the same placements."""
    cut = [
        part
        for row in whole
        for part in (
            [replace(row, out_ms=at), replace(row, in_ms=at)]
            if row.in_ms < at < row.out_ms
            else [row]
        )
    ]
    assert placements_of(cut) == placements_of(whole)


def test_a_claim_that_does_not_hold_moves_no_millisecond():
    """Two jobs share an hour by an odd millisecond; a row in the same place begins in its middle."""
    parts = ((1, 1_200_001), (2, 2_399_999))
    evidence = [
        UsageInterval(1, job, HELD, 0, HOUR_MS, ms, 0, ms, 0, None, 1, "e", 1, at, "n1")
        for at, (job, ms) in enumerate(parts)
    ]
    half = HOUR_MS // 2
    placements = placements_of([replace(ROW, out_ms=half), replace(ROW, in_ms=half)])[1]
    pieces = fold_hours(evidence, [0], placements, PriceBook([]))
    assert [(piece.workload_id, piece.held_ms) for piece in pieces] == list(parts)
