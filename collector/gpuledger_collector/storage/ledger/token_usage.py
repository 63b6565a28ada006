"""Tokens by asker and hour: the one door by which they are written, and that by which they are read.

`store_token_usage` takes records, which a source id tells apart; storage/ledger/token_counters.py
takes readings of counters. Both add what they change to `token_hour` in the transaction that stores
the evidence, so an hour has each record and each increase once. Writers wait for one another
(`Lock.TOKENS`): a record may move from one asker to another, and hours are sums.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from operator import itemgetter

from gpuledger_collector.accounting.inference import (
    Asker,
    TokenDay,
    TokenHour,
    TokenRecord,
    Tokens,
    record_problem,
    spread_record,
)
from gpuledger_collector.accounting.inference_split import CHARGED
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.accounting.personal_data import is_pseudonym
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.foreign_keys import checks_planned_once
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select, select_value

BOUNDARY = "token_request"
"""The row of `retention_boundary` up to which ids of requests were deleted."""
EXPIRED_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """How many records did what.

    `conflicting`: an id came with another content than before; the greater one holds. `too_old`:
    they ended before the time of which ids are still known, and are left out.
    """

    stored: int = 0
    unchanged: int = 0
    conflicting: int = 0
    too_old: int = 0


HourChanges = defaultdict[tuple[Asker, int], Tokens]
_Key = tuple[str, str]
"""Gateway and source id."""


def store_token_usage(connection: Connection, records: Iterable[TokenRecord]) -> StoredTokens:
    """Store records and add their tokens to their hours, each once.

    Runs in a transaction of its own, or in the caller's. Raises ValueError for a record that
    `record_problem` refuses.
    """
    outcome: Counter[str] = Counter()
    incoming = _merge(records, outcome)
    if not incoming:
        return StoredTokens()
    with connection.transaction():
        locks.take(connection, Lock.TOKENS)
        before_ms = read_boundary(connection, BOUNDARY)
        fresh = {key: record for key, record in incoming.items() if record.end_ms >= before_ms}
        outcome["too_old"] = len(incoming) - len(fresh)
        known = _stored_records(connection, sorted(fresh))
        fresh = {key: _keep_pseudonym(record, known.get(key)) for key, record in fresh.items()}
        written = _select_changed(fresh, known, outcome)
        changes: HourChanges = defaultdict(Tokens)
        for key, record in written.items():
            for hour_ms, tokens in spread_record(record):
                changes[record.asker, hour_ms] += tokens
            for hour_ms, tokens in spread_record(known[key]) if key in known else ():
                changes[known[key].asker, hour_ms] -= tokens
        _write_records(connection, list(written.values()))
        change_hours(connection, changes)
    return StoredTokens(**outcome)


def _merge(records: Iterable[TokenRecord], outcome: Counter[str]) -> dict[_Key, TokenRecord]:
    """One record for each id, the greatest of its contents."""
    merged: dict[_Key, TokenRecord] = {}
    for record in records:
        if problem := record_problem(record):
            raise ValueError(f"{record.source_id}: {problem}")
        key = record.asker.gateway, record.source_id
        known = merged.get(key)
        if known is not None:
            outcome["unchanged" if known == record else "conflicting"] += 1
            record = max(record, known, key=lambda each: each.rank)
        merged[key] = record
    return merged


def _keep_pseudonym(record: TokenRecord, known: TokenRecord | None) -> TokenRecord:
    """A record that comes again after the name of its tenant was erased keeps the pseudonym."""
    if known is None or not is_pseudonym(known.asker.tenant):
        return record
    return replace(record, asker=replace(record.asker, tenant=known.asker.tenant))


def _select_changed(
    records: Mapping[_Key, TokenRecord], known: Mapping[_Key, TokenRecord], outcome: Counter[str]
) -> dict[_Key, TokenRecord]:
    """The records that are new, or greater than what is stored, in order."""
    changed = {}
    for key, record in sorted(records.items()):
        before = known.get(key)
        if before == record:
            outcome["unchanged"] += 1
            continue
        outcome["stored" if before is None else "conflicting"] += 1
        if before is None or record.rank > before.rank:
            changed[key] = record
    return changed


def read_boundary(connection: Connection, name: str) -> int:
    """The instant before which retention deleted; 0 where it deleted nothing."""
    return int(
        select_value(
            connection, "SELECT before_ms FROM retention_boundary WHERE name = %s", (name,)
        )
        or 0
    )


def asker_ids(connection: Connection, askers: Iterable[Asker]) -> dict[Asker, int]:
    """The numbers of askers; new ones are added."""
    wanted = sorted(set(askers))
    if not wanted:
        return {}
    columns = [list(column) for column in zip(*map(astuple, wanted), strict=True)]
    connection.execute(
        "INSERT INTO token_asker (gateway, tenant, model, backend, trust) SELECT * FROM"
        " unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[])"
        " ON CONFLICT DO NOTHING",
        columns,
    )
    rows = select(
        connection,
        "SELECT id, gateway, tenant, model, backend, trust FROM token_asker JOIN"
        " unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[])"
        " AS a (gateway, tenant, model, backend, trust)"
        " USING (gateway, tenant, model, backend, trust)",
        columns,
    )
    return {
        Asker(row.gateway, row.tenant, row.model, row.backend, row.trust): row.id for row in rows
    }


def change_hours(connection: Connection, changes: Mapping[tuple[Asker, int], Tokens]) -> None:
    """Add tokens to hours, and delete hours that have none left.

    The caller holds `Lock.TOKENS`.
    """
    changed = {key: tokens for key, tokens in sorted(changes.items()) if tokens}
    if not changed:
        return
    ids = asker_ids(connection, (asker for asker, _ in changed))
    rows = [(ids[asker], hour_ms, *astuple(tokens)) for (asker, hour_ms), tokens in changed.items()]
    columns = [list(column) for column in zip(*rows, strict=True)]
    with checks_planned_once(connection):
        connection.execute(
            "INSERT INTO token_hour AS old (asker_id, hour_ms, input, cached, output, requests)"
            " SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],"
            " %s::bigint[], %s::bigint[]) ON CONFLICT (asker_id, hour_ms) DO UPDATE SET"
            " input = old.input + excluded.input, cached = old.cached + excluded.cached,"
            " output = old.output + excluded.output, requests = old.requests + excluded.requests",
            columns,
        )
    connection.execute(
        "DELETE FROM token_hour h USING unnest(%s::bigint[], %s::bigint[]) AS c (asker_id, hour_ms)"
        " WHERE h.asker_id = c.asker_id AND h.hour_ms = c.hour_ms AND input = 0 AND cached = 0"
        " AND output = 0 AND requests = 0",
        columns[:2],
    )
    request_charged_days(connection, columns[1])


def request_charged_days(connection: Connection, hours_ms: Iterable[int]) -> None:
    """Mark the days of these hours for rating where some shared server charges its tenants: what
    they pay follows from tokens. Days before any usage are none of the bill.

    These are days of the bill: a UTC day would mark the one before or after as well, all day long.
    """
    first_ms = select_value(
        connection,
        "SELECT least((SELECT min(in_ms) FROM capacity), (SELECT min(start_ms) FROM"
        " imported_usage)) WHERE EXISTS (SELECT FROM inference_server WHERE mode = %s AND"
        " superseded_at IS NULL)",
        (CHARGED,),
    )
    if first_ms is None:
        return
    calendar = zones.calendar(connection)
    since_ms = calendar.day_of(first_ms).start_ms
    days = {calendar.day_of(hour_ms).start_ms for hour_ms in set(hours_ms)}
    connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT unnest(%s::bigint[])",
        (sorted(day_ms for day_ms in days if day_ms >= since_ms),),
    )


def request_charged_days_of(connection: Connection, workload_ids: Iterable[int]) -> None:
    """Mark the days on which workloads were charged, where a shared server that charges its tenants
    is known by the model of its counters: these have counters that are new.
    """
    connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT DISTINCT day_ms FROM charge WHERE workload_id ="
        " ANY(%s) AND EXISTS (SELECT FROM inference_server WHERE mode = %s AND served_model <> ''"
        " AND superseded_at IS NULL)",
        (sorted(set(workload_ids)), CHARGED),
    )


def read_token_hours(connection: Connection, period: Period) -> list[TokenHour]:
    """What askers were answered in the hours that begin in a period, in order."""
    rows = connection.execute(
        "SELECT gateway, tenant, model, backend, trust, hour_ms, input, cached, output, requests"
        " FROM token_hour JOIN token_asker ON id = asker_id WHERE hour_ms >= %s AND hour_ms < %s",
        (period.start_ms, period.end_ms),
    )
    askers: dict[tuple[str, ...], Asker] = {}
    hours = []
    # Words and hours are compared, and no objects: that is in C.
    ordered = sorted(rows, key=itemgetter(slice(6)))
    for *words, hour_ms, given, cached, output, requests in ordered:
        key = tuple(words)
        # One object for each asker: a month has hundreds of thousands of hours.
        asker = askers.get(key) or askers.setdefault(key, Asker(*key))
        hours.append(TokenHour(asker, hour_ms, Tokens(given, cached, output, requests)))
    return hours


def read_token_days(connection: Connection, days: Sequence[Period]) -> list[TokenDay]:
    """What askers were answered in the hours that begin on days that adjoin, by day, in order."""
    if not days:
        return []
    rows = connection.execute(
        "SELECT asker_id, width_bucket(hour_ms, %(starts)s::bigint[]) AS day, sum(input)::bigint,"
        " sum(cached)::bigint, sum(output)::bigint, sum(requests)::bigint FROM token_hour WHERE"
        " hour_ms >= %(start)s AND hour_ms < %(end)s GROUP BY 1, 2",
        {
            "starts": [day.start_ms for day in days],
            "start": days[0].start_ms,
            "end": days[-1].end_ms,
        },
    ).fetchall()
    named = connection.execute(
        "SELECT gateway, tenant, model, backend, trust, id FROM token_asker WHERE id = ANY(%s)",
        (list({asker_id for asker_id, *_ in rows}),),
    ).fetchall()
    # Ranks are compared, and no objects: a month has tens of thousands of days of askers.
    named.sort()
    ranks = {words[-1]: rank for rank, words in enumerate(named)}
    askers = [Asker(*words) for *words, _ in named]
    # Buckets count from 1. A rank and a day are of one row.
    return [
        TokenDay(askers[rank], days[day - 1].start_ms, Tokens(*counts))
        for day, rank, *counts in sorted((day, ranks[number], *rest) for number, day, *rest in rows)
    ]


def newest_request_ms(connection: Connection, gateway: str) -> int | None:
    """When the newest known request of a gateway began; None where none is known."""
    newest: int | None = select_value(
        connection, "SELECT max(start_ms) FROM token_request WHERE gateway = %s", (gateway,)
    )
    return newest


def _stored_records(connection: Connection, keys: Sequence[_Key]) -> dict[_Key, TokenRecord]:
    if not keys:
        return {}
    rows = connection.execute(
        "SELECT r.source_id, start_ms, end_ms, input, cached, output, requests, a.gateway, tenant,"
        " model, backend, trust FROM token_request r JOIN unnest(%s::text[], %s::text[]) AS k"
        " (gateway, source_id) USING (gateway, source_id) JOIN token_asker a ON a.id = asker_id",
        [list(column) for column in zip(*keys, strict=True)],
    )
    records = {}
    for source_id, start_ms, end_ms, *cells in rows:
        asker = Asker(*cells[4:])
        records[asker.gateway, source_id] = TokenRecord(
            asker, source_id, start_ms, end_ms, Tokens(*cells[:4])
        )
    return records


def _write_records(connection: Connection, records: Sequence[TokenRecord]) -> None:
    if not records:
        return
    ids = asker_ids(connection, (record.asker for record in records))
    rows = [
        (
            record.asker.gateway,
            record.source_id,
            ids[record.asker],
            record.start_ms,
            record.end_ms,
            *astuple(record.tokens),
        )
        for record in records
    ]
    connection.execute(
        "INSERT INTO token_request (gateway, source_id, asker_id, start_ms, end_ms, input, cached,"
        " output, requests) SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[],"
        " %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])"
        " ON CONFLICT (gateway, source_id) DO UPDATE SET asker_id = excluded.asker_id,"
        " start_ms = excluded.start_ms, end_ms = excluded.end_ms, input = excluded.input,"
        " cached = excluded.cached, output = excluded.output, requests = excluded.requests",
        [list(column) for column in zip(*rows, strict=True)],
    )


def expire_requests(connection: Connection, keep_days: int, now_ms: int) -> int:
    """Delete ids of requests that ended longer ago; return how many. Their hours stay.

    From then on a record of that time is refused: it could have been counted.
    """
    before_ms = now_ms - keep_days * DAY_MS
    deleted = 0
    while keep_days:
        with connection.transaction():
            locks.take(connection, Lock.TOKENS)
            count = connection.execute(
                "DELETE FROM token_request WHERE (gateway, source_id) IN (SELECT gateway, source_id"
                " FROM token_request WHERE end_ms < %s LIMIT %s)",
                (before_ms, EXPIRED_AT_ONCE),
            ).rowcount
            if not count:
                break
            set_boundary(connection, BOUNDARY, before_ms)
        deleted += count
    return deleted


def set_boundary(connection: Connection, name: str, before_ms: int) -> None:
    """Note up to where retention deleted; it never moves back."""
    connection.execute(
        "INSERT INTO retention_boundary AS old (name, before_ms) VALUES (%s, %s) ON CONFLICT (name)"
        " DO UPDATE SET before_ms = greatest(old.before_ms, excluded.before_ms)",
        (name, before_ms),
    )
