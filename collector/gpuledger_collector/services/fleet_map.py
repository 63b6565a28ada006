"""The map of the fleet: what every accelerator did in an hour of the ledger, or how it is now.

An hour is read from the hourly ledger, and its remainder is unobserved, as in rating; so the hours
of a day add up to what the day's proof says. Now is the latest reading, as on boards, and the state
of a node that of `gpuledger nodes`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpuledger_collector.accounting.ledger_rows import CapacityRow
from gpuledger_collector.accounting.period import HOUR_MS, Calendar, Period, join_periods
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.accounting.usage import STRANDED, UNOBSERVED
from gpuledger_collector.insight.fleet_map import (
    HELD_STATES,
    UNKNOWN,
    ColorBy,
    FleetMap,
    Grain,
    Holder,
    MappedAccelerator,
    finest_grain,
    hour_states,
    natural_order,
    now_states,
    state_now,
)
from gpuledger_collector.services.placements import (
    FAR_MS,
    ROUNDING_MICRO,
    placements_of,
    with_stranded,
)
from gpuledger_collector.services.team_numbers import number_teams
from gpuledger_collector.storage.billing import fleet_hours, reports
from gpuledger_collector.storage.billing.fleet_hours import (
    HolderRow,
    LatestReading,
    PlacedAccelerator,
    UsedHour,
)
from gpuledger_collector.storage.ledger import retirements, zones
from gpuledger_collector.storage.locks import Connection

Placed = TypeVar("Placed", bound=PlacedAccelerator)
GRAINS = tuple(Grain)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapQuestion:
    """What is asked of the map.

    `at_ms` lies in the hour; None: now. `grain` None: the finest that can be drawn. `pool` and
    `node` narrow it. `with_holders` asks who held each accelerator, whatever it is colored by.
    """

    at_ms: int | None = None
    color: ColorBy = ColorBy.STATE
    grain: Grain | None = None
    pool: str | None = None
    node: str | None = None
    with_holders: bool = False

    def narrow(self, items: Iterable[MappedAccelerator]) -> list[MappedAccelerator]:
        """Those accelerators that are in what the map is narrowed to."""
        if self.pool is None and self.node is None:
            return list(items)
        return [
            item
            for item in items
            if self.pool in {None, item.pool} and self.node in {None, item.node}
        ]


def read_fleet_map(connection: Connection, asked: MapQuestion, now_ms: int) -> FleetMap:
    """Read the map, for a reader of the entire fleet. Raises ValueError for an hour to come."""
    if asked.at_ms is not None and asked.at_ms > now_ms:
        raise ValueError("at: the hour lies ahead, and nothing is known of it yet")
    calendar = zones.calendar(connection)
    return (
        _read_now(connection, asked, calendar, now_ms)
        if asked.at_ms is None
        else _read_hour(connection, asked, calendar, asked.at_ms, now_ms)
    )


def _read_hour(
    connection: Connection, asked: MapQuestion, calendar: Calendar, at_ms: int, now_ms: int
) -> FleetMap:
    start_ms = at_ms - at_ms % HOUR_MS
    hour = Period(start_ms, start_ms + HOUR_MS)
    days = calendar.days(hour)
    whole_days = [calendar.day_of(day.start_ms) for day in days]
    checks = [check for day in whole_days for check in reports.conservation_checks(connection, day)]
    is_rated = len(checks) == len(days) and checks[-1].until_ms > start_ms
    until_ms = min(hour.end_ms, checks[-1].until_ms if is_rated else now_ms)
    rows = fleet_hours.used_hours(connection, hour, asked.pool, asked.node)
    counted = Period(start_ms, max(start_ms, until_ms))
    whole_ms = counted.ms
    by_number = {}
    for own_rows in _rows_by_accelerator(rows):
        # Hardly any comes, goes or moves in an hour, and there are tens of thousands.
        stays = len(own_rows) == 1 and _stays(own_rows[0], counted)
        item = _hour_of(own_rows[-1], whole_ms if stays else _present_ms(own_rows, counted))
        if item.states:
            by_number[own_rows[-1].accelerator_id] = item
    if asked.with_holders or asked.color is ColorBy.OWNER:
        # Jobs are named where accelerators are drawn one by one, and in files.
        drawn = asked.narrow(by_number.values())
        with_names = asked.with_holders or finest_grain(drawn) is Grain.GPU
        day_starts = [day.start_ms for day in whole_days]
        found = fleet_hours.hour_holders(connection, hour, day_starts, with_names=with_names)
        for number, holders in _by_accelerator(found).items():
            if number in by_number:
                by_number[number].holders = holders
    items = [*by_number.values(), *_stranded(rows, counted)]
    return _map_of(
        connection,
        asked,
        items,
        hour=hour,
        until_ms=until_ms,
        is_rated=is_rated,
        holds=all(check.holds for check in checks) if is_rated else None,
    )


def _hour_of(row: UsedHour, present_ms: int) -> MappedAccelerator:
    """One accelerator's hour, from where it was last."""
    busy_ms, idle_ms = row.busy_ms or 0, row.idle_ms or 0
    states = hour_states(
        present_ms,
        busy_ms,
        idle_ms,
        row.unknown_ms or 0,
        row.unallocated_ms or 0,
        row.unavailable_ms or 0,
    )
    known_ms = busy_ms + idle_ms
    use_permille = busy_ms * 1000 // known_ms if known_ms else None
    return _item(row, states, use_permille)


def _present_ms(rows: Sequence[PlacedAccelerator], counted: Period) -> int:
    """For how much of the counted time an accelerator was there, wherever it was."""
    periods = [Period(own.in_ms, FAR_MS if own.out_ms is None else own.out_ms) for own in rows]
    there = (period.clip(counted) for period in join_periods(periods))
    return sum(part.ms for part in there if part is not None)


def _stays(row: PlacedAccelerator, counted: Period) -> bool:
    """Whether an accelerator was in this place for all of the counted time."""
    return row.in_ms <= counted.start_ms and (row.out_ms is None or row.out_ms >= counted.end_ms)


def _read_now(
    connection: Connection, asked: MapQuestion, calendar: Calendar, now_ms: int
) -> FleetMap:
    rows = fleet_hours.latest_readings(connection, asked.pool, asked.node)
    with_holders = asked.with_holders or asked.color is ColorBy.OWNER
    day = calendar.day_of(now_ms).start_ms
    holders = (
        _by_accelerator(fleet_hours.present_holders(connection, [day])) if with_holders else {}
    )
    nodes = retirements.nodes(connection)
    node_states = {node.name: node.state(now_ms) for node in nodes}
    silent_since_ms = {
        node.name: node.seen_ms for node in nodes if node_states[node.name] == "silent"
    }
    items = [
        _latest_of(
            own_rows[-1],
            now_ms,
            holders.get(own_rows[-1].accelerator_id, ()),
            is_silent=own_rows[-1].node in silent_since_ms,
        )
        for own_rows in _rows_by_accelerator(rows)
    ]
    items += _stranded(rows, Period(now_ms, now_ms + HOUR_MS), is_now=True)
    return _map_of(
        connection,
        asked,
        items,
        until_ms=now_ms,
        is_rated=True,
        node_states=node_states,
        silent_since_ms=silent_since_ms,
    )


def _latest_of(
    row: LatestReading, now_ms: int, holders: Sequence[Holder], *, is_silent: bool
) -> MappedAccelerator:
    state = state_now(row.health, row.state, row.read_ms, row.activity, now_ms)
    # What an old reading said of its holder and its activity is not known of now.
    use = None if row.activity is None or state == UNOBSERVED else round(1000 * row.activity)
    held_by = holders if state in HELD_STATES else ()
    return _item(row, now_states(state), use, held_by, is_silent=is_silent, is_now=True)


def _item(
    row: PlacedAccelerator,
    states: Mapping[str, int],
    use_permille: int | None,
    holders: Sequence[Holder] = (),
    *,
    is_silent: bool = False,
    is_now: bool = False,
) -> MappedAccelerator:
    return MappedAccelerator(
        node=row.node,
        pool=row.pool,
        device=row.device or row.uuid,
        uuid=row.uuid,
        model=row.model,
        gpu_index=row.gpu_index,
        mig_instance=row.mig_instance,
        gpu_micro=row.gpu_micro,
        states=states,
        use_permille=use_permille,
        is_silent=is_silent,
        is_now=is_now,
        holders=holders,
        health=row.health if is_now else UNKNOWN,
        cause=row.cause if is_now else "",
        health_since_ms=row.health_since_ms if is_now else None,
    )


def _stranded(
    rows: Sequence[PlacedAccelerator], counted: Period, *, is_now: bool = False
) -> list[MappedAccelerator]:
    """What the slices of divided boards leave of them, as rating finds it."""
    divided = {row.device for row in rows if row.device and row.device != row.uuid}
    boards: dict[str, list[PlacedAccelerator]] = defaultdict(list)
    for row in rows:
        if row.device in divided:
            boards[row.device].append(row)
    rests: list[MappedAccelerator] = []
    changing: list[PlacedAccelerator] = []
    for parts in boards.values():
        numbers = {row.accelerator_id for row in parts}
        if len(numbers) == len(parts) and all(_stays(row, counted) for row in parts):
            rests += _rest_of_board(parts, counted, is_now=is_now)
        else:
            changing += parts
    return rests + _changing_rests(changing, counted, is_now=is_now)


def _rest_of_board(
    parts: Sequence[PlacedAccelerator], counted: Period, *, is_now: bool
) -> list[MappedAccelerator]:
    """What the slices leave of a board of which nothing changed; as `with_stranded` finds it."""
    gpu_micro = GPU_MICRO - sum(row.gpu_micro for row in parts)
    if gpu_micro <= ROUNDING_MICRO or not counted.ms:
        return []
    first = min((row for row in parts if row.uuid != row.device), key=lambda row: row.uuid)
    return [_rest_item(first, gpu_micro, counted.ms, is_now=is_now)]


def _rest_item(
    slice_row: PlacedAccelerator, gpu_micro: int, ms: int, *, is_now: bool
) -> MappedAccelerator:
    """The rest of a board, in the place of one of its slices."""
    item = _item(slice_row, {STRANDED: HOUR_MS if is_now else ms}, None, is_now=is_now)
    item.gpu_micro = gpu_micro
    item.uuid, item.mig_instance, item.is_rest = "", None, True
    return item


def _changing_rests(
    parts: Sequence[PlacedAccelerator], counted: Period, *, is_now: bool
) -> list[MappedAccelerator]:
    """What slices leave of boards that were divided anew, came, moved or went."""
    capacity = [
        CapacityRow(
            row.accelerator_id,
            row.gpu_micro,
            row.model,
            row.pool,
            row.node,
            row.in_ms,
            row.out_ms,
            row.source,
            row.uuid,
            row.device,
        )
        for row in parts
    ]
    by_id = {row.accelerator_id: row for row in parts}
    return [
        _rest_item(
            by_id[number], placement.accelerator.gpu_micro, placement.period.ms, is_now=is_now
        )
        for number, placements in with_stranded(placements_of(capacity), capacity, counted).items()
        for placement in placements
        if placement.accelerator.stranded
    ]


def _rows_by_accelerator(rows: Sequence[Placed]) -> Iterable[Sequence[Placed]]:
    if len({row.accelerator_id for row in rows}) == len(rows):
        return zip(rows)
    by_id: dict[int, list[Placed]] = {}
    for row in rows:
        by_id.setdefault(row.accelerator_id, []).append(row)
    for own_rows in by_id.values():
        own_rows.sort(key=lambda row: row.in_ms)
    return by_id.values()


def _by_accelerator(rows: Iterable[HolderRow]) -> Mapping[int, Sequence[Holder]]:
    """The holders of each accelerator, longest first."""
    by_id: dict[int, list[Holder]] = {}
    for row in rows:
        number = row.accelerator_id
        holder = Holder(row.team, row.workload, row.name, row.held_ms)
        if number in by_id:
            by_id[number].append(holder)
        else:
            by_id[number] = [holder]
    for holders in by_id.values():
        if len(holders) > 1:
            holders.sort(key=lambda holder: (-holder.held_ms, holder.workload))
    return by_id


def _map_of(
    connection: Connection,
    asked: MapQuestion,
    items: Sequence[MappedAccelerator],
    *,
    until_ms: int,
    is_rated: bool,
    hour: Period | None = None,
    holds: bool | None = None,
    node_states: Mapping[str, str] | None = None,
    silent_since_ms: Mapping[str, int] | None = None,
) -> FleetMap:
    items = _ordered(asked.narrow(items))
    finest = finest_grain(items)
    grain = finest if asked.grain is None else max(finest, asked.grain, key=GRAINS.index)
    return FleetMap(
        hour=hour,
        until_ms=until_ms,
        is_rated=is_rated,
        holds=holds,
        color=asked.color,
        grain=grain,
        finest=finest,
        items=items,
        teams=number_teams(connection) if asked.color is ColorBy.OWNER else {},
        node_states=node_states or {},
        silent_since_ms=silent_since_ms or {},
        has_imports=not items and fleet_hours.has_imported_usage(connection),
        first_ms=fleet_hours.first_instant_ms(connection),
    )


def _ordered(items: Iterable[MappedAccelerator]) -> Sequence[MappedAccelerator]:
    """By pool, node and board, as people count; the rest of a board comes after its slices."""
    # Names are compared node by node: there are ten times as many accelerators.
    nodes: dict[tuple[str, str], list[MappedAccelerator]] = defaultdict(list)
    for item in items:
        nodes[item.pool, item.node].append(item)
    ordered: list[MappedAccelerator] = []
    for place in sorted(
        nodes, key=lambda place: (natural_order(place[0]), natural_order(place[1]))
    ):
        ordered += sorted(
            nodes[place],
            key=lambda item: (
                item.gpu_index is None,
                item.gpu_index or 0,
                item.device,
                item.is_rest,
                item.uuid,
            ),
        )
    return ordered
