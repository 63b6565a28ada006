"""What a decision is said to move is what the bill changes by, whoever held the time and whatever
it costs.
"""

from collections import defaultdict
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from fakes.evidence import DAY, WHOLE, evidence
from gpuledger_collector.accounting.corrections import difference
from gpuledger_collector.accounting.dispute_moves import find_moves
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.rating import RatedAccelerator, rate_accelerator_day
from gpuledger_collector.accounting.reattribution import UNNUMBERED, Reattribution, Reattributions
from gpuledger_collector.accounting.usage import HELD, UNAVAILABLE, fold, rating_intervals

GPU = RatedAccelerator(7, 1_000_000, "default", "NVIDIA H100 80GB HBM3", "n1")
paths = st.builds(
    OwnerPath, team=st.sampled_from(["", "a", "b"]), project=st.sampled_from(["", "p"])
)
contested = st.sampled_from(
    [{"team": "a"}, {"team": "a", "project": "p"}, {"team": "a", "project": ""}]
)
rates = st.decimals("0.000000001", 100, places=9)


@st.composite
def decisions(draw, number):
    """A decision about some hours of a workload on the accelerator."""
    first = draw(st.integers(0, 23))
    span = (
        DAY.start_ms + first * HOUR_MS,
        DAY.start_ms + draw(st.integers(first + 1, 24)) * HOUR_MS,
    )
    owner = draw(paths | st.none())
    state = UNAVAILABLE if owner is None else HELD
    return Reattribution(number, draw(st.integers(1, 3)), 7, *span, state, owner, draw(contested))


@st.composite
def prices(draw):
    """One rate, then another from an instant on, perhaps in another currency."""
    second = draw(st.sampled_from(["USD", "EUR"]))
    change = DAY.start_ms + draw(st.integers(1, DAY_MS - 1))
    return PriceBook(
        Price(at + 1, "", "", "on_demand", Decimal(draw(rates)), currency, start, None)
        for at, (currency, start) in enumerate([("USD", 0), (second, change)])
    )


def charged(facts, book, ruled, decided):
    """The charges of the day under some decisions; `ruled` says hour by hour whom rules charge."""

    def by_rules(workload_id, at_ms, _attributes_id=None):
        return ruled[(workload_id + (at_ms - DAY.start_ms) // HOUR_MS) % len(ruled)]

    def owner_of(workload_id, at_ms, _attributes_id=None):
        return decided.payer(workload_id, 7, at_ms, by_rules(workload_id, at_ms))

    pieces = decided.apply_to_pieces(
        fold(facts, rating_intervals(DAY, book.cuts(DAY)), WHOLE), by_rules
    )
    return rate_accelerator_day(GPU, DAY, WHOLE, pieces, book, owner_of, 2**60)


def bill(charges):
    """Time and money by who pays and in which state."""
    found = defaultdict(lambda: (0, 0))
    for one in charges:
        ns, micro = found[(one.owner, one.state, one.currency)]
        found[(one.owner, one.state, one.currency)] = (
            ns + one.gpu_ns,
            micro + (one.cost_micro or 0),
        )
    return found


@given(
    evidence(),
    prices(),
    st.lists(paths, min_size=1, max_size=5),
    st.lists(decisions(1), max_size=2),
    decisions(UNNUMBERED),
)
def test_the_preview_is_the_change_of_the_bill(facts, book, ruled, known, proposed):
    """To the nanosecond and the micro-unit, beside earlier decisions, rules that change and prices
    in mid-hour.
    """
    before = charged(facts, book, ruled, Reattributions(known))
    after = charged(facts, book, ruled, Reattributions([*known, proposed]))
    expected = bill(before)
    for move in find_moves(difference(before, after), proposed.owner, closed=False):
        assert all(move.owner.level(level) == value for level, value in proposed.contested.items())
        for key, sign in (
            ((move.owner, HELD, move.currency), -1),
            ((move.to, proposed.state, move.currency), 1),
        ):
            ns, micro = expected[key]
            expected[key] = (ns + sign * move.gpu_ns, micro + sign * (move.cost_micro or 0))
    left = {key: values for key, values in expected.items() if any(values)}
    assert left == {key: values for key, values in bill(after).items() if any(values)}
