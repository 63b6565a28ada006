"""The evidence of contested lines, gathered from where it lies: from the line back to the batch of
the agent.

Of each kind that can be long, the first rows stand in full; the count and a SHA-256 cover all of
them, in a fixed order, so that the rest can be checked as long as the database keeps it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from gpuledger_collector.accounting import seal
from gpuledger_collector.accounting.attribution import Attribution
from gpuledger_collector.accounting.contested_lines import line_id
from gpuledger_collector.accounting.disputes import canonical
from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.storage.billing import adjustments, periods
from gpuledger_collector.storage.ledger import rules, workloads
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_dicts
from gpuledger_collector.storage.telemetry import minutes, usage_evidence

MOST = 2_000
"""Rows of one kind that stand in full."""
_USAGE_INTERVALS = f"""
    WITH s AS MATERIALIZED (
        SELECT * FROM {usage_evidence.overlapping("%(start)s", "%(end)s")} AS evidence
        WHERE accelerator_id = ANY(%(accelerators)s) AND workload_id = ANY(%(workloads)s)
            AND end_ms > %(start)s
    )
    SELECT a.uuid AS accelerator, w.key AS workload, s.state, s.start_ms, s.end_ms, s.held_ms, s.busy_ms, s.idle_ms,
        s.unknown_ms, s.energy_mj, n.name AS node, s.epoch::text AS epoch, s.seq, s.record,
        encode(b.sha256, 'hex') AS batch_sha256, b.received_at::text AS received_at
    FROM s JOIN accelerator a ON a.id = s.accelerator_id JOIN node n ON n.id = s.node_id
    LEFT JOIN workload w ON w.id = s.workload_id
    LEFT JOIN ingest_batch b ON b.node_id = s.node_id AND b.epoch = s.epoch AND b.seq = s.seq
    ORDER BY s.start_ms, a.uuid, w.key, n.name, s.epoch, s.seq, s.record
"""
_HOURS = """
    SELECT a.uuid AS accelerator, w.key AS workload, u.hour_ms, u.held_ms, u.busy_ms, u.idle_ms, u.unknown_ms,
        u.energy_mj, m.minutes, m.utilization_ratio, m.sm_active_ratio, m.memory_used_bytes, m.power_watts
    FROM usage_hour u JOIN accelerator a ON a.id = u.accelerator_id JOIN workload w ON w.id = u.workload_id
    LEFT JOIN LATERAL (
        SELECT CASE WHEN u.hour_ms >= %(minutes)s THEN count(*) END AS minutes,
            round(avg(utilization_ratio)::numeric, 4)::text AS utilization_ratio,
            round(avg(sm_active_ratio)::numeric, 4)::text AS sm_active_ratio,
            round(avg(memory_used_bytes)::numeric, 0)::text AS memory_used_bytes,
            round(avg(power_watts)::numeric, 1)::text AS power_watts
        FROM gpu_minute g WHERE g.accelerator_id = u.accelerator_id AND g.minute_ms >= u.hour_ms
            AND g.minute_ms < u.hour_ms + 3600000
    ) m ON true
    WHERE u.accelerator_id = ANY(%(accelerators)s) AND u.workload_id = ANY(%(workloads)s) AND u.state = 'held'
        AND u.hour_ms >= %(start)s AND u.hour_ms < %(end)s
    ORDER BY u.hour_ms, a.uuid, w.key
"""
_SAMPLES = """
    SELECT a.uuid AS accelerator, count(*) AS samples, min(g.at_ms) AS first_ms, max(g.at_ms) AS last_ms
    FROM gpu_sample g JOIN accelerator a ON a.id = g.accelerator_id
    WHERE g.accelerator_id = ANY(%(accelerators)s) AND g.at_ms >= %(start)s AND g.at_ms < %(end)s
    GROUP BY 1 ORDER BY 1
"""
_PACKED = """
    SELECT a.uuid AS accelerator, s.day_ms, s.rows, encode(s.sha256, 'hex') AS sha256
    FROM sample_archive s JOIN accelerator a ON a.id = s.accelerator_id
    WHERE s.accelerator_id = ANY(%(accelerators)s) AND s.day_ms < %(end)s AND s.day_ms + 86400000 > %(start)s
    ORDER BY 1, 2
"""
_COUNTS = """
    SELECT w.key AS workload, u.start_ms, u.end_ms, u.gpu_micro, u.gpu_model, u.pool, u.node, u.submitted_ms, u.state
    FROM imported_usage u JOIN workload w ON w.id = u.workload_id
    WHERE u.workload_id = ANY(%(workloads)s) AND u.start_ms < %(end)s AND coalesce(u.end_ms, %(end)s) > %(start)s
    ORDER BY u.start_ms, w.key
"""
_WORKLOADS = """
    SELECT key, kind, external_id, user_name, account, name, tags, first_seen_at::text AS first_seen_at
    FROM workload WHERE id = ANY(%(workloads)s) ORDER BY key
"""
_PRICES = """
    SELECT id, pool, gpu_model, purchase, rate_per_gpu_hour::text AS rate_per_gpu_hour, list_rate::text AS list_rate,
        currency, effective_from_ms, effective_to_ms, region, node, recorded_at::text AS recorded_at,
        superseded_at::text AS superseded_at
    FROM price WHERE id = ANY(%(prices)s) ORDER BY id
"""
_PROOFS = """
    SELECT day_ms, 'proof' AS kind, capacity_ns::text, held_ns::text, unallocated_ns::text, unavailable_ns::text,
        unobserved_ns::text, capacity_cost, charged_cost, until_ms, holds, proved_at::text AS proved_at
    FROM conservation_check WHERE day_ms = ANY(%(days)s)
    UNION ALL
    SELECT day_ms, 'proof with corrections', capacity_ns::text, held_ns::text, unallocated_ns::text,
        unavailable_ns::text, unobserved_ns::text, capacity_cost, charged_cost, until_ms, holds, proved_at::text
    FROM corrected_day WHERE day_ms = ANY(%(days)s) ORDER BY day_ms, kind
"""


def gather(
    connection: Connection, lines: Sequence[ExportedCharge], period: Period
) -> dict[str, object]:
    """All that the lines rest on, in names instead of the database's numbers."""
    charges = [line.charge for line in lines]
    asked: dict[str, object] = {
        "accelerators": _distinct(charge.accelerator_id for charge in charges),
        "workloads": _distinct(charge.workload_id for charge in charges),
        "prices": _distinct(charge.price.id for charge in charges if charge.price is not None),
        "days": _distinct(charge.day_ms for charge in charges),
        "start": period.start_ms,
        "end": period.end_ms,
        "minutes": minutes.expired_before(connection),
    }
    return {
        "period": {"from_ms": period.start_ms, "to_ms": period.end_ms},
        "lines": [{"id": line_id(line), **json.loads(seal.line_of(line))} for line in lines],
        "workloads": _rows(connection, _WORKLOADS, asked),
        "rules": _rules(connection, lines),
        "prices": _rows(connection, _PRICES, asked),
        "proofs": _rows(connection, _PROOFS, asked),
        "closed": [
            {"name": closed.name, "closed_ms": closed.closed_ms, "seal": closed.seal}
            for closed in periods.list_closed(connection)
            if closed.period.clip(period)
        ],
        "usage_intervals": excerpt(_rows(connection, _USAGE_INTERVALS, asked)),
        "hours": excerpt(_rows(connection, _HOURS, asked)),
        "counts": excerpt(_rows(connection, _COUNTS, asked)),
        "samples": _rows(connection, _SAMPLES, asked),
        "packed_samples": excerpt(_rows(connection, _PACKED, asked)),
        **_adjustments(connection, charges),
    }


def _distinct(numbers: Iterable[int | None]) -> list[int]:
    return sorted({number for number in numbers if number is not None})


def _adjustments(connection: Connection, charges: Sequence[Charge]) -> dict[str, object]:
    """The adjustments of the lines, of a true-up with its bill and the bill's lines; nothing where
    there are none.
    """
    ids = _distinct(charge.adjustment.id for charge in charges if charge.adjustment is not None)
    known = adjustments.evidence_of(connection, ids)
    return {"adjustments": known} if known else {}


def _rows(
    connection: Connection, query: str, asked: Mapping[str, object]
) -> list[dict[str, object]]:
    return [
        {name: _plain(value) for name, value in row.items()}
        for row in select_dicts(connection, query, asked)
    ]


def _plain(value: Any) -> Any:
    """A value that JSON keeps exactly: decimals as text."""
    return str(value) if isinstance(value, Decimal) else value


def excerpt(rows: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """How many rows there are, a hash over every one of them (a line each), and the first."""
    hashed, first, count = hashlib.sha256(), [], 0
    for row in rows:
        hashed.update(canonical(row).encode() + b"\n")
        count += 1
        if count <= MOST:
            first.append(row)
    return {"count": count, "sha256": hashed.hexdigest(), "rows": first}


def _rules(connection: Connection, lines: Sequence[ExportedCharge]) -> list[dict[str, object]]:
    """The rules that matched each workload where it was, at the start of its first line; none: its
    tags said it.
    """
    attribution = Attribution(rules.current(connection))
    known = workloads.facts(
        connection,
        sorted({exported.charge.workload_id for exported in lines if exported.charge.workload_id}),
    )
    contents: dict[tuple[object, ...], dict[str, object]] = {}
    for line in lines:
        charge = line.charge
        facts = known.get(charge.workload_id) if charge.workload_id is not None else None
        if facts is None:
            continue
        placed = replace(facts, pool=charge.pool, node=charge.node)
        matched = attribution.matching(placed, charge.start_ms)
        content: dict[str, object] = {
            "workload": line.workload_key,
            "pool": charge.pool,
            "node": charge.node,
            "rules": [
                {
                    "id": rule.id,
                    "name": rule.name,
                    "match": dict(rule.match),
                    "assign": dict(rule.assign),
                }
                for rule in matched
            ],
        }
        place = (line.workload_key, charge.pool, charge.node, *(rule.id for rule in matched))
        contents.setdefault(place, content)
    return list(contents.values())
