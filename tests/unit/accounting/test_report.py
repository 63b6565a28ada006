"""The chargeback report: what is printed adds up, and nothing is dropped."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.chargeback import report
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR


def line(keys, state, currency, gpu_ns, **measures) -> ChargedLine:
    return ChargedLine(keys, state, currency, gpu_ns=gpu_ns, **({"cost_micro": 0} | measures))


HOUR = GPU_NS_PER_HOUR


@st.composite
def lines(draw):
    made = []
    for _ in range(draw(st.integers(1, 25))):
        state = draw(st.sampled_from(["held", "held", "unallocated", "unavailable", "unobserved"]))
        currency = draw(st.sampled_from(["USD", "JPY", "BHD", None]))
        quantity = draw(st.integers(1, 10**15))
        idle = draw(st.integers(0, quantity)) if state == "held" else 0
        known = state == "held" and draw(st.booleans())
        cost = None if currency is None else draw(st.integers(0, 10**12))
        made.append(
            line(
                (
                    draw(st.sampled_from(["", "a", "b"])) if state == "held" else "",
                    draw(st.sampled_from(["", "p"])),
                ),
                state,
                currency,
                quantity,
                busy_ns=quantity - idle if known else 0,
                idle_ns=idle if known else 0,
                unknown_ns=0 if known or state != "held" else quantity,
                cost_micro=cost,
                idle_cost_micro=draw(st.integers(0, cost)) if known and cost is not None else None,
            )
        )
    return made


@given(lines(), lines(), st.sampled_from([1, -1]))
def test_corrections_are_rounded_like_their_month_and_not_with_the_open_one(own, amending, sign):
    """Time that a correction takes back is in no row of the period's own time; what is invoiced
    adds up both.
    """
    corrections = [
        replace(
            line,
            gpu_ns=sign * line.gpu_ns,
            idle_ns=sign * line.idle_ns,
            cost_micro=None if line.cost_micro is None else sign * line.cost_micro,
            correction_of="2025-09",
        )
        for line in amending
    ]
    by = ["team", "project"]
    apart = report([*own, *corrections], by)
    merged = report([*own, *corrections], by, separate_corrections=False)
    printed = (
        "keys",
        "currency",
        "correction_of",
        "gpu_hours",
        "cost_minor",
        "cost_held_idle_minor",
    )
    of_one_month = [*report(own, by).rows, *report(corrections, by).rows]
    rows = [[getattr(row, name) for name in printed] for row in apart.rows]
    assert sorted(rows, key=str) == sorted(
        ([getattr(row, name) for name in printed] for row in of_one_month), key=str
    )
    assert not any(row.correction_of for row in merged.rows)
    assert all(
        row.gpu_hours >= 0 and row.gpu_ns >= 0 for row in apart.rows if not row.correction_of
    )
    assert [row.cost_micro or 0 for row in apart.rows if row.currency == "USD"] == sorted(
        (row.cost_micro or 0 for row in apart.rows if row.currency == "USD"), reverse=True
    )
    for whole in merged.rows:
        rows = [
            row for row in apart.rows if (row.currency, row.keys) == (whole.currency, whole.keys)
        ]
        assert {row.correction_of for row in rows} <= {"", "2025-09"}
        assert sum(row.gpu_hours for row in rows) == whole.gpu_hours
        assert sum(row.cost_minor or 0 for row in rows) == (whole.cost_minor or 0)
        assert sum(row.gpu_hours_held_idle or 0 for row in rows) == (whole.gpu_hours_held_idle or 0)
    assert [(one.gpu_hours, one.cost_minor) for one in apart.totals] == [
        (one.gpu_hours, one.cost_minor) for one in merged.totals
    ]


def test_a_correction_keeps_its_cents_while_the_open_month_grows():
    """Half a cent that is taken back: its row says the same beside any cost of the open month."""
    correction = line(("a",), "held", "USD", -HOUR, cost_micro=-5_000, correction_of="2025-09")
    shown = set()
    for micro in (0, 4_000, 6_000, 12_345_678):
        rows = report(
            [line(("a",), "held", "USD", HOUR, cost_micro=micro), correction], ["team"]
        ).rows
        shown |= {row.cost_minor for row in rows if row.correction_of}
    assert shown == {0}


@given(lines())
def test_rows_add_up_to_the_totals_exactly(given_lines):
    """Per currency, the printed hours and minor units of the rows are those of the total;
    quantities are conserved.
    """
    made = report(given_lines, ["team", "project"])
    for total in made.totals:
        rows = [row for row in made.rows if row.currency == total.currency]
        assert sum(row.gpu_hours for row in rows) == total.gpu_hours
        assert sum(row.gpu_ns for row in rows) == total.gpu_ns
        assert sum(row.cost_minor or 0 for row in rows) == (total.cost_minor or 0)
        assert sum(row.gpu_hours_held_idle or 0 for row in rows) == (total.gpu_hours_held_idle or 0)
    assert sum(total.gpu_ns for total in made.totals) == sum(line.gpu_ns for line in given_lines)
    assert [total.currency for total in made.totals] == [
        *sorted({line.currency for line in given_lines if line.currency}),
        *([None] if any(line.currency is None for line in given_lines) else []),
    ]


@given(lines())
def test_special_rows_are_there_exactly_when_they_are_not_zero(given_lines):
    """Each marker stands for something that is there, and only then."""
    shown = {cell for row in report(given_lines, ["team", "project"]).rows for cell in row.keys}
    priced = [line for line in given_lines if line.currency is not None]
    for state in ("unallocated", "unavailable", "unobserved"):
        assert (f"({state})" in shown) == any(line.state == state for line in priced)
    assert ("(unattributed)" in shown) == any(
        line.state == "held" and "" in line.keys for line in priced
    )
    assert ("(unpriced)" in shown) == any(line.currency is None for line in given_lines)


def test_a_bill_that_a_person_can_check():
    """Two teams, an idle GPU and a gap: dearest first, cents that add up, idle only where it was
    known.
    """
    made = report(
        [
            line(
                ("speech",),
                "held",
                "USD",
                10 * HOUR,
                busy_ns=6 * HOUR,
                idle_ns=4 * HOUR,
                cost_micro=24_900_000,
                idle_cost_micro=9_960_000,
            ),
            line(
                ("vision",), "held", "USD", 40 * HOUR, unknown_ns=40 * HOUR, cost_micro=99_600_000
            ),
            line(("",), "unallocated", "USD", 2 * HOUR, cost_micro=4_980_000),
            line(("",), "unobserved", "USD", HOUR // 2, cost_micro=1_245_000),
        ],
        ["team"],
    )
    assert [
        (row.keys[0], str(row.gpu_hours), row.cost_minor, row.gpu_hours_held_idle)
        for row in made.rows
    ] == [
        ("vision", "40.000000", 9960, None),
        ("speech", "10.000000", 2490, Decimal("4.000000")),
        ("(unallocated)", "2.000000", 498, None),
        ("(unobserved)", "0.500000", 124, None),
    ]
    (total,) = made.totals
    assert (total.cost_minor, total.cost_held_idle_minor, str(total.gpu_hours)) == (
        13072,
        996,
        "52.500000",
    )
    assert not made.has_unpriced


def test_pools_keep_their_name_beside_a_marker():
    """Grouped by team and pool, unallocated time says in which pool."""
    made = report([line(("", "train"), "unallocated", "USD", HOUR, cost_micro=1)], ["team", "pool"])
    assert made.rows[0].keys == ("(unallocated)", "train")


def test_an_unknown_dimension_is_refused_with_the_known_ones():
    """`--by teem` names what there is."""
    with pytest.raises(ValueError, match="cannot group by 'teem'; choose from org, team"):
        report([], ["teem"])
