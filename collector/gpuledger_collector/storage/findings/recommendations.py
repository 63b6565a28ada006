"""Recommendations: written by the job, decided on by people, read by commands and pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from psycopg.rows import class_row

from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.realized_savings import ChargedPlace, PricedPlace
from gpuledger_collector.insight.recommendation_record import (
    BOUNDS,
    SAVINGS,
    AcceptedRecommendation,
    RealizedSaving,
    Recommendation,
    RecommendationRun,
    StoredRecommendation,
)
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.billing import commitments, node_costs, prices
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import (
    select,
    select_as,
    select_dicts,
    select_row,
    select_value,
    select_values,
)
from gpuledger_collector.storage.telemetry import minutes

MAX_DAY_MS = 25 * HOUR_MS
"""The longest day of a billing zone, where clocks change."""
_COLUMNS = (
    "key",
    "kind",
    "subject",
    "team",
    "owner",
    "advice",
    "evidence",
    "scope",
    "start_ms",
    "end_ms",
    "price_ids",
    "currency",
    "freed_gpu_ns",
    "made_ms",
    "expires_ms",
)
_AMOUNTS = tuple(f"{saving}_{bound}_micro" for saving in SAVINGS for bound in BOUNDS)
_DECISION = (
    "id",
    "state",
    "decided_ms",
    "decided_by",
    "reason",
    "realized_micro",
    "realized_until_ms",
    "realized",
)
_STORED = ", ".join((*_COLUMNS, *_AMOUNTS, *_DECISION))


def names(connection: Connection, ids: Sequence[int]) -> Mapping[int, tuple[str, str]]:
    """Key and name of workloads, by id."""
    return {
        row.id: (row.key, row.name)
        for row in select(
            connection,
            "SELECT id, key, coalesce(nullif(name, ''), external_id) AS name FROM workload WHERE"
            " id ="
            " ANY(%s)",
            (list(ids),),
        )
    }


def demand(
    connection: Connection, start_ms: int, end_ms: int
) -> Mapping[tuple[str, str], Mapping[int, int]]:
    """GPU-nanoseconds held by pool, model and hour."""
    held: dict[tuple[str, str], dict[int, int]] = {}
    for use in minutes.hourly_use(connection, start_ms, end_ms):
        hours = held.setdefault((use.pool, use.gpu_model), {})
        hour_ms = use.rating_interval_ms - use.rating_interval_ms % HOUR_MS
        hours[hour_ms] = hours.get(hour_ms, 0) + use.gpu_ns
    return held


def decided_keys(connection: Connection, now_ms: int) -> frozenset[str]:
    """Keys of recommendations that people decided on and that are not to be repeated yet."""
    return frozenset(
        select_values(
            connection,
            "SELECT key FROM recommendation WHERE state = 'accepted' OR (state IN ('rejected',"
            " 'done') "
            "AND expires_ms > %s)",
            (now_ms,),
        )
    )


def upsert(
    connection: Connection, recommendations: Sequence[Recommendation], run: RecommendationRun
) -> None:
    """Write recommendations; open ones that are not among them expire."""
    # A recommendation that was decided or expired and is found again opens anew; one that is still
    # open keeps its age.
    names = (*_COLUMNS, *_AMOUNTS)
    updates = ", ".join(
        f"{name} = excluded.{name}" for name in names if name not in {"key", "made_ms"}
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO recommendation AS old ({', '.join(names)}, state) VALUES"
            f" ({', '.join(['%s'] * len(names))}, 'open') ON CONFLICT (key) DO UPDATE SET"
            f" {updates}, made_ms = CASE WHEN old.state = 'open' THEN old.made_ms ELSE"
            " excluded.made_ms END, state = 'open', decided_ms = NULL, decided_by = '', reason ="
            " '', realized_micro = NULL, realized_until_ms = NULL, realized = NULL",
            [_row(recommendation) for recommendation in recommendations],
        )
    connection.execute(
        "UPDATE recommendation SET state = 'expired', reason = 'its evidence is gone' "
        "WHERE state = 'open' AND key <> ALL(%s)",
        ([recommendation.key for recommendation in recommendations],),
    )
    connection.execute("DELETE FROM recommendation_run")
    connection.execute(
        "INSERT INTO recommendation_run (made_ms, start_ms, end_ms, joint, not_evaluated,"
        " evidence_hash) VALUES (%s, %s, %s, %s, %s, %s)",
        (
            run.made_ms,
            run.start_ms,
            run.end_ms,
            json.dumps(run.joint),
            json.dumps(list(run.not_evaluated)),
            run.evidence_hash,
        ),
    )


def evidence_hash(connection: Connection, start_ms: int, end_ms: int, settings: str) -> str:
    """Hash what recommendations of a window rest on; `settings` is what else their amounts depend
    on.

    A day that is over is as it was rated last: whatever changes its usage, prices or owners has it
    rated again. The last day is still rated every minute, so its hours inside the window stand for
    it. What people declare or decide is in the audit log.
    """
    over_ms = end_ms - MAX_DAY_MS
    digest: str = select_value(
        connection,
        """
        SELECT md5(concat_ws('|', %(settings)s::text,
            (SELECT string_agg(concat_ws(' ', day_ms, proved_at), ',' ORDER BY day_ms) FROM conservation_check
             WHERE day_ms >= %(start)s AND day_ms < %(over)s),
            (SELECT string_agg(concat_ws(' ', day_ms, proved_at), ',' ORDER BY day_ms) FROM corrected_day
             WHERE day_ms >= %(start)s AND day_ms < %(over)s),
            (SELECT string_agg(concat_ws(' ', accelerator_id, hour_ms, state, coalesce(workload_id, -1), held_ms,
                busy_ms, idle_ms, unknown_ms, coalesce(energy_mj, -1), coalesce(workload_attributes_id, -1)), ','
                ORDER BY accelerator_id, hour_ms, state, workload_id, workload_attributes_id)
             FROM usage_hour WHERE hour_ms >= %(over)s - %(day)s AND hour_ms < %(end)s),
            (SELECT string_agg(concat_ws(' ', key, opened_ms, CASE WHEN resolved_ms < %(end)s THEN resolved_ms END),
                ',' ORDER BY key)
             FROM finding WHERE kind = 'idle' AND opened_ms < %(end)s AND until_ms > %(start)s),
            (SELECT max(number) FROM audit)))
        """,
        {
            "settings": settings,
            "start": start_ms,
            "over": over_ms,
            "day": MAX_DAY_MS,
            "end": end_ms,
        },
    )
    return digest


def list_accepted(connection: Connection) -> Sequence[AcceptedRecommendation]:
    """Accepted recommendations, whose savings are to be measured."""
    return select_as(
        connection,
        AcceptedRecommendation,
        "SELECT id, kind, scope, start_ms, end_ms, decided_ms, currency FROM recommendation "
        "WHERE state = 'accepted' ORDER BY id",
    )


def charged_places(
    connection: Connection, scope: Mapping[str, object], period: Period
) -> Sequence[ChargedPlace]:
    """Charges and corrections of a scope by day and place; of a named workload all its runs."""
    ids = scope.get("workload_ids") or (
        [scope["workload_id"]] if scope.get("workload_id") is not None else None
    )
    columns = (
        "day_ms, accelerator_id, workload_id, owner_id, pool, gpu_model, node, state, price_id,"
        " commitment_id, node_cost_id, currency, cost_micro, idle_cost_micro, gpu_ns, busy_ns,"
        " idle_ns"
    )
    sums = ", ".join(f"coalesce(sum(c.{name}), 0) AS {name}" for name in _SPENT)
    rows = select(
        connection,
        f"""
        SELECT c.day_ms, c.pool, c.gpu_model, c.node, p.purchase, c.commitment_id,
            CASE WHEN c.accelerator_id IS NULL THEN w.tags END AS tags,
            c.state = %(unused)s AS unused,
            c.currency, {sums}
        FROM (SELECT {columns} FROM charge UNION ALL SELECT {columns} FROM correction) AS c
        LEFT JOIN owner o ON o.id = c.owner_id LEFT JOIN workload w ON w.id = c.workload_id
        LEFT JOIN price p ON p.id = c.price_id
        WHERE c.day_ms >= %(start)s AND c.day_ms < %(end)s AND c.node_cost_id IS NULL
            AND (%(ids)s::bigint[] IS NULL OR c.workload_id = ANY(%(ids)s))
            AND (%(name)s::text IS NULL OR (w.name = %(name)s AND coalesce(o.team, '') = %(team)s))
            AND (%(pool)s::text IS NULL OR c.pool = %(pool)s)
            AND (%(model)s::text IS NULL OR c.gpu_model = %(model)s)
            AND (%(state)s::text IS NULL OR c.state = %(state)s)
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
        """,
        {
            "start": period.start_ms,
            "end": period.end_ms,
            "ids": None if "name" in scope else ids,
            "name": scope.get("name"),
            "team": scope.get("team"),
            "pool": scope.get("pool"),
            "model": scope.get("model"),
            "state": scope.get("state"),
            "unused": COMMITMENT_UNUSED,
        },
    )
    covering = commitments.COMMITMENTS.by_id(
        connection, {row.commitment_id for row in rows if row.commitment_id is not None}
    )
    places = []
    for row in rows:
        place = PricedPlace(
            row.pool,
            row.gpu_model,
            row.node,
            row.purchase,
            covering.get(row.commitment_id),
            tuple(sorted((row.tags or {}).items())),
            row.unused,
        )
        measures = {name: int(getattr(row, name)) for name in _SPENT}
        places.append(ChargedPlace(row.day_ms, place, row.currency, **measures))
    return places


def update_realized(connection: Connection, savings: Iterable[RealizedSaving]) -> None:
    """Write what accepted recommendations have saved."""
    for saving in savings:
        connection.execute(
            "UPDATE recommendation SET realized_micro = %s, realized_until_ms = %s, realized = %s, "
            "state = CASE WHEN %s THEN 'done' ELSE state END WHERE id = %s",
            (saving.micro, saving.until_ms, json.dumps(saving.details), saving.done, saving.id),
        )


def _row(recommendation: Recommendation) -> tuple[object, ...]:
    cells = [getattr(recommendation, name) for name in _COLUMNS]
    plain = [json.dumps(cell) if isinstance(cell, Mapping) else cell for cell in cells]
    plain[_COLUMNS.index("price_ids")] = list(recommendation.price_ids)
    return (*plain, *chain.from_iterable(getattr(recommendation, saving) for saving in SAVINGS))


def list_stored(connection: Connection, states: Sequence[str]) -> list[StoredRecommendation]:
    """Recommendations in these states, by falling expected cash and then capacity."""
    return [
        _to_stored(row)
        for row in select_dicts(
            connection,
            f"SELECT {_STORED} FROM recommendation WHERE state = ANY(%s) ORDER BY"
            " cash_expected_micro DESC NULLS LAST, capacity_expected_micro DESC NULLS LAST,"
            " cash_high_micro DESC NULLS LAST, key",
            (list(states),),
        )
    ]


def _to_stored(row: dict[str, Any]) -> StoredRecommendation:
    row |= {
        saving: tuple(row.pop(f"{saving}_{bound}_micro") for bound in BOUNDS) for saving in SAVINGS
    }
    return StoredRecommendation(**row)


def last_run(connection: Connection) -> RecommendationRun | None:
    """The last search, None when there was none."""
    with connection.cursor(row_factory=class_row(RecommendationRun)) as cursor:
        return cursor.execute(
            "SELECT made_ms, start_ms, end_ms, joint, not_evaluated, evidence_hash FROM"
            " recommendation_run"
        ).fetchone()


def decide(
    connection: Connection, recommendation_id: int, state: str, who: str, reason: str, now_ms: int
) -> str | None:
    """Accept or reject an open recommendation; return the state it had before, None when it does
    not exist.
    """
    row = select_row(
        connection,
        "SELECT state, key FROM recommendation WHERE id = %s FOR UPDATE",
        (recommendation_id,),
    )
    if row is None:
        return None
    if row.state == "open":
        connection.execute(
            "UPDATE recommendation SET state = %s, decided_ms = %s, decided_by = %s, reason = %s"
            " WHERE id = %s",
            (state, now_ms, who, reason, recommendation_id),
        )
        decision = {"key": row.key, "state": state, "reason": reason}
        change = audit.Change("recommendation", str(recommendation_id), {"state": "open"}, decision)
        audit.record(connection, [change], now_ms, who)
    return str(row.state)


_SPENT = ("cost_micro", "idle_cost_micro", "gpu_ns", "busy_ns", "idle_ns")
_CHARGED = """day_ms, start_ms, end_ms, accelerator_id, workload_id, state, pool, gpu_model, node, price_id, gpu_ns,
    busy_ns, idle_ns, unknown_ns, currency, cost_micro, idle_cost_micro, list_cost_micro, energy_mj,
    commitment_id, node_cost_id, contracted_cost_micro"""


def charged_to(connection: Connection, workload_id: int) -> list[Charge]:
    """Charges and corrections of a workload: of its GPU-time and of its share of nodes; without
    owners.
    """
    rows = select_dicts(
        connection,
        f"SELECT {_CHARGED} FROM charge WHERE workload_id = %s UNION ALL "
        f"SELECT {_CHARGED} FROM correction WHERE workload_id = %s "
        "ORDER BY day_ms, start_ms, accelerator_id, commitment_id, price_id,"
        " node_cost_id",
        (workload_id, workload_id),
    )
    book = prices.by_id(
        connection, {row["price_id"] for row in rows if row["price_id"] is not None}
    )
    ids = {row["commitment_id"] for row in rows if row["commitment_id"] is not None}
    covering = commitments.COMMITMENTS.by_id(connection, ids)
    of_nodes = node_costs.NODE_COSTS.by_id(
        connection, sorted({row["node_cost_id"] for row in rows} - {None})
    )
    return [
        Charge(
            owner=None,
            price=book.get(row.pop("price_id")),
            commitment=covering.get(row.pop("commitment_id")),
            node_cost=of_nodes.get(row.pop("node_cost_id")),
            **row,
        )
        for row in rows
    ]


def advice_for(connection: Connection, workload_id: int) -> list[StoredRecommendation]:
    """Recommendations about a workload, in any state."""
    return [
        _to_stored(row)
        for row in select_dicts(
            connection,
            f"SELECT {_STORED} FROM recommendation WHERE scope->>'workload_id' = %s OR"
            " scope->'workload_ids' @> %s::jsonb ORDER BY id",
            (str(workload_id), str(workload_id)),
        )
    ]
