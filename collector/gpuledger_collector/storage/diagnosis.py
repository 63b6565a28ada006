"""Questions that tell a healthy ledger from a misconfigured one; each is one cheap query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gpuledger_collector.accounting.placement import RefusedClaim
from gpuledger_collector.storage.ledger import claims

MOST_CLAIMS = 20


@dataclass(frozen=True, slots=True)
class Signs:
    """What the ledger shows of itself over the last days. Counts are rows, `_ns` GPU-nanoseconds."""

    nodes: int
    silent: tuple[str, ...]
    troubled: tuple[tuple[str, str], ...]
    accelerators: int
    prices: int
    held_ns: int
    unattributed_ns: int
    unpriced_ns: int
    broken_days: int
    failed_jobs: tuple[tuple[str, str], ...]
    last_job_ms: int | None
    conflicts: int
    claims: tuple[RefusedClaim, ...]
    unbound_tokens: int
    """Live tokens with which any node can be reported."""
    partitions: int
    """Of the big tables, all together."""
    failed_writers: tuple[tuple[str, str], ...]
    """Collectors that are alive, and why they could last not write batches, of the last days."""


@dataclass(frozen=True, slots=True)
class Promises:
    """What was declared or is under way, to be held against settings and clocks. Instants are unix milliseconds."""

    server_ms: int
    """The database's clock."""
    zones: tuple[str, ...]
    """Billing zones in force."""
    commitments: tuple[tuple[str, int], ...]
    """Names of those in force, and when they end."""
    recipients: tuple[tuple[str, tuple[str, ...]], ...]
    """Budgets, and whom they tell."""
    queues: tuple[tuple[str, int], ...]
    """Schedulers, and when their queue was last read."""
    acting: tuple[str, ...]
    """Pools that are acted on and have no rate in force."""
    disputed_ms: tuple[tuple[int, int], ...]
    """Disputes that wait, and the instant from which on they need evidence."""
    versions: tuple[tuple[str, str], ...]
    """Nodes and the versions of their agents."""


def promises(connection: Connection, now_ms: int, since_ms: int) -> Promises:
    """Reads them; nodes that were not seen since then have no agent any more."""

    def rows(query: str, **values: object) -> list[tuple[str, int]]:
        return [(str(row[0]), int(row[1])) for row in connection.execute(sa.text(query), values)]

    budgets = connection.execute(sa.text("SELECT name, terms FROM budget WHERE superseded_at IS NULL ORDER BY name"))
    acting = (
        "SELECT pool, 0 FROM scaling_pool s WHERE superseded_at IS NULL AND terms ->> 'mode' = 'act' AND NOT EXISTS ("
        "SELECT FROM price p WHERE p.superseded_at IS NULL AND p.pool IN ('', s.pool) AND p.effective_from_ms <= :at "
        "AND (p.effective_to_ms IS NULL OR p.effective_to_ms > :at)) ORDER BY pool"
    )
    versions = (
        "SELECT name, agent_version FROM node WHERE agent_version <> '' "
        "AND extract(epoch FROM last_seen_at) * 1000 >= :since ORDER BY name"
    )
    open_disputes = "SELECT id, start_ms FROM dispute WHERE resolved_ms IS NULL ORDER BY id"
    term_ends = "SELECT name, max(ends_ms) FROM commitment WHERE superseded_at IS NULL GROUP BY 1 ORDER BY 1"
    clock = connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp()) * 1000")).scalar()
    return Promises(
        server_ms=int(clock or 0),
        zones=tuple(name for name, _ in rows("SELECT zone, 0 FROM billing_zone WHERE superseded_at IS NULL")),
        commitments=tuple(rows(term_ends)),
        recipients=tuple(
            (str(name), (*terms.get("recipients", ()), *terms.get("escalate_to", ()))) for name, terms in budgets
        ),
        queues=tuple(rows("SELECT source, max(at_ms) FROM queue_reading GROUP BY 1 ORDER BY 1")),
        acting=tuple(pool for pool, _ in rows(acting, at=now_ms)),
        disputed_ms=tuple((int(number), start_ms) for number, start_ms in rows(open_disputes)),
        versions=tuple(
            (str(row[0]), str(row[1])) for row in connection.execute(sa.text(versions), {"since": since_ms})
        ),
    )


def signs(connection: Connection, now_ms: int, since_ms: int, silent_ms: int) -> Signs:
    """Reads the signs since an instant; a node is silent when its last sign of life is older than `silent_ms`."""

    def one(query: str, **values: object) -> int:
        return int(connection.execute(sa.text(query), values).scalar() or 0)

    def pairs(query: str, **values: object) -> tuple[tuple[str, str], ...]:
        return tuple((str(row[0]), str(row[1])) for row in connection.execute(sa.text(query), values))

    late = "SELECT name, status FROM node WHERE extract(epoch FROM last_seen_at) * 1000 < :at ORDER BY name LIMIT 20"
    sick = (
        "SELECT name, status_detail FROM node WHERE status <> 'ok' "
        "AND extract(epoch FROM last_seen_at) * 1000 >= :at ORDER BY name LIMIT 20"
    )
    failed = (
        "SELECT DISTINCT ON (job) job, detail FROM job_run WHERE outcome <> 'done' "
        "AND extract(epoch FROM started_at) * 1000 >= :since ORDER BY job, started_at DESC"
    )
    held = "SELECT sum(l.gpu_ns) FROM ledger_day l LEFT JOIN owner o ON o.id = l.owner_id WHERE l.day_ms >= :since"
    raw: Any = connection.connection.driver_connection
    last_job = connection.execute(sa.text("SELECT max(started_at) FROM job_run")).scalar()
    return Signs(
        nodes=one("SELECT count(*) FROM node"),
        silent=tuple(name for name, _ in pairs(late, at=now_ms - silent_ms)),
        troubled=pairs(sick, at=now_ms - silent_ms),
        accelerators=one("SELECT count(*) FROM accelerator"),
        prices=one("SELECT count(*) FROM price WHERE superseded_at IS NULL"),
        held_ns=one(f"{held} AND l.state = 'held'", since=since_ms),
        unattributed_ns=one(f"{held} AND l.state = 'held' AND coalesce(o.team, '') = ''", since=since_ms),
        unpriced_ns=one(f"{held} AND l.currency IS NULL", since=since_ms),
        broken_days=one("SELECT count(*) FROM conservation_check WHERE NOT holds AND day_ms >= :since", since=since_ms),
        failed_jobs=pairs(failed, since=since_ms),
        last_job_ms=None if last_job is None else round(last_job.timestamp() * 1000),
        conflicts=one("SELECT count(*) FROM ingest_conflict"),
        claims=tuple(claims.since(raw, since_ms, MOST_CLAIMS)),
        unbound_tokens=one(
            "SELECT count(*) FROM token WHERE role = 'agent' AND node IS NULL AND revoked_ms IS NULL "
            "AND (expires_ms IS NULL OR expires_ms > :at)",
            at=now_ms,
        ),
        partitions=one(
            "SELECT count(*) FROM pg_inherits WHERE inhparent IN ('usage_interval'::regclass, 'gpu_sample'::regclass)"
        ),
        failed_writers=pairs(
            "SELECT host, to_char(last_error_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || 'Z: ' || last_error "
            "FROM replica WHERE last_error <> '' AND seen_at > now() - interval '1 minute' "
            "AND extract(epoch FROM last_error_at) * 1000 >= :since ORDER BY host, last_error_at",
            since=since_ms,
        ),
    )
