"""Spend over time and its flow: nothing is lost between a range, its buckets and its names."""

import itertools
from collections import Counter
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.chargeback import cost_by_payer, report
from gpuledger_collector.accounting.cost_flow import make_flow
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import DAY_MS, Calendar, Period, Zone, parse_date
from gpuledger_collector.accounting.quantity import round_to_sum
from gpuledger_collector.accounting.reserved_names import escape_name, unescape_name
from gpuledger_collector.accounting.spend_series import (
    BILLED,
    CORRECTION,
    MOST_SERIES,
    NOBODY,
    REST,
    SpendCell,
    SpendRow,
    choose_step,
    cut_range,
    make_series,
    rows_by_state,
    rows_of_report,
    shorten_rows,
    spread_over_hours,
    sum_rows,
    weight_key,
)

BERLIN = Calendar((Zone("Europe/Berlin", ZoneInfo("Europe/Berlin")),))
STATES = ("held", "node_cost", "markup", "credit", "unallocated", "stranded", "unobserved")
micros = st.integers(0, 10**12)
lines = st.builds(
    lambda team, state, month, cost, idle: ChargedLine(
        (team,),
        state,
        "USD",
        month,
        gpu_ns=0 if state in {"node_cost", "markup", "credit"} else 3_600_000_000_000,
        idle_ns=1 if state == "held" and idle else 0,
        cost_micro=-cost if state == "credit" else cost,
        idle_cost_micro=min(cost, idle) if state == "held" else None,
    ),
    st.sampled_from([f"t{number}" for number in range(MOST_SERIES + 4)]),
    st.sampled_from(STATES),
    st.sampled_from(["", "", "", "2025-10"]),
    micros,
    st.integers(0, 10**11),
)


def nobody_is_named(line):
    """A line as the ledger has it: what nobody pays has no team."""
    return line if line.state in STATES[:4] else replace(line, keys=("",))


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=12), st.integers(-40, 40))
def test_parts_of_a_rounded_row_add_up_to_it(values, off):
    """Also where it was rounded with so many others that it lies some units away."""
    whole = sum(values) // 10_000 + off
    parts = round_to_sum(values, 10_000, whole)
    assert sum(parts) == whole
    spread = abs(off) // len(values) + 2
    assert all(
        abs(part - value // 10_000) <= spread for part, value in zip(parts, values, strict=True)
    )


@given(st.text(max_size=6) | st.sampled_from(["(total)", "tag:(total)", "tag:tag:(x)", "tag:x"]))
def test_a_shown_name_leads_back_to_the_stored_one(name):
    """So that a group of the table is found in the ledger again."""
    assert unescape_name(escape_name(name)) == name


@pytest.mark.parametrize(
    ("days", "step", "count"),
    [(1, "hour", 24), (2, "hour", 49), (3, "day", 3), (62, "day", 62), (63, "week", 10)],
)
def test_steps_and_buckets(days, step, count):
    """Hours up to two days, then days, weeks from Monday, months; an hour more where clocks move."""
    first = parse_date("2025-10-25") + DAY_MS // 2
    whole = Period(BERLIN.day_of(first).start_ms, BERLIN.day_of(first + (days - 1) * DAY_MS).end_ms)
    assert choose_step(BERLIN, whole) == step
    assert len(cut_range(BERLIN, whole, step)) == count


@given(st.integers(0, 700), st.integers(1, 1200))
def test_buckets_adjoin_and_cover_the_range(first, days):
    """Each begins where the one before ends, and none is longer than it may be."""
    start_ms = parse_date("2024-01-01") + first * DAY_MS + DAY_MS // 2
    whole = Period(
        BERLIN.day_of(start_ms).start_ms, BERLIN.day_of(start_ms + (days - 1) * DAY_MS).end_ms
    )
    step = choose_step(BERLIN, whole)
    buckets = cut_range(BERLIN, whole, step)
    assert (buckets[0].start_ms, buckets[-1].end_ms) == (whole.start_ms, whole.end_ms)
    for before, after in itertools.pairwise(buckets):
        assert before.end_ms == after.start_ms
    longest = {"hour": DAY_MS // 24, "day": 25 * DAY_MS // 24, "week": 8 * DAY_MS}
    assert max(bucket.ms for bucket in buckets) <= longest.get(step, 32 * DAY_MS)


def test_a_range_without_end_is_refused():
    """In a sentence, before anything is read."""
    with pytest.raises(ValueError, match="at most 3,660 days"):
        choose_step(BERLIN, Period(0, 4000 * DAY_MS))


@given(st.lists(lines, max_size=40))
def test_rows_add_up_to_the_chargeback_by_team_and_by_state(found):
    """To the minor unit; shortened, too, and the flow ends where the rows end."""
    found = [nobody_is_named(line) for line in found]
    chargeback = report(found, ("team",))
    if not chargeback.totals:
        return
    (total,) = chargeback.totals
    by_team = rows_of_report(chargeback, "USD")
    by_state = rows_by_state(chargeback, [replace(line, keys=()) for line in found], "USD")
    for rows in (by_team, by_state):
        assert sum_rows(rows, "USD").cost.minor == total.cost_minor
        assert sum_rows(rows, "USD").cost.micro == total.cost_micro
        shown = shorten_rows(rows, 3)
        assert sum(row.cost.minor for row, _ in shown) == total.cost_minor
        assert sum(row.kind == BILLED for row, _ in shown) <= 4
    flow = make_flow(chargeback, "USD")
    if flow is not None:
        paid = cost_by_payer(chargeback, total)
        assert flow.capacity.minor == paid.whole.minor
        assert flow.billed.minor == paid.billed.minor
        assert flow.unpaid.minor == paid.not_billed.minor
        assert flow.flowing.minor == sum(use.cost.minor for use in flow.uses)
        for use in flow.uses:
            assert use.cost.minor > 0
            assert not use.parts or use.cost.minor == sum(part.cost.minor for part in use.parts)


cells = st.builds(
    SpendCell,
    st.sampled_from([None, "a", "b", ""]),
    st.sampled_from(["held", "credit", "unallocated"]),
    st.just("USD"),
    st.sampled_from(["", "2025-10"]),
    st.integers(0, 1),
    st.integers(-(10**9), 10**9),
    st.just(0),
)


@given(st.lists(cells, max_size=20), st.dictionaries(st.integers(0, 48), st.integers(0, 10**9)))
def test_hours_add_up_to_the_day(found, weights):
    """Whatever the weights are, with the day of twenty-five hours."""
    hours = [list(range(24)), list(range(24, 49))]
    parts = spread_over_hours(found, {weight_key(cell): weights for cell in found}, hours)
    days = Counter()
    for part in parts:
        days[weight_key(part), int(part.bucket >= 24)] += part.cost_micro
    expected = Counter()
    for cell in found:
        expected[weight_key(cell), cell.bucket] += cell.cost_micro
    assert {key: micro for key, micro in days.items() if micro} == {
        key: micro for key, micro in expected.items() if micro
    }


def test_the_largest_groups_have_a_series_and_the_others_one():
    """Nobody's time and corrections are their own; what is not known of a bucket is not zero."""
    rows = [
        SpendRow(f"t{number}", BILLED, "", 1, Money(100 - number, "USD")) for number in range(12)
    ]
    found = [SpendCell(row.name, "held", "USD", "", 0, row.cost.micro, 0) for row in rows]
    found += [
        SpendCell("", "unallocated", "USD", "", 0, 7, 0),
        SpendCell("t1", "held", "USD", "2025-10", 2, -5, 0),
    ]
    series = make_series(found, "team", "USD", rows, [True, False, False])
    assert [(each.name, each.kind) for each in series] == [
        *((f"t{number}", BILLED) for number in range(MOST_SERIES)),
        ("", REST),
        ("", NOBODY),
        ("", CORRECTION),
    ]
    assert series[0].micros == (100, None, None)
    assert series[-1].micros == (0, None, -5)
    assert (series[-3].count, series[-3].total_micro) == (4, 92 + 91 + 90 + 89)
