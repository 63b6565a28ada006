"""The cost of a commitment's term, hour by hour."""

from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.period import HOUR_MS, Period

START_MS = 480_000 * HOUR_MS


def commitment(gpus, upfront, rate, hours):
    return Commitment(
        1, "c", gpus, upfront, Decimal(rate), "USD", START_MS, START_MS + hours * HOUR_MS
    )


@given(st.integers(0, 10**15), st.integers(1, 30_000), st.integers(1, 64))
def test_the_hours_of_a_term_add_up_to_the_upfront_payment(upfront, hours, gpus):
    """Exactly, each hour within a micro-unit of every other, the earliest ones the dearer."""
    term = commitment(gpus, upfront, "0", hours)
    parts = [term.amortized_micro(term.starts_ms + at * HOUR_MS) for at in range(hours)]
    assert sum(parts) == upfront
    assert parts == sorted(parts, reverse=True)
    assert parts[0] - parts[-1] <= 1
    assert term.amortized_micro(term.starts_ms - HOUR_MS) == term.amortized_micro(term.ends_ms) == 0


@given(
    st.integers(0, 10**12),
    st.decimals(0, 100, places=9),
    st.integers(1, 60),
    st.lists(st.integers(0, 60 * HOUR_MS), max_size=6),
)
def test_the_cost_of_a_term_does_not_depend_on_where_it_is_cut(upfront, rate, hours, cuts):
    """Whatever the spans, mid-hour or not, their costs and their GPU-time add up to the term's."""
    term = commitment(3, upfront, rate, hours)
    edges = sorted(
        {term.starts_ms, term.ends_ms, *(START_MS + cut for cut in cuts if cut < hours * HOUR_MS)}
    )
    spans = [Period(start, end) for start, end in pairwise(edges)]
    assert sum(term.cost(span) for span in spans) == term.cost(term.term)
    assert (
        sum(term.committed_ns(span) for span in spans)
        == term.committed_ns(term.term)
        == 3_000_000 * hours * HOUR_MS
    )
    assert term.cost(term.term) == sum(
        term.hour_micro(term.starts_ms + at * HOUR_MS) for at in range(hours)
    )


@pytest.mark.parametrize(("start", "end"), [(1, HOUR_MS), (0, HOUR_MS + 1), (HOUR_MS, HOUR_MS)])
def test_a_term_that_is_no_whole_hours_is_refused(start, end):
    """Hours are what is amortized."""
    with pytest.raises(ValueError, match="whole hour"):
        Commitment(None, "c", 1, 0, Decimal(1), "USD", start, end)
