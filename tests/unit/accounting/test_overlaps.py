"""Whether usage intervals that were added up overlap."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.ledger_rows import EvidenceSum, do_overlap

BOUNDS = st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda at: (at[0], sum(at)))


def sum_of(bounds):
    """A sum of usage intervals with these bounds; nothing else of it matters here."""
    starts, ends = (
        b"".join(instant.to_bytes(8, "big") for instant in instants)
        for instants in zip(*bounds, strict=True)
    )
    return EvidenceSum(
        *(1, 0, "held", 1, None, 1, 1, 0, 0, None, 0, 1, True, 1, "n"), starts=starts, ends=ends
    )


@given(st.lists(st.lists(BOUNDS, min_size=1, max_size=5), min_size=1, max_size=3))
def test_it_is_told_by_their_bounds(sums):
    """As comparing each with each other tells, in any order and over several sums."""
    every = [bounds for own in sums for bounds in own]
    meet = any(
        start < other_end and other_start < end
        for (start, end), (other_start, other_end) in combinations(every, 2)
    )
    assert do_overlap(list(map(sum_of, sums))) == meet


@pytest.mark.parametrize(
    ("bounds", "overlap"),
    [
        ([(0, 60), (60, 120), (130, 190)], False),
        ([(130, 190), (0, 60), (60, 120)], False),
        # An overlap and a gap of the same length: their lengths add up to the whole.
        ([(0, 60), (59, 119), (120, 180)], True),
        # One within another.
        ([(0, 60), (10, 20), (60, 120)], True),
        ([(0, 60), (0, 60)], True),
    ],
)
def test_examples(bounds, overlap):
    """Those of an agent follow each other; a gap is none."""
    assert do_overlap([sum_of(bounds)]) is overlap
