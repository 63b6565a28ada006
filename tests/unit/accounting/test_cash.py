"""The cash view: what is paid on its day, beside what is borne; over a whole term both are the
same.
"""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.cash import (
    Hardware,
    Version,
    depreciation_nano,
    paid_micro,
    purchases,
)
from gpuledger_collector.accounting.commitments import Commitment, Demand, cover
from gpuledger_collector.accounting.owned_hardware import Owned
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, UTC_DAYS, Period, parse_date
from gpuledger_collector.accounting.rating import Charge

START = parse_date("2026-01-01")
MONEY = st.integers(0, 10**13)
RATES = st.decimals(0, 50, places=9)


@st.composite
def commitments(draw: st.DrawFn) -> Commitment:
    starts_ms = START + draw(st.integers(0, 60 * 24)) * HOUR_MS
    return Commitment(
        1,
        "reserved",
        draw(st.integers(1, 500)),
        draw(MONEY),
        draw(RATES),
        "USD",
        starts_ms,
        starts_ms + draw(st.integers(1, 100 * 24)) * HOUR_MS,
    )


@given(commitments(), st.lists(st.integers(0, 200 * 24 * 60), max_size=8), st.integers(0, 3))
def test_over_the_term_both_views_have_the_same_sum(
    commitment: Commitment, cuts: list[int], gpus: int
) -> None:
    """However the term is cut, what is paid adds up to what is borne: covered and unused hours, to
    the micro-unit.
    """
    at = sorted({commitment.starts_ms, commitment.ends_ms, *(START + cut * 60_000 for cut in cuts)})
    paid = sum(commitment.paid_micro(Period(start, end)) for start, end in pairwise(at))
    hours = list(commitment.term.hours())[:48]
    demands = [
        Demand((1,), "", "", "", "", {hour.start_ms: gpus * 3_600_000_000_000 for hour in hours})
    ]
    coverage = cover([commitment], demands, hours, commitment.ends_ms)
    borne = sum(
        share.cost_micro
        for parts in coverage.shares.values()
        for one in parts.values()
        for share in one
    )
    borne += sum(share.cost_micro for _, share in coverage.unused)
    rest = Period(hours[-1].end_ms, commitment.ends_ms)
    borne += commitment.cost(rest) if rest.ms else 0
    assert paid == commitment.paid_micro(commitment.term) == borne


@given(commitments(), st.integers(0, 120), st.lists(st.integers(0, 200), max_size=5))
def test_payments_of_adjoining_ranges_add_up(
    commitment: Commitment, closed: int, cuts: list[int]
) -> None:
    """Whatever months are closed, and whenever the commitment was declared: nothing is lost and
    nothing twice.
    """
    now_ms = START + 200 * DAY_MS
    months = {
        name: UTC_DAYS.month(name).end_ms + DAY_MS
        for name in ("2026-01", "2026-02", "2026-03", "2026-04")[: closed // 30]
    }
    versions = [Version(commitment, START + 75 * DAY_MS)]
    at = sorted({START, now_ms, *(START + cut * DAY_MS for cut in cuts)})
    parts = [
        purchases(versions, Period(start, end), UTC_DAYS, months, now_ms)
        for start, end in pairwise(at)
    ]
    assert sum(payment.micro for part in parts for payment in part) == commitment.paid_micro(
        commitment.term
    )
    for payment in (payment for part in parts for payment in part if payment.correction_of):
        assert payment.booked_ms == START + 75 * DAY_MS
        assert months[payment.correction_of] < payment.booked_ms


def test_a_commitment_that_changes_after_a_close_is_corrected_in_the_open_month() -> None:
    """The closed month keeps what was declared at its close; the difference is booked on the day of
    the change.
    """
    before = Commitment(1, "reserved", 8, 1_000_000, Decimal(1), "USD", START, START + 31 * DAY_MS)
    after = Commitment(2, "reserved", 8, 3_000_000, Decimal(1), "USD", START, START + 31 * DAY_MS)
    changed_ms = START + 40 * DAY_MS
    versions = [Version(before, START, changed_ms), Version(after, changed_ms)]
    closed = {"2026-01": START + 33 * DAY_MS}
    january, february = UTC_DAYS.month("2026-01"), UTC_DAYS.month("2026-02")
    recurring = 8 * 31 * 24 * 1_000_000
    own = purchases(versions, january, UTC_DAYS, closed, february.end_ms)
    assert [(one.micro, one.is_recurring) for one in own] == [(1_000_000, False), (recurring, True)]
    late = purchases(versions, february, UTC_DAYS, closed, february.end_ms)
    assert {one.correction_of for one in late} == {"2026-01"}
    assert sum(one.micro for one in late) == 2_000_000


def test_hardware_is_paid_for_on_its_day_and_its_depreciation_is_no_cash() -> None:
    """Four nodes at 280,000 are one payment; an hour of it costs its running costs."""
    owned = Owned(
        "DGX",
        Decimal(280_000),
        48,
        "EUR",
        START,
        per="node",
        gpus=8,
        salvage=Decimal(28_000),
        count=4,
        opex_per_month=Decimal(900),
    )
    price = owned.prices()[0]
    bought = Version(Hardware("DGX", 4, "node", Decimal(280_000), "EUR", START), START)
    (payment,) = purchases([bought], Period(START, START + DAY_MS), UTC_DAYS, {}, START + DAY_MS)
    assert (payment.micro, payment.is_recurring) == (4 * 280_000 * 10**6, False)
    assert (
        purchases(
            [bought], Period(START + DAY_MS, START + 9 * DAY_MS), UTC_DAYS, {}, START + 9 * DAY_MS
        )
        == []
    )
    hours = 10
    charge = Charge(
        day_ms=START,
        start_ms=START,
        end_ms=START + DAY_MS,
        accelerator_id=1,
        workload_id=1,
        owner=None,
        state="held",
        pool="",
        gpu_model="",
        node="",
        currency="EUR",
        price=price,
        gpu_ns=hours * 3_600_000_000_000,
        cost_micro=int(price.rate * hours * 10**6),
    )
    depreciation = Decimal(price.basis["parts"]["depreciation"])  # type: ignore[index]
    assert depreciation_nano(price) == int(depreciation * 10**9)
    assert paid_micro(charge) == int(price.rate * hours * 10**6) - int(depreciation * hours * 10**6)
