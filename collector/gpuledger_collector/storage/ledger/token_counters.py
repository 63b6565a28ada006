"""Token counters on pages of gateways: store readings, and add what they change to the hours.

What a reading counts depends on the reading of its page before it, and on those of its series: the
one before it, and what was read shortly before that. So a new reading changes itself and what
follows soon, and only the difference goes to the hours: those of readings that expired long ago
stay.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

from gpuledger_collector.accounting.inference import Asker, TokenRecord, Tokens, spread_units
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.accounting.personal_data import is_pseudonym
from gpuledger_collector.accounting.reserved_names import escape_name
from gpuledger_collector.accounting.token_counters import (
    GAP_MS,
    INVERTED_MS,
    KEEP_DAYS,
    LOOK_BACK_MS,
    SAME_START_MS,
    PageReading,
    SeriesReading,
    TokenSeries,
    list_increases,
)
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.ledger.token_usage import (
    HourChanges,
    asker_ids,
    change_hours,
    read_boundary,
    set_boundary,
)
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_value
from gpuledger_common.gateways.model import OVERFLOW_TENANT

MAX_ASKERS = 5_000
"""Tenants of a page, by model, backend and trust, that are told apart; the tokens of further ones
add up under the tenant (other).
"""
BOUNDARY = "token_reading"
"""The row of `retention_boundary` up to which readings were deleted."""


@dataclass(frozen=True, slots=True)
class ReadPage:
    """One reading of a gateway's page, or a part of one: parts of one instant are put together.

    `page`: address without credentials, and without what tells two readers of one page apart. A
    reader that begins to read further counters of a page gives it another name, so that what was
    counted before is not taken for new. An empty page counts as read, too.
    """

    gateway: str
    page: str
    at_ms: int
    started_ms: int | None = None
    values: Mapping[TokenSeries, int] = field(default_factory=dict)


def store_pages(connection: Connection, pages: Iterable[ReadPage]) -> int:
    """Store readings of pages and add what they count to the hours; return how many readings of
    series were new.

    Runs in a transaction of its own, or in the caller's. Readings that are older than what is kept
    are left out.
    """
    by_page: dict[tuple[str, str], list[ReadPage]] = defaultdict(list)
    for page in pages:
        by_page[page.gateway, page.page].append(page)
    if not by_page:
        return 0
    with connection.transaction():
        locks.take(connection, Lock.TOKENS)
        before_ms = read_boundary(connection, BOUNDARY)
        changes: HourChanges = defaultdict(Tokens)
        count = 0
        for (gateway, address), read in sorted(by_page.items()):
            recent = [page for page in read if page.at_ms >= before_ms]
            if recent:
                count += _store_page(connection, gateway, address, recent, changes)
        change_hours(connection, changes)
    return count


def gateways_read(connection: Connection, records: Iterable[TokenRecord]) -> list[str]:
    """Those gateways of records whose pages were read in the time of these, or perhaps were:
    readings expire.
    """
    times: dict[str, Period] = {}
    for record in records:
        known = times.get(record.asker.gateway)
        times[record.asker.gateway] = Period(
            record.start_ms if known is None else min(known.start_ms, record.start_ms),
            record.end_ms if known is None else max(known.end_ms, record.end_ms),
        )
    before_ms = read_boundary(connection, BOUNDARY)
    return [
        gateway
        for gateway, time in sorted(times.items())
        if select_value(
            connection,
            "SELECT EXISTS (SELECT FROM token_page p WHERE gateway = %s AND (%s OR EXISTS (SELECT"
            " FROM token_page_reading r WHERE r.page_id = p.id AND r.at_ms >= %s AND r.at_ms <="
            " %s)))",
            (gateway, time.start_ms < before_ms, time.start_ms, time.end_ms),
        )
    ]


def keep_series(connection: Connection, name: str) -> None:
    """Mark the series of a tenant whose name is erased next, in the caller's transaction: the page
    goes on with the name, and series that began anew would count their whole value.
    """
    locks.take(connection, Lock.TOKENS)
    rows = connection.execute(
        "SELECT s.id, part, gateway, tenant, model, backend, trust FROM token_series s JOIN"
        " token_asker a ON a.id = asker_id WHERE tenant = ANY(%s) AND split_part(part, '.', 3) = ''",
        ([name, escape_name(name)],),
    )
    parts = {number: _part_of_moved(part, _digest(Asker(*words))) for number, part, *words in rows}
    connection.execute(
        "UPDATE token_series s SET part = m.part FROM unnest(%s::bigint[], %s::text[]) AS m (id,"
        " part) WHERE s.id = m.id",
        (list(parts), list(parts.values())),
    )


def newest_parts(
    connection: Connection, gateway: str, page: str, since_ms: int
) -> list[tuple[TokenSeries, int]]:
    """The series of a page that were read since, with their newest reading."""
    rows = connection.execute(
        "SELECT a.gateway, tenant, model, backend, trust, counter, part, max(r.at_ms) FROM"
        " token_page p JOIN token_series s ON s.page_id = p.id JOIN token_asker a ON a.id ="
        " s.asker_id JOIN token_reading r ON r.series_id = s.id WHERE p.gateway = %s AND p.page ="
        " %s AND r.at_ms >= %s GROUP BY a.id, s.id",
        (gateway, page, since_ms),
    )
    return [
        (TokenSeries(Asker(*words), counter, part), newest_ms)
        for *words, counter, part, newest_ms in rows
    ]


def known_pages(
    connection: Connection, pages: Collection[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Those of pages, by gateway and name, that were read before."""
    columns = [[gateway for gateway, _ in pages], [page for _, page in pages]]
    return connection.execute(
        "SELECT gateway, page FROM token_page WHERE (gateway, page) IN (SELECT * FROM"
        " unnest(%s::text[], %s::text[]))",
        columns,
    ).fetchall()


def _store_page(
    connection: Connection,
    gateway: str,
    address: str,
    read: Sequence[ReadPage],
    changes: HourChanges,
) -> int:
    page_id = _page_id(connection, gateway, address)
    read = _limit_askers(connection, page_id, read)
    series = _series_ids(connection, page_id, {series for page in read for series in page.values})
    new_pages: dict[int, int | None] = {}
    new_values: dict[tuple[int, int], int] = {}
    for page in read:
        new_pages[page.at_ms] = _later(new_pages.get(page.at_ms), page.started_ms)
        for each, value in page.values.items():
            key = series[each], page.at_ms
            new_values[key] = max(value, new_values.get(key, 0))
    first_ms, last_ms = min(new_pages), max(new_pages)
    own = sorted(series.values()) if _is_next(connection, page_id, new_pages) else None
    look_back_ms = _look_back_ms(connection, page_id, new_pages)
    old_pages, old_values = _read_around(connection, page_id, first_ms, last_ms, look_back_ms, own)
    pages = dict(old_pages)
    for at_ms, started_ms in new_pages.items():
        pages[at_ms] = _later(old_pages.get(at_ms), started_ms)
    values = dict(old_values)
    for key, value in new_values.items():
        values[key] = max(value, old_values.get(key, 0))
    askers = _series_of(connection, {series_id for series_id, _ in values})
    _add_increases(changes, askers, pages, values, first_ms, 1)
    _add_increases(changes, askers, old_pages, old_values, first_ms, -1)
    _write(connection, page_id, new_pages, new_values)
    return sum(key not in old_values for key in new_values)


def _limit_askers(
    connection: Connection, page_id: int, read: Sequence[ReadPage]
) -> Sequence[ReadPage]:
    """Readings of a page, with the series of askers beyond the limit under the tenant (other), and
    those of a tenant whose name was erased under its pseudonym.
    """
    askers = {series.asker for page in read for series in page.values}
    rows = connection.execute(
        "SELECT DISTINCT a.id, gateway, tenant, model, backend, trust FROM token_series s JOIN"
        " token_asker a ON a.id = s.asker_id WHERE page_id = %s",
        (page_id,),
    )
    known = {Asker(*words): number for number, *words in rows}
    others = [
        number
        for asker, number in known.items()
        if asker.tenant == OVERFLOW_TENANT or is_pseudonym(asker.tenant)
    ]
    if not others and len(known) + len(askers) <= MAX_ASKERS:
        return read
    moved = _moved_askers(connection, page_id, others)
    room = MAX_ASKERS - len(known)
    for place, asker in enumerate(
        asker for asker in sorted(askers.difference(known)) if _digest(asker) not in moved
    ):
        if place >= room:
            # Models and backends have a limit of their own.
            has_room = place < room + MAX_ASKERS
            words = (asker.model, asker.backend) if has_room else ("", "")
            moved[_digest(asker)] = Asker(asker.gateway, OVERFLOW_TENANT, *words, asker.trust)
    return [replace(page, values=_moved(page.values, moved)) for page in read]


def _moved_askers(connection: Connection, page_id: int, others: Sequence[int]) -> dict[str, Asker]:
    """By the digests of askers, under which of these their series on a page are: they stay there,
    since a series that changed its asker would begin anew.
    """
    rows = connection.execute(
        "SELECT DISTINCT split_part(part, '.', 3), gateway, tenant, model, backend, trust FROM"
        " token_series JOIN token_asker a ON a.id = asker_id WHERE page_id = %s AND asker_id ="
        " ANY(%s) AND split_part(part, '.', 3) <> ''",
        (page_id, others),
    )
    return {digest: Asker(*words) for digest, *words in rows}


def _moved(values: Mapping[TokenSeries, int], moved: Mapping[str, Asker]) -> dict[TokenSeries, int]:
    """Values with the series of these askers under others; their parts tell them apart."""
    result = {}
    for series, value in values.items():
        digest = _digest(series.asker)
        if digest in moved:
            series = TokenSeries(moved[digest], series.counter, _part_of_moved(series.part, digest))
        result[series] = value
    return result


def _part_of_moved(part: str, digest: str) -> str:
    """The part of a series that is stored under another asker than its own."""
    return f"{part or '0.'}.{digest}"


def _digest(asker: Asker) -> str:
    return hashlib.sha256("\0".join(astuple(asker)).encode()).hexdigest()[:32]


def _is_next(connection: Connection, page_id: int, new_pages: Mapping[int, int | None]) -> bool:
    """Whether readings change what their own series count and nothing else: none is older than what
    is stored of the page, unless it is a further part of a reading that says nothing new of its
    process.
    """
    known: dict[int, int | None] = dict(
        connection.execute(
            "SELECT at_ms, started_ms FROM token_page_reading WHERE page_id = %s AND at_ms >= %s",
            (page_id, min(new_pages)),
        ).fetchall()
    )
    newest_ms = max(known, default=0)
    return all(
        _later(known[at_ms], started_ms) == known[at_ms] if at_ms in known else at_ms > newest_ms
        for at_ms, started_ms in new_pages.items()
    )


def _look_back_ms(connection: Connection, page_id: int, new_pages: Mapping[int, int | None]) -> int:
    """How long before the reading before it a series is looked at, at the most: longer where two
    readings of the page do not say when its process began.
    """
    unknown = {at_ms for at_ms, started_ms in new_pages.items() if started_ms is None}
    rows = connection.execute(
        "SELECT at_ms FROM token_page_reading WHERE page_id = %s AND at_ms >= %s AND started_ms IS"
        " NULL ORDER BY at_ms LIMIT 2",
        (page_id, min(new_pages) - GAP_MS),
    )
    unknown.update(at_ms for (at_ms,) in rows)
    return LOOK_BACK_MS if len(unknown) > 1 else INVERTED_MS


def _later(known_ms: int | None, started_ms: int | None) -> int | None:
    """The start of a process by two parts of one reading: of two the later one."""
    if known_ms is None or started_ms is None:
        return started_ms if known_ms is None else known_ms
    return max(known_ms, started_ms)


def _page_id(connection: Connection, gateway: str, address: str) -> int:
    return int(
        select_value(
            connection,
            "INSERT INTO token_page (gateway, page) VALUES (%s, %s) ON CONFLICT (gateway, page)"
            " DO UPDATE SET page = excluded.page RETURNING id",
            (gateway, address),
        )
    )


def _series_ids(
    connection: Connection, page_id: int, wanted: Iterable[TokenSeries]
) -> dict[TokenSeries, int]:
    ordered = sorted(wanted)
    askers = asker_ids(connection, (series.asker for series in ordered))
    if not ordered:
        return {}
    keys = [(askers[series.asker], series.counter, series.part) for series in ordered]
    columns = [page_id, *(list(column) for column in zip(*keys, strict=True))]
    connection.execute(
        "INSERT INTO token_series (page_id, asker_id, counter, part) SELECT %s, * FROM"
        " unnest(%s::bigint[], %s::text[], %s::text[]) ON CONFLICT DO NOTHING",
        columns,
    )
    rows = connection.execute(
        "SELECT asker_id, counter, part, id FROM token_series WHERE page_id = %s AND"
        " (asker_id, counter, part) IN (SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[]))",
        columns,
    )
    ids = {(asker_id, counter, part): number for asker_id, counter, part, number in rows}
    return {series: ids[key] for series, key in zip(ordered, keys, strict=True)}


def _read_around(
    connection: Connection,
    page_id: int,
    first_ms: int,
    last_ms: int,
    look_back_ms: int,
    own: Sequence[int] | None,
) -> tuple[dict[int, int | None], dict[tuple[int, int], int]]:
    """What is stored of a page from the reading before these instants to the one after them, by
    page and by series; of all series, or of these.
    """
    rows = connection.execute(
        "SELECT at_ms, started_ms FROM token_page_reading WHERE page_id = %(page)s AND at_ms >="
        " coalesce((SELECT max(at_ms) FROM token_page_reading WHERE page_id = %(page)s AND at_ms <"
        " %(first)s), %(first)s) AND at_ms <= coalesce((SELECT min(at_ms) FROM token_page_reading"
        " WHERE page_id = %(page)s AND at_ms > %(last)s), %(last)s)",
        {"page": page_id, "first": first_ms, "last": last_ms},
    )
    pages: dict[int, int | None] = dict(rows.fetchall())
    # Of each series the reading before, however far away it is, since it counts by the difference
    # to that, with those shortly before it; and all that these readings change: what is read soon
    # after them, and the next one after that.
    source = (
        "(SELECT id FROM token_series WHERE page_id = %(page)s) s"
        if own is None
        else "unnest(%(own)s::bigint[]) AS s (id)"
    )
    values = connection.execute(
        f"SELECT s.id, r.at_ms, r.value FROM {source} CROSS JOIN LATERAL ("
        "SELECT max(at_ms) AS at_ms FROM token_reading WHERE series_id = s.id AND at_ms <"
        " %(first)s) before CROSS JOIN LATERAL (SELECT min(at_ms) AS at_ms FROM token_reading"
        " WHERE series_id = s.id AND at_ms > %(last)s + %(look_back)s) after JOIN token_reading r"
        " ON r.series_id = s.id AND r.at_ms >= coalesce(before.at_ms - %(look_back)s, %(first)s)"
        " AND r.at_ms <= coalesce(after.at_ms, %(last)s + %(look_back)s)",
        {
            "page": page_id,
            "first": first_ms,
            "last": last_ms,
            "look_back": look_back_ms,
            "own": own,
        },
    )
    readings = {(series_id, at_ms): value for series_id, at_ms, value in values}
    missing = sorted({at_ms for _, at_ms in readings} - pages.keys())
    if missing:
        # Readings further away have the start of their process on the reading of their page, and
        # those after also the page before them.
        pages |= dict(
            connection.execute(
                "SELECT p.at_ms, p.started_ms FROM unnest(%(at)s::bigint[]) AS a (at_ms) CROSS JOIN"
                " LATERAL (SELECT at_ms, started_ms FROM token_page_reading WHERE page_id ="
                " %(page)s AND at_ms <= a.at_ms ORDER BY at_ms DESC LIMIT 2) p",
                {"at": missing, "page": page_id},
            ).fetchall()
        )
    return pages, readings


def _series_of(connection: Connection, ids: Iterable[int]) -> dict[int, tuple[Asker, str]]:
    """Asker and counter of series."""
    rows = connection.execute(
        "SELECT s.id, counter, gateway, tenant, model, backend, trust FROM token_series s JOIN"
        " token_asker a ON a.id = asker_id WHERE s.id = ANY(%s)",
        (sorted(ids),),
    )
    return {number: (Asker(*words), counter) for number, counter, *words in rows}


def _add_increases(
    changes: HourChanges,
    askers: Mapping[int, tuple[Asker, str]],
    pages: Mapping[int, int | None],
    values: Mapping[tuple[int, int], int],
    first_ms: int,
    sign: int,
) -> None:
    """Add what was counted up to each reading from `first_ms` on, or take it away."""
    of_page = [PageReading(at_ms, started_ms) for at_ms, started_ms in sorted(pages.items())]
    by_series: dict[int, list[SeriesReading]] = defaultdict(list)
    for (series_id, at_ms), value in sorted(values.items()):
        by_series[series_id].append(SeriesReading(at_ms, value, pages.get(at_ms)))
    for series_id, readings in by_series.items():
        asker, counter = askers[series_id]
        for increase in list_increases(of_page, readings):
            if increase.end_ms < first_ms:
                continue
            parts = spread_units(increase.start_ms, increase.end_ms, increase.units)
            for hour_ms, units in parts.items():
                changes[asker, hour_ms] += Tokens(**{counter: sign * units})


def _write(
    connection: Connection,
    page_id: int,
    pages: Mapping[int, int | None],
    values: Mapping[tuple[int, int], int],
) -> None:
    connection.execute(
        "INSERT INTO token_page_reading AS old (page_id, at_ms, started_ms) SELECT %s, * FROM"
        " unnest(%s::bigint[], %s::bigint[]) ON CONFLICT (page_id, at_ms) DO UPDATE SET started_ms"
        " = greatest(old.started_ms, excluded.started_ms)",
        (page_id, list(pages), list(pages.values())),
    )
    connection.execute(
        "INSERT INTO token_reading AS old (series_id, at_ms, value) SELECT * FROM"
        " unnest(%s::bigint[], %s::bigint[], %s::bigint[]) ON CONFLICT (series_id, at_ms) DO UPDATE"
        " SET value = greatest(old.value, excluded.value)",
        (
            [series_id for series_id, _ in values],
            [at_ms for _, at_ms in values],
            list(values.values()),
        ),
    )


def expire_readings(connection: Connection, now_ms: int) -> None:
    """Delete readings that no late one can pair with, and what nothing refers to any more; the
    hours that they counted stay.

    The newest of the old readings of a series stays while its process answers: an agent sends only
    counters that changed, and a tenant may pause for weeks.
    """
    before_ms = now_ms - KEEP_DAYS * DAY_MS
    with connection.transaction():
        locks.take(connection, Lock.TOKENS)
        gone = connection.execute(
            "WITH newest AS (SELECT series_id, max(at_ms) AS at_ms FROM token_reading WHERE at_ms <"
            " %(before)s GROUP BY series_id), alive AS MATERIALIZED (SELECT DISTINCT page_id,"
            " started_ms FROM token_page_reading WHERE at_ms >= %(before)s), needed AS MATERIALIZED"
            " (SELECT series_id, n.at_ms - %(look_back)s AS from_ms FROM newest n JOIN token_series"
            " s ON s.id = n.series_id LEFT JOIN token_page_reading p ON p.page_id = s.page_id AND"
            " p.at_ms = n.at_ms WHERE EXISTS (SELECT FROM alive a WHERE a.page_id = s.page_id AND"
            " (a.started_ms IS NULL OR p.started_ms IS NULL OR abs(a.started_ms - p.started_ms) <="
            " %(same)s))) DELETE FROM token_reading r WHERE at_ms < %(before)s AND NOT EXISTS"
            " (SELECT FROM needed n WHERE n.series_id = r.series_id AND r.at_ms >= n.from_ms)",
            {"before": before_ms, "look_back": LOOK_BACK_MS, "same": SAME_START_MS},
        ).rowcount
        gone += connection.execute(
            "DELETE FROM token_page_reading p WHERE at_ms < %(before)s AND NOT EXISTS (SELECT FROM"
            " token_reading r JOIN token_series s ON s.id = r.series_id WHERE s.page_id = p.page_id"
            " AND r.at_ms = p.at_ms AND r.at_ms < %(before)s)",
            {"before": before_ms},
        ).rowcount
        if gone:
            set_boundary(connection, BOUNDARY, before_ms)
        _delete_unused(connection)


def _delete_unused(connection: Connection) -> None:
    """Delete series without readings, pages without any, and askers of nothing.

    The newest page of each gateway stays: that its tokens were counted from pages is known by it.
    """
    connection.execute(
        "DELETE FROM token_series s WHERE NOT EXISTS (SELECT FROM token_reading r WHERE r.series_id"
        " = s.id)"
    )
    connection.execute(
        "DELETE FROM token_page p WHERE NOT EXISTS (SELECT FROM token_page_reading r WHERE r.page_id"
        " = p.id) AND NOT EXISTS (SELECT FROM token_series s WHERE s.page_id = p.id) AND EXISTS"
        " (SELECT FROM token_page n WHERE n.gateway = p.gateway AND n.id > p.id)"
    )
    connection.execute(_DELETE_ASKERS)


_DELETE_ASKERS = (
    "DELETE FROM token_asker a WHERE NOT EXISTS (SELECT FROM token_hour h WHERE h.asker_id = a.id)"
    " AND NOT EXISTS (SELECT FROM token_series s WHERE s.asker_id = a.id) AND NOT EXISTS (SELECT"
    " FROM token_request q WHERE q.asker_id = a.id AND input = 0 AND cached = 0 AND output = 0 AND"
    " requests = 0)"
)
"""Requests that count anything have an hour as well, so that only empty ones are looked at: an index
has these alone.
"""
