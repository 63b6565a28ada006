"""Fragments of SQL that the boards share.

Instants are stored as integer milliseconds, so a range is two comparisons with integers, which the indexes answer.
Arguments of Grafana's macros may hold no `)`: its expander is one regular expression.
A sum over nothing known stays null ("no data"), never 0.

Days are those of the billing zone, and have 23 to 25 hours. A board's clock is UTC; a day is drawn at its date's
midnight there, and the range chooses dates: 1 October to 1 November is October in every zone.
"""

from __future__ import annotations

from dashboards.grafana import VERMILION, Json, annotation, chosen, column, source

FROM_MS = "$__unixEpochNanoFrom() / 1000000"
TO_MS = "$__unixEpochNanoTo() / 1000000"
DAY_MS = 86_400_000
GPU_HOUR_NS = "3.6e12"
MICRO = "1e6"

TEAM = "coalesce(nullif(o.team, ''), '(unattributed)')"
PROJECT = "coalesce(nullif(o.project, ''), '(unattributed)')"


ZONE = """coalesce((SELECT z.zone FROM billing_zone z WHERE z.superseded_at IS NULL
    ORDER BY z.from_ms DESC LIMIT 1), 'UTC')"""
"""The billing zone in force; days of the ledger before a change of it are told to the day, not to the hour."""


def local(wall: str) -> str:
    """The instant (ms) of a wall clock's time (a timestamp) in the billing zone.

    The millisecond before it decides, as in accounting.period: where the clocks jump over a midnight it is the jump,
    and of a midnight that comes twice it is the first.
    """
    return f"(extract(epoch FROM ({wall} - interval '1 ms') AT TIME ZONE {ZONE}) * 1000)::bigint + 1"


def date(day_ms: str) -> str:
    """The date of a day by its first instant."""
    return f"(to_timestamp({day_ms} / 1000.0) AT TIME ZONE {ZONE})::date"


def drawn(day: str) -> str:
    """Where a date stands on a board: at its midnight of UTC."""
    return f"({day}::timestamp AT TIME ZONE 'UTC')"


def whole(proof: str) -> str:
    """Whether the proof of a day reaches the next one: a day that is not over yet is no day to compare with."""
    return f"{proof}.until_ms >= {local('(' + date(proof + '.day_ms') + ' + 1)::timestamp')}"


TODAY = f"(now() AT TIME ZONE {ZONE})::date"


def between(column: str) -> str:
    """Rows whose instant lies in the board's range."""
    return f"{column} >= {FROM_MS} AND {column} < {TO_MS}"


def dated(column: str) -> str:
    """Rows whose day begins at a date of the board's range."""
    first, last = (local(f"to_timestamp({at} / 1000.0) AT TIME ZONE 'UTC'") for at in (FROM_MS, TO_MS))
    return f"{column} >= {first} AND {column} < {last}"


def picked(expression: str, variable: str) -> str:
    """Rows that the reader chose: one, several, or all."""
    return f"('*' IN (${{{variable}:sqlstring}}) OR {expression} IN (${{{variable}:sqlstring}}))"


CURRENCY = "l.currency = ${currency:sqlstring}"
HELD_COST = "l.state IN ('held', 'node_cost')"
"""Lines of what owners held: GPU-time, and their share of the nodes, which has a cost and no GPU-time."""
POOLS = picked("l.pool", "pool")
MODELS = picked("l.gpu_model", "model")
TEAMS = picked(TEAM, "team")
DAYS = dated("l.day_ms")
DAY_TIME = f'{drawn(date("l.day_ms"))} AS "time"'
OWNER = "LEFT JOIN owner o ON o.id = l.owner_id"

_COLUMNS = """owner_id, state, pool, gpu_model, currency, cost_micro, idle_cost_micro"""
_AMENDS = """coalesce((SELECT p.name FROM billing_period p WHERE p.start_ms <= day_ms AND p.end_ms > day_ms),
    to_char(to_timestamp(day_ms / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM'))"""
LEDGER = f"""(
    SELECT day_ms, {_COLUMNS}, gpu_ns, busy_ns, idle_ns, unknown_ns, '' AS correction_of FROM ledger_day
    UNION ALL SELECT booked_day_ms, {_COLUMNS}, gpu_ns::numeric, busy_ns::numeric, idle_ns::numeric,
        unknown_ns::numeric, {_AMENDS} FROM correction)"""
"""What is billed: the daily ledger, and corrections of closed days on the open day in which they are booked.

`correction_of` is the closed month of a correction: it may take time back, so it is no part of a team's own hours.
"""
OWN = "l.correction_of = ''"
"""Time of the range's own days, corrections of closed months left out."""
CORRECTION = "nullif(l.correction_of, '') AS \"correction of\""
"""A column that keeps corrections in rows of their own."""
_LINE = f"""{_COLUMNS}, gpu_ns, busy_ns, idle_ns, unknown_ns, accelerator_id, workload_id, start_ms, end_ms, node,
    energy_mj"""
CHARGES = f"""(
    SELECT day_ms, {_LINE}, '' AS correction_of FROM charge
    UNION ALL SELECT booked_day_ms, {_LINE}, {_AMENDS} FROM correction)"""
"""The same, line by line."""


def apart(name: str) -> str:
    """The name of a series, corrections in one of their own for each month that they amend."""
    return f"CASE WHEN {OWN} THEN {name} ELSE 'correction of ' || l.correction_of END"


FRESH = "l.at_ms > extract(epoch FROM now()) * 1000 - 900000"
"""What a node said in the last 15 minutes is taken for now."""
ACTIVITY_NOW = "coalesce(l.gpu_sm_active_ratio, l.gpu_graphics_engine_active_ratio, l.gpu_utilization_ratio)"
NOW_IDLE = f"{ACTIVITY_NOW} < 0.01"
"""Whether the latest reading shows no activity; null where the card does not tell."""
ACTIVITY_COSTS = """LATERAL (
        SELECT l.cost_micro - coalesce(l.idle_cost_micro, 0) AS rest,
            l.unknown_ns::numeric / nullif(l.busy_ns + l.unknown_ns, 0) AS unknown
    ) part, LATERAL (VALUES
        ('busy', part.rest * (1 - coalesce(part.unknown, 0))),
        ('idle', l.idle_cost_micro),
        ('activity unknown', part.rest * coalesce(part.unknown, 0))) s (name, cost)"""
"""A held line's cost by activity. What is no idle cost is divided by time: what nobody knows is not busy."""


def leading(name: str, measured: str, where: str, by: str) -> str:
    """The name of a series: the nine with the largest sum have their own, the others are one; ten lines a chart."""
    first = f"SELECT {name} FROM {measured} WHERE {where} GROUP BY 1 ORDER BY sum({by}) DESC NULLS LAST, 1 LIMIT 9"
    return f"CASE WHEN {name} IN ({first}) THEN {name} ELSE 'all others' END"


def states_of_cost(by: str, where: str) -> str:
    """What lines of the ledger cost by a column and by what the GPUs did: rows `l` (by) and `s` (name, cost).

    Time whose activity is unknown has its part of a line's cost by time; the parts of a line add up to it. Lines are
    added up before they are taken apart, which is a third of the work.
    """
    return f"""(
        SELECT {by}, l.state, sum(l.cost_micro) AS cost_micro, sum(l.idle_cost_micro) AS idle_micro,
            sum(round(l.cost_micro * l.unknown_ns / nullif(l.gpu_ns, 0))) AS unknown_micro
        FROM {LEDGER} l WHERE {where} GROUP BY {by}, l.state) l, LATERAL (VALUES
        (CASE WHEN l.state = 'held' THEN 'busy' ELSE l.state END, l.cost_micro
            - CASE WHEN l.state = 'held' THEN coalesce(l.idle_micro, 0) + coalesce(l.unknown_micro, 0) ELSE 0 END),
        ('idle', CASE WHEN l.state = 'held' THEN l.idle_micro END),
        ('activity unknown', CASE WHEN l.state = 'held' THEN nullif(l.unknown_micro, 0) END)) s (name, cost)"""


KWH = "(l.energy_mj / 3.6e9)"
"""Measured energy of a line of ledger_day; null where no energy was read."""
GRID = f"""LEFT JOIN LATERAL (
    SELECT c.grams_per_kwh * c.pue / 1000 AS kg_per_kwh FROM carbon_intensity c
    WHERE c.superseded_at IS NULL AND c.pool IN ('', l.pool) AND coalesce(c.from_on, '-infinity') <= {date("l.day_ms")}
        AND coalesce(c.to_on, 'infinity') > {date("l.day_ms")}
    ORDER BY c.pool <> '' DESC, c.from_on DESC NULLS LAST LIMIT 1) grid ON true"""
"""The carbon intensity of a line's pool and day, chosen as accounting.carbon does; null: none is declared."""


def month_end(joined: str, where: str) -> str:
    """This month's charges and its end by the pace of the last 28 full days: a row (so far, expected, low, high).

    Days without charges under `where` but with a conservation check are days on which nothing was charged; days
    without a check are unknown and not part of the pace.
    """
    start = f"date_trunc('month', {TODAY}::timestamp)"
    return f"""
    WITH day AS (
        SELECT p.day_ms, coalesce(sum(l.cost_micro), 0) / {MICRO} AS cost
        FROM conservation_check p LEFT JOIN (
            SELECT l.day_ms, l.cost_micro FROM {LEDGER} l {joined} WHERE {where} AND {OWN}) l ON l.day_ms = p.day_ms
        WHERE {whole("p")} AND p.day_ms >= {local(f"({TODAY} - 28)::timestamp")} GROUP BY 1
    ), pace AS (
        SELECT avg(cost) AS mean, coalesce(stddev_samp(cost), 0) AS spread FROM day
    ), done AS (
        SELECT (SELECT sum(l.cost_micro) / {MICRO} FROM {LEDGER} l {joined}
                WHERE {where} AND l.day_ms >= {local(start)}) AS cost,
            (SELECT max(p.until_ms) FROM conservation_check p) AS until_ms
    ), ahead AS (
        SELECT greatest(0, ({local(f"{start} + interval '1 month'")}
            - greatest(coalesce(done.until_ms, {local(start)}), {local(start)})) / 86400000.0) AS days FROM done
    )
    SELECT done.cost AS "so far", coalesce(done.cost, 0) + pace.mean * ahead.days AS "expected",
        coalesce(done.cost, 0) + greatest(0, pace.mean * ahead.days - 1.28 * pace.spread * sqrt(ahead.days)) AS "low",
        coalesce(done.cost, 0) + pace.mean * ahead.days + 1.28 * pace.spread * sqrt(ahead.days) AS "high"
    FROM done, pace, ahead
    """


ACCELERATORS = """
    SELECT a.id, a.uuid, a.model, a.gpu_index, a.gpu_micro, a.memory_bytes, a.health, a.health_cause, c.pool,
        n.name AS node
    FROM accelerator a
    JOIN capacity c ON c.accelerator_id = a.id AND c.out_ms IS NULL
    LEFT JOIN node n ON n.id = c.node_id
"""
"""Accelerators that are there now, each with its node and pool."""
INDEX = """coalesce(a.gpu_index::text, '?')
    || CASE WHEN a.gpu_micro < 1000000 THEN ' MIG ' || right(a.uuid, 4) ELSE '' END"""
"""How people call a GPU of a node; MIG instances bear their board's index, and a part of their own id."""
LANE = f"coalesce(a.node, '?') || ' / ' || {INDEX}"
"""How people call a GPU of the fleet."""


FATAL = ("gpu_xid_errors_total", "gpu_ecc_uncorrected_volatile_total")
"""Counters whose every step is worth a mark on the charts."""


def errors(chosen_ones: str) -> tuple[Json, ...]:
    """Marks where a chosen accelerator (`a`) counted an Xid or an uncorrected ECC error."""
    listed = ", ".join(f"'{name}'" for name in FATAL)
    query = f"""
        SELECT s.at_ms AS "time", {LANE} || ': ' || CASE s.metric WHEN 'gpu_xid_errors_total' THEN 'Xid error'
            ELSE 'uncorrected ECC error' END || ', ' || s.value || ' since the driver started' AS text,
            CASE s.metric WHEN 'gpu_xid_errors_total' THEN 'Xid' ELSE 'ECC' END AS tags
        FROM ({ACCELERATORS}) a JOIN gpu_state s ON s.accelerator_id = a.id
        WHERE {chosen_ones} AND s.metric IN ({listed}) AND s.value > 0 AND {between("s.at_ms")}
        ORDER BY 1 LIMIT 200
    """
    return (annotation("Xid and ECC errors", query, VERMILION),)


WORKLOAD_SPAN = f"""LEFT JOIN LATERAL (
        SELECT coalesce(min(c.start_ms), {FROM_MS})::float8 AS first_ms, coalesce(max(c.end_ms), {TO_MS})::float8
            AS last_ms FROM charge c WHERE c.workload_id = w.id) span ON true"""
"""The first and last instant of a workload `w`, by its charges; for tables of few rows."""
SPAN_COLUMNS = "span.first_ms, span.last_ms"
HIDDEN_SPAN = tuple(column(name, **{"custom.hidden": True}) for name in ("first_ms", "last_ms"))
"""Overrides for a table with SPAN_COLUMNS."""


def to_workload(*keep: str) -> list[Json]:
    """Links from a table with SPAN_COLUMNS: the workload in its own range, which the reader's may miss.

    `keep`: variables of the board whose choice the link keeps.
    """
    field = "${__data.fields."
    url = (
        f"/d/gpuledger-workload?from={field}first_ms.numeric}}&to={field}last_ms.numeric}}"
        f"&var-workload={field}workload:percentencode}}"
    )
    url += "".join(f"&${{{name}:queryparam}}" for name in ("datasource", *keep))
    return [{"title": "This workload", "url": url, "targetBlank": False}]


def datasource() -> Json:
    """The ledger's data source."""
    return source("datasource", "Ledger", "postgres")


def currency() -> Json:
    """Amounts of two currencies are never added: one is shown at a time."""
    return chosen("currency", "Currency", "SELECT DISTINCT currency FROM price ORDER BY 1", many=False)


def team() -> Json:
    """Teams that bear charges; time that nobody is known to pay has a name too."""
    return chosen(
        "team",
        "Team",
        "SELECT DISTINCT coalesce(nullif(team, ''), '(unattributed)') FROM owner UNION SELECT '(unattributed)' "
        "ORDER BY 1",
    )


def named(column_name: str) -> str:
    """A list of values for a variable, in which the empty one has a name too."""
    return f"SELECT DISTINCT {column_name} AS __value, coalesce(nullif({column_name}, ''), '(none)') AS __text"


def pool() -> Json:
    """Pools in the ledger of the range."""
    return chosen("pool", "Pool", f"{named('l.pool')} FROM ledger_day l WHERE {DAYS} ORDER BY 1")


def model() -> Json:
    """Models of GPU in the ledger of the range."""
    return chosen("model", "Model", f"{named('l.gpu_model')} FROM ledger_day l WHERE {DAYS} ORDER BY 1")


def node() -> Json:
    """Nodes."""
    return chosen("node", "Node", "SELECT name FROM node ORDER BY 1")
