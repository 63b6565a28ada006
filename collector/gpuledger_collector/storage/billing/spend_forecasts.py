"""Stored forecasts of what owners and budgets will have spent, one a day, for boards and for judging
their bands.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuledger_collector.accounting.budget_status import Status
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.insight.spend import OwnerSpend
from gpuledger_collector.storage.locks import Connection

_ENDS = "known_ms, made_ms, spent_micro, low_micro, middle_micro, high_micro, days_of_history"
_VALUES = ", ".join(["%s"] * 7)
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in ("period_end_ms", *_ENDS.split(", ")))


@dataclass(frozen=True, slots=True)
class Made:
    """When forecasts were made: on which day, from the ledger up to when, and at which instant."""

    day_ms: int
    known_ms: int
    made_ms: int


def replace_owners(
    connection: Connection,
    period: Period,
    made: Made,
    spends: Iterable[tuple[Mapping[str, str], OwnerSpend]],
) -> None:
    """Store the forecasts of owners (level -> value) in the place of those made earlier on the day;
    null: too short a history.
    """
    connection.execute(
        "DELETE FROM owner_forecast WHERE period_start_ms = %s AND day_ms = %s",
        (period.start_ms, made.day_ms),
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO owner_forecast (owner, currency, period_start_ms, day_ms, period_end_ms,"
            f" {_ENDS}) VALUES (%s::jsonb, %s, %s, %s, %s, {_VALUES})",
            [
                (
                    json.dumps(dict(owner)),
                    spend.currency,
                    period.start_ms,
                    made.day_ms,
                    period.end_ms,
                    made.known_ms,
                    made.made_ms,
                    spend.spent_micro,
                    *((None,) * 3 if spend.forecast is None else spend.forecast.end[:3]),
                    spend.days,
                )
                for owner, spend in spends
            ],
        )


def upsert_budget(connection: Connection, status: Status) -> None:
    """Store where a budget stands and where its period ends, the last of a day."""
    budget, period, ahead = status.budget, status.period, status.ahead
    connection.execute(
        f"INSERT INTO budget_forecast (budget_id, period_start_ms, day_ms, period_end_ms, {_ENDS})"
        f" VALUES (%s, %s, %s, %s, {_VALUES}) ON CONFLICT (budget_id, period_start_ms, day_ms)"
        f" DO UPDATE SET {_REPLACED}",
        (
            budget.id,
            period.start_ms,
            budget.calendar.day_of(status.known_ms).start_ms,
            period.end_ms,
            status.known_ms,
            status.at_ms,
            status.spend.micro,
            *(
                (None,) * 4
                if ahead is None
                else (
                    ahead.low_micro,
                    ahead.middle_micro,
                    ahead.high_micro,
                    ahead.days_of_history,
                )
            ),
        ),
    )
