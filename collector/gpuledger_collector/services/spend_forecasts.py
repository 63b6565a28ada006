"""Where the spending of owners ends with a month, as the command, pages, the assistant and boards
say it.

It is the forecast that a budget of the owner on direct cost has: the same days, and the same rule
(insight.spend). Boards cannot run it, so a job stores it; what is stored of past days shows how
often the month ended within the band.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.budget_status import Ahead, OwnerAhead
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period
from gpuledger_collector.insight.spend import (
    MAX_HISTORY_DAYS,
    SHOWN_DAYS,
    OwnerSpend,
    forecast_period,
    whole_days_of_spend,
)
from gpuledger_collector.services.budget_status import RatedDays, history_since, known_until
from gpuledger_collector.services.findings import Viewer
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.billing import budgets, spend_forecasts, statements
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer

PAYING_DAYS = 31
"""Who paid within these days before a month has a forecast of it, too."""
STORED_LEVELS: tuple[tuple[str, ...], ...] = ((), ("team",), ("team", "project"))
"""Of whom boards show a forecast: the fleet, teams, and their projects."""

SpendByOwner = Mapping[tuple[tuple[str, ...], str], OwnerSpend]
"""By the owner's values at some levels, and currency."""


def forecast_month(database: Database, level: str, now_ms: int) -> list[OwnerSpend]:
    """Rate what a forecast of this month goes by, and return every owner of a level with what the
    month will have cost, the dearest first.

    Corrections are left out. What is spent counts adjustments, as the owner's budget and chargeback
    do.
    """
    with database.transaction() as connection:
        calendar = zones.calendar(connection)
    refresh(database, Period(_first_day(calendar, now_ms), now_ms), now_ms)
    with database.transaction() as connection:
        calendar = zones.calendar(connection)
        month = calendar.month(calendar.month_of(now_ms))
        spends = spend_by_owner(connection, (level,), month, now_ms)
    return sorted(spends.values(), key=lambda each: (each.currency, -each.spent_micro, each.owner))


def spend_by_owner(
    connection: Connection,
    levels: Sequence[str],
    period: Period,
    at_ms: int,
    names: Sequence[str] | None = None,
) -> SpendByOwner:
    """What owners spent in a period up to where the ledger is rated, and what it will have cost.

    `levels` empty: the whole fleet, with what no owner pays. `names` narrows the first level. A
    period of which nothing is rated has no forecast: what it cost so far is unknown.
    """
    calendar, rated = zones.calendar(connection), RatedDays(connection)
    known_ms = known_until(rated, period, at_ms)
    since_ms = history_since(rated, calendar, known_ms)
    read = Period(min(since_ms, period.start_ms), known_ms)
    costs = budgets.costs_by_owner(connection, levels, read, names) if read.ms else {}
    today_ms = calendar.day_of(known_ms).start_ms
    shown = calendar.days(Period(_first_day(calendar, known_ms), today_ms))[-SHOWN_DAYS:]
    spends = {}
    for (owner, currency), by_day in costs.items():
        spent = sum(cost for day, cost in by_day.items() if day >= period.start_ms)
        by_day = {day: cost for day, cost in by_day.items() if day >= since_ms}
        past = whole_days_of_spend(calendar, since_ms, known_ms, by_day)
        first_ms = min(by_day, default=known_ms)
        spends[owner, currency] = OwnerSpend(
            owner[-1] if owner else "",
            currency,
            spent,
            len(past),
            forecast_period(calendar, period, known_ms, past, spent)
            if known_ms > period.start_ms
            else None,
            tuple(
                None if day.start_ms < first_ms else by_day.get(day.start_ms, 0) for day in shown
            ),
        )
    return spends


def _first_day(calendar: Calendar, known_ms: int) -> int:
    """The first day that a forecast may go by."""
    return calendar.day_of(known_ms - MAX_HISTORY_DAYS * DAY_MS).start_ms


def forecast_owners(
    connection: Connection, level: str, names: Sequence[str], period: Period, at_ms: int
) -> dict[str, dict[str, Ahead]]:
    """Where the spending of each owner of a level goes by the end of a month, by currency."""
    forecasts: dict[str, dict[str, Ahead]] = defaultdict(dict)
    for spend in spend_by_owner(connection, (level,), period, at_ms, names).values():
        if spend.forecast is not None:
            forecasts[spend.owner][spend.currency] = Ahead(
                *spend.forecast.end, spend.forecast.days_of_history, None, None, None
            )
    return forecasts


def forecast_billed_owners(
    connection: Connection, level: str, at_ms: int, viewer: Viewer
) -> list[OwnerAhead]:
    """Where the spending of each owner that a viewer may see ends with this month, the dearest
    first.
    """
    calendar = zones.calendar(connection)
    month = calendar.month(calendar.month_of(at_ms))
    lately = Period(calendar.days_before(month.start_ms, PAYING_DAYS), month.end_ms)
    with as_viewer(connection, viewer.owner):
        owners = [
            owner
            for owner in statements.owners(connection, level, lately)
            if viewer.sees({level: owner})
        ]
        forecasts = forecast_owners(connection, level, owners, month, at_ms)
    ahead = [
        OwnerAhead(owner, currency, end)
        for owner, ends in forecasts.items()
        for currency, end in ends.items()
    ]
    return sorted(ahead, key=lambda item: (-item.ahead.middle_micro, item.currency, item.owner))


MOVED_PERCENT = 1
"""By how much the held time of past days moves before a forecast of them is made anew."""


class SpendForecasts:
    """Keep this month's forecasts stored: once an hour, and soon after past days that were not rated
    yet, or were rated without much of their evidence.

    History that arrives at once is rated day by day, and a day again with what came since; a forecast
    by the first of it would stand beside all that it cost, on boards, for most of an hour.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stored_ms: int | None = None
        self._rated_days = self._held_ns = 0

    def run(self, now_ms: int) -> int:
        """Store forecasts where they are due; return how many."""
        with self._database.transaction(read_only=True) as connection:
            rated_days = budgets.count_rated_days(connection)
            calendar = zones.calendar(connection)
            past = Period(_first_day(calendar, now_ms), calendar.day_of(now_ms).start_ms)
            held_ns = budgets.sum_held_ns(connection, past)
        is_due = self._stored_ms is None or not 0 <= now_ms - self._stored_ms < HOUR_MS
        has_moved = abs(held_ns - self._held_ns) * 100 > self._held_ns * MOVED_PERCENT
        if not (is_due or has_moved or rated_days != self._rated_days):
            return 0
        stored = store_spend_forecasts(self._database, now_ms)
        self._stored_ms, self._rated_days, self._held_ns = now_ms, rated_days, held_ns
        return stored


def store_spend_forecasts(database: Database, now_ms: int) -> int:
    """Store this month's forecast of the fleet, of teams and of their projects, in the place of an
    earlier one of the day; return how many.
    """
    with database.transaction() as connection:
        calendar = zones.calendar(connection)
        month = calendar.month(calendar.month_of(now_ms))
        known_ms = known_until(RatedDays(connection), month, now_ms)
        spends = [
            (dict(zip(levels, owner, strict=True)), spend)
            for levels in STORED_LEVELS
            for (owner, _), spend in spend_by_owner(connection, levels, month, now_ms).items()
        ]
        made = spend_forecasts.Made(calendar.day_of(known_ms).start_ms, known_ms, now_ms)
        spend_forecasts.replace_owners(connection, month, made, spends)
    return len(spends)
