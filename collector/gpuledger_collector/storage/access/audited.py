"""Compare declared rows with the audit log: an entry must say when each was declared and when it
was superseded.

Prices, rules, adjustments and the like decide amounts and follow from nothing else, so no sum shows
that one of them was changed by SQL. The log has the content of each, chained by hashes: whoever
changes a row and the log as well breaks the chain, or is found by a head that was noted outside of
the database.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from psycopg.rows import dict_row

from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_as, select_value, select_values
from gpuledger_common.instants import to_ms

TABLES = {
    "price": "price",
    "attribution_rule": "rule",
    **{
        table: table
        for table in (
            *(
                "commitment",
                "purchase_choice",
                "exchange_rate",
                "shared_cost",
                "pool_share",
                "adjustment",
                "node_cost",
            ),
            "node_retirement",
            *("inference_server", "inference_tenant", "api_price"),
            *("cost_center", "carbon_intensity", "pool_provider", "pool_location"),
        )
    },
}
"""Tables of declared rows that are superseded and never edited, and what the log calls their kind.
"""
MOST = 50
"""Rows that are named."""
_UNSAID = ("id", "recorded_at", "superseded_at")
_BOOKED = ("shares", "evidence", "reverses")
"""Columns of a booked entry of which the log has a hash."""
_NUMERIC = 1700
"""Postgres' number of the type `numeric`."""
_RENAMED = {"price": {"rate": "rate_per_gpu_hour"}}
"""Columns that the log calls differently, by table."""

Content = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Deviation:
    """A declared row that is not as the log has it: a column that was changed, or `added` or
    `removed`.
    """

    table: str
    row: str
    what: str


@dataclass
class Comparison:
    """What a comparison finds, and how many rows of each table it cannot judge, since they are
    older than the log.
    """

    deviations: list[Deviation] = field(default_factory=list)
    uncovered: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Version:
    """A row or an entry: what it declares, and from when to when (unix ms; None: in force)."""

    subject: str
    content: Content
    from_ms: int
    to_ms: int | None = None

    @property
    def key(self) -> str:
        return _text([self.content, self.from_ms, self.to_ms])

    def unlike(self, other: _Version) -> list[str]:
        """The columns in which another one differs."""
        names = self.content.keys() | other.content.keys()
        columns = sorted(
            name for name in names if self.content.get(name) != other.content.get(name)
        )
        columns += ["recorded_at"] if self.from_ms != other.from_ms else []
        return columns + (["superseded_at"] if self.to_ms != other.to_ms else [])


def booked_digest(shares: object, evidence: object, reverses: int | None) -> str | None:
    """Hash what a booked entry has beside its terms; None where it has nothing else."""
    parts = [shares or None, evidence or None, reverses]
    if not any(parts):
        return None
    return hashlib.sha256(_text(parts).encode()).hexdigest()


def _text(value: object) -> str:
    """One text of what is equal, whichever way JSON was read."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float | Decimal):
        return _number(value)
    return str(value) if isinstance(value, dt.date) else value


def compare(connection: Connection) -> Comparison:
    """Compare all declared rows with the log."""
    entries = _entries(connection)
    since_ms = select_value(connection, "SELECT at_ms FROM audit ORDER BY number LIMIT 1")
    pseudonyms = select_values(connection, "SELECT subject FROM audit WHERE what = 'privacy'")
    comparison = Comparison()
    for table, kind in TABLES.items():
        numeric, rows = _rows(connection, table)
        logged = _replay(entries.get(kind, ()), numeric, _RENAMED.get(table, {}))
        _compare_versions(table, logged, rows, since_ms, pseudonyms, comparison)
    _compare_inventory(connection, entries.get("inventory", ()), comparison)
    _compare_zones(connection, entries.get("billing_zone", ()), comparison)
    return comparison


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the log of declarations."""

    what: str
    subject: str
    at_ms: int
    before: Content | None
    after: Content | None


def _entries(connection: Connection) -> dict[str, list[_Entry]]:
    """The log of declarations by kind."""
    kinds = [*TABLES.values(), "inventory", "billing_zone"]
    entries = defaultdict(list)
    for entry in select_as(
        connection,
        _Entry,
        "SELECT what, subject, at_ms, before, after FROM audit WHERE what = ANY(%s) ORDER BY"
        " number",
        (kinds,),
    ):
        entries[entry.what].append(entry)
    return entries


def _rows(connection: Connection, table: str) -> tuple[frozenset[str], list[_Version]]:
    """Its columns of numbers with a fraction, and all rows, superseded ones too."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()
        numeric = frozenset(
            column.name for column in cursor.description or () if column.type_code == _NUMERIC
        )
    return numeric, [
        _Version(
            "",
            _content(_booked_content(row), numeric),
            to_ms(row["recorded_at"]),
            None if row["superseded_at"] is None else to_ms(row["superseded_at"]),
        )
        for row in rows
    ]


def _booked_content(row: Mapping[str, Any]) -> Content:
    """A row as the log states it."""
    content = {name: value for name, value in row.items() if name not in (*_UNSAID, *_BOOKED)}
    if "evidence" in row:
        content["shares"] = len(row["shares"] or ())
        content["sha256"] = booked_digest(row["shares"], row["evidence"], row["reverses"])
    return content


def _content(values: Mapping[str, Any], numeric: Iterable[str]) -> Content:
    """What is said, in one form: columns without a value are left out, and numbers have no zeros at
    their end.
    """
    content = {}
    for name, value in values.items():
        if value in (None, "", {}, []) or (name == "shares" and not value):
            continue
        if name in numeric:
            value = _number(value)
        content[name] = _plain(value)
    return content


def _number(value: object) -> str:
    try:
        return f"{Decimal(str(value)).normalize():f}"
    except InvalidOperation:
        return str(value)


def _replay(
    entries: Sequence[_Entry],
    numeric: Iterable[str],
    renamed: Mapping[str, str],
) -> list[_Version]:
    """The versions that the log tells of, each with when it was superseded."""

    def content_of(values: Content) -> Content:
        return _content({renamed.get(name, name): value for name, value in values.items()}, numeric)

    versions: list[_Version] = []
    in_force: dict[str, list[_Version]] = defaultdict(list)
    for entry in entries:
        if entry.before is not None:
            known = in_force[_text(content_of(entry.before))]
            if known:
                known.pop().to_ms = entry.at_ms
        if entry.after is not None:
            version = _Version(entry.subject, content_of(entry.after), entry.at_ms)
            versions.append(version)
            in_force[_text(version.content)].append(version)
    return versions


def _compare_versions(
    table: str,
    logged: Sequence[_Version],
    rows: Sequence[_Version],
    since_ms: int | None,
    pseudonyms: Sequence[str],
    comparison: Comparison,
) -> None:
    """Pair what the log and the table do not have alike by what is most alike, and name what
    differs.
    """
    missing, strange = _unmatched_versions(logged, rows), _unmatched_versions(rows, logged)
    for version in missing[:MOST]:
        row = min(strange, key=lambda other: len(version.unlike(other)), default=None)
        if row is None:
            comparison.deviations.append(Deviation(table, version.subject, "removed"))
            continue
        strange.remove(row)
        columns = version.unlike(row)
        if columns == ["sha256"] and _is_unhashed(version):
            comparison.uncovered[table] += 1
        elif not _is_erased(version, row, pseudonyms):
            comparison.deviations += [
                Deviation(table, version.subject, column) for column in columns
            ]
    for row in strange[:MOST]:
        if since_ms is None or row.from_ms < since_ms:
            comparison.uncovered[table] += 1
        else:
            comparison.deviations.append(Deviation(table, _subject(row.content), "added"))


def _is_unhashed(version: _Version) -> bool:
    """Whether an earlier version logged an entry that has more than its terms, and no hash of that."""
    has_more = "shares" in version.content or version.subject.startswith("reversal of ")
    return has_more and "sha256" not in version.content


def _unmatched_versions(versions: Sequence[_Version], others: Sequence[_Version]) -> list[_Version]:
    """Those versions of which the others have no equal one."""
    left = Counter(version.key for version in others)
    unmatched = []
    for version in versions:
        if left[version.key]:
            left[version.key] -= 1
        else:
            unmatched.append(version)
    return unmatched


def _is_erased(version: _Version, row: _Version, pseudonyms: Sequence[str]) -> bool:
    """Whether a row differs from its entry by the pseudonym of a person who was erased, and by
    nothing else.
    """
    pattern = re.escape(row.key)
    for pseudonym in pseudonyms:
        pattern = pattern.replace(re.escape(pseudonym), '[^"]+')
    return pattern != re.escape(row.key) and re.fullmatch(pattern, version.key) is not None


def _subject(content: Content) -> str:
    """A row of which the log knows nothing, for people."""
    return str(
        content.get("name")
        or " ".join(str(value) for value in content.values() if isinstance(value, str))
    )


def _compare_inventory(
    connection: Connection,
    entries: Sequence[_Entry],
    comparison: Comparison,
) -> None:
    """The rows of each accelerator are those of the last file that named it."""
    stated: dict[str, list[Content]] = {
        entry.subject: entry.after["rows"] for entry in entries if entry.after is not None
    }
    stored: dict[str, list[Content]] = defaultdict(list)
    rows = connection.execute(
        "SELECT a.uuid, n.name, i.pool, i.gpu_model, i.in_ms, i.out_ms FROM inventory i "
        "JOIN accelerator a ON a.id = i.accelerator_id LEFT JOIN node n ON n.id = i.node_id"
    )
    for uuid, *cells in rows:
        stored[uuid].append(
            dict(zip(("node", "pool", "gpu_model", "in_ms", "out_ms"), cells, strict=True))
        )
    for uuid in sorted(stated.keys() | stored.keys()):
        if uuid not in stated and not entries:
            comparison.uncovered["inventory"] += len(stored[uuid])
        elif _sort_contents(stated.get(uuid, ())) != _sort_contents(stored.get(uuid, ())):
            what = "removed" if uuid not in stored else "rows" if uuid in stated else "added"
            comparison.deviations.append(Deviation("inventory", uuid, what))


def _sort_contents(rows: Iterable[Content]) -> list[str]:
    return sorted(map(_text, rows))


def _compare_zones(
    connection: Connection,
    entries: Sequence[_Entry],
    comparison: Comparison,
) -> None:
    """The zones in force are those that were declared, each from the end of the last closed month
    of its time on.
    """
    declared: list[tuple[str, int]] = []
    for after in (entry.after for entry in entries):
        if after is None or "from_ms" not in after:
            continue
        declared = [zone for zone in declared if zone[1] < after["from_ms"]]
        if after["from_ms"] == 0 or after["zone"] != (declared[-1][0] if declared else "UTC"):
            declared.append((after["zone"], after["from_ms"]))
    stored = connection.execute(
        "SELECT zone, from_ms FROM billing_zone WHERE superseded_at IS NULL ORDER BY from_ms, id"
    ).fetchall()
    if stored and not entries:
        comparison.uncovered["billing_zone"] += len(stored)
    elif stored != declared:
        comparison.deviations.append(
            Deviation("billing_zone", stored[-1][0] if stored else "UTC", "zone")
        )
