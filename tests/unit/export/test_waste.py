"""The whole waste of a report: held idle, unallocated, stranded and unused commitments; what is
unknown stays so.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger_collector.accounting.chargeback import Allocations, report
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR as HOUR
from gpuledger_collector.accounting.waste import UnknownTime, WholeWaste, whole_waste
from gpuledger_collector.export.chargeback import csv_rows, unbilled_line, waste_line
from gpuledger_collector.export.pieces import csv_pieces


def line(name: str, state: str, hours: int, cost: int | None, **measures: int) -> ChargedLine:
    """A line of so many GPU-hours; `cost` in units of a currency."""
    micro = None if cost is None else cost * 1_000_000
    currency = None if cost is None else "USD"
    return ChargedLine((name,), state, currency, gpu_ns=hours * HOUR, cost_micro=micro, **measures)


FLEET = (
    line(
        "vision", "held", 100, 200, busy_ns=75 * HOUR, idle_ns=25 * HOUR, idle_cost_micro=50_000_000
    ),
    line("nlp", "held", 40, 80, unknown_ns=40 * HOUR),
    line("", "unallocated", 10, 20),
    line("", "stranded", 2, 4),
    line("", "commitment_unused", 3, 3),
    line("", "unavailable", 5, 10),
    line("", "unobserved", 6, 12),
    line("lab", "held", 7, None, busy_ns=7 * HOUR),
)


def test_the_whole_is_what_its_parts_are() -> None:
    """Idle while held, and every state that nobody used; broken and unobserved accelerators are not
    in it.
    """
    (waste,) = whole_waste(report(FLEET, ("team",)).rows, has_inventory=True)
    assert waste.parts == (
        ("held_idle", 5000),
        ("unallocated", 2000),
        ("stranded", 400),
        ("commitment_unused", 300),
    )
    assert waste.minor == sum(minor or 0 for _, minor in waste.parts) == 7700
    assert (waste.micro, waste.cost_minor, waste.unknown_ns) == (77_000_000, 32900, 46 * HOUR)
    assert (
        waste_line(waste)
        == "waste: 77.00 of 329.00 USD: held idle 50.00, unallocated 20.00, stranded 4.00,"
        " unused commitments 3.00; not known of 46.0 GPU-hours: 6.0 that nobody observed, 40.0 held"
        " without a reading"
    )


@pytest.mark.parametrize(
    ("unknown", "words"),
    [
        (UnknownTime(), ""),
        (UnknownTime(unobserved_ns=6 * HOUR), "of 6.0 GPU-hours that nobody observed"),
        (
            UnknownTime(imported_ns=1500 * HOUR),
            "of 1,500.0 GPU-hours imported from records that say nothing of work",
        ),
        (
            UnknownTime(HOUR // 3, HOUR // 3, HOUR // 3),
            "of 1.0 GPU-hours: 0.4 that nobody observed, 0.3 held without a reading, 0.3 imported"
            " from records that say nothing of work",
        ),
        # What rounds to nothing is not named, as before.
        (UnknownTime(unread_ns=HOUR // 100), ""),
    ],
)
def test_the_parts_of_unknown_time_are_named(unknown: UnknownTime, words: str) -> None:
    """In hours that add up to the whole; one part alone has those of the whole."""
    line = waste_line(WholeWaste("USD", "", 0, 0, 100, (), unknown))
    assert line == "waste: 0.00 of 1.00 USD" + (f"; not known {words}" if words else "")


def test_imported_time_is_a_part_of_what_was_held_without_a_reading() -> None:
    """As much as was held: what is told apart by currency cannot exceed the rows."""
    rows = report(FLEET, ("team",)).rows
    for imported, parts in ((15, (6, 25, 15)), (90, (6, 0, 40))):
        (waste,) = whole_waste(rows, has_inventory=True, imported_ns={"USD": imported * HOUR})
        assert waste.unknown == UnknownTime(*(hours * HOUR for hours in parts))
        assert waste.unknown_ns == 46 * HOUR


@pytest.mark.parametrize("by", [("team",), ("pool",), ("workload",)])
def test_the_column_adds_up_to_the_line(by: tuple[str, ...]) -> None:
    """Whatever the report is grouped by, `cost_waste` of its rows is the whole."""
    bill = report(FLEET, by)
    assert (
        sum(row.waste_minor or 0 for row in bill.rows)
        == whole_waste(bill.rows, has_inventory=True)[0].minor
    )
    (total,) = [total for total in bill.totals if total.currency == "USD"]
    assert total.waste_minor == 7700


def test_a_correction_has_no_unknown_hours_of_this_month() -> None:
    """Time that a correction takes back was of an earlier month: it is no unknown time of this one."""
    back = replace(line("nlp", "held", -9, -18, unknown_ns=-9 * HOUR), correction_of="2026-09")
    (waste,) = whole_waste(report([*FLEET, back], ("team",)).rows, has_inventory=True)
    assert waste.unknown_ns == 46 * HOUR


def test_without_an_inventory_unallocated_time_is_not_known() -> None:
    """It is named as unknown, where a zero would be a lie."""
    (waste,) = whole_waste(report(FLEET[:1], ("team",)).rows, has_inventory=False)
    assert waste_line(waste) == "waste: 50.00 of 200.00 USD: held idle 50.00, unallocated not known"


def test_what_is_not_known_is_an_empty_cell() -> None:
    """Held time of which nothing is known, broken and unobserved time: no waste is claimed of them."""
    text = "".join(csv_pieces(csv_rows(report(FLEET, ("team",)))))
    names, *rows = [one.split(",") for one in text.splitlines()]
    waste = {row[0]: row[names.index("cost_waste")] for row in rows}
    assert waste == {
        "vision": "50.00",
        "nlp": "",
        "(unallocated)": "20.00",
        "(stranded)": "4.00",
        "(commitment_unused)": "3.00",
        "(unavailable)": "",
        "(unobserved)": "",
        "(unpriced)": "",
    }


def test_a_line_without_a_list_cost_leaves_the_known_part() -> None:
    """The sum says what is known, and which part of the cost that is: neither empty, nor a saving
    that is none.
    """
    known = line(
        "vision", "held", 10, 20, list_cost_micro=30_000_000, contracted_cost_micro=25_000_000
    )
    unknown = line("vision", "held", 5, 10)
    unused = line("", "commitment_unused", 5, 7, list_cost_micro=0, contracted_cost_micro=0)
    bill = report([known, unknown, unused], ("team",))
    row, rest = bill.rows
    assert (row.cost_minor, row.list_minor, row.contracted_minor, row.compared_minor) == (
        3000,
        3000,
        2500,
        2000,
    )
    assert (rest.list_minor, rest.compared_minor) == (None, None)
    (total,) = bill.totals
    assert (total.list_minor, total.compared_minor) == (3000, 2000)


def test_what_no_owner_pays_is_marked_in_rows_and_totals() -> None:
    """Time without a holder, and shares without an owner; held time has one, known or not."""
    allocations = Allocations(
        shared={("USD", ("(unshared)",)): 5_000_000, ("USD", ("vision",)): 1_000_000}
    )
    bill = report([*FLEET, line("", "held", 1, 2)], ("team",), allocations)
    assert {row.keys[0]: row.is_billed for row in bill.rows} == {
        "vision": True,
        "nlp": True,
        "(unattributed)": True,
        "(unallocated)": False,
        "(stranded)": False,
        "(commitment_unused)": False,
        "(unavailable)": False,
        "(unobserved)": False,
        "(unshared)": False,
        "(unpriced)": None,
    }
    (total,) = [total for total in bill.totals if total.currency]
    assert (
        unbilled_line(bill, total)
        == "not billed to any owner: 54.00 of 337.00 USD: (unallocated), (unobserved),"
        " (unavailable), (stranded), (commitment_unused), (unshared)"
    )
