"""The inventory time line in Postgres: `capacity`, derived from usage intervals and inventory
(accounting.placement).

A board is placed again from two days before the new evidence: a decision depends on at most a day
behind the end of an interval, and an interval lasts at most a day. Time whose evidence has expired
keeps its rows. Changed hours and days are requested for folding and rating.
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
    Retirement,
    Sighting,
    StatedRow,
    changes,
    place,
    splice_placements,
)
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.storage.ledger import claims
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import (
    select,
    select_as,
    select_value,
    select_values,
    to_object,
)
from gpuledger_collector.storage.telemetry import usage_evidence

_LONGEST_MS = DAY_MS
_OF_BEFORE = b"\0"
"""The digest of attributes that were not reported by a batch."""
_ROW = """c.accelerator_id, c.node_id, c.pool, c.gpu_model AS model, c.gpu_micro, c.in_ms,
    c.out_ms, c.source,
    coalesce(c.accelerator_attributes_id, 0) AS attributes_id,
    coalesce(nullif(t.pool, ''), c.pool) AS claimed_pool, t.model AS reported_model"""


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

    Returns the latest row of each accelerator of these boards that has one; unchanged rows are not
    written. `on_node_claim` is called for each device that a second node claims.
    """
    # Locks all accelerators of the boards until COMMIT: two writers never settle the same board at
    # once.
    parts = _parts(connection, sorted(set(accelerators)))
    # Where evidence has expired, the line is recomputed only from where all evidence still exists;
    # before that it stays.
    wanted_ms = max(0, since_ms - RETURN_MS - _LONGEST_MS)
    start_ms = max(wanted_ms, complete_since(connection))
    known = _read_placements(connection, parts.ids)
    # From before the start: a decision at the start depends on evidence up to a day behind it.
    sightings = _sightings(connection, parts, start_ms - RETURN_MS, known)
    stated = _read_stated(connection, parts)
    retired = _read_retirements(connection)
    imported = _imported_days(connection, _pools(sightings, known), start_ms)
    numbers_of: dict[str, list[int]] = defaultdict(list)
    for number in parts.ids:
        numbers_of[parts.device_of[number]].append(number)
    refused: list[PlacementClaim] = []
    new: dict[int, list[Placement]] = {}
    # Board by board: a MIG instance and its device cannot be present at the same time, so they are
    # placed together.
    for device, numbers in sorted(numbers_of.items()):
        before = {
            number: [row for row in known.get(number, ()) if row.in_ms < start_ms]
            for number in numbers
        }
        line = place(
            Board(
                device=device,
                since_ms=start_ms,
                # The row that is open at the start continues into the recomputed time.
                carried=[
                    rows[-1] for rows in before.values() if rows and rows[-1].reaches(start_ms)
                ],
                sightings=sightings.get(device, ()),
                stated=stated.get(device, ()),
                retired=retired,
                imported=imported,
                gone=[
                    rows[-1] for rows in before.values() if rows and not rows[-1].reaches(start_ms)
                ],
                former_pools={
                    number: [row.pool for row in rows] for number, rows in before.items()
                },
                is_cut=start_ms > wanted_ms,
            )
        )
        refused += line.claims
        for number in numbers:
            placed = [row for row in line.placements if row.accelerator_id == number]
            # Rows before the start are kept as they are, apart from the one that the new rows
            # continue or end.
            new[number] = splice_placements(before[number], placed, start_ms)
    claims.drop(connection, parts.ids, start_ms)
    claims.upsert(connection, refused)
    for claim in refused:
        if claim.kind == "node":
            on_node_claim(claim)
    _write(connection, known, new)
    return {number: rows[-1] for number, rows in new.items() if rows}


def complete_since(connection: Connection) -> int:
    """Return from when on all evidence that a decision depends on still exists."""
    day_ms: int | None = select_value(connection, "SELECT max(day_ms) FROM expired_day")
    return 0 if day_ms is None else day_ms + DAY_MS + RETURN_MS + _LONGEST_MS


def settle_pools(connection: Connection, pools: Sequence[str], since_ms: int) -> None:
    """Place the boards of all accelerators that were ever reported in one of these pools."""
    accelerators = select_values(
        connection,
        "SELECT DISTINCT accelerator_id FROM accelerator_attributes WHERE pool = ANY(%s)",
        (list(pools),),
    )
    if accelerators:
        settle(connection, accelerators, since_ms)


def _pools(
    sightings: Mapping[str, Sequence[Sighting]], known: Mapping[int, Sequence[Placement]]
) -> list[str]:
    """The pools that were reported or, since rows may be replaced, decided: their imported usage
    matters.
    """
    reported = {
        sighting.attributes.pool
        for of_board in sightings.values()
        for sighting in of_board
        if sighting.attributes is not None
    }
    return sorted(reported | {row.claimed_pool for rows in known.values() for row in rows})


def _parts(connection: Connection, accelerators: Sequence[int]) -> _Parts:
    """Lock and read all accelerators of the boards of these, in the order of their UUIDs, as ingest
    does.
    """
    rows = select(
        connection,
        "SELECT a.id, a.uuid, a.device_uuid, coalesce(t.model, '') AS model, "
        "coalesce(t.mig_instance, '') AS mig_instance, coalesce(t.gpu_micro, %s) AS gpu_micro, "
        "coalesce(t.pool, '') AS pool FROM accelerator a "
        "LEFT JOIN accelerator_attributes t ON t.accelerator_id = a.id AND t.digest = %s "
        "WHERE a.device_uuid IN (SELECT device_uuid FROM accelerator WHERE id = ANY(%s)) "
        'ORDER BY a.uuid COLLATE "C" FOR NO KEY UPDATE OF a',
        (GPU_MICRO, _OF_BEFORE, list(accelerators)),
    )
    parts = {
        row.id: Part(
            row.id,
            row.uuid,
            row.uuid == row.device_uuid,
            Attributes(row.model, row.mig_instance, row.gpu_micro, row.pool),
        )
        for row in rows
    }
    return _Parts(parts, {row.id: row.device_uuid for row in rows})


def _sightings(
    connection: Connection, parts: _Parts, from_ms: int, known: Mapping[int, Sequence[Placement]]
) -> dict[str, list[Sighting]]:
    """Read the intervals in which these accelerators were seen, by board; bounds are literals for
    partition pruning.

    An interval without attributes of its own takes the latest of `known`, the placements that were
    derived before. Reads intervals that begin up to `_LONGEST_MS` before `from_ms`.
    """
    since_ms = int(max(0, from_ms - _LONGEST_MS))
    rows = select(
        connection,
        f"""
        WITH s AS MATERIALIZED (
            SELECT DISTINCT accelerator_id, start_ms, end_ms, node_id, accelerator_attributes_id
            FROM {usage_evidence.intervals(since_ms)} AS evidence WHERE accelerator_id = ANY(%s)
        )
        SELECT s.accelerator_id, s.start_ms, s.end_ms, n.name AS node, s.node_id,
            t.id AS attributes_id,
            t.model, coalesce(t.mig_instance, '') AS mig_instance, t.gpu_micro, t.pool
        FROM s JOIN node n ON n.id = s.node_id
        LEFT JOIN accelerator_attributes t ON t.id = s.accelerator_attributes_id
        """,
        (parts.ids,),
        prepare=False,
    )
    sightings: dict[str, list[Sighting]] = defaultdict(list)
    for row in rows:
        number = row.accelerator_id
        attributes = (
            _said_before(known.get(number, ()), row.start_ms)
            if row.attributes_id is None
            else Attributes(row.model, row.mig_instance, row.gpu_micro, row.pool, row.attributes_id)
        )
        sightings[parts.device_of[number]].append(
            Sighting(
                row.start_ms, row.end_ms, row.node, row.node_id, parts.by_id[number], attributes
            )
        )
    return sightings


def _said_before(rows: Sequence[Placement], at_ms: int) -> Attributes | None:
    """Return the attributes of an accelerator at an instant, for intervals without attributes of
    their own.
    """
    row = next(
        (row for row in rows if row.holds(at_ms) and row.source == SEEN and not row.attributes_id),
        None,
    )
    return None if row is None else Attributes(row.model, "", row.gpu_micro, row.pool)


def _read_stated(connection: Connection, parts: _Parts) -> dict[str, list[StatedRow]]:
    rows = select(
        connection,
        "SELECT accelerator_id, node_id, pool, gpu_model AS model, in_ms, out_ms FROM inventory"
        " WHERE accelerator_id = ANY(%s) ORDER BY accelerator_id, in_ms",
        (parts.ids,),
    )
    rows_of: dict[str, list[StatedRow]] = defaultdict(list)
    for row in rows:
        rows_of[parts.device_of[row.accelerator_id]].append(
            to_object(StatedRow, row, part=parts.by_id[row.accelerator_id])
        )
    return rows_of


def _read_retirements(connection: Connection) -> list[Retirement]:
    return select_as(
        connection,
        Retirement,
        "SELECT n.id AS node_id, r.at_ms FROM node_retirement r JOIN node n ON n.name = r.node"
        " WHERE r.superseded_at IS NULL",
    )


def _read_placements(
    connection: Connection, accelerators: Sequence[int]
) -> dict[int, list[Placement]]:
    """Read the rows of `capacity`, by accelerator and time."""
    rows = select_as(
        connection,
        Placement,
        f"SELECT {_ROW} FROM capacity c LEFT JOIN accelerator_attributes t ON t.id ="
        " c.accelerator_attributes_id WHERE c.accelerator_id = ANY(%s) ORDER BY c.accelerator_id,"
        " c.in_ms, c.id",
        (list(accelerators),),
    )
    placements: dict[int, list[Placement]] = defaultdict(list)
    for row in rows:
        placements[row.accelerator_id].append(row)
    return placements


def _imported_days(
    connection: Connection, pools: Sequence[str], from_ms: int
) -> dict[str, list[Period]]:
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


def _write(
    connection: Connection,
    old: Mapping[int, Sequence[Placement]],
    new: Mapping[int, Sequence[Placement]],
) -> None:
    """Replace the rows of these accelerators; where rating changes, request their hours and days.

    One statement for all of them: when a fleet is first seen, each accelerator has a row to write.
    """
    # Unchanged rows are not touched: most evidence only confirms them, and a write would request
    # rating for nothing.
    gone = [row for number, rows in new.items() for row in old.get(number, ()) if row not in rows]
    added = [row for number, rows in new.items() for row in rows if row not in old.get(number, ())]
    if gone:
        connection.execute(
            "DELETE FROM capacity c USING unnest(%s::bigint[], %s::bigint[]) AS g (accelerator_id,"
            " in_ms) WHERE c.accelerator_id = g.accelerator_id AND c.in_ms = g.in_ms",
            ([row.accelerator_id for row in gone], [row.in_ms for row in gone]),
        )
    if added:
        connection.execute(
            "INSERT INTO capacity (accelerator_id, node_id, pool, gpu_model, gpu_micro, in_ms,"
            " out_ms, source, accelerator_attributes_id) SELECT * FROM unnest(%s::bigint[],"
            " %s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[],"
            " %s::text[], %s::bigint[])",
            (
                [row.accelerator_id for row in added],
                [row.node_id for row in added],
                [row.pool for row in added],
                [row.model for row in added],
                [row.gpu_micro for row in added],
                [row.in_ms for row in added],
                [row.out_ms for row in added],
                [row.source for row in added],
                [row.attributes_id or None for row in added],
            ),
        )
    changed = {
        number: Period(periods[0].start_ms, periods[-1].end_ms)
        for number in sorted({row.accelerator_id for row in (*gone, *added)})
        if (periods := changes(old.get(number, ()), new[number]))
    }
    if changed:
        _request_recompute(connection, changed)


def _request_recompute(connection: Connection, changed: Mapping[int, Period]) -> None:
    """Request the hours with evidence of each accelerator in its time, and the rated days.

    Hours that it only touches are included: usage in them is cut where the accelerator moves.
    """
    hours = {
        number: Period(
            period.start_ms - period.start_ms % HOUR_MS, period.end_ms + -period.end_ms % HOUR_MS
        )
        for number, period in changed.items()
    }
    starts_ms = [period.start_ms for period in hours.values()]
    ends_ms = [period.end_ms for period in hours.values()]
    since_ms = int(max(0, min(starts_ms) - _LONGEST_MS))
    connection.execute(
        f"""
        INSERT INTO hour_recompute (accelerator_id, hour_ms)
        WITH s AS MATERIALIZED (
            SELECT accelerator_id, start_ms, end_ms
            FROM {usage_evidence.intervals(since_ms, int(max(ends_ms)))} AS evidence
            WHERE accelerator_id = ANY(%s)
        )
        SELECT DISTINCT s.accelerator_id, h
        FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS c (accelerator_id, from_ms, until_ms)
            JOIN s
                ON s.accelerator_id = c.accelerator_id AND s.start_ms < c.until_ms
                AND s.end_ms > c.from_ms AND s.start_ms >= c.from_ms - {_LONGEST_MS},
            generate_series(s.start_ms - s.start_ms %% {HOUR_MS}, greatest(s.end_ms - 1, s.start_ms), {HOUR_MS}) AS h
        """,
        (list(hours), list(hours), starts_ms, ends_ms),
        prepare=False,
    )
    connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT DISTINCT r.day_ms FROM conservation_check r "
        "JOIN unnest(%s::bigint[], %s::bigint[]) AS c (from_ms, until_ms) "
        "ON r.day_ms > c.from_ms - %s AND r.day_ms < c.until_ms",
        (starts_ms, ends_ms, 2 * DAY_MS),
    )
