"""Laws of lending and borrowing."""

import datetime as dt
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.fair_share import STEP_NS, PoolShare, PoolStep, share_use
from gpuledger_collector.accounting.period import DAY_MS, UTC_DAYS

TEAMS = ("a", "b", "c", "d")
SHARES = st.lists(
    st.builds(
        PoolShare,
        st.sampled_from(TEAMS),
        st.just("p"),
        st.one_of(st.none(), st.decimals(0, 1, places=6)),
        st.integers(0, 20),
        st.sampled_from([None, dt.date(1970, 1, 2)]),
    ),
    max_size=5,
)
HELD = st.dictionaries(
    st.sampled_from(TEAMS),
    st.tuples(
        st.integers(1, 9 * STEP_NS),
        st.dictionaries(st.sampled_from(["USD", "EUR"]), st.integers(0, 10**9)),
    ),
)
STEPS = st.lists(
    st.builds(
        PoolStep,
        st.sampled_from([0, DAY_MS]),
        st.just("p"),
        st.one_of(st.none(), st.integers(0, 40 * STEP_NS)),
        HELD,
        st.one_of(st.none(), st.dictionaries(st.sampled_from(TEAMS), st.integers(0, 10**8))),
    ),
    max_size=6,
)


@given(STEPS, SHARES)
def test_what_is_lent_is_what_is_borrowed(steps, shares):
    """In time and in every currency; nobody lends more than it left unused, nor borrows more than
    it held beyond.
    """
    uses = share_use(steps, shares, UTC_DAYS)
    assert sum(use.lent_ns for use in uses) == sum(use.borrowed_ns for use in uses)
    for currency in ("USD", "EUR"):
        lent = sum(use.lent_micro.get(currency, 0) for use in uses)
        assert lent == sum(use.borrowed_micro.get(currency, 0) for use in uses)
    for use in uses:
        assert 0 <= use.lent_ns <= use.share_ns - use.within_ns
        assert 0 <= use.borrowed_ns <= use.held_ns - use.within_ns
        assert use.waited_ns is None or use.waited_ns <= use.lent_ns


@given(STEPS, SHARES)
def test_the_order_of_teams_and_shares_does_not_matter_to_the_sums(steps, shares):
    """A step's result is its own: steps in any order, and shares in any order, give the same sums."""
    one = share_use(steps, shares, UTC_DAYS)
    other = share_use(steps[::-1], shares, UTC_DAYS)
    assert one == other


def step(at_ms=0, capacity=10, waiting=None, **held):
    """A step in which teams hold GPUs at a micro-unit a nanosecond-step."""
    return PoolStep(
        at_ms,
        "p",
        None if capacity is None else capacity * STEP_NS,
        {team: (gpus * STEP_NS, {"USD": gpus * 1000}) for team, gpus in held.items()},
        waiting,
    )


def told(uses):
    return {
        use.team: (
            use.share_ns // STEP_NS,
            use.within_ns // STEP_NS,
            use.lent_ns // STEP_NS,
            use.borrowed_ns // STEP_NS,
        )
        for use in uses
    }


def test_borrowing_takes_first_what_is_nobodys():
    """Of ten GPUs four are a's and four b's: b's ninth-hour burst of seven takes two of nobody's
    and one of a's.
    """
    shares = [PoolShare("a", "p", Decimal("0.4")), PoolShare("b", "p", None, 4)]
    uses = share_use([step(a=3, b=7, waiting={"a": 2_000_000})], shares, UTC_DAYS)
    assert told(uses) == {"a": (4, 3, 1, 0), "b": (4, 4, 0, 1)}
    assert (uses[0].lent_micro, uses[1].borrowed_micro) == ({"USD": 1000}, {"USD": 1000})
    assert (uses[0].waited_ns, uses[1].waited_ns) == (STEP_NS, 0)


def test_shares_beyond_the_pool_count_in_proportion_and_dates_hold():
    """Twelve and eight of ten GPUs are six and four; before its first day a share is none; no queue
    is not zero.
    """
    shares = [PoolShare("a", "p", None, 12), PoolShare("b", "p", None, 8, dt.date(1970, 1, 2))]
    assert told(share_use([step(a=10)], shares, UTC_DAYS)) == {"a": (10, 10, 0, 0)}
    uses = share_use([step(DAY_MS, a=10)], shares, UTC_DAYS)
    assert told(uses) == {"a": (6, 6, 0, 4), "b": (4, 0, 4, 0)}
    assert [use.waited_ns for use in uses] == [None, None]


def test_without_an_inventory_only_numbers_of_gpus_count():
    """Usage that was imported has no capacity: a fraction of it is unknown, and nothing is
    nobody's.
    """
    shares = [
        PoolShare("a", "p", Decimal("0.5")),
        PoolShare("b", "p", None, 4),
        PoolShare("c", "p", None, 2),
    ]
    uses = share_use([step(capacity=None, a=2, b=1, c=3)], shares, UTC_DAYS)
    assert told(uses) == {"a": (0, 0, 0, 2), "b": (4, 1, 3, 0), "c": (2, 2, 0, 1)}
