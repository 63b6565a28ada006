"""A budget's message: one screen of text, the same as HTML, and the drivers as a CSV whose rows add up.

Amounts that were charged are written in the currency's minor unit; estimates are written without it, so that nobody
takes them for charges.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from gpuledger_collector.accounting.budgets import (
    ACTUAL,
    FORECAST,
    PACE,
    Alert,
    Budget,
    Driver,
    money_text,
    percent_of,
    thresholds,
)
from gpuledger_collector.accounting.money import MICRO, minor_digits, to_minor_units
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.notifications.links import AckLinks
from gpuledger_collector.notifications.templating import environment, named
from gpuledger_collector.storage.billing.budget_status import IdleNow, News, Status
from gpuledger_collector.storage.notifications.messages import Content
from gpuledger_common.escapes import escape_text, neutral
from gpuledger_common.plurals import plural

PARTS = ("price", "volume", "mix")
BAR = 30
"""Characters of the bar in the text."""
DRIVER_COLUMNS = (
    "workload",
    "user",
    "project",
    "gpu_model",
    "before",
    "after",
    "change",
    "price",
    "volume",
    "mix",
    "currency",
)


def write(news: News, links: AckLinks | None = None) -> Content:
    """Subject, text, HTML and the drivers' CSV; with `links`, a link to acknowledge."""
    status = news.status
    ack = "" if links is None else links.link(status.budget.id, status.period.start_ms, status.at_ms)
    facts = {**_facts(news), "ack": ack}
    text, html = (environment().get_template(f"budget.{kind}").render(facts) for kind in ("txt", "html"))
    return Content(escape_text(subject(news)), text, html, {"drivers.csv": drivers_csv(news)}, ack)


def subject(news: News) -> str:
    """How much, when, and where it goes, in one line."""
    status = news.status
    budget, ahead = status.budget, status.ahead
    share = percent_of(status.spend.cost_micro, budget.amount_micro)
    amount = money_text(budget.amount_micro, budget.currency, 0)
    days = _days(status.period, budget.calendar)
    said = f"[GPU budget] {budget.name}: {share} % of {amount} on day {_day(status)} of {days}"
    if news.escalated:
        said = f"{said}, not acknowledged"
    if news.alert.rule == PACE:
        said += f", burning at {_pace(status)} % of the even pace"
    if ahead is None:
        return said
    said += f", forecast {_estimate(status, ahead.middle_micro)} ({_range(status)})"
    return (
        said
        if ahead.run_out_ms is None or share >= 100
        else f"{said}, runs out {_short(ahead.run_out_ms, budget.calendar)}"
    )


def _facts(news: News) -> dict[str, object]:
    status, budget = news.status, news.status.budget
    spent, amount = status.spend.cost_micro, budget.amount_micro
    share = percent_of(spent, amount)
    return {
        "subject": subject(news),
        "verdict": _verdict(news),
        "tone": "#b42318" if share >= 100 else "#b54708" if news.alert.rule == ACTUAL else "#175cd3",
        "rows": _rows(news),
        "share": share,
        "share_capped": min(share, 100),
        "elapsed": status.elapsed_percent,
        "bar": _bar(share),
        "clock": _bar(status.elapsed_percent),
        **_changes(news, budget.currency),
        "windows": _windows(news),
        "actions": _actions(news),
        "data": _data(status),
        "why": _why(news),
    }


def _verdict(news: News) -> str:
    status, alert = news.status, news.alert
    budget, ahead = status.budget, status.ahead
    who = budget.name if budget.name == budget.owner_label else f"{budget.name} ({budget.owner_label})"
    amount = money_text(budget.amount_micro, budget.currency)
    spent = money_text(status.spend.cost_micro, budget.currency)
    if news.escalated:
        return f"{who} has spent {spent} of {amount}, and nobody has acknowledged it for {_patience(budget)}."
    if alert.rule == ACTUAL and alert.percent >= 100:
        over = money_text(status.spend.cost_micro - budget.amount_micro, budget.currency)
        return f"{who} has spent its whole budget: {spent} of {amount}, {over} over."
    if alert.rule == ACTUAL:
        return f"{who} has spent {spent}, which is past {alert.percent} % of its budget of {amount}."
    if alert.rule == PACE or ahead is None:
        return f"{who} is spending at {_pace(status)} % of the even pace of its budget of {amount}."
    end = _long(status.period.end_ms - 1, budget.calendar)
    return (
        f"{who} will probably pass {alert.percent} % of its budget of {amount}: "
        f"by {end} about {_estimate(status, ahead.middle_micro)} will be spent."
    )


def _rows(news: News) -> list[tuple[str, str]]:
    status = news.status
    budget, ahead, period = status.budget, status.ahead, status.period
    spent = status.spend.cost_micro
    left = budget.amount_micro - spent
    rows = [
        ("Spent", money_text(spent, budget.currency)),
        ("Budget", money_text(budget.amount_micro, budget.currency)),
        ("Left" if left >= 0 else "Over", money_text(abs(left), budget.currency)),
        ("Period", f"{_span(period, budget.calendar)}, day {_day(status)} of {_days(period, budget.calendar)}"),
    ]
    if ahead is not None:
        rows.append(("Forecast", f"{_estimate(status, ahead.middle_micro)} by the end; {_range(status)} in 8 of 10"))
        if left > 0:
            rows.append(("Runs out", _run_out(status)))
    else:
        rows.append(("Forecast", "none: fewer than 5 whole days are rated"))
    if status.pace_percents is not None:
        short, long = status.pace_percents
        rows.append(("Pace", f"{short} % of even in the last hour, {long} % in the last six"))
    idle = status.spend.idle_cost_micro
    if idle is not None:
        rows.append(("Held idle", f"{money_text(idle, budget.currency)} of what was spent"))
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
    return f"about {_short(ahead.run_out_ms, days)} (earliest {_short(ahead.earliest_ms, days)}, latest {latest})"


def _actions(news: News) -> list[tuple[str, str]]:
    """What can be done, each with the command that helps ('' where none does)."""
    status = news.status
    budget = status.budget
    first, last = (budget.calendar.date_of(at_ms) for at_ms in (news.after.start_ms, news.after.end_ms))
    days = f"--from {first} --to {last}"
    level = "workload,user" if budget.owner else "team,project"
    said = []
    if status.spend.idle_cost_micro:
        cost = money_text(status.spend.idle_cost_micro, budget.currency)
        said.append((f"Give back GPUs that are held and idle: they cost {cost} so far", "gpuledger idle"))
    said += [(_idle_now(one, budget.currency), one.command) for one in news.idle]
    said.append(("See what each workload cost", f"gpuledger chargeback {days} --by {level}"))
    if news.alert.percent >= 100 or news.alert.rule == FORECAST:
        said.append(("Agree on a larger budget, or on what waits until the next period", ""))
    said.append(("Say that you know", f"gpuledger budgets ack {shlex.quote(budget.name)}"))
    return said


def _idle_now(one: IdleNow, currency: str) -> str:
    cost, day = money_text(one.cost_micro, currency), money_text(one.per_day_micro, currency)
    return f"{named(one.label, 60)} holds {plural(one.gpus, 'idle GPU')}: {cost} so far, {day} a day"


def _data(status: Status) -> list[str]:
    said = [f"Rated up to {datetime.fromtimestamp(status.known_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC."]
    spend = status.spend
    if spend.unpriced_gpu_ns:
        said.append(f"{_hours(spend.unpriced_gpu_ns)} GPU-hours have no price and are in no amount here.")
    if spend.other_gpu_ns:
        said.append(f"{_hours(spend.other_gpu_ns)} GPU-hours are charged in another currency: in no amount here.")
    if status.ahead is not None:
        said.append(
            f"The forecast is an estimate from {plural(status.ahead.days_of_history, 'day')} of charges by weekday; "
            "its range is how far the same rule was off on them."
        )
    return said


def _why(news: News) -> str:
    status, alert = news.status, news.alert
    also = "".join(f" and {other.percent} %" for other in news.also)
    rule = {ACTUAL: "spent", FORECAST: "forecast", PACE: "pace"}[alert.rule]
    name = status.budget.name
    said = f"You are a recipient of budget {name}, which tells of {rule} at {alert.percent} %{also}, once."
    following = _following(status, alert)
    if news.escalated:
        patience = _patience(status.budget)
        said = f"You are told when budget {name} is spent and nobody acknowledges it within {patience}, once."
    return f"{said} {following}"


def _patience(budget: Budget) -> str:
    hours = budget.terms.escalate_hours
    return "a day" if hours == 24 else plural(hours, "hour")


def _following(status: Status, alert: Alert) -> str:
    fired = {(one.rule, one.percent) for one in status.alerts if one.fired_ms is not None}
    fired.add((alert.rule, alert.percent))
    left = [(rule, percent) for rule, percent in thresholds(status.budget.terms) if (rule, percent) not in fired]
    if not left:
        return "No more thresholds are left in this period."
    return "Still to come: " + ", ".join(f"{rule} {percent} %" for rule, percent in left) + "."


def _windows(news: News) -> str:
    """Which days are compared, and how far the ledger knows days to compare with."""
    calendar = news.status.budget.calendar
    after = _span(news.after, calendar)
    if news.before is None:
        return f"{after}; nothing to compare with: the ledger knows no whole day before"
    said = f"{after} against {_span(news.before, calendar)}"
    return f"{said}, as far back as the ledger knows" if news.shortened else said


def _changes(news: News, currency: str) -> dict[str, object]:
    """Drivers in minor units, rounded together: what is shown adds up, down each column and along each row."""
    drivers, digits = news.drivers, minor_digits(currency)
    changes = to_minor_units([driver.change_micro for driver in drivers], digits)
    split = [_parts(driver, change, digits) for driver, change in zip(drivers, changes, strict=True)]
    since = "since the last mail" if news.since_mail else "since the period began"

    def signed(units: int) -> str:
        return _signed(units, currency)

    if news.before is None:

        def plain(units: int) -> str:
            return signed(units).removeprefix("+")

        shown = [{**_driver(*one, plain), "parts": []} for one in zip(drivers, changes, split, strict=True)]
        return {"drivers": shown, "change": plain(sum(changes)), "parts": None, "heading": f"Where it went {since}"}
    return {
        "heading": f"What changed {since}",
        "drivers": [_driver(*one, signed) for one in zip(drivers, changes, split, strict=True)],
        "change": signed(sum(changes)),
        "parts": {name: signed(sum(parts[at] for parts in split)) for at, name in enumerate(PARTS)},
    }


def _parts(driver: Driver, change: int, digits: int) -> list[int]:
    """Price, volume and mix in minor units; what rounding leaves goes to the largest."""
    micros = [driver.price_micro, driver.volume_micro, driver.mix_micro]
    units = to_minor_units(micros, digits)
    units[max(range(len(PARTS)), key=lambda at: abs(micros[at]))] += change - sum(units)
    return units


def _driver(driver: Driver, change: int, parts: Sequence[int], signed: Callable[[int], str]) -> dict[str, object]:
    name, user, project = (*driver.label, "", "", "")[:3]
    said = [f"{what} {signed(units)}" for what, units in zip(PARTS, parts, strict=True) if units]
    return {
        "name": name,
        "place": ", ".join(part for part in (user, project, driver.model) if part),
        "change": signed(change),
        "parts": said or ["no change"],
    }


def drivers_csv(news: News) -> str:
    """The drivers in major units to the micro-unit; each row's parts and the rows themselves add up exactly.

    Cells are empty where there is nothing to compare with.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(DRIVER_COLUMNS)
    for driver in news.drivers:
        label = [neutral(cell) for cell in (*driver.label, "", "", "")[:3]]
        amounts = (
            driver.before_micro,
            driver.after_micro,
            driver.change_micro,
            driver.price_micro,
            driver.volume_micro,
            driver.mix_micro,
        )
        # Without days to compare with, only what was spent is known.
        cells = ["", _exact(driver.after_micro), *[""] * 4] if news.before is None else map(_exact, amounts)
        writer.writerow([*label, neutral(driver.model), *cells, news.status.budget.currency])
    return out.getvalue()


def _exact(micro: int) -> str:
    sign = "-" if micro < 0 else ""
    return f"{sign}{abs(micro) // MICRO}.{abs(micro) % MICRO:06d}"


def _signed(units: int, currency: str) -> str:
    """Minor units with their sign: `+1,767.00`."""
    digits = minor_digits(currency)
    whole, part = divmod(abs(units), 10**digits)
    sign = "+" if units > 0 else "-" if units < 0 else ""
    return f"{sign}{whole:,}" + (f".{part:0{digits}d}" if digits else "") + f" {currency}"


def _estimate(status: Status, micro: int) -> str:
    return money_text(micro, status.budget.currency, 0)


def _range(status: Status) -> str:
    ahead = status.ahead
    if ahead is None:
        return "not known"
    low, high = (money_text(value, status.budget.currency, 0) for value in (ahead.low_micro, ahead.high_micro))
    return f"{low.partition(' ')[2]} to {high.partition(' ')[2]}"


def _pace(status: Status) -> str:
    return "not known" if status.pace_percents is None else str(min(status.pace_percents))


def _bar(percent: int) -> str:
    full = min(percent, 100) * BAR // 100
    return f"[{'#' * full}{'.' * (BAR - full)}] {percent} %"


def _day(status: Status) -> int:
    at = min(max(status.known_ms - 1, status.period.start_ms), status.period.end_ms - 1)
    return len(status.budget.calendar.days(Period(status.period.start_ms, at + 1)))


def _days(period: Period, calendar: Calendar) -> int:
    return len(calendar.days(period))


def _hours(gpu_ns: int) -> str:
    return f"{gpu_ns // 3_600_000_000_000:,}"


def _short(at_ms: int, calendar: Calendar) -> str:
    at = calendar.date_of(at_ms)
    return f"{at.day} {at:%b}"


def _long(at_ms: int, calendar: Calendar) -> str:
    at = calendar.date_of(at_ms)
    return f"{at.day} {at:%B %Y}"


def _span(period: Period, calendar: Calendar) -> str:
    """The days of a period, first and last."""
    first, last = (_short(at_ms, calendar) for at_ms in (period.start_ms, max(period.end_ms - 1, period.start_ms)))
    return first if last == first else f"{first} to {last}"
