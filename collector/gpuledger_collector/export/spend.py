"""Spend over time and the flow of capacity, as files, tables and plots."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from gpuledger_collector.accounting.cost_flow import (
    BILLED as FLOW_BILLED,
)
from gpuledger_collector.accounting.cost_flow import (
    CAPACITY,
    TIME,
    UNPAID,
    CostFlow,
    FlowPart,
)
from gpuledger_collector.accounting.money import MICRO, Money
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.spend_over_time import CurrencySpend, SpendOverTime
from gpuledger_collector.accounting.spend_series import (
    BILLED,
    CORRECTION,
    DAY,
    HOUR,
    MONTH,
    NOBODY,
    REST,
    STATE,
    WEEK,
    Series,
    SpendAmount,
    StepSpend,
    add_moneys,
    shorten_rows,
)
from gpuledger_collector.accounting.state_words import word_of, word_of_unpaid
from gpuledger_collector.export.plots import MAX_DATES
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.export.spend_plots import (
    Bar,
    FlowNode,
    Limit,
    LinkOf,
    Segment,
    draw_bars,
    draw_flow,
    draw_running_total,
)
from gpuledger_collector.insight.fleet_map import MOST_TEAMS
from gpuledger_common.plurals import plural

SPEND = "/spend"
SHADES = 3
"""Of each color of teams."""
OTHERS, CORRECTIONS = "others", "corrections"
MOST_MOVES = 3
"""Groups of which is said by how much they paid more or less than the day before."""

AMOUNTS = Report[SpendAmount](
    "spend",
    (
        Column("from", lambda item: item.bucket.start_ms, Kind.INSTANT),
        Column("to", lambda item: item.bucket.end_ms, Kind.INSTANT),
        Column("group", lambda item: word_of(item.name)),
        Column("billed", lambda item: "no" if item.kind == NOBODY else "yes"),
        Column("correction_of", lambda item: item.correction_of),
        Column(
            "cost",
            lambda item: item.cost,
            Kind.MONEY,
            about="Direct cost; shares of common costs are those of a period, not of its days.",
        ),
        Column("currency", lambda item: item.cost.currency),
    ),
)
"""Every group in every bucket; the amounts add up to the direct cost of the chargeback."""


def name_group(name: str, kind: str, by: str, count: int = 1) -> str:
    """What people call a row or a series."""
    if kind == REST:
        return f"{count:,} {OTHERS}"
    if not name and kind == NOBODY:
        return UNPAID
    if not name and kind == CORRECTION:
        return CORRECTIONS
    if by == STATE:
        return word_of(name)
    if kind == NOBODY:
        return word_of_unpaid(name)
    return name or f"(no {by})"


def css_of(
    series: Sequence[Series], by: str, team_numbers: Mapping[str, int]
) -> dict[tuple[str, str], str]:
    """The CSS class of each series by its name and kind: states have their own colors, and so has
    each team, by its number, as on the map of the fleet.
    """
    classes, number = {}, 0
    for each in series:
        if each.kind == CORRECTION:
            css = "fill-correction"
        elif by == STATE:
            css = f"state-{each.name}"
        elif by == "team" and each.name in team_numbers:
            css = team_css(team_numbers[each.name])
        elif each.kind == BILLED:
            css, number = f"group-{number}", number + 1
        else:
            css = "group-rest" if each.kind == REST else "fill-nobody"
        classes[each.name, each.kind] = css
    return classes


def team_css(number: int) -> str:
    """The CSS classes of the color of a team: of those that share one, each has another shade."""
    shade = number // MOST_TEAMS % SHADES
    return f"group-{number % MOST_TEAMS}" + (f" shade-{shade}" if shade else "")


def bucket_label(bucket: Period, step: str, calendar: Calendar) -> str:
    """What people call a bucket: `5 Nov`, `5 Nov, 14:00`, `week of 3 Nov`, `Nov 2025`."""
    date = calendar.date_of(bucket.start_ms)
    if step == HOUR:
        return f"{date.day} {date:%b}, {_clock(bucket.start_ms, calendar)}"
    if step == WEEK:
        return f"week of {date.day} {date:%b} {date.year}"
    return f"{date:%b} {date.year}" if step == MONTH else f"{date.day} {date:%b}"


def name_hour(hour: Period, calendar: Calendar) -> str:
    """An hour of a day: `5 Nov, 14:00 to 15:00`."""
    return f"{bucket_label(hour, HOUR, calendar)} to {_clock(hour.end_ms, calendar)}"


def name_range(calendar: Calendar, period: Period) -> str:
    """The first and the last day of a range, as people say them."""
    first, last = (calendar.date_of(at_ms) for at_ms in (period.start_ms, period.end_ms - 1))
    if first == last:
        return f"on {first.day} {first:%b} {first.year}"
    year = "" if first.year == last.year else f" {first.year}"
    return f"from {first.day} {first:%b}{year} to {last.day} {last:%b} {last.year}"


def axis_label(bucket: Period, step: str, calendar: Calendar) -> str:
    """The label under an axis; empty where there is none."""
    date = calendar.date_of(bucket.start_ms)
    if step == HOUR:
        clock = _clock(bucket.start_ms, calendar)
        # Clocks that move by half an hour leave the hours of their day at half past.
        return clock if clock[:2] in {"00", "06", "12", "18"} else ""
    return f"{date:%b %y}" if step == MONTH else f"{date.day} {date:%b}"


def _clock(at_ms: int, calendar: Calendar) -> str:
    zone = calendar.zone_at(at_ms)
    return f"{dt.datetime.fromtimestamp(at_ms / 1000, zone.tz):%H:%M}"


def bars(found: SpendOverTime, spend: CurrencySpend, link: LinkOf) -> Markup:
    """The chart of a currency: a stacked bar for each bucket."""
    classes = css_of(spend.series, found.by, found.team_numbers)
    drawn = [_bar(found, spend, at, classes, link) for at in range(len(found.buckets))]
    known = [spend.steps[at].billed for at, is_known in enumerate(found.is_known) if is_known]
    a_step = f"a{'n' if found.step == HOUR else ''} {found.step}"
    words = "nothing of it is rated"
    if known:
        known.sort(key=lambda amount: amount.micro)
        words = (
            f"{plural(len(known), found.step)}, from {known[0].estimate()} to"
            f" {known[-1].estimate()} {spend.currency} {a_step} billed to owners"
        )
    title = f"Spend by {found.step} in {spend.currency}"
    return draw_bars(drawn, title, words, f"{spend.currency} {a_step}")


def _bar(
    found: SpendOverTime,
    spend: CurrencySpend,
    at: int,
    classes: Mapping[tuple[str, str], str],
    link: LinkOf,
) -> Bar:
    bucket, currency = found.buckets[at], spend.currency
    name = bucket_label(bucket, found.step, found.calendar)
    label = axis_label(bucket, found.step, found.calendar)
    parts = [(each, Money(each.micros[at] or 0, currency)) for each in spend.series]
    if not found.is_known[at] and not any(amount.micro for _, amount in parts):
        if found.rated_ms is None or bucket.start_ms >= found.rated_ms:
            return Bar(label, (), "", "")
        return Bar(label, None, f"{name}: not rated, so nothing is known", "")
    segments = [
        Segment(
            classes[each.name, each.kind],
            amount.micro / MICRO,
            f"{name}, {name_group(each.name, each.kind, found.by, each.count)}:"
            f" {amount.grouped()} {currency}",
            link(at, each.name if each.kind == BILLED else None),
        )
        for each, amount in parts
        if amount.micro
    ]
    title = f"{name}: {step_words(spend.steps[at])}"
    return Bar(label, segments, title, link(at, None))


def step_words(step: StepSpend) -> str:
    """What a bucket cost, in words: what owners pay and what nobody does are two amounts."""
    words = f"{step.billed.grouped()} {step.billed.currency} billed to owners"
    if step.nobody.minor:
        words += f", {step.nobody.grouped()} nobody pays"
    if step.corrections.minor:
        words += f", {step.corrections.grouped()} corrections"
    return words


def step_facts(
    found: SpendOverTime, spend: CurrencySpend, link: LinkOf, most: int
) -> Mapping[str, Any]:
    """The table of what each bucket cost, newest last, and the bucket that cost owners most.

    What is left over of the oldest is one row, so that the rows add up.
    """
    shown = [
        at
        for at, step in enumerate(spend.steps)
        if found.is_known[at] or step.billed.micro or step.nobody.micro or step.corrections.micro
    ]
    cut = 0 if len(shown) <= most else len(shown) - most + 1
    rows = [_step_row(found, spend, at, link) for at in shown[cut:]]
    if cut:
        sums = _add_steps([spend.steps[at] for at in shown[:cut]], spend.currency)
        rows.insert(
            0,
            {
                "name": f"{plural(cut, found.step)} before",
                "link": "",
                "step": sums,
                "largest": None,
            },
        )
    has_corrections = any(step.corrections.minor for step in spend.steps)
    return {
        "rows": rows,
        "dearest": dearest_step(found, spend, link),
        "change": say_latest_change(found, spend),
        "total": _add_steps(spend.steps, spend.currency),
        "has_nobody": any(step.nobody.minor for step in spend.steps),
        "has_corrections": has_corrections,
        # They take from one and give to another, so that a column of their sums says nothing.
        "has_moved": not has_corrections
        and any(row.kind == CORRECTION and row.cost.minor for row in spend.rows),
        "unknown": sum(
            not known and bucket.start_ms < (found.rated_ms or 0)
            for known, bucket in zip(found.is_known, found.buckets, strict=True)
        ),
    }


def dearest_step(
    found: SpendOverTime, spend: CurrencySpend, link: LinkOf
) -> Mapping[str, Any] | None:
    """The bucket that cost owners most, of equals the first; None: they paid nothing."""
    steps = spend.steps
    at = max(range(len(steps)), key=lambda step: steps[step].billed.micro, default=None)
    if at is None or steps[at].billed.micro <= 0:
        return None
    return _step_row(found, spend, at, link)


def say_latest_change(found: SpendOverTime, spend: CurrencySpend) -> str:
    """A sentence: what owners paid on the last day that is rated to its end, against the day before,
    and who moved it most. Empty where the range has no two such days, or nothing was paid on both.
    """
    rated_ms = found.rated_ms or 0
    whole = [at for at, bucket in enumerate(found.buckets) if bucket.end_ms <= rated_ms]
    if found.step != DAY or len(whole) < 2 or not all(found.is_known[at] for at in whole[-2:]):
        return ""
    before, after = whole[-2:]
    paid, paid_before = spend.steps[after].billed, spend.steps[before].billed
    if not (paid.minor or paid_before.minor):
        return ""
    change = Money.from_minor(paid.minor - paid_before.minor, spend.currency)
    moves = [
        (each, Money((each.micros[after] or 0) - (each.micros[before] or 0), spend.currency))
        for each in spend.series
        if each.kind in {BILLED, REST}
    ]
    moves.sort(key=lambda move: -abs(move[1].micro))
    names = [
        f"{name_group(each.name, each.kind, found.by, each.count)} {move.signed()}"
        for each, move in moves[:MOST_MOVES]
        if move.minor
    ]
    days = [bucket_label(found.buckets[at], found.step, found.calendar) for at in (after, before)]
    against = f"{change.signed()} against {days[1]}" if change.minor else f"as on {days[1]}"
    sentence = f"On {days[0]} owners paid {paid.grouped()} {spend.currency}, {against}"
    return f"{sentence}: {', '.join(names)}." if names else f"{sentence}."


def _step_row(
    found: SpendOverTime, spend: CurrencySpend, at: int, link: LinkOf
) -> Mapping[str, Any]:
    step, name = spend.steps[at], spend.steps[at].largest
    return {
        "name": bucket_label(found.buckets[at], found.step, found.calendar),
        "link": link(at, None),
        "step": step,
        "largest": None if name is None else name_group(name, BILLED, found.by),
        "largest_link": link(at, name) if name is not None and found.by in LEVELS else "",
    }


def _add_steps(steps: Sequence[StepSpend], currency: str) -> StepSpend:
    return StepSpend(
        add_moneys([step.billed for step in steps], currency),
        add_moneys([step.nobody for step in steps], currency),
        add_moneys([step.corrections for step in steps], currency),
        None,
        Money(0, currency),
    )


def running_total(found: SpendOverTime, spend: CurrencySpend) -> Markup | None:
    """What is spent so far, with its budgets and where it ends; None where nothing is known."""
    period, standing, currency = found.period, spend.standing, spend.currency
    totals = found.running_total(spend)
    if not totals:
        return None
    points = [((at - period.start_ms) / period.ms, micro / MICRO) for at, micro in totals]
    words = [f"{Money(totals[-1][1], currency).grouped()} {currency} so far"]
    band, ahead = None, standing.ahead
    if ahead is not None:
        low, middle, high = (
            Money(micro, currency)
            for micro in (ahead.low_micro, ahead.middle_micro, ahead.high_micro)
        )
        band = (low.micro / MICRO, middle.micro / MICRO, high.micro / MICRO)
        words.append(
            f"forecast {middle.estimate()} ({low.estimate()} to {high.estimate()}) at the end"
        )
    lines = [
        Limit(
            status.budget.amount_micro / MICRO,
            f"budget {status.budget.number(status.budget.amount_micro, 0)}",
        )
        for status in spend.limits
    ]
    words += [line.name for line in lines]
    dates = [
        ((bucket.start_ms - period.start_ms) / period.ms, text)
        for bucket in found.buckets
        if (text := axis_label(bucket, found.step, found.calendar))
    ]
    every = max(1, math.ceil(len(dates) / MAX_DATES))
    title = f"Spent so far in {currency}"
    return draw_running_total(
        points, band, lines, dates[::every], title, ", ".join(words), currency
    )


def flow_plot(flow: CostFlow) -> Markup:
    """Where the capacity of a currency went: what it costs, what its time was, who pays it."""
    ends: list[FlowPart | None] = [
        *flow.teams,
        *([None] if flow.unpaid_steps[0].cost.minor else []),
    ]
    number = {part.team if part else "": at for at, part in enumerate(ends)}
    uses = [
        FlowNode(
            f"state-{use.name}",
            use.cost.minor,
            use_name(use.name, flow),
            use.cost.estimate(),
            [(number[part.team], part.cost.minor) for part in use.parts]
            or [(number[""], use.cost.minor)],
        )
        for use in flow.uses
    ]
    teams = [
        FlowNode(
            "fill-nobody",
            flow.unpaid_steps[0].cost.minor,
            UNPAID,
            flow.unpaid_steps[0].cost.estimate(),
        )
        if part is None
        else FlowNode("flow-team", part.cost.minor, team_name(part), part.cost.estimate())
        for part in ends
    ]
    whole = FlowNode(
        "flow-capacity",
        flow.flowing.minor,
        flow_name(flow),
        flow.flowing.estimate(),
        [(at, use.value) for at, use in enumerate(uses)],
        is_stacked=True,
    )
    words = ", ".join(f"{node.name} {node.amount}" for node in uses)
    ends_words = ", ".join(f"{node.name} {node.amount}" for node in teams)
    return draw_flow(
        [[whole], uses, teams],
        f"Where each {flow.currency} went",
        f"{flow_name(flow)} {flow.flowing.estimate()}: {words}; of it {ends_words}",
    )


def flow_name(flow: CostFlow) -> str:
    """What people call all that flows: it is what capacity costs, unless steps lie between them."""
    return TIME if len(flow.capacity_steps) > 1 else CAPACITY


def use_name(name: str, flow: CostFlow) -> str:
    """What people call a use; of held time it is said where some of its activity is unknown."""
    if name == "held" and not flow.unknown_ns:
        return "used"
    return word_of(name)


def team_name(part: FlowPart) -> str:
    """What people call who pays."""
    return f"{part.count:,} {OTHERS}" if part.team is None else part.team


def flow_facts(flow: CostFlow) -> Mapping[str, Any]:
    """A flow for the templates: its plot, and the table beside it."""
    return {
        "currency": flow.currency,
        "plot": flow_plot(flow),
        "flowing": flow.flowing,
        "flow_name": flow_name(flow),
        "numbers": [
            (name, cost, steps if len(steps) > 1 else ())
            for name, cost, steps in (
                (CAPACITY, flow.capacity, flow.capacity_steps),
                (FLOW_BILLED, flow.billed, flow.billed_steps),
                (UNPAID, flow.unpaid, flow.unpaid_steps),
            )
            if cost.minor or len(steps) > 1
        ],
        "uses": [
            {
                "name": use_name(use.name, flow),
                "css": f"state-{use.name}",
                "cost": use.cost,
                "payers": ", ".join(
                    f"{team_name(part)} {part.cost.grouped()}" for part in use.parts
                )
                or UNPAID,
            }
            for use in flow.uses
        ],
        "unknown_ns": flow.unknown_ns,
    }


def legend(found: SpendOverTime, spend: CurrencySpend) -> list[tuple[str, str]]:
    """The CSS class and the name of every series, as they lie from the bottom."""
    classes = css_of(spend.series, found.by, found.team_numbers)
    return [
        (classes[each.name, each.kind], name_group(each.name, each.kind, found.by, each.count))
        for each in spend.series
    ]


def row_facts(
    found: SpendOverTime, spend: CurrencySpend, link: LinkOf, most: int
) -> list[Mapping[str, Any]]:
    """The rows of a table, each with its color in the chart and its link."""
    by = found.by
    classes = css_of(spend.series, by, found.team_numbers)
    facts: list[Mapping[str, Any]] = []
    for row, count in shorten_rows(spend.rows, most):
        rest = classes.get(("", REST if row.kind == BILLED else row.kind), "")
        facts.append(
            {
                "row": row,
                "name": name_group(row.name, row.kind, by, count),
                "css": classes.get((row.name, row.kind), rest),
                "link": link(-1, row.name) if row.kind == BILLED and by in LEVELS else "",
            }
        )
    return facts
