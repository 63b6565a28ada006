"""Fragments of SQL that the boards share.

Instants are stored as integer milliseconds, so a range is two comparisons with integers, which the
indexes answer. Arguments of Grafana's macros may hold no `)`: its expander is one regular
expression. A sum over nothing known stays null ("no data"), never 0.

Days are those of the billing zone, and have 23 to 25 hours. A board's clock is UTC; a day is drawn
at its date's midnight there, and the range chooses dates: 1 October to 1 November is October in
every zone.
"""

from __future__ import annotations

from dashboards.grafana import (
    BLUE,
    GRAY,
    GREEN,
    MARK,
    MONEY,
    NAME_PALETTE,
    VERMILION,
    Json,
    Panel,
    annotation,
    chosen,
    column,
    source,
    stat,
)
from gpuledger_collector.accounting.adjustments import PAID_BY_OWNERS
from gpuledger_collector.insight.nodes import UNEXPECTED

FROM_MS = "$__unixEpochNanoFrom() / 1000000"
TO_MS = "$__unixEpochNanoTo() / 1000000"
DAY_MS = 86_400_000
GPU_HOUR_NS = "3.6e12"
MICRO = "1e6"

TEAM = "coalesce(nullif(o.team, ''), '(unattributed)')"
PROJECT = "coalesce(nullif(o.project, ''), '(unattributed)')"


ZONE = """coalesce((SELECT z.zone FROM billing_zone z WHERE z.superseded_at IS NULL
    ORDER BY z.from_ms DESC LIMIT 1), 'UTC')"""
"""The billing zone in force; days of the ledger before a change of it are told to the day, not to
the hour.
"""


def local(wall: str) -> str:
    """The instant (ms) of a wall clock's time (a timestamp) in the billing zone.

    The millisecond before it decides, as in accounting.period: where the clocks jump over a
    midnight it is the jump, and of a midnight that comes twice it is the first.
    """
    return (
        f"(extract(epoch FROM ({wall} - interval '1 ms') AT TIME ZONE {ZONE}) * 1000)::bigint + 1"
    )


def date(day_ms: str) -> str:
    """The date of a day by its first instant."""
    return f"(to_timestamp({day_ms} / 1000.0) AT TIME ZONE {ZONE})::date"


def midnight_utc(day: str) -> str:
    """Where a date stands on a board: at its midnight of UTC."""
    return f"({day}::timestamp AT TIME ZONE 'UTC')"


def whole(proof: str) -> str:
    """Whether the proof of a day reaches the next one: a day that is not over yet is no day to
    compare with.
    """
    return f"{proof}.until_ms >= {local('(' + date(proof + '.day_ms') + ' + 1)::timestamp')}"


TODAY = f"(now() AT TIME ZONE {ZONE})::date"
NOW_MS = "(extract(epoch FROM now()) * 1000)::bigint"


def in_range(column: str) -> str:
    """Rows whose instant lies in the board's range."""
    return f"{column} >= {FROM_MS} AND {column} < {TO_MS}"


def day_in_range(column: str) -> str:
    """Rows whose day begins at a date of the board's range."""
    first, last = (
        local(f"to_timestamp({at} / 1000.0) AT TIME ZONE 'UTC'") for at in (FROM_MS, TO_MS)
    )
    return f"{column} >= {first} AND {column} < {last}"


def day_in_range_before(column: str) -> str:
    """Rows whose day begins in the range of the same length that ends where the board's begins."""
    first, last = (
        local(f"to_timestamp(({at}) / 1000.0) AT TIME ZONE 'UTC'")
        for at in (f"2 * {FROM_MS} - {TO_MS}", FROM_MS)
    )
    return f"{column} >= {first} AND {column} < {last}"


def in_choice(expression: str, variable: str) -> str:
    """Rows that the reader chose: one, several, or all."""
    return f"('*' IN (${{{variable}:sqlstring}}) OR {expression} IN (${{{variable}:sqlstring}}))"


CURRENCY = "l.currency = ${currency:sqlstring}"
OR_UNPRICED = f"({CURRENCY} OR l.currency IS NULL)"
"""Lines of one currency and those without a price: their hours belong beside that currency's cost.
"""
CHOSEN_FIRST = (
    "coalesce(f.currency <> ${currency:sqlstring}, true), f.per_day_micro DESC NULLS LAST,"
    " f.since_ms"
)
"""Order of findings (`f`) of several currencies: those of the chosen one by cost, then the others.
"""
PAID = ", ".join(f"'{state}'" for state in sorted(PAID_BY_OWNERS))
BILLED = f"l.state IN ({PAID})"
"""Lines that an owner pays, as in the chargeback: GPU-time, and node costs and adjustments, which
have no GPU-time.
"""
POOLS = in_choice("l.pool", "pool")
MODELS = in_choice("l.gpu_model", "model")
TEAMS = in_choice(TEAM, "team")
DAYS = day_in_range("l.day_ms")
DAY_TIME = f'{midnight_utc(date("l.day_ms"))} AS "time"'
OWNER = "LEFT JOIN owner o ON o.id = l.owner_id"

_COLUMNS = """owner_id, state, pool, gpu_model, currency, cost_micro, idle_cost_micro"""
_AMENDS = """coalesce((SELECT p.name FROM billing_period p WHERE p.start_ms <= day_ms AND p.end_ms > day_ms),
    to_char(to_timestamp(day_ms / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM'))"""
LEDGER = f"""(
    SELECT day_ms, {_COLUMNS}, gpu_ns, busy_ns, idle_ns, unknown_ns, '' AS correction_of FROM ledger_day
    UNION ALL SELECT booked_day_ms, {_COLUMNS}, gpu_ns::numeric, busy_ns::numeric, idle_ns::numeric,
        unknown_ns::numeric, {_AMENDS} FROM correction)"""
"""What is billed: the daily ledger, and corrections of closed days on the open day in which they
are booked.

`correction_of` is the closed month of a correction: it may take time back, so it is no part of a
team's own hours.
"""
OWN = "l.correction_of = ''"
"""Time of the range's own days, corrections of closed months left out."""
CORRECTION = "nullif(l.correction_of, '') AS \"correction of\""
"""A column that keeps corrections in rows of their own."""
AMOUNT_WIDTHS = tuple(
    column(name, width=pixels)
    for name, pixels in (
        ("cost", 75),
        ("held idle cost", 110),
        ("GPU-hours", 95),
        ("idle part", 80),
        ("correction of", 110),
    )
)
"""Of the columns of a table half a board wide, so that their heads are whole; its first column
takes the rest.
"""
_LINE = f"""{_COLUMNS}, gpu_ns, busy_ns, idle_ns, unknown_ns, accelerator_id, workload_id, start_ms, end_ms, node,
    energy_mj"""
CHARGES = f"""(
    SELECT day_ms, {_LINE}, '' AS correction_of FROM charge
    UNION ALL SELECT booked_day_ms, {_LINE}, {_AMENDS} FROM correction)"""
"""The same, line by line."""
UNWATCHED = ", ".join(f"'{status}'" for status in UNEXPECTED)
"""States of nodes of which nobody expects a sign of life; the others can be silent."""
FRESH = "l.at_ms > extract(epoch FROM now()) * 1000 - 900000"
"""What a node said in the last 15 minutes is taken for now."""
ACTIVITY_NOW = (
    "coalesce(l.gpu_sm_active_ratio, l.gpu_graphics_engine_active_ratio, l.gpu_utilization_ratio)"
)
NOW_IDLE = f"{ACTIVITY_NOW} < 0.01"
"""Whether the latest reading shows no activity; null where the card does not tell."""
ACTIVITY_COSTS = """LATERAL (
        SELECT l.cost_micro - coalesce(l.idle_cost_micro, 0) AS rest,
            l.unknown_ns::numeric / nullif(l.busy_ns + l.unknown_ns, 0) AS unknown
    ) part, LATERAL (VALUES
        (CASE l.state WHEN 'held' THEN 'busy' WHEN 'node_cost' THEN 'node costs' ELSE 'adjustments' END,
            part.rest * (1 - coalesce(part.unknown, 0))),
        ('idle', l.idle_cost_micro),
        ('activity unknown', part.rest * coalesce(part.unknown, 0))) s (name, cost)"""
"""A billed line's cost by activity; what is no GPU-time has none.

What is no idle cost is divided by time: what nobody knows is not busy.
"""


def leading(name: str, measured: str, where: str, by: str) -> str:
    """The name of a series: the nine with the largest sum have their own, the others are one; ten
    lines a chart.
    """
    first = (
        f"SELECT {name} FROM {measured} WHERE {where} GROUP BY 1 ORDER BY sum({by}) DESC NULLS"
        " LAST, 1 LIMIT 9"
    )
    return f"CASE WHEN {name} IN ({first}) THEN {name} ELSE 'all others' END"


TEAM_NAMES = f"SELECT {TEAM} AS name, min(o.id) AS first FROM owner o GROUP BY 1"
PROJECT_NAMES = (
    f"SELECT {TEAM} || ' / ' || {PROJECT} AS name, min(o.id) AS first FROM owner o GROUP BY 1"
)
MODEL_NAMES = "SELECT c.gpu_model AS name, min(c.id) AS first FROM capacity c GROUP BY 1"


def mark_names(query: str, names: str, value: str, palette: tuple[str, ...] = NAME_PALETTE) -> str:
    """A query of time series (time, metric, value) whose metrics end in the marks of their colors.

    `names` gives every name that there is, whatever the reader chose, with what it is ordered by:
    the first names have colors of their own, and keep them when others come. More names than colors
    share them, by their order; one that is not among them has a color by its letters.
    """
    colors = len(palette)
    unknown = f"('x' || left(md5(s.metric), 7))::bit(28)::int % {colors} + 1"
    return f"""
        WITH shown AS ({query}), hue AS (
            SELECT k.name, (row_number() OVER (ORDER BY k.first, k.name) - 1) % {colors} + 1 AS place FROM ({names}) k
        )
        SELECT s."time", s.metric || CASE WHEN s.metric = 'all others' THEN ''
            ELSE repeat('{MARK}', coalesce(hue.place, {unknown})::int) END AS metric, s.{value}
        FROM shown s LEFT JOIN hue ON hue.name = s.metric ORDER BY 1, 2
    """


def states_of_cost(by: str, where: str) -> str:
    """What lines of the ledger cost by a column and by what the GPUs did: rows `l` (by) and `s`
    (name, cost).

    Time whose activity is unknown has its part of a line's cost by time; the parts of a line add up
    to it. Lines are added up before they are taken apart, which is a third of the work.
    """
    return f"""(
        SELECT {by}, l.state, sum(l.cost_micro) AS cost_micro, sum(l.idle_cost_micro) AS idle_micro,
            sum(round(l.cost_micro * l.unknown_ns / nullif(l.gpu_ns, 0))) AS unknown_micro
        FROM {LEDGER} l WHERE {where} GROUP BY {by}, l.state) l, LATERAL (VALUES
        (CASE WHEN l.state = 'held' THEN 'busy' WHEN l.state = 'node_cost' THEN 'node costs'
            WHEN l.state = 'commitment_unused' THEN 'unused commitments' WHEN {BILLED} THEN 'adjustments'
            ELSE l.state END, l.cost_micro
            - CASE WHEN l.state = 'held' THEN coalesce(l.idle_micro, 0) + coalesce(l.unknown_micro, 0) ELSE 0 END),
        ('idle', CASE WHEN l.state = 'held' THEN l.idle_micro END),
        ('activity unknown', CASE WHEN l.state = 'held' THEN nullif(l.unknown_micro, 0) END)) s (name, cost)"""


def pace_tables(name: str, where: str) -> str:
    """Tables `full_day` and `pace` of a WITH: a name's mean cost of a full day, in the range and in
    the one before.

    Days that are not over, or that nobody checked, are no days to compare with; without one of them
    on either side the pace there is unknown.
    """
    return f"""
        full_day AS MATERIALIZED (
            SELECT p.day_ms, {day_in_range("p.day_ms")} AS here FROM conservation_check p
            WHERE {whole("p")} AND ({day_in_range("p.day_ms")} OR {day_in_range_before("p.day_ms")})
        ), pace AS (
            SELECT {name} AS name,
                coalesce(sum(l.cost_micro) FILTER (WHERE d.here), 0)
                    / nullif((SELECT count(*) FROM full_day WHERE here), 0) AS cost,
                coalesce(sum(l.cost_micro) FILTER (WHERE NOT d.here), 0)
                    / nullif((SELECT count(*) FROM full_day WHERE NOT here), 0) AS before
            FROM full_day d JOIN {LEDGER} l ON l.day_ms = d.day_ms {OWNER}
            WHERE {where} AND {OWN} GROUP BY 1
        )"""


CHANGE = "pace.cost / nullif(pace.before, 0) - 1"
"""Of a pace against the one before; null where there was none."""
CHANGED = f"CASE WHEN {OWN} THEN {CHANGE} END AS change"
CHANGE_SAID = (
    "change: of the mean cost of a full day against the range of the same length before; empty"
    " where none is known."
)

RATE_SPAN_MS = 3_600_000
NOW_UNTIL_MS = f"""(SELECT least(max(p.until_ms), {NOW_MS} - 900000) FROM conservation_check p) / 300000 * 300000"""
HOUR_NOW = f"""
    WITH edge AS MATERIALIZED (SELECT {NOW_UNTIL_MS} AS until_ms)
    SELECT sum(l.cost_micro) / {MICRO} AS "the fleet",
        coalesce(sum(l.cost_micro) FILTER (WHERE l.state IN ('unallocated', 'stranded')), 0) / {MICRO} AS "of it free",
        coalesce(sum(round(l.cost_micro::numeric * l.idle_ns / nullif(l.gpu_ns, 0)))
            FILTER (WHERE l.state = 'held'), 0) / {MICRO} AS "held idle"
    FROM edge JOIN owner_5min l ON l.at_ms >= edge.until_ms - {RATE_SPAN_MS} AND l.at_ms < edge.until_ms
    WHERE edge.until_ms > {NOW_MS} - 6 * 3600000::bigint AND {CURRENCY} AND {POOLS} AND {MODELS}
    HAVING count(*) > 0
"""
"""What the GPUs of the last hour that is counted cost, and what of it bought nothing; no row once six
hours have passed.

The ledger by five minutes has neither node costs nor time that nobody observed.
"""


def _token_price(kind: str, tokens: str, amount: str) -> str:
    """What a million tokens of a kind cost at an amount of each day, as accounting.token_prices
    says.

    Days of one set of weights are priced together. Others are their mean by the tokens of the kind,
    or by all tokens where nobody asked for it; the cost of days without tokens is laid over the
    others.
    """

    def mean(count: str) -> str:
        return f"sum(l.{amount} * w.{kind} * {count} * 1e6 / d.weighted) / nullif(sum({count}), 0)"

    with_tokens = f"nullif(sum(l.{amount}) FILTER (WHERE d.weighted IS NOT NULL), 0)"
    return f"""CASE WHEN count(DISTINCT l.weights) = 1
            THEN sum(l.{amount}) * min(w.{kind}) * 1e6 / nullif(sum(l.weighted), 0)
            WHEN bool_and(l.computed IS NOT NULL)
            THEN coalesce({mean(f"l.{tokens}")}, {mean("d.tokens")})
                * coalesce(sum(l.{amount}) / {with_tokens}, CASE WHEN sum(l.{amount}) = 0 THEN 1 END)
        END"""


_PRICES = ",\n        ".join(
    f'{_token_price(kind, tokens, amount)} AS "{kind}, {cost}"'
    for kind, tokens in (("input", "computed"), ("cached", "cached"), ("output", "output"))
    for cost, amount in (("held", "cost_micro"), ("used", "used_micro"))
)
TOKEN_PRICES = f"""
    SELECT l.server, {_PRICES},
        1 - sum(l.used_micro) / nullif(sum(l.cost_micro), 0) AS "idle share", {{coverage}} AS coverage,
        sum(l.cost_micro) / {MICRO} AS cost,
        CASE WHEN count(DISTINCT l.weights) = 1 THEN min(l.weights) ELSE 'changed' END AS weights
    FROM inference_day l, LATERAL (
        SELECT split_part(l.weights, ':', 1)::numeric AS input, split_part(l.weights, ':', 2)::numeric AS cached,
            split_part(l.weights, ':', 3)::numeric AS output
    ) w, LATERAL (
        SELECT l.computed + l.cached + l.output AS tokens,
            nullif(w.input * l.computed + w.cached * l.cached + w.output * l.output, 0) AS weighted
    ) d
    WHERE {{where}} GROUP BY 1 ORDER BY sum(l.cost_micro) DESC, 1
"""
"""What a million tokens of each server cost, as `gpuledger inference servers` says of whole days that
were split; `where` has one currency.
"""
WHO_ASKED = """
    SELECT {tenant} AS tenant, a.model, a.gateway, sum(h.input) AS input, sum(h.cached) AS "of it cached",
        sum(h.output) AS output, nullif(sum(h.requests), 0) AS requests,
        sum(h.input + h.output) / nullif(sum(sum(h.input + h.output)) OVER (), 0) AS "share of tokens", a.trust
    FROM token_hour h JOIN token_asker a ON a.id = h.asker_id WHERE {where}
    GROUP BY 1, 2, 3, a.trust ORDER BY sum(h.input + h.output) DESC, 1, 2, 3 LIMIT 100
"""
"""Tokens of gateways by tenant and model, the most first; without a request, none was counted."""

HOLDS: Json = {
    "type": "value",
    "options": {"yes": {"color": GREEN, "index": 0}, "no": {"color": VERMILION, "index": 1}},
}
"""Whether a day's proof holds, in a word and a color."""
KWH = "(l.energy_mj / 3.6e9)"
"""Measured energy of a line of ledger_day; null where no energy was read."""
GRID = f"""LEFT JOIN LATERAL (
    SELECT c.grams_per_kwh * c.pue / 1000 AS kg_per_kwh FROM carbon_intensity c
    WHERE c.superseded_at IS NULL AND c.pool IN ('', l.pool) AND coalesce(c.from_on, '-infinity') <= {date("l.day_ms")}
        AND coalesce(c.to_on, 'infinity') > {date("l.day_ms")}
    ORDER BY c.pool <> '' DESC, c.from_on DESC NULLS LAST LIMIT 1) grid ON true"""
"""The carbon intensity of a line's pool and day, chosen as accounting.carbon does; null: none is
declared.
"""


def month_end(columns: str, where: str) -> str:
    """This month's charges and its end, by the stored forecasts `f` of owners: rows (columns, so
    far, forecast, low, high), the dearest first.

    Forecasts of several owners do not add up to one with a band, so each has a row of its own.
    """
    first = f"date_trunc('month', {TODAY}::timestamp)"
    month = f"f.period_start_ms = {local(first)}"
    return f"""
    SELECT {columns} f.spent_micro / {MICRO} AS "so far", f.middle_micro / {MICRO} AS forecast,
        f.low_micro / {MICRO} AS low, f.high_micro / {MICRO} AS high
    FROM owner_forecast f WHERE {month} AND f.currency = ${{currency:sqlstring}} AND {where}
        AND f.day_ms = (SELECT max(f.day_ms) FROM owner_forecast f WHERE {month})
    ORDER BY f.middle_micro DESC NULLS LAST, f.spent_micro DESC, f.owner LIMIT 100
    """


OWNER_TEAM = "coalesce(nullif(f.owner ->> 'team', ''), '(unattributed)')"
OWNER_PROJECT = "coalesce(nullif(f.owner ->> 'project', ''), '(unattributed)')"
TEAMS_AHEAD = f"f.owner ? 'team' AND NOT f.owner ? 'project' AND {in_choice(OWNER_TEAM, 'team')}"
PROJECTS_AHEAD = (
    f"f.owner ? 'project' AND {in_choice(OWNER_TEAM, 'team')}"
    f" AND {in_choice(OWNER_PROJECT, 'project')}"
)
FLEET_AHEAD = "f.owner = '{}'"
AHEAD_SAID = (
    "Charges so far this month (of the billing zone), and its end by the forecast of the overview,"
    " mails and `gpuledger forecast spend`, which is stored each hour; it holds eight times in ten"
    " between low and high. Empty with fewer than five full days."
)
AHEAD_WIDTHS = tuple(column(name, width=78) for name in ("so far", "forecast", "low", "high"))


ACCELERATORS = """
    SELECT a.id, a.uuid, a.model, a.gpu_index, a.gpu_micro, a.memory_bytes, a.health, a.health_cause, c.pool,
        c.in_ms, n.name AS node
    FROM accelerator a
    JOIN capacity c ON c.accelerator_id = a.id AND c.out_ms IS NULL
    LEFT JOIN node n ON n.id = c.node_id
"""
"""Accelerators that are there now, each with its node and pool."""
INDEX = """coalesce(a.gpu_index::text, '?')
    || CASE WHEN a.gpu_micro < 1000000 THEN ' MIG ' || right(a.uuid, 4) ELSE '' END"""
"""How people call a GPU of a node; MIG instances bear their board's index, and a part of their own
id.
"""
LANE = f"coalesce(a.node, '?') || ' / ' || {INDEX}"
"""How people call a GPU of the fleet."""


STEPS = f"""generate_series({FROM_MS} / $__interval_ms * $__interval_ms, {TO_MS} - 1, $__interval_ms::bigint)
    AS step (at_ms)"""
"""The steps of a chart: where a line has no row for a step, a null breaks it, and without one it
goes straight on.
"""
TOUCHED = f"u.hour_ms > {FROM_MS} - 3600000 AND u.hour_ms < {TO_MS}"
"""Hours of usage (`u`) that the range touches, also those in which it begins and ends."""
IN_RANGE = f"""(greatest(0, least(u.hour_ms + 3600000, {TO_MS}, {NOW_MS}) - greatest(u.hour_ms, {FROM_MS}))::numeric
    / greatest(1, least(u.hour_ms + 3600000, {NOW_MS}) - u.hour_ms))"""
"""The part of an hour of usage (`u`) that lies in the range: of an hour that goes on, of its time
until now.

An hour is the finest that is kept of holders for dashboards, so amounts of an hour are divided in
this proportion.
"""


def slow_changes(where: str) -> str:
    """All changes of slow metrics, packed or not, whose accelerator and metric (`s`) a condition
    chooses; for the latest values alone read gpu_state.

    One that was written again after it was packed counts as it was written last. The condition is
    within, because servers before Postgres 18 use no index for one on the outside.
    """
    return f"""(
        SELECT s.accelerator_id, s.metric, s.at_ms, s.value FROM gpu_state s WHERE {where}
        UNION ALL
        SELECT s.accelerator_id, s.metric, s.hour_ms + c.offset_ms, c.value
        FROM gpu_state_hour s, unnest(s.offset_ms, s.value) AS c (offset_ms, value)
        WHERE {where} AND NOT EXISTS (SELECT FROM gpu_state again
            WHERE again.accelerator_id = s.accelerator_id AND again.metric = s.metric
                AND again.at_ms = s.hour_ms + c.offset_ms))"""


FATAL = ("gpu_xid_errors_total", "gpu_ecc_uncorrected_volatile_total")
"""Counters whose every step is worth a mark on the charts."""


def errors(chosen_ones: str, when: str = "true") -> tuple[Json, ...]:
    """Marks where a chosen accelerator (`a`) counted an Xid or an uncorrected ECC error, at instants
    (`s.at_ms`) that count.
    """
    listed = ", ".join(f"'{name}'" for name in FATAL)
    changes = slow_changes(f"""s.metric IN ({listed})
            AND s.accelerator_id IN (SELECT a.id FROM ({ACCELERATORS}) a WHERE {chosen_ones})""")
    query = f"""
        SELECT s.at_ms AS "time", {LANE} || ': ' || CASE s.metric WHEN 'gpu_xid_errors_total' THEN 'Xid error'
            ELSE 'uncorrected ECC error' END || ', ' || s.value || ' since the driver started' AS text,
            CASE s.metric WHEN 'gpu_xid_errors_total' THEN 'Xid' ELSE 'ECC' END AS tags
        FROM ({ACCELERATORS}) a JOIN {changes} s ON s.accelerator_id = a.id
        WHERE s.value > 0 AND {in_range("s.at_ms")} AND {when}
        ORDER BY 1 LIMIT 200
    """
    return (annotation("Xid and ECC errors", query, VERMILION),)


def events() -> tuple[Json, ...]:
    """Marks where money changes: a price begins, a month is closed, a budget crosses a threshold."""
    prices = f"""
        SELECT to_timestamp(p.effective_from_ms / 1000.0) AS "time", 'Price of ' || string_agg(
            concat_ws(' ', coalesce(nullif(p.gpu_model, ''), 'every model'), nullif('in ' || p.pool, 'in '),
                p.purchase, trim_scale(p.rate_per_gpu_hour), p.currency), ', '
            ORDER BY p.gpu_model, p.pool, p.purchase) AS text,
            'price' AS tags
        FROM price p WHERE p.superseded_at IS NULL AND {in_range("p.effective_from_ms")}
        GROUP BY p.effective_from_ms ORDER BY 1 LIMIT 100
    """
    closes = f"""
        SELECT to_timestamp(p.closed_ms / 1000.0) AS "time", p.name || ' was closed by ' || p.closed_by AS text,
            'close' AS tags
        FROM billing_period p WHERE {in_range("p.closed_ms")} ORDER BY 1 LIMIT 100
    """
    alerts = f"""
        SELECT to_timestamp(a.fired_ms / 1000.0) AS "time",
            'Budget ' || b.name || ' crossed ' || a.percent || ' % (' || a.rule || ')' AS text, 'budget' AS tags
        FROM budget_alert a JOIN budget b ON b.id = a.budget_id WHERE {in_range("a.fired_ms")} ORDER BY 1 LIMIT 100
    """
    return (
        annotation("Prices", prices, BLUE),
        annotation("Closes", closes, GRAY),
        annotation("Budget alerts", alerts, VERMILION),
    )


WORKLOAD_SPAN = f"""LEFT JOIN LATERAL (
        SELECT coalesce(min(c.start_ms), {FROM_MS})::float8 AS first_ms, coalesce(max(c.end_ms), {TO_MS})::float8
            AS last_ms FROM charge c WHERE c.workload_id = w.id) span ON true"""
"""The first and last instant of a workload `w`, by its charges; for tables of few rows."""
SPAN_COLUMNS = "span.first_ms, span.last_ms"
HIDDEN_SPAN = tuple(column(name, **{"custom.hidden": True}) for name in ("first_ms", "last_ms"))
"""Overrides for a table with SPAN_COLUMNS."""


def to_workload(*keep: str) -> list[Json]:
    """Links from a table with SPAN_COLUMNS: the workload in its own range, which the reader's may
    miss.

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
    """Amounts of two currencies are never added: one is shown at a time, first the one with the
    most GPU-time.

    GPU-time, because amounts of two currencies cannot be compared.
    """
    query = f"""
        SELECT c.currency FROM (
            SELECT l.currency, sum(abs(l.gpu_ns)) AS ns FROM {LEDGER} l WHERE {DAYS} AND l.currency IS NOT NULL
            GROUP BY 1 UNION ALL SELECT currency, 0 FROM price) c
        GROUP BY 1 ORDER BY sum(c.ns) DESC, 1
    """
    return chosen("currency", "Currency", query, many=False)


def other_currencies(where: str, width: int = 4, lines: str = f"{LEDGER} l {OWNER}") -> Panel:
    """What is billed in currencies that the board does not show now; `where` has all of its choices
    but this one, of `lines` (`l`).
    """
    return stat(
        "In other currencies",
        "Cost of the same choice in the currencies that are not shown; choose one above. May be"
        " empty.",
        f"""
        SELECT l.currency, sum(l.cost_micro) / {MICRO} AS cost FROM {lines}
        WHERE {where} AND l.currency <> ${{currency:sqlstring}} GROUP BY 1 HAVING sum(l.cost_micro) <> 0 ORDER BY 1
        """,
        MONEY,
        width=width,
        decimals=2,
        no_value="none",
        each_row=True,
    )


def team() -> Json:
    """Teams that bear charges; time that nobody is known to pay has a name too."""
    return chosen(
        "team",
        "Team",
        "SELECT DISTINCT coalesce(nullif(team, ''), '(unattributed)') FROM owner UNION SELECT"
        " '(unattributed)' ORDER BY 1",
    )


def values_with_names(column_name: str) -> str:
    """A list of values for a variable, in which the empty one has a name too."""
    return (
        f"SELECT DISTINCT {column_name} AS __value, coalesce(nullif({column_name}, ''), '(none)')"
        " AS __text"
    )


def pool() -> Json:
    """Pools in the ledger of the range."""
    return chosen(
        "pool", "Pool", f"{values_with_names('l.pool')} FROM ledger_day l WHERE {DAYS} ORDER BY 1"
    )


def model() -> Json:
    """Models of GPU in the ledger of the range."""
    return chosen(
        "model",
        "Model",
        f"{values_with_names('l.gpu_model')} FROM ledger_day l WHERE {DAYS} ORDER BY 1",
    )


def node() -> Json:
    """Nodes."""
    return chosen("node", "Node", "SELECT name FROM node ORDER BY 1")
