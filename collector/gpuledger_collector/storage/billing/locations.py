"""Where pools stand, in Postgres: superseded rather than edited."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.locations import REGION, Locations, PoolLocation
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.ledger.dated_rows import DatedTable
from gpuledger_collector.storage.ledger.usage import request_days_with_evidence
from gpuledger_collector.storage.locks import Connection

LOCATIONS = DatedTable("pool_location", PoolLocation, "pool, from_on NULLS FIRST, id")
COMMITMENT_REGION, CORRECTED_DAY = "commitment region", "corrected day"
"""Dimensions of single charges: the region of a commitment, of what it left unused; the day that a
correction amends.

Other charges have an empty cell.
"""
_NAMED_REGIONS = """SELECT region FROM price WHERE superseded_at IS NULL AND region <> ''
    UNION SELECT region FROM commitment WHERE superseded_at IS NULL AND region <> ''"""


def current(connection: Connection) -> Locations:
    """Read where pools stand, as declared now."""
    return Locations(LOCATIONS.in_force(connection), zones.calendar(connection))


def by_month(connection: Connection, period: Period) -> Mapping[str, Locations]:
    """Where pools stand by month of a period; of a closed month as declared when it was closed."""
    calendar = zones.calendar(connection)
    instants = periods.declarations_at(connection, calendar, period)
    return {
        name: Locations(LOCATIONS.in_force(connection, closed_ms), calendar)
        for name, closed_ms in instants.items()
    }


@dataclass(frozen=True, slots=True)
class LineSource:
    """How charged lines by some dimensions are read: those of each period by `by`, each of them
    with its keys named.
    """

    periods: Sequence[Period]
    by: tuple[str, ...]
    named: Callable[[ChargedLine, Period], ChargedLine] = lambda line, _: line


def line_source(connection: Connection, period: Period, by: Sequence[str]) -> LineSource:
    """How lines by these dimensions are read; with the region among them by month and by where
    pools stand.

    A closed month has its pools where they stood at its close, as FOCUS has them. Parts of a period
    in which pools stand elsewhere have lines of their own, with equal keys where only others moved.
    """
    if REGION not in by:
        return LineSource([period], tuple(by))
    calendar = zones.calendar(connection)
    parts: list[tuple[Period, Locations]] = []
    for name, places in by_month(connection, period).items():
        month = calendar.month(name).clip(period)
        parts += [] if month is None else [(part, places) for part in places.constant(month)]

    def name_regions(line: ChargedLine, part: Period) -> ChargedLine:
        places = next(places for of, places in parts if of == part)
        *keys, committed, corrected = line.keys
        at_ms = int(corrected) if corrected else part.start_ms
        cells = (
            _region(places, key, committed, at_ms, line.state) if dimension == REGION else key
            for dimension, key in zip(by, keys, strict=True)
        )
        return dataclasses.replace(line, keys=tuple(cells))

    asked = (*("pool" if name == REGION else name for name in by), COMMITMENT_REGION, CORRECTED_DAY)
    return LineSource([part for part, _ in parts], asked, name_regions)


def lines_by_region(
    connection: Connection,
    period: Period,
    by: Sequence[str],
    read: Callable[[Period, Sequence[str]], Iterable[ChargedLine]],
) -> list[ChargedLine]:
    """Lines by dimensions with the region among them, from `read`, which knows the ones of
    `line_source`.
    """
    source = line_source(connection, period, by)
    return [source.named(line, part) for part in source.periods for line in read(part, source.by)]


def _region(places: Locations, pool: str, committed: str, at_ms: int, state: str) -> str:
    place = (
        places.of_purchase(pool, committed, at_ms)
        if state == COMMITMENT_UNUSED
        else places.location_at(pool, at_ms)
    )
    return "" if place is None else place.region


def replace_locations(
    connection: Connection, wanted: Sequence[PoolLocation], now_ms: int
) -> ImportOutcome:
    """Replace the locations in force; days are rated again where a rate or a commitment names a
    region.
    """
    before = LOCATIONS.in_force(connection)
    outcome = LOCATIONS.replace(connection, wanted, now_ms)
    moved = set(before) ^ set(wanted)
    if not moved or not connection.execute(_NAMED_REGIONS).fetchone():
        return outcome
    calendar = zones.calendar(connection)
    starts = [
        0 if location.from_on is None else calendar.start_of(location.from_on) for location in moved
    ]
    ends = [
        now_ms if location.to_on is None else calendar.start_of(location.to_on)
        for location in moved
    ]
    marked = request_days_with_evidence(connection, min(starts), min(max(ends), now_ms))
    return dataclasses.replace(outcome, days_to_recompute=marked)


def unknown_regions(connection: Connection) -> list[str]:
    """List regions that rates or commitments name, and in which no pool stands."""
    known = {location.region for location in LOCATIONS.in_force(connection)}
    return sorted({region for (region,) in connection.execute(_NAMED_REGIONS)} - known)
