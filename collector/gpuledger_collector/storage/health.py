"""What `gpuledger doctor` reads of the ledger; each figure is one cheap query."""

from __future__ import annotations

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.ledger_health import Declarations, LedgerHealth
from gpuledger_collector.storage.billing import locations
from gpuledger_collector.storage.ledger import claims, retirements, zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_number, select_value, select_values

MAX_CLAIMS = MAX_NODES = 20


def read_declarations(connection: Connection, now_ms: int, since_ms: int) -> Declarations:
    """Read what is declared; a node that was not seen since `since_ms` counts as removed."""

    def rows(query: str, **values: object) -> list[tuple[str, int]]:
        found = connection.execute(query.encode(), values)
        return [(str(name), int(number)) for name, number in found]

    budgets = connection.execute(
        "SELECT name, terms FROM budget WHERE superseded_at IS NULL ORDER BY name"
    )
    acting = (
        "SELECT pool, 0 FROM scaling_pool s WHERE superseded_at IS NULL AND terms ->> 'mode' ="
        " 'act' AND NOT EXISTS (SELECT FROM price p WHERE p.superseded_at IS NULL AND p.pool IN"
        " ('', s.pool) AND p.effective_from_ms <= %(at)s AND (p.effective_to_ms IS NULL OR"
        " p.effective_to_ms > %(at)s)) ORDER BY pool"
    )
    versions = (
        "SELECT name, agent_version FROM node WHERE agent_version <> '' "
        "AND extract(epoch FROM last_seen_at) * 1000 >= %(since)s ORDER BY name"
    )
    open_disputes = "SELECT id, start_ms FROM dispute WHERE resolved_ms IS NULL ORDER BY id"
    term_ends = (
        "SELECT name, max(ends_ms) FROM commitment WHERE superseded_at IS NULL GROUP BY 1 ORDER"
        " BY 1"
    )
    return Declarations(
        server_ms=_number(connection, "SELECT extract(epoch FROM clock_timestamp()) * 1000"),
        unknown_zones=tuple(
            name
            for name, _ in rows("SELECT zone, 0 FROM billing_zone WHERE superseded_at IS NULL")
            if not zones.is_known(name)
        ),
        commitments=tuple(rows(term_ends)),
        recipients=tuple(
            (str(name), (*terms.get("recipients", ()), *terms.get("escalate_to", ())))
            for name, terms in budgets
        ),
        queues=tuple(rows("SELECT source, max(at_ms) FROM queue_reading GROUP BY 1 ORDER BY 1")),
        acting=tuple(pool for pool, _ in rows(acting, at=now_ms)),
        disputed_ms=tuple((int(number), start_ms) for number, start_ms in rows(open_disputes)),
        unknown_regions=tuple(locations.unknown_regions(connection)),
        versions=_pairs(connection, versions, since=since_ms),
    )


def read_health(connection: Connection, now_ms: int, since_ms: int, silent_ms: int) -> LedgerHealth:
    """Read the health since an instant; a node is silent when it was last seen more than
    `silent_ms` ago.
    """

    def number(query: str, **values: object) -> int:
        return _number(connection, query, **values)

    def pairs(query: str, **values: object) -> tuple[tuple[str, str], ...]:
        return _pairs(connection, query, **values)

    late = f"SELECT name, status FROM node WHERE {retirements.SILENT} ORDER BY name LIMIT 20"
    sick = (
        "SELECT name, status_detail FROM node WHERE status <> 'ok' AND NOT"
        f" {retirements.NOT_EXPECTED} AND extract(epoch FROM last_seen_at) * 1000 >= %(at)s ORDER"
        " BY name LIMIT 20"
    )
    failed = (
        "SELECT DISTINCT ON (job) job, detail FROM job_run WHERE outcome <> 'done' "
        "AND extract(epoch FROM started_at) * 1000 >= %(since)s ORDER BY job, started_at DESC"
    )
    held = (
        "SELECT sum(l.gpu_ns) FROM ledger_day l LEFT JOIN owner o ON o.id = l.owner_id WHERE"
        " l.day_ms >= %(since)s"
    )
    return LedgerHealth(
        nodes=number("SELECT count(*) FROM node WHERE status <> 'retired'"),
        back_again=tuple(retirements.back_again(connection)),
        uninstalled=tuple(retirements.uninstalled_nodes(connection)),
        silent=tuple(name for name, _ in pairs(late, silent_before=now_ms - silent_ms)),
        troubled=pairs(sick, at=now_ms - silent_ms),
        accelerators=number("SELECT count(*) FROM accelerator"),
        prices=number("SELECT count(*) FROM price WHERE superseded_at IS NULL"),
        held_ns=number(f"{held} AND l.state = 'held'", since=since_ms),
        unattributed_ns=number(
            f"{held} AND l.state = 'held' AND coalesce(o.team, '') = ''", since=since_ms
        ),
        unpriced_ns=number(f"{held} AND l.currency IS NULL", since=since_ms),
        failed_jobs=pairs(failed, since=since_ms),
        last_job_ms=number("SELECT floor(extract(epoch FROM max(started_at)) * 1000) FROM job_run")
        or None,
        conflicts=number("SELECT count(*) FROM ingest_conflict"),
        claims=tuple(claims.list_since(connection, since_ms, MAX_CLAIMS)),
        unbound_tokens=number(
            "SELECT count(*) FROM token WHERE role = 'agent' AND node IS NULL AND revoked_ms IS"
            " NULL AND (expires_ms IS NULL OR expires_ms > %(at)s)",
            at=now_ms,
        ),
        refused=pairs(
            "SELECT payer, round(used - extract(epoch FROM now() - at) * rate) FROM quota_use WHERE"
            " quota = 'refusals' AND used - 1 >= extract(epoch FROM now() - at) * rate ORDER BY"
            " used DESC LIMIT 10"
        ),
        first_heard=tuple(first_heard(connection, now_ms - DAY_MS)),
        has_agent_tokens=bool(number("SELECT count(*) FROM token WHERE role = 'agent'")),
        partitions=number(
            "SELECT count(*) FROM pg_inherits WHERE inhparent IN ('usage_interval'::regclass,"
            " 'gpu_sample'::regclass)"
        ),
        failed_writers=pairs(
            "SELECT host, to_char(last_error_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || 'Z:"
            " ' || last_error FROM replica WHERE last_error <> '' AND seen_at > now() - interval '1"
            " minute' AND extract(epoch FROM last_error_at) * 1000 >= %(since)s ORDER BY host,"
            " last_error_at",
            since=since_ms,
        ),
    )


def last_done_ms(connection: Connection, job: str) -> int | None:
    """Start of the last run of a scheduled job that came to its end (unix ms)."""
    return select_number(
        connection,
        "SELECT floor(extract(epoch FROM started_at) * 1000)::bigint FROM job_run WHERE job = %s AND"
        " outcome = 'done' ORDER BY started_at DESC LIMIT 1",
        (job,),
    )


def first_heard(connection: Connection, since_ms: int) -> list[str]:
    """List the nodes of which agents first spoke since an instant, by name; at most MAX_NODES."""
    return select_values(
        connection,
        "SELECT name FROM node WHERE extract(epoch FROM first_seen_at) * 1000 >= %s AND status <>"
        " 'retired' AND source <> 'inventory' ORDER BY name LIMIT %s",
        (since_ms, MAX_NODES),
    )


def _number(connection: Connection, query: str, **values: object) -> int:
    return int(select_value(connection, query, values) or 0)


def _pairs(connection: Connection, query: str, **values: object) -> tuple[tuple[str, str], ...]:
    rows = connection.execute(query.encode(), values)
    return tuple((str(name), str(detail)) for name, detail in rows)
