"""Budgets and their alerts in Postgres (accounting.budget_ports)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from gpuledger_collector.accounting.budget_status import Spend
from gpuledger_collector.accounting.budgets import (
    GPU_HOURS,
    MICRO_HOUR_NS,
    TOTAL,
    Alert,
    Budget,
    HolderSpend,
    Terms,
)
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.reserved_names import escape_name
from gpuledger_collector.accounting.usage import HELD
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import (
    columns_of,
    select,
    select_as,
    select_number,
    select_text,
    select_value,
    select_values,
    to_object,
)
from gpuledger_common.instants import to_datetime

_OWNER_COLUMNS = {
    "org": "o.org",
    "team": "o.team",
    "project": "o.project",
    "experiment": "o.experiment",
    "run": "o.run",
    "user": "o.user_name",
}

_OF_BUDGET = " AND ".join(
    f"(b.owner ->> '{level}' IS NULL OR {column} = b.owner ->> '{level}')"
    for level, column in _OWNER_COLUMNS.items()
)
# Lines are added up by owner before they are matched with budgets; 0 is what no owner pays.
_DAILY_SPEND = f"""
WITH b AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(owners)s::jsonb[], %(currencies)s::text[], %(starts)s::bigint[],
        %(ends)s::bigint[]) AS b (id, owner, currency, start_ms, end_ms)
), payer AS MATERIALIZED (
    SELECT b.id, b.currency, b.start_ms, b.end_ms, o.owner_id FROM b JOIN (
        SELECT id AS owner_id, org, team, project, experiment, run, user_name FROM owner
        UNION ALL SELECT 0, NULL, NULL, NULL, NULL, NULL, NULL) o ON {_OF_BUDGET}
), line AS MATERIALIZED (
    SELECT l.day_ms, coalesce(l.owner_id, 0) AS owner_id, l.state, l.currency, sum({{micro}}) AS micro,
        sum({{idle}}) AS idle, sum(l.gpu_ns) AS gpu_ns
    FROM ledger_day l WHERE l.day_ms >= %(start)s AND l.day_ms < %(end)s
        AND coalesce(l.owner_id, 0) IN (SELECT owner_id FROM payer)
    GROUP BY 1, 2, 3, 4
)
SELECT b.id, l.day_ms, coalesce(sum(l.micro) FILTER (WHERE {{counts}}), 0) AS amount,
    sum(l.idle) FILTER (WHERE {{counts}}) AS idle, bool_or({{counts}}) AS is_charged,
    coalesce(sum(l.gpu_ns) FILTER (WHERE {{counts}}), 0) AS gpu_ns,
    coalesce(sum(l.gpu_ns) FILTER (WHERE l.currency IS NULL), 0) AS unpriced_ns,
    coalesce(sum(l.gpu_ns) FILTER (WHERE l.currency <> b.currency), 0) AS other_ns
FROM payer b JOIN line l ON l.owner_id = b.owner_id AND l.day_ms >= b.start_ms AND l.day_ms < b.end_ms
GROUP BY 1, 2 ORDER BY 1, 2
"""


def current(connection: Connection) -> list[Budget]:
    """The budgets in force, by name."""
    rows = select(
        connection,
        "SELECT id, name, owner, period AS kind, start_ms, end_ms, amount_micro, currency, terms,"
        " measure FROM budget WHERE superseded_at IS NULL ORDER BY name",
    )
    days = zones.calendar(connection)
    return [_budget(row, days) for row in rows]


def _budget(row: Any, days: Calendar) -> Budget:
    span = None if row.start_ms is None else Period(row.start_ms, row.end_ms)
    terms: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.terms.items()
    }
    cells = {"span": span, "terms": Terms(**terms), "calendar": days}
    return to_object(Budget, row, **cells)


def replace_budgets(connection: Connection, wanted: Sequence[Budget], now_ms: int) -> ImportOutcome:
    """The budgets in force become these.

    Another amount, measure, owner or period is a new budget, whose thresholds are fresh; other
    terms (recipients, thresholds) change the budget that is there.
    """
    known = {budget.name: budget for budget in current(connection)}
    added = updated = unchanged = 0
    gone = [
        budget.id
        for name, budget in known.items()
        if name not in {budget.name for budget in wanted}
    ]
    for budget in wanted:
        old = known.get(budget.name)
        if old is not None and _amount_of(old) == _amount_of(budget):
            if old.terms == budget.terms:
                unchanged += 1
                continue
            connection.execute(
                "UPDATE budget SET terms = %s::jsonb WHERE id = %s", (_terms(budget), old.id)
            )
            updated += 1
            continue
        if old is not None:
            _supersede(connection, [old.id], now_ms)
            updated += 1
        else:
            added += 1
        _insert(connection, budget, now_ms)
    _supersede(connection, gone, now_ms)
    audit.record(connection, _changes(known, wanted), now_ms)
    return ImportOutcome(added, updated + len(gone), unchanged)


def _changes(known: Mapping[str, Budget], wanted: Sequence[Budget]) -> list[audit.Change]:
    """What the audit log keeps when the budgets in force become others."""
    old = {name: _facts(budget) for name, budget in known.items()}
    new = {budget.name: _facts(budget) for budget in wanted}
    return [
        audit.Change("budget", name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _facts(budget: Budget) -> dict[str, object]:
    return {
        "owner": dict(budget.owner),
        "period": budget.kind,
        "span": None if budget.span is None else [budget.span.start_ms, budget.span.end_ms],
        "amount_micro": budget.amount_micro,
        "currency": budget.currency,
        "measure": budget.measure,
        "terms": asdict(budget.terms),
    }


def _amount_of(budget: Budget) -> tuple[object, ...]:
    return (
        dict(budget.owner),
        budget.kind,
        budget.span,
        budget.amount_micro,
        budget.currency,
        budget.measure,
    )


def _terms(budget: Budget) -> str:
    return json.dumps(asdict(budget.terms))


def _supersede(connection: Connection, ids: Sequence[int], now_ms: int) -> None:
    connection.execute(
        "UPDATE budget SET superseded_at = %s WHERE id = ANY(%s)", (to_datetime(now_ms), list(ids))
    )


def _insert(connection: Connection, budget: Budget, now_ms: int) -> None:
    span = (None, None) if budget.span is None else (budget.span.start_ms, budget.span.end_ms)
    connection.execute(
        "INSERT INTO budget (name, owner, period, start_ms, end_ms, amount_micro, currency,"
        " measure, terms, recorded_at) VALUES (%s, %s::jsonb, %s, %s, %s, %s, %s, %s,"
        " %s::jsonb, %s)",
        (
            budget.name,
            json.dumps(dict(budget.owner)),
            budget.kind,
            *span,
            budget.amount_micro,
            budget.currency,
            budget.measure,
            _terms(budget),
            to_datetime(now_ms),
        ),
    )


def acknowledge(
    connection: Connection, name: str, who: str, at_ms: int, period_start_ms: int | None = None
) -> int:
    """Acknowledge the firing alerts of a budget, in one period or in all; return how many."""
    return connection.execute(
        "UPDATE budget_alert SET state = 'acked', acked_by = %s, evaluated_ms = %s FROM budget b "
        "WHERE b.id = budget_id AND b.name = %s AND b.superseded_at IS NULL AND state = 'firing' "
        "AND (%s::bigint IS NULL OR period_start_ms = %s)",
        (who, at_ms, name, period_start_ms, period_start_ms),
    ).rowcount


def name_of(connection: Connection, budget_id: int) -> str | None:
    """Return the name of a budget; None when it is not in force."""
    return select_text(
        connection,
        "SELECT name FROM budget WHERE id = %s AND superseded_at IS NULL",
        (budget_id,),
    )


def is_in_force(connection: Connection, budget_id: int) -> bool:
    """Whether a budget is in force."""
    return name_of(connection, budget_id) is not None


def rated_until(connection: Connection, at_ms: int) -> int | None:
    """Return up to when the ledger is rated before an instant; None when it is not rated at all."""
    until_ms = select_value(
        connection,
        "SELECT max(until_ms) FROM conservation_check WHERE day_ms < %s AND until_ms > day_ms",
        (at_ms,),
    )
    return None if until_ms is None else min(int(until_ms), at_ms)


def count_rated_days(connection: Connection) -> int:
    """Count the days that were rated, closed ones included."""
    return select_number(connection, "SELECT count(*) FROM conservation_check") or 0


def last_rated_days(connection: Connection, before_ms: int, count: int) -> list[int]:
    """The beginnings of the last so many rated days before an instant, the latest first."""
    return select_values(
        connection,
        "SELECT day_ms FROM conservation_check WHERE day_ms < %s ORDER BY 1 DESC LIMIT %s",
        (before_ms, count),
    )


def sum_held_ns(connection: Connection, period: Period) -> int:
    """Sum the GPU-nanoseconds that were held on the rated days of a period."""
    query = "SELECT sum(held_ns) FROM conservation_check WHERE day_ms >= %s AND day_ms < %s"
    return select_number(connection, query, (period.start_ms, period.end_ms)) or 0


def rated_since(connection: Connection, until_ms: int) -> int:
    """Return the first of the days that are rated without a gap up to an instant."""
    days = zones.calendar(connection)
    first = days.day_of(until_ms).start_ms
    rows = connection.execute(
        "SELECT day_ms FROM conservation_check WHERE day_ms < %s ORDER BY 1 DESC LIMIT 100",
        (first,),
    )
    for (day_ms,) in rows:
        if day_ms != days.day_of(first - 1).start_ms:
            break
        first = day_ms
    return first


def known_since(connection: Connection, period: Period) -> int:
    """Return from when on all days of a period are rated, without the day in which evidence began."""
    begun_ms = select_value(
        connection,
        "SELECT least((SELECT min(in_ms) FROM capacity), (SELECT min(start_ms) FROM"
        " imported_usage))",
    )
    rated = set(
        select_values(
            connection,
            "SELECT day_ms FROM conservation_check WHERE day_ms >= %s AND day_ms < %s",
            (period.start_ms, period.end_ms),
        )
    )
    first_ms = period.end_ms
    if begun_ms is None:
        return first_ms
    for day in reversed(zones.calendar(connection).days(period)):
        if day.start_ms not in rated or day.start_ms < begun_ms:
            break
        first_ms = day.start_ms
    return first_ms


@dataclass(frozen=True, slots=True)
class DaySpend:
    """What counts against a budget on a day, its held idle part, and GPU-time: counted, unpriced,
    in other currencies.

    Shares of common costs are left out. None: unknown. `is_charged`: something counts, if only a
    charge of nothing.
    """

    day_ms: int
    amount: Decimal
    idle: Decimal | None
    is_charged: bool
    gpu_ns: Decimal
    unpriced_ns: Decimal
    other_ns: Decimal


def daily_spend(
    connection: Connection, wanted: Sequence[tuple[Budget, Period]]
) -> dict[int, list[DaySpend]]:
    """Sum what counts against each budget on each day that begins in its period, by the number of
    the budget.

    The ledger is read once for all budgets of a measure.
    """
    found: dict[int, list[DaySpend]] = {budget.id: [] for budget, _ in wanted}
    for measure in {budget.measure for budget, _ in wanted}:
        own = [(budget, period) for budget, period in wanted if budget.measure == measure]
        micro, idle, counts = _measure_sql(measure, "b.currency")
        for row in select(
            connection,
            _DAILY_SPEND.format(micro=micro, idle=idle, counts=counts),
            {
                "ids": [budget.id for budget, _ in own],
                "owners": [json.dumps(dict(budget.owner)) for budget, _ in own],
                "currencies": [budget.currency for budget, _ in own],
                "starts": [period.start_ms for _, period in own],
                "ends": [period.end_ms for _, period in own],
                "start": min(period.start_ms for _, period in own),
                "end": max(period.end_ms for _, period in own),
            },
        ):
            found[row.id].append(to_object(DaySpend, row))
    return found


def spend(
    connection: Connection, budget: Budget, period: Period, days: Sequence[DaySpend]
) -> Spend:
    """Sum the days of the period, with the shares of common costs for a budget on total cost."""
    known_idle = [day.idle for day in days if day.idle is not None]
    idle_micro = round(sum(known_idle)) if known_idle else None
    direct, gpu_ns = round(sum(day.amount for day in days)), round(sum(day.gpu_ns for day in days))
    unpriced_ns, other_ns = (
        round(sum(day.unpriced_ns for day in days)),
        round(sum(day.other_ns for day in days)),
    )
    if not budget.is_money:  # hours count whatever they cost
        return Spend(direct, idle_micro, gpu_ns, 0, 0)
    if budget.measure != TOTAL:
        return Spend(direct, idle_micro, gpu_ns, unpriced_ns, other_ns)
    parts = shares(connection, budget, period)
    shared = sum(parts.values()) if parts else None
    # Before the first evaluation of a period its shares are unknown, which is not zero.
    total = direct if period.ms == 0 else None if shared is None else direct + shared
    return Spend(total, idle_micro, gpu_ns, unpriced_ns, other_ns, shared)


def shares(connection: Connection, budget: Budget, period: Period) -> dict[Period, int]:
    """Read the shares of common costs that count against a budget, by the parts of the period that
    they are of.
    """
    rows = connection.execute(
        "SELECT start_ms, end_ms, shared_micro FROM budget_share WHERE budget_id = %s AND start_ms"
        " >= %s AND start_ms < %s ORDER BY 1",
        (budget.id, period.start_ms, period.end_ms),
    )
    return {Period(start_ms, end_ms): micro for start_ms, end_ms, micro in rows}


def upsert_shares(connection: Connection, budget: Budget, parts: Mapping[Period, int]) -> None:
    """Store the shares of common costs of some parts of time; other parts stay."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO budget_share (budget_id, start_ms, end_ms, shared_micro) VALUES (%s, %s,"
            " %s, %s) ON CONFLICT (budget_id, start_ms) DO UPDATE SET end_ms = excluded.end_ms,"
            " shared_micro = excluded.shared_micro",
            [(budget.id, part.start_ms, part.end_ms, micro) for part, micro in parts.items()],
        )


def costs_by_owner(
    connection: Connection,
    levels: Sequence[str],
    period: Period,
    names: Sequence[str] | None = None,
) -> dict[tuple[tuple[str, ...], str], dict[int, int]]:
    """Return the daily costs of owners (their values at `levels`) by owner and currency, in one
    reading; without a level, those of the fleet with what no owner pays.

    An empty value: none is known. `names` narrows the first level. Corrections are left out.
    """
    columns = [_OWNER_COLUMNS[level] for level in levels]
    join = "JOIN owner o ON o.id = l.owner_id" if levels else ""
    own = "" if names is None else f" AND {columns[0]} = ANY(%(names)s)"
    keys = ", ".join([*columns, "l.currency", "l.day_ms"])
    rows = connection.execute(
        f"SELECT {keys}, sum(l.cost_micro) FROM ledger_day l {join} WHERE l.day_ms >= %(start)s"
        f" AND l.day_ms < %(end)s AND l.currency IS NOT NULL{own} GROUP BY {keys}",
        {"start": period.start_ms, "end": period.end_ms, "names": list(names or ())},
    )
    costs: dict[tuple[tuple[str, ...], str], dict[int, int]] = defaultdict(dict)
    for *owner, currency, day_ms, micro in rows:
        costs[tuple(owner), currency][day_ms] = int(micro or 0)
    return costs


def amount_of_range(connection: Connection, budget: Budget, period: Period) -> int:
    """Estimate what counts against the budget in a range up to where the ledger is rated: charges
    count in proportion to their overlap.

    A charge of a whole day (adjustments, what tenants of shared servers pay) has its amount of
    the part of the day that is rated.
    """
    where, values = _owner_condition(budget)
    micro, _, counts = _measure_sql(budget.measure)
    return int(
        select_value(
            connection,
            f"""
        SELECT coalesce(round(sum(({micro})::numeric
            * (least(l.end_ms, %(end)s) - greatest(l.start_ms, %(start)s))
            / (least(l.end_ms, %(end)s) - l.start_ms))), 0)
        FROM charge l LEFT JOIN owner o ON o.id = l.owner_id
        WHERE l.day_ms >= %(first)s AND l.day_ms < %(end)s AND l.start_ms < %(end)s AND l.end_ms > %(start)s
            AND l.end_ms > l.start_ms AND {counts} AND {where}
        """,
            {
                **values,
                **_range(budget, period),
                "first": budget.calendar.day_of(period.start_ms).start_ms,
            },
        )
    )


def spend_by_holder(
    connection: Connection, budget: Budget, period: Period
) -> Sequence[HolderSpend]:
    """Sum charges by job name, user, project and model; time that nobody held by its state."""
    where, values = _owner_condition(budget)
    micro, _, counts = _measure_sql(budget.measure)
    rows = select(
        connection,
        f"""
        SELECT l.state, coalesce(nullif(w.name, ''), w.external_id) AS name,
            coalesce(w.user_name, '') AS user,
            coalesce(nullif(o.project, ''), o.team, '') AS project, l.gpu_model,
            sum(l.gpu_ns) AS gpu_ns, sum({micro}) AS amount
        FROM charge l LEFT JOIN owner o ON o.id = l.owner_id LEFT JOIN workload w ON w.id = l.workload_id
        WHERE l.day_ms >= %(start)s AND l.day_ms < %(end)s AND {counts} AND {where}
        GROUP BY 1, 2, 3, 4, 5
        """,
        {**values, **_range(budget, period)},
    )
    return [
        HolderSpend(
            (_job_name(row.state, row.name), row.user, row.project),
            row.gpu_model,
            int(row.gpu_ns),
            round(row.amount or 0),
        )
        for row in rows
    ]


def alerts(connection: Connection, budget: Budget, period: Period) -> Sequence[Alert]:
    """Read the alerts of a period."""
    return select_as(
        connection,
        Alert,
        f"SELECT {columns_of(Alert)} FROM budget_alert WHERE budget_id = %s AND period_start_ms ="
        " %s ORDER BY rule, percent",
        (budget.id, period.start_ms),
    )


def upsert_alerts(
    connection: Connection,
    budget: Budget,
    period: Period,
    alerts: Sequence[Alert],
    spent_micro: int,
) -> None:
    """Store the alerts; the spending is that of the moment when an alert fired."""
    for alert in alerts:
        # Stored once, when the alert fires; coalesce below keeps the first amount.
        spent = spent_micro if alert.fired_ms == alert.evaluated_ms else None
        connection.execute(
            "INSERT INTO budget_alert (budget_id, period_start_ms, rule, percent, state, seen,"
            " evaluated_ms, fired_ms, escalated_ms, spent_micro, acked_by) VALUES (%s, %s, %s, %s,"
            " %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (budget_id, period_start_ms, rule, percent)"
            " DO UPDATE SET state = excluded.state, seen = excluded.seen, evaluated_ms ="
            " excluded.evaluated_ms, fired_ms = excluded.fired_ms, escalated_ms ="
            " excluded.escalated_ms, acked_by = excluded.acked_by, spent_micro ="
            " coalesce(budget_alert.spent_micro, excluded.spent_micro)",
            (
                budget.id,
                period.start_ms,
                alert.rule,
                alert.percent,
                alert.state,
                alert.seen,
                alert.evaluated_ms,
                alert.fired_ms,
                alert.escalated_ms,
                spent,
                alert.acked_by,
            ),
        )


def _owner_condition(budget: Budget) -> tuple[str, Mapping[str, str]]:
    """The condition on `o` (owner) that holds for the budget's node of the tree and all below it."""
    where = " AND ".join(f"{_OWNER_COLUMNS[level]} = %(owner_{level})s" for level in budget.owner)
    return where or "true", {f"owner_{level}": value for level, value in budget.owner.items()}


def _measure_sql(measure: str, currency: str = "%(currency)s") -> tuple[str, str, str]:
    """What a line `l` adds to a budget, its held idle part, and the condition under which it
    counts.
    """
    if measure == GPU_HOURS:
        known = f"CASE WHEN l.unknown_ns < l.gpu_ns THEN l.idle_ns::numeric / {MICRO_HOUR_NS} END"
        return f"l.gpu_ns::numeric / {MICRO_HOUR_NS}", known, f"l.state = '{HELD}'"
    return "l.cost_micro", "l.idle_cost_micro", f"coalesce(l.currency = {currency}, false)"


def _job_name(state: str, name: str | None) -> str:
    """The job that held something, or in parentheses what else the time was; no job is called like
    that.
    """
    if state != HELD:
        return f"({state})"
    return "(unknown)" if name is None else escape_name(name)


def _range(budget: Budget, period: Period) -> dict[str, object]:
    return {"start": period.start_ms, "end": period.end_ms, "currency": budget.currency}
