"""Mails about budgets: one screen of text, the same as HTML, and the drivers as a CSV whose rows
add up.

Charges are written with the currency's minor units, estimates without, so that nobody takes them
for charges.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from gpuledger_collector.accounting.budget_status import IdleNow, News, Status
from gpuledger_collector.accounting.budgets import (
    ACTUAL,
    FORECAST,
    PACE,
    Alert,
    Budget,
    Driver,
    thresholds,
)
from gpuledger_collector.accounting.change_causes import find_main_cause, say_cause
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.quantity import round_together
from gpuledger_collector.accounting.readable import hours_text
from gpuledger_collector.insight.notifications.messages import Content
from gpuledger_collector.notifications.amounts import csv_text, exact
from gpuledger_collector.notifications.links import AckLinks, PageLinks
from gpuledger_collector.notifications.templating import environment, safe_name
from gpuledger_common.escapes import escape_text, neutral
from gpuledger_common.instants import to_datetime
from gpuledger_common.plurals import plural

PARTS = ("price", "volume", "mix")
WEEK_DAYS = 7
BAR_LENGTH = 30
"""Characters of a bar in the text."""


def write(news: News, links: AckLinks | None = None, pages: PageLinks | None = None) -> Content:
    """Subject, text, HTML and the drivers' CSV; with `pages`, a link to the owner's month, with
    `links` one that acknowledges the alert.
    """
    status = news.status
    ack = (
        ""
        if links is None
        else links.budget(status.budget.id, status.period.start_ms, status.at_ms)
    )
    page = None if pages is None else _page(status, pages)
    facts = {**_facts(news), "ack": ack, "open": page}
    text, html = (
        environment().get_template(f"budget.{kind}").render(facts) for kind in ("txt", "html")
    )
    return Content(
        escape_text(subject(news)),
        text,
        html,
        {"drivers.csv": drivers_csv(news)},
        ack,
        page[1] if page else "",
    )


def _page(status: Status, pages: PageLinks) -> tuple[str, str]:
    """The owner's statement of the month up to which the ledger is rated; the overview for the
    whole fleet.
    """
    owner = status.budget.owner
    if not owner:
        return "Open the overview", pages.overview()
    level = [level for level in LEVELS if level in owner][-1]
    last = status.budget.calendar.date_of(min(status.known_ms, status.period.end_ms) - 1)
    return "Open the statement", pages.statement(level, owner[level], f"{last:%Y-%m}")


def subject(news: News) -> str:
    """How much is spent, when, and where it is heading, in one line."""
    status = news.status
    budget, ahead = status.budget, status.ahead
    share = status.spent_percent or 0
    amount = budget.text(budget.amount_micro, 0)
    days = _days(status.period, budget.calendar)
    text = f"[GPU budget] {budget.name}: {share} % of {amount} on day {_day(status)} of {days}"
    if news.escalated:
        text += ", not acknowledged"
    if news.alert.rule == PACE:
        text += f", {_spending(budget)} at {_pace(status)} % of the even pace"
    if ahead is not None:
        text += f", forecast {_estimate(status, ahead.middle_micro)} ({_range(status)})"
        if ahead.run_out_ms is not None and not status.is_spent:
            text += f", runs out {_short(ahead.run_out_ms, budget.calendar)}"
    return text


def _facts(news: News) -> dict[str, object]:
    status, budget = news.status, news.status.budget
    # Only budgets of rated time are written about.
    share, elapsed = status.spent_percent or 0, status.elapsed_percent or 0
    return {
        "subject": subject(news),
        "verdict": _verdict(news),
        "tone": (
            "#b42318" if share >= 100 else "#b54708" if news.alert.rule == ACTUAL else "#175cd3"
        ),
        "rows": _rows(news),
        "share": share,
        "spent_word": budget.spent_word,
        "share_capped": min(share, 100),
        "elapsed": elapsed,
        "bar": _bar(share),
        "clock": _bar(elapsed),
        **_changes(news),
        "windows": _windows(news),
        "actions": _actions(news),
        "data": _data(status),
        "why": _why(news),
    }


def _verdict(news: News) -> str:
    status, alert = news.status, news.alert
    budget, ahead = status.budget, status.ahead
    who = (
        budget.name
        if budget.name == budget.owner_label
        else f"{budget.name} ({budget.owner_label})"
    )
    amount, micro = budget.text(budget.amount_micro), status.spend.micro or 0
    spent, word = budget.text(micro), budget.spent_word
    if news.escalated:
        return (
            f"{who} has {word} {spent} of {amount}, and nobody has acknowledged it for"
            f" {_escalation_time(budget)}."
        )
    if alert.rule == ACTUAL and alert.percent >= 100:
        over = budget.text(micro - budget.amount_micro)
        return f"{who} has {word} its whole budget: {spent} of {amount}, {over} over."
    if alert.rule == ACTUAL:
        return (
            f"{who} has {word} {spent}, which is past {alert.percent} % of its budget of {amount}."
        )
    if alert.rule == PACE or ahead is None:
        how = "spending" if budget.is_money else "using GPU-hours"
        return f"{who} is {how} at {_pace(status)} % of the even pace of its budget of {amount}."
    end = _long(status.period.end_ms - 1, budget.calendar)
    return (
        f"{who} will probably pass {alert.percent} % of its budget of {amount}: "
        f"by {end} about {_estimate(status, ahead.middle_micro)} will be {word}."
    )


def _rows(news: News) -> list[tuple[str, str]]:
    status = news.status
    budget, ahead, period = status.budget, status.ahead, status.period
    spent, shared = status.spend.micro or 0, status.spend.shared_micro
    left = budget.amount_micro - spent
    rows = [
        (budget.spent_word.capitalize(), budget.text(spent)),
        *(
            []
            if shared is None
            else [("Shared", f"{budget.text(shared)} of it are shares of common costs")]
        ),
        ("Budget", budget.text(budget.amount_micro)),
        ("Left" if left >= 0 else "Over", budget.text(abs(left))),
        (
            "Period",
            (
                f"{_span(period, budget.calendar)}, day {_day(status)} of"
                f" {_days(period, budget.calendar)}"
            ),
        ),
    ]
    if ahead is not None:
        rows.append(
            (
                "Forecast",
                f"{_estimate(status, ahead.middle_micro)} by the end; {_range(status)} in 8 of 10",
            )
        )
        if left > 0:
            rows.append(("Runs out", _run_out(status)))
    else:
        rows.append(("Forecast", "none: fewer than 5 whole days are rated"))
    if status.pace_percents is not None:
        short, long = status.pace_percents
        rows.append(
            ("Pace", f"{short} % of the even pace in the last hour, {long} % in the last six")
        )
    idle = status.spend.idle_micro
    if idle is not None:
        rows.append(("Held idle", f"{budget.text(idle)} of what was {budget.spent_word}"))
    return rows


def _run_out(status: Status) -> str:
    ahead, days = status.ahead, status.budget.calendar
    if ahead is None or ahead.earliest_ms is None:
        return "not before the period's end"
    latest = "after the period's end" if ahead.latest_ms is None else _short(ahead.latest_ms, days)
    if ahead.run_out_ms is None:
        return f"probably not in this period; at the earliest on {_short(ahead.earliest_ms, days)}"
    if ahead.earliest_ms == ahead.run_out_ms == ahead.latest_ms:
        return f"about {_short(ahead.run_out_ms, days)}"
    return (
        f"about {_short(ahead.run_out_ms, days)} (earliest {_short(ahead.earliest_ms, days)},"
        f" latest {latest})"
    )


def _actions(news: News) -> list[tuple[str, str]]:
    """What can be done, each with the command that helps ('' without one)."""
    status = news.status
    budget = status.budget
    first, last = (
        budget.calendar.date_of(at_ms) for at_ms in (news.after.start_ms, news.after.end_ms)
    )
    level = "workload,user" if budget.owner else "team,project"
    actions = []
    if status.spend.idle_micro:
        cost = f"{_cost_word(budget)} {budget.text(status.spend.idle_micro)}"
        actions.append((f"Free GPUs that are held idle: they {cost} so far", "gpuledger idle"))
    actions += [(_idle_text(workload, budget.currency), workload.command) for workload in news.idle]
    actions.append(
        (
            "See what each workload cost",
            f"gpuledger chargeback --from {first} --to {last} --by {level}",
        )
    )
    if news.alert.percent >= 100 or news.alert.rule == FORECAST:
        actions.append(("Agree on a larger budget, or on what waits until the next period", ""))
    actions.append(("Acknowledge this alert", f"gpuledger budgets ack {shlex.quote(budget.name)}"))
    return actions


def _idle_text(workload: IdleNow, currency: str) -> str:
    cost, per_day = Money(workload.cost_micro, currency), Money(workload.per_day_micro, currency)
    return (
        f"{safe_name(workload.label, 60)} holds {plural(workload.gpus, 'idle GPU')}: {cost} so far,"
        f" {per_day} a day"
    )


def _data(status: Status) -> list[str]:
    lines = [f"Rated up to {to_datetime(status.known_ms):%Y-%m-%d %H:%M} UTC."]
    spend = status.spend
    if spend.unpriced_gpu_ns:
        lines.append(
            f"{hours_text(spend.unpriced_gpu_ns)} GPU-hours have no price and are in no amount here."
        )
    if spend.other_gpu_ns:
        lines.append(
            f"{hours_text(spend.other_gpu_ns)} GPU-hours are charged in another currency: in no amount"
            " here."
        )
    if status.ahead is not None:
        lines.append(
            f"The forecast is an estimate from {plural(status.ahead.days_of_history, 'day')} of "
            f"{'charges' if status.budget.is_money else 'use'} by weekday; "
            "its range is how far the same rule was off on them."
        )
    return lines


def _why(news: News) -> str:
    status, alert = news.status, news.alert
    name = status.budget.name
    if news.escalated:
        hours = _escalation_time(status.budget)
        text = (
            f"You are notified once when budget {name} is spent and nobody acknowledges it within"
            f" {hours}."
        )
    else:
        percents = " and ".join(f"{crossed.percent} %" for crossed in (alert, *news.also))
        rule = {ACTUAL: _spending(status.budget), FORECAST: "the forecast", PACE: "the pace"}[
            alert.rule
        ]
        text = (
            f"You are a recipient of budget {name}, and are notified once when {rule} reaches"
            f" {percents}."
        )
    return f"{text} {_following(status, alert)}"


def _escalation_time(budget: Budget) -> str:
    hours = budget.terms.escalate_hours
    return "a day" if hours == 24 else plural(hours, "hour")


def _following(status: Status, alert: Alert) -> str:
    fired = {(other.rule, other.percent) for other in status.alerts if other.fired_ms is not None}
    fired.add((alert.rule, alert.percent))
    left = [
        (rule, percent)
        for rule, percent in thresholds(status.budget.terms)
        if (rule, percent) not in fired
    ]
    if not left:
        return "No more thresholds are left in this period."
    return "Still to come: " + ", ".join(f"{rule} {percent} %" for rule, percent in left) + "."


def _windows(news: News) -> str:
    """Which days are compared, and whether the ledger has enough days to compare with."""
    calendar = news.status.budget.calendar
    after = _span(news.after, calendar)
    if news.before is None:
        return f"{after}; there is no whole day before to compare with"
    text = f"{after} compared with {_span(news.before, calendar)}"
    return f"{text}, as far back as the ledger goes" if news.shortened else text


def _changes(news: News) -> dict[str, object]:
    """Drivers in shown units, rounded together so that columns and rows add up."""
    budget, drivers = news.status.budget, news.drivers
    unit = budget.shown_micro
    changes = round_together([driver.change_micro for driver in drivers], unit)
    splits = [_parts(driver, change, unit) for driver, change in zip(drivers, changes, strict=True)]

    def with_sign(units: int) -> str:
        text = _with_sign(units, budget)
        return text.removeprefix("+") if news.before is None else text

    rows = [_driver_row(*row, with_sign) for row in zip(drivers, changes, splits, strict=True)]
    if news.before is None:
        rows = [{**row, "parts": []} for row in rows]
    rounded = [
        Driver(driver.label, driver.model, 0, change * unit, *(units * unit for units in split))
        for driver, change, split in zip(drivers, changes, splits, strict=True)
    ]
    totals = {
        name: with_sign(sum(split[index] for split in splits)) for index, name in enumerate(PARTS)
    }
    return {
        "heading": _comparison(news, sum(changes)),
        "cause": _cause(news, rounded),
        "drivers": rows,
        "parts": None if news.before is None else totals,
    }


def _comparison(news: News, change: int) -> str:
    """What the compared days cost more or less in words, and what that means for the budget."""
    since = "since the last mail" if news.since_mail else "since the period began"
    amount = _with_sign(abs(change), news.status.budget).removeprefix("+")
    if news.before is None:
        return (
            f"Where it went {since}:"
            f" {amount if change >= 0 else _with_sign(change, news.status.budget)}"
        )
    calendar = news.status.budget.calendar
    count = len(calendar.days(news.after))
    name = "day" if count == 1 else "week" if count == WEEK_DAYS else f"{count} days"
    these, those = f"The {name} {since}", f"the {name} before"
    if news.shortened:
        these = f"The last {name}"
    than = (
        f"as much as {those}"
        if change == 0
        else f"{amount} {'more' if change > 0 else 'less'} than {those}"
    )
    return f"{these} {_cost_word(news.status.budget)} {than}{_standing(news.status, change)}"


def _cause(news: News, rounded: Sequence[Driver]) -> str:
    """The largest cause of the change in a sentence, from rows in shown units; empty where there is
    none, or hours and no money are compared.
    """
    budget = news.status.budget
    cause = None if news.before is None or not budget.is_money else find_main_cause(rounded)
    if cause is None:
        return ""
    change_micro = sum(driver.change_micro for driver in rounded)
    said = say_cause(
        cause, change_micro, lambda micro: _with_sign(micro // budget.shown_micro, budget)
    )
    return f"{said.words[:1].upper()}{said.words[1:]}{safe_name(said.job, 60)}{said.end}."


def _standing(status: Status, change: int) -> str:
    """Whether the budget is spent, or will be, after days that cost more or less."""
    amount, ahead = status.budget.amount_micro, status.ahead
    still = ", still" if change <= 0 else ","
    if (status.spend.micro or 0) > amount:
        return f"{still} over the budget"
    if ahead is None:
        return ""
    return (
        f"{still} heading over the budget"
        if ahead.middle_micro > amount
        else ", heading to end within the budget"
    )


def _parts(driver: Driver, change: int, unit: int) -> list[int]:
    """Price, volume and mix in minor units; the largest takes the rounding difference."""
    micros = [driver.price_micro, driver.volume_micro, driver.mix_micro]
    units = round_together(micros, unit)
    units[max(range(len(PARTS)), key=lambda index: abs(micros[index]))] += change - sum(units)
    return units


def _driver_row(
    driver: Driver, change: int, parts: Sequence[int], signed: Callable[[int], str]
) -> dict[str, object]:
    name, user, project = (*driver.label, "", "", "")[:3]
    texts = [f"{part} {signed(units)}" for part, units in zip(PARTS, parts, strict=True) if units]
    return {
        "name": name,
        "place": ", ".join(part for part in (user, project, driver.model) if part),
        "change": signed(change),
        "parts": texts or ["no change"],
    }


def drivers_csv(news: News) -> str:
    """The drivers in major units to the micro-unit; the parts of each row and the rows add up
    exactly.

    Without days to compare with only what was spent is known, and the other cells are empty.
    """
    budget, is_compared = news.status.budget, news.before is not None

    def change(micro_of: Callable[[Driver], int]) -> Callable[[Driver], str]:
        return lambda driver: exact(micro_of(driver) if is_compared else None)

    columns: dict[str, Callable[[Driver], str]] = {
        "workload": lambda driver: neutral((*driver.label, "")[0]),
        "user": lambda driver: neutral((*driver.label, "", "")[1]),
        "project": lambda driver: neutral((*driver.label, "", "", "")[2]),
        "gpu_model": lambda driver: neutral(driver.model),
        "before": change(lambda driver: driver.before_micro),
        "after": lambda driver: exact(driver.after_micro),
        "change": change(lambda driver: driver.change_micro),
        "price": change(lambda driver: driver.price_micro),
        "volume": change(lambda driver: driver.volume_micro),
        "mix": change(lambda driver: driver.mix_micro),
        "currency" if budget.is_money else "unit": lambda _: budget.unit,
    }
    return csv_text(columns, news.drivers)


def _with_sign(units: int, budget: Budget) -> str:
    """Shown units with their sign: `+1,767.00 USD`."""
    sign = "+" if units > 0 else ""
    return f"{sign}{budget.number(units * budget.shown_micro)} {budget.unit}"


def _spending(budget: Budget) -> str:
    return "spending" if budget.is_money else "use"


def _cost_word(budget: Budget) -> str:
    return "cost" if budget.is_money else "used"


def _estimate(status: Status, micro: int) -> str:
    return status.budget.text(micro, 0)


def _range(status: Status) -> str:
    ahead = status.ahead
    if ahead is None:
        return "not known"
    return " to ".join(
        status.budget.number(value, 0) for value in (ahead.low_micro, ahead.high_micro)
    )


def _pace(status: Status) -> str:
    return "not known" if status.pace_percents is None else str(min(status.pace_percents))


def _bar(percent: int) -> str:
    full = min(percent, 100) * BAR_LENGTH // 100
    return f"[{'#' * full}{'.' * (BAR_LENGTH - full)}] {percent} %"


def _day(status: Status) -> int:
    at = min(max(status.known_ms - 1, status.period.start_ms), status.period.end_ms - 1)
    return len(status.budget.calendar.days(Period(status.period.start_ms, at + 1)))


def _days(period: Period, calendar: Calendar) -> int:
    return len(calendar.days(period))


def _short(at_ms: int, calendar: Calendar) -> str:
    at = calendar.date_of(at_ms)
    return f"{at.day} {at:%b}"


def _long(at_ms: int, calendar: Calendar) -> str:
    at = calendar.date_of(at_ms)
    return f"{at.day} {at:%B %Y}"


def _span(period: Period, calendar: Calendar) -> str:
    """The first and last day of a period."""
    first, last = (
        _short(at_ms, calendar)
        for at_ms in (period.start_ms, max(period.end_ms - 1, period.start_ms))
    )
    return first if last == first else f"{first} to {last}"
