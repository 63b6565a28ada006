"""Five-minute series by owner: rolled up from a rated day, and again when the day is rated again;
read by charts.

A day's series spreads its charges over time. Time comes from the hourly usage: each piece of it is
spread over its five minutes in proportion to its usage intervals, by cumulated shares rounded down,
so that the parts add up to the piece and every hour to `usage_hour`. Money comes from `charge`: the
cost of each is spread over the time drawn for it, and adds up to it. Without usage intervals (they
expired, or usage was imported as a mere count) time is spread evenly.

Series hold held, unallocated and unavailable time; unobserved time is what is missing to the
capacity. A day that was corrected after its month was closed is drawn as it was billed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.insight.owner_series import GROUPS, OWNER_LEVELS, UNKNOWN, OwnerSeries
from gpuledger_collector.storage.foreign_keys import insert_selected
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_values
from gpuledger_collector.storage.telemetry import usage_evidence

MEASURES = ("gpu_ns", "busy_ns", "idle_ns", "unknown_ns", "energy_mj", "cost_micro")


def _part(total: str, until: str, weight: str, whole: str) -> str:
    """SQL: the part of a total between two cumulated weights, in 64 bits; the parts add up to the
    total exactly.

    The part is total * until / whole, rounded down, minus the same up to the weight before.
    """

    def upto(at: str) -> str:
        return f"(({total}) / ({whole}) * ({at}) + (({total}) % ({whole})) * ({at}) / ({whole}))"

    return f"({upto(until)} - {upto(f'({until}) - ({weight})')})"


# 1. Pieces: the hourly ledger of the day, one row per accelerator, workload, state and rating
# interval, in GPU-ns (milliseconds times millionths of a GPU). A piece ends with its hour, or where
# the next rating interval begins.
_PIECES = """
CREATE TEMP TABLE piece ON COMMIT DROP AS
SELECT row_number() OVER () AS id, u.accelerator_id, coalesce(u.workload_id, 0) AS workload_id, u.state, u.hour_ms,
    least(u.hour_ms - u.hour_ms % 3600000 + 3600000, coalesce(cut.at_ms, 9e15::bigint)) AS end_ms,
    u.held_ms * a.gpu_micro AS gpu_ns, u.busy_ms * a.gpu_micro AS busy_ns, u.idle_ms * a.gpu_micro AS idle_ns,
    u.unknown_ms * a.gpu_micro AS unknown_ns, u.energy_mj
FROM (
    SELECT accelerator_id, workload_id, state, hour_ms, sum(held_ms)::bigint AS held_ms,
        sum(busy_ms)::bigint AS busy_ms, sum(idle_ms)::bigint AS idle_ms, sum(unknown_ms)::bigint AS unknown_ms,
        sum(energy_mj)::bigint AS energy_mj
    FROM usage_hour WHERE hour_ms >= %(start)s AND hour_ms < %(end)s GROUP BY 1, 2, 3, 4
) u JOIN LATERAL (
    SELECT gpu_micro FROM capacity c WHERE c.accelerator_id = u.accelerator_id
        AND (c.out_ms IS NULL OR c.out_ms > u.hour_ms) ORDER BY c.in_ms LIMIT 1
) a ON true
LEFT JOIN (
    SELECT accelerator_id, hour_ms, lead(hour_ms) OVER (PARTITION BY accelerator_id ORDER BY hour_ms) AS at_ms
    FROM (SELECT DISTINCT accelerator_id, hour_ms FROM usage_hour WHERE hour_ms >= %(start)s AND hour_ms < %(end)s) d
) cut ON cut.accelerator_id = u.accelerator_id AND cut.hour_ms = u.hour_ms
WHERE u.hour_ms >= %(start)s AND u.hour_ms < %(end)s
"""
# 2. Shape: usage intervals cut at five minutes. An interval counts in proportion to its overlap;
# this is only a weight, so rounding it down loses nothing. Energy is scaled to joules, which keeps
# products of weights within 64 bits.
_SHAPE = f"""
CREATE TEMP TABLE shape ON COMMIT DROP AS
SELECT accelerator_id, coalesce(workload_id, 0) AS workload_id, state, at,
    sum((CASE WHEN state = 'held' THEN held_ms ELSE long END) * part / long)::bigint AS held,
    sum(busy_ms * part / long)::bigint AS busy, sum(idle_ms * part / long)::bigint AS idle,
    sum(unknown_ms * part / long)::bigint AS unknown, (sum(energy_mj * part / long) / 1000)::bigint AS joules
FROM (
    SELECT s.*, end_ms - start_ms AS long, least(end_ms, at + 300000) - greatest(start_ms, at) AS part
    FROM (
        SELECT interval.*, generate_series(greatest(start_ms - start_ms % 300000, %(start)s),
            least(end_ms, %(end)s) - 1, 300000) AS at
        FROM {usage_evidence.overlapping("%(start)s", "%(end)s")} AS interval
        WHERE end_ms > %(start)s AND end_ms > start_ms AND state <> 'present'
    ) AS s
) cut GROUP BY 1, 2, 3, 4
"""
# 3. The day's charges whose time is drawn; unobserved time is not drawn.
_CHARGES = """
CREATE TEMP TABLE drawn_charge ON COMMIT DROP AS
SELECT row_number() OVER () AS id, c.accelerator_id, coalesce(c.workload_id, 0) AS workload_id, c.owner_id, c.state,
    c.pool, c.gpu_model, c.currency, c.start_ms, c.end_ms, c.gpu_ns, c.busy_ns, c.idle_ns, c.unknown_ns, c.energy_mj,
    c.cost_micro
FROM charge c WHERE c.day_ms = %(day)s AND c.state IN ('held', 'unallocated', 'unavailable')
    AND c.node_cost_id IS NULL
"""
# 4. Slots: every piece divided over its five minutes by the shape. Where the shape knows nothing of
# a piece, its weight is the plain length of the slot; where it knows held time alone, that stands
# in for busy, idle, unknown and energy.
_SLOTS = f"""
CREATE TEMP TABLE slot ON COMMIT DROP AS
WITH weighed AS (
    SELECT p.id, g.at, least(p.end_ms, g.at + 300000) - greatest(p.hour_ms, g.at) AS long, coalesce(s.held, 0) AS held,
        coalesce(s.busy, 0) AS busy, coalesce(s.idle, 0) AS idle, coalesce(s.unknown, 0) AS unknown,
        coalesce(s.joules, 0) AS joules
    FROM piece p CROSS JOIN LATERAL generate_series(p.hour_ms - p.hour_ms % 300000, p.end_ms - 1, 300000) AS g (at)
    LEFT JOIN shape s ON s.accelerator_id = p.accelerator_id AND s.workload_id = p.workload_id AND s.state = p.state
        AND s.at = g.at
), timed AS (
    SELECT id, at, CASE WHEN sum(held) OVER whole > 0 THEN held ELSE long END AS held, busy, idle, unknown, joules
    FROM weighed WINDOW whole AS (PARTITION BY id)
), filled AS (
    SELECT id, at, held, CASE WHEN sum(busy) OVER whole > 0 THEN busy ELSE held END AS busy,
        CASE WHEN sum(idle) OVER whole > 0 THEN idle ELSE held END AS idle,
        CASE WHEN sum(unknown) OVER whole > 0 THEN unknown ELSE held END AS unknown,
        CASE WHEN sum(joules) OVER whole > 0 THEN joules ELSE held END AS joules
    FROM timed WINDOW whole AS (PARTITION BY id)
), summed AS (
    SELECT f.*, {
    ", ".join(
        f"(sum({name}) OVER upto)::bigint AS {name}_c, (sum({name}) OVER whole)::bigint AS {name}_w"
        for name in ("held", "busy", "idle", "unknown", "joules")
    )
}
    FROM filled f WINDOW whole AS (PARTITION BY id), upto AS (PARTITION BY id ORDER BY at)
)
SELECT s.id, s.at,
    {_part("p.gpu_ns", "held_c", "held", "held_w")} AS gpu_ns, {
    _part("p.busy_ns", "busy_c", "busy", "busy_w")
}
    AS busy_ns, {_part("p.idle_ns", "idle_c", "idle", "idle_w")} AS idle_ns,
    {_part("p.unknown_ns", "unknown_c", "unknown", "unknown_w")} AS unknown_ns,
    {_part("p.energy_mj", "joules_c", "joules", "joules_w")} AS energy_mj
FROM summed s JOIN piece p USING (id)
"""
# 5. Which charges pay for a piece: those of its accelerator, state and workload at that time
# (`found`); where there are none, those of its accelerator and state (`moved`). Several share it by
# their GPU time, with a weight of at least 1.
_PAYMENTS = """
CREATE TEMP TABLE pays ON COMMIT DROP AS
WITH found AS (
    SELECT p.id AS piece_id, c.id AS charge_id, c.gpu_ns / 1000000000 + 1 AS weight FROM piece p
    JOIN drawn_charge c ON c.accelerator_id = p.accelerator_id AND c.state = p.state AND c.workload_id = p.workload_id
        AND c.start_ms <= p.hour_ms AND c.end_ms > p.hour_ms
), moved AS (
    SELECT p.id AS piece_id, c.id AS charge_id, c.gpu_ns / 1000000000 + 1 AS weight FROM piece p
    JOIN drawn_charge c ON c.accelerator_id = p.accelerator_id AND c.state = p.state
        AND c.start_ms <= p.hour_ms AND c.end_ms > p.hour_ms
    WHERE p.id NOT IN (SELECT piece_id FROM found)
), every AS (SELECT * FROM found UNION ALL SELECT * FROM moved)
SELECT piece_id, charge_id, weight, (sum(weight) OVER (PARTITION BY piece_id ORDER BY charge_id))::bigint AS upto,
    (sum(weight) OVER (PARTITION BY piece_id))::bigint AS whole FROM every
"""
# 6. Slots divided over the charges that pay for them.
_DRAWN = f"""
CREATE TEMP TABLE drawn ON COMMIT DROP AS
SELECT y.charge_id, s.at, sum({_part("s.gpu_ns", "y.upto", "y.weight", "y.whole")})::bigint AS gpu_ns,
    sum({_part("s.busy_ns", "y.upto", "y.weight", "y.whole")})::bigint AS busy_ns,
    sum({_part("s.idle_ns", "y.upto", "y.weight", "y.whole")})::bigint AS idle_ns,
    sum({_part("s.unknown_ns", "y.upto", "y.weight", "y.whole")})::bigint AS unknown_ns,
    sum({_part("s.energy_mj", "y.upto", "y.weight", "y.whole")})::bigint AS energy_mj
FROM slot s JOIN pays y ON y.piece_id = s.id GROUP BY 1, 2
"""
# 7. Charges without any piece are spread evenly over their own time: imported usage, which has no
# accelerator, with its time; others with their cost alone.
_COUNTED = f"""
INSERT INTO drawn
WITH even AS (
    SELECT c.*, at, least(c.end_ms, at + 300000) - greatest(c.start_ms, at) AS part, c.end_ms - c.start_ms AS long
    FROM drawn_charge c
    CROSS JOIN LATERAL generate_series(c.start_ms - c.start_ms % 300000, c.end_ms - 1, 300000) AS at
    WHERE c.id NOT IN (SELECT charge_id FROM drawn) AND c.end_ms > c.start_ms
), timed AS (SELECT e.*, (sum(part) OVER (PARTITION BY id ORDER BY at))::bigint AS upto FROM even e)
SELECT id, at, {
    ", ".join(
        f"CASE WHEN accelerator_id IS NULL THEN {_part(name, 'upto', 'part', 'long')} ELSE 0 END"
        for name in ("gpu_ns", "busy_ns", "idle_ns", "unknown_ns")
    )
}, NULL
FROM timed
"""
# 8. Series distinguish three levels of the owner tree: add the owners that end there, which may not
# exist yet.
_OWNERS = """
INSERT INTO owner (org, team, project) SELECT DISTINCT o.org, o.team, o.project
FROM drawn_charge c JOIN owner o ON o.id = c.owner_id ON CONFLICT DO NOTHING
"""
# 9. The cost of each charge is spread over its slots by GPU time (in ms; evenly when it has none),
# then summed by slot, owner, state, pool, model and currency.
_SERIES = """owner_5min (at_ms, owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns, unknown_ns,
    energy_mj, cost_micro)"""
_SUMMED = f"""
WITH weighed AS (
    SELECT d.*, CASE WHEN sum(gpu_ns / 1000000) OVER (PARTITION BY charge_id) > 0 THEN gpu_ns / 1000000 ELSE 1 END
        AS weight FROM drawn d
), summed AS (
    SELECT w.*, (sum(weight) OVER (PARTITION BY charge_id ORDER BY at))::bigint AS upto,
        (sum(weight) OVER (PARTITION BY charge_id))::bigint AS whole FROM weighed w
)
SELECT s.at, top.id, c.state, c.pool, c.gpu_model, c.currency, sum(s.gpu_ns) AS gpu_ns, sum(s.busy_ns) AS busy_ns,
    sum(s.idle_ns) AS idle_ns, sum(s.unknown_ns) AS unknown_ns, sum(s.energy_mj) AS energy_mj,
    sum({_part("c.cost_micro", "s.upto", "s.weight", "s.whole")}) AS cost_micro
FROM summed s JOIN drawn_charge c ON c.id = s.charge_id LEFT JOIN owner o ON o.id = c.owner_id
LEFT JOIN owner top ON top.org = o.org AND top.team = o.team AND top.project = o.project AND top.experiment = ''
    AND top.run = '' AND top.user_name = ''
GROUP BY 1, 2, 3, 4, 5, 6 HAVING sum(s.gpu_ns) + sum(s.weight) > 0
"""


def roll_up_day(connection: Connection, day: Period) -> None:
    """Replace the series of a day of the bill by those of its current rating, in the caller's
    transaction.
    """
    values = {
        "day": day.start_ms,
        "start": day.start_ms,
        "end": day.end_ms,
    }
    connection.execute("SET LOCAL work_mem = '64MB'")
    for statement in (_PIECES, _SHAPE, _CHARGES):
        connection.execute(_compose_statement(statement, values))
    # Temporary tables are never analyzed by themselves; without statistics the joins below become
    # nested loops.
    connection.execute("ANALYZE piece")
    connection.execute("ANALYZE shape")
    connection.execute("ANALYZE drawn_charge")
    for statement in (_SLOTS, _PAYMENTS, _DRAWN, _COUNTED, _OWNERS):
        connection.execute(statement.encode())
    connection.execute(
        "DELETE FROM owner_5min WHERE at_ms >= %s AND at_ms < %s", (day.start_ms, day.end_ms)
    )
    insert_selected(connection, _SERIES, _SUMMED)
    # Not left to ON COMMIT, so that several days can be rolled up in one transaction.
    connection.execute("DROP TABLE piece, shape, drawn_charge, slot, pays, drawn")
    connection.execute(
        "INSERT INTO series_day (day_ms, proved_at) SELECT day_ms, proved_at FROM"
        " conservation_check WHERE day_ms = %s ON CONFLICT (day_ms) DO UPDATE SET proved_at ="
        " excluded.proved_at",
        (day.start_ms,),
    )


def _compose_statement(statement: str, values: Mapping[str, int]) -> bytes:
    """A statement with its instants: CREATE TABLE takes no parameters, and % stays the remainder."""
    for name, value in values.items():
        statement = statement.replace(f"%({name})s", str(int(value)))
    return statement.encode()


def days_to_roll_up(connection: Connection, since_ms: int) -> list[int]:
    """Days of the bill from here on that were rated since their series were made, the newest first."""
    return select_values(
        connection,
        "SELECT p.day_ms FROM conservation_check p LEFT JOIN series_day s USING (day_ms) "
        "WHERE p.day_ms >= %s AND s.proved_at IS DISTINCT FROM p.proved_at ORDER BY p.day_ms DESC",
        (since_ms,),
    )


def expire(connection: Connection, before_ms: int) -> None:
    """Delete series of days before this one."""
    connection.execute("DELETE FROM owner_5min WHERE at_ms < %s", (before_ms,))
    connection.execute("DELETE FROM series_day WHERE day_ms < %s", (before_ms,))


_COLUMNS = {"pool": "pool", "model": "gpu_model", "state": "state"}


def read(
    connection: Connection,
    period: Period,
    step_ms: int,
    by: Sequence[str],
    owner: Mapping[str, str] | None = None,
    states: Sequence[str] = ("held",),
    measures: Sequence[str] = MEASURES,
) -> list[OwnerSeries]:
    """Series of whole steps by names of GROUPS, ordered by them; of an owner's subtree if given
    (level -> value).

    `owner` may name levels of OWNER_LEVELS only. Raises KeyError for another group or level. The
    server only gathers the rows of each owner; arrays here add them up, several times as fast as a
    GROUP BY over as many instants.
    """
    if unknown := [name for name in by if name not in GROUPS] + sorted(
        set(owner or {}) - set(OWNER_LEVELS)
    ):
        raise KeyError(unknown[0])
    owners = _owners(connection, owner)
    columns = [_COLUMNS[name] for name in by if name in _COLUMNS]
    groups = ", ".join(["owner_id", "currency", *columns])
    sent = " || ".join(
        ["int8send(at_ms)", *(f"int8send(coalesce({name}, {UNKNOWN}))" for name in measures)]
    )
    where = "" if owner is None else " AND owner_id = ANY(%(owners)s)"
    with connection.cursor(binary=True) as cursor:
        rows = cursor.execute(
            f"SELECT {groups}, string_agg({sent}, ''::bytea) FROM owner_5min WHERE at_ms >="
            f" %(start)s AND at_ms < %(end)s AND state = ANY(%(states)s){where} GROUP BY {groups}",
            {
                "start": period.start_ms,
                "end": period.end_ms,
                "states": list(states),
                "owners": list(owners),
            },
        ).fetchall()
    record = np.dtype([("at", ">i8"), *((name, ">i8") for name in measures)])
    parts: dict[tuple[tuple[str, ...], str | None], list[npt.NDArray[np.void]]] = {}
    for owner_id, currency, *cells in rows:
        others = dict(zip(columns, cells[:-1], strict=True))
        path = owners.get(owner_id, ("",) * len(OWNER_LEVELS))
        key = tuple(
            path[OWNER_LEVELS.index(name)] if name in OWNER_LEVELS else others[_COLUMNS[name]]
            for name in by
        )
        parts.setdefault((key, currency), []).append(np.frombuffer(cells[-1], dtype=record))
    ordered = sorted(parts, key=lambda pair: (pair[0], pair[1] or ""))
    return [
        OwnerSeries(key, currency, _sums(parts[key, currency], period, step_ms, measures))
        for key, currency in ordered
    ]


def _owners(connection: Connection, owner: Mapping[str, str] | None) -> dict[int, tuple[str, ...]]:
    """The paths of all owners, or of those in a subtree, by number; levels below OWNER_LEVELS left
    out.
    """
    where = " AND ".join(f"{level} = %({level})s" for level in owner or {}) or "true"
    query = f"SELECT id, {', '.join(OWNER_LEVELS)} FROM owner WHERE {where}"
    return {
        row.id: tuple(getattr(row, level) for level in OWNER_LEVELS)
        for row in select(connection, query, dict(owner or {}))
    }


def _sums(
    parts: Sequence[npt.NDArray[np.void]], period: Period, step_ms: int, measures: Sequence[str]
) -> dict[str, npt.NDArray[np.int64]]:
    """A value a step for each measure: 0 without any row, UNKNOWN when no row of a step knows it."""
    rows = np.concatenate(parts)
    steps = (rows["at"].astype(np.int64) - period.start_ms) // step_ms
    sums = {}
    for name in measures:
        values = rows[name].astype(np.int64)
        known_rows = values != UNKNOWN
        sums[name] = np.zeros(period.ms // step_ms, dtype=np.int64)
        # Three steps: unknown wherever there is a row, zero where at least one row knows the
        # measure, then the sums.
        sums[name][steps] = UNKNOWN
        sums[name][steps[known_rows]] = 0
        np.add.at(sums[name], steps[known_rows], values[known_rows])
    return sums


def known_steps(connection: Connection, period: Period, step_ms: int) -> npt.NDArray[np.bool_]:
    """Which steps of a period have series: the others were not rated, or expired, and are unknown
    instead of zero.
    """
    rows = select(
        connection,
        "SELECT s.day_ms, p.until_ms FROM series_day s JOIN conservation_check p USING (day_ms) "
        "WHERE p.until_ms > %s AND s.day_ms < %s",
        (period.start_ms, period.end_ms),
    )
    starts = period.start_ms + step_ms * np.arange(period.ms // step_ms, dtype=np.int64)
    covered = np.zeros(len(starts), dtype=bool)
    for row in rows:
        covered |= (starts + step_ms > row.day_ms) & (starts < row.until_ms)
    return covered
