"""The inventory time line in Postgres: `capacity`, derived from usage intervals and inventory (accounting.placement).

A board is placed again from two days before the new evidence: a decision depends on at most a day behind the end of an
interval, and an interval lasts at most a day. Time whose evidence has expired keeps its rows. Changed hours and days
are requested for folding and rating.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.placement import (
    FAR_MS,
    RETURN_MS,
    SEEN,
    Attributes,
    Board,
    Part,
    Placement,
    PlacementClaim,
    Sighting,
    StatedRow,
    changes,
    place,
    spliced,
)
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.storage.ledger import claims
from gpuledger_collector.storage.locks import Connection

_LONGEST_MS = DAY_MS
_OF_BEFORE = b"\0"
"""The digest of attributes that were not reported by a batch."""
_ROW = """c.accelerator_id, c.node_id, c.pool, c.gpu_model, c.gpu_micro, c.in_ms, c.out_ms, c.source,
    coalesce(c.accelerator_attributes_id, 0), coalesce(nullif(t.pool, ''), c.pool), t.model"""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The accelerators of some boards."""

    by_id: Mapping[int, Part]
    device_of: Mapping[int, str]

    @property
    def ids(self) -> list[int]:
        """Their ids, in order."""
        return sorted(self.by_id)


def settle(
    connection: Connection,
    accelerators: Iterable[int],
    since_ms: int,
    on_node_claim: Callable[[PlacementClaim], None] = lambda _: None,
) -> dict[int, Placement]:
    """Place the boards of these accelerators again by the evidence from an instant on.

    Returns the latest row of each accelerator of these boards that has one; unchanged rows are not written.
    `on_node_claim` is called for each device that a second node claims.
    """
    # Locks all accelerators of the boards until COMMIT: two writers never settle the same board at once.
    parts = _parts(connection, sorted(set(accelerators)))
    # Where evidence has expired, the line is recomputed only from where all evidence still exists; before that it
    # stays.
    wanted_ms = max(0, since_ms - RETURN_MS - _LONGEST_MS)
    start_ms = max(wanted_ms, _complete_since(connection))
    known = _known(connection, parts.ids)
    # From before the start: a decision at the start depends on evidence up to a day behind it.
    sightings = _sightings(connection, parts, start_ms - RETURN_MS, known)
    stated = _stated(connection, parts)
    imported = _imported_days(connection, _pools(sightings, known), start_ms)
    newest: dict[int, Placement] = {}
    # Board by board: a MIG instance and its device cannot be present at the same time, so they are placed together.
    for device in sorted(set(parts.device_of.values())):
        numbers = [number for number in parts.ids if parts.device_of[number] == device]
        before = {number: [row for row in known.get(number, ()) if row.in_ms < start_ms] for number in numbers}
        line = place(
            Board(
                device=device,
                since_ms=start_ms,
                # The row that is open at the start continues into the recomputed time.
                carried=[rows[-1] for rows in before.values() if rows and rows[-1].reaches(start_ms)],
                sightings=sightings.get(device, ()),
                stated=stated.get(device, ()),
                imported=imported,
                former_pools={number: [row.pool for row in rows] for number, rows in before.items()},
                is_cut=start_ms > wanted_ms,
            )
        )
        claims.drop(connection, numbers, start_ms)
        claims.keep(connection, line.claims)
        for claim in line.claims:
            if claim.kind == "node":
                on_node_claim(claim)
        for number in numbers:
            placed = [row for row in line.placements if row.accelerator_id == number]
            # Rows before the start are kept as they are, apart from the one that the new rows continue or end.
            rows = spliced(before[number], placed, start_ms)
            _write(connection, number, known.get(number, []), rows)
            if rows:
                newest[number] = rows[-1]
    return newest


def _complete_since(connection: Connection) -> int:
    """Return from when on all evidence that a decision depends on still exists."""
    row = connection.execute("SELECT max(day_ms) FROM expired_day").fetchone()
    return 0 if row is None or row[0] is None else int(row[0]) + DAY_MS + RETURN_MS + _LONGEST_MS


def settle_pools(connection: Connection, pools: Sequence[str], since_ms: int) -> None:
    """Place the boards of all accelerators that were ever reported in one of these pools."""
    rows = connection.execute(
        "SELECT DISTINCT accelerator_id FROM accelerator_attributes WHERE pool = ANY(%s)", (list(pools),)
    ).fetchall()
    if rows:
        settle(connection, [row[0] for row in rows], since_ms)


def _pools(sightings: Mapping[str, Sequence[Sighting]], known: Mapping[int, Sequence[Placement]]) -> list[str]:
    """The pools that were reported or, since rows may be replaced, decided: their imported usage matters."""
    reported = {
        sighting.attributes.pool
        for of_board in sightings.values()
        for sighting in of_board
        if sighting.attributes is not None
    }
    return sorted(reported | {row.claimed_pool for rows in known.values() for row in rows})


def _parts(connection: Connection, accelerators: Sequence[int]) -> _Parts:
    """Lock and read all accelerators of the boards of these, in the order of their UUIDs, as ingest does."""
    rows = connection.execute(
        "SELECT a.id, a.uuid, a.device_uuid, coalesce(t.model, ''), coalesce(t.mig_instance, ''), "
        "coalesce(t.gpu_micro, %s), coalesce(t.pool, '') FROM accelerator a "
        "LEFT JOIN accelerator_attributes t ON t.accelerator_id = a.id AND t.digest = %s "
        "WHERE a.device_uuid IN (SELECT device_uuid FROM accelerator WHERE id = ANY(%s)) "
        'ORDER BY a.uuid COLLATE "C" FOR NO KEY UPDATE OF a',
        (GPU_MICRO, _OF_BEFORE, list(accelerators)),
    ).fetchall()
    parts = {
        number: Part(number, uuid, uuid == device, Attributes(model, mig, micro, pool))
        for number, uuid, device, model, mig, micro, pool in rows
    }
    return _Parts(parts, {row[0]: row[2] for row in rows})


def _sightings(
    connection: Connection, parts: _Parts, from_ms: int, known: Mapping[int, Sequence[Placement]]
) -> dict[str, list[Sighting]]:
    """Read the intervals in which these accelerators were seen, by board; bounds are literals for partition pruning.

    Intervals without attributes take them from the rows derived from them.
    """
    rows = connection.execute(
        f"""
        SELECT DISTINCT s.accelerator_id, s.start_ms, s.end_ms, n.name, s.node_id, t.id, t.model,
            coalesce(t.mig_instance, ''), t.gpu_micro, t.pool
        FROM usage_interval s JOIN node n ON n.id = s.node_id
        LEFT JOIN accelerator_attributes t ON t.id = s.accelerator_attributes_id
        WHERE s.accelerator_id = ANY(%s) AND s.start_ms >= {int(max(0, from_ms - _LONGEST_MS))}
        """,
        (parts.ids,),
        prepare=False,
    )
    sightings: dict[str, list[Sighting]] = defaultdict(list)
    for number, start_ms, end_ms, node, node_id, attributes_id, model, mig, micro, pool in rows:
        attributes = (
            _said_before(known.get(number, ()), start_ms)
            if attributes_id is None
            else Attributes(model, mig, micro, pool, attributes_id)
        )
        sightings[parts.device_of[number]].append(
            Sighting(start_ms, end_ms, node, node_id, parts.by_id[number], attributes)
        )
    return sightings


def _said_before(rows: Sequence[Placement], at_ms: int) -> Attributes | None:
    """Return the attributes of an accelerator at an instant, for intervals without attributes of their own."""
    row = next((row for row in rows if row.holds(at_ms) and row.source == SEEN and not row.attributes_id), None)
    return None if row is None else Attributes(row.model, "", row.gpu_micro, row.pool)


def _stated(connection: Connection, parts: _Parts) -> dict[str, list[StatedRow]]:
    rows = connection.execute(
        "SELECT accelerator_id, node_id, pool, gpu_model, in_ms, out_ms FROM inventory WHERE accelerator_id = ANY(%s) "
        "ORDER BY accelerator_id, in_ms",
        (parts.ids,),
    )
    rows_of: dict[str, list[StatedRow]] = defaultdict(list)
    for number, *row in rows:
        rows_of[parts.device_of[number]].append(StatedRow(parts.by_id[number], *row))
    return rows_of


def _known(connection: Connection, accelerators: Sequence[int]) -> dict[int, list[Placement]]:
    """Read the rows of `capacity`, by accelerator and time."""
    rows = connection.execute(
        f"SELECT {_ROW} FROM capacity c LEFT JOIN accelerator_attributes t ON t.id = c.accelerator_attributes_id "
        "WHERE c.accelerator_id = ANY(%s) ORDER BY c.accelerator_id, c.in_ms, c.id",
        (list(accelerators),),
    )
    placements: dict[int, list[Placement]] = defaultdict(list)
    for row in rows:
        placements[row[0]].append(Placement(*row))
    return placements


def _imported_days(connection: Connection, pools: Sequence[str], from_ms: int) -> dict[str, list[Period]]:
    """List UTC days, joined, on which usage is imported for these pools."""
    if not pools:
        return {}
    rows = connection.execute(
        f"""
        SELECT pool, lower(days), upper(days) FROM (
            SELECT pool, unnest(range_agg(int8range(start_ms - start_ms %% {DAY_MS},
                CASE WHEN end_ms IS NULL THEN NULL ELSE end_ms + (- end_ms %% {DAY_MS} + {DAY_MS}) %% {DAY_MS} END)))
            AS days FROM imported_usage
            WHERE pool = ANY(%s) AND gpu_micro > 0 AND (end_ms IS NULL OR end_ms > GREATEST(start_ms, %s))
            GROUP BY pool) AS joined ORDER BY 1, 2
        """,
        (list(pools), from_ms - from_ms % DAY_MS),
    )
    periods: dict[str, list[Period]] = defaultdict(list)
    for pool, start_ms, end_ms in rows:
        periods[pool].append(Period(start_ms, FAR_MS if end_ms is None else end_ms))
    return periods


def _write(connection: Connection, number: int, old: Sequence[Placement], new: Sequence[Placement]) -> None:
    """Replace the rows of an accelerator; where rating changes, request its hours and days."""
    # Unchanged rows are not touched: most evidence only confirms them, and a write would request rating for nothing.
    gone, added = [row for row in old if row not in new], [row for row in new if row not in old]
    if not gone and not added:
        return
    connection.execute(
        "DELETE FROM capacity WHERE accelerator_id = %s AND in_ms = ANY(%s)", (number, [row.in_ms for row in gone])
    )
    for row in added:
        connection.execute(
            "INSERT INTO capacity (accelerator_id, node_id, pool, gpu_model, gpu_micro, in_ms, out_ms, source, "
            "accelerator_attributes_id) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                number,
                row.node_id,
                row.pool,
                row.model,
                row.gpu_micro,
                row.in_ms,
                row.out_ms,
                row.source,
                row.attributes_id or None,
            ),
        )
    changed = changes(old, new)
    if changed:
        _mark(connection, number, Period(changed[0].start_ms, changed[-1].end_ms))


def _mark(connection: Connection, number: int, changed: Period) -> None:
    """Request the hours with evidence of the accelerator in this time, and the rated days.

    Hours that it only touches are included: usage in them is cut where the accelerator moves.
    """
    changed = Period(changed.start_ms - changed.start_ms % HOUR_MS, changed.end_ms + -changed.end_ms % HOUR_MS)
    connection.execute(
        f"""
        INSERT INTO hour_recompute (accelerator_id, hour_ms)
        SELECT DISTINCT accelerator_id, h FROM usage_interval,
            generate_series(start_ms - start_ms %% {HOUR_MS}, greatest(end_ms - 1, start_ms), {HOUR_MS}) AS h
        WHERE accelerator_id = %s AND start_ms >= {int(max(0, changed.start_ms - _LONGEST_MS))}
            AND start_ms < {int(changed.end_ms)} AND end_ms > {int(changed.start_ms)}
        """,
        (number,),
        prepare=False,
    )
    connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT day_ms FROM conservation_check WHERE day_ms > %s AND day_ms < %s",
        (changed.start_ms - 2 * DAY_MS, changed.end_ms),
    )
