"""The ledger as the CSV shows it: rounded the same way, so that each cell is the same to the cent."""

from __future__ import annotations

from dashboards.grafana import EXACT, GREEN, MONEY, VERMILION, Board, Panel, column, stat, table
from dashboards.sql import (
    DAYS,
    GPU_HOUR_NS,
    HOLDS,
    LEDGER,
    MICRO,
    OR_UNPRICED,
    OWNER,
    PAID,
    currency,
    datasource,
    date,
    midnight_utc,
    other_currencies,
)
from gpuledger_collector.accounting.currencies import MINOR_DIGITS

ODD = sorted(code for code, digits in MINOR_DIGITS.items() if digits != 2)
"""Currencies whose minor unit is no hundredth (ISO 4217); their digits come from the accounting."""
UNIT = "CASE rows.currency {} ELSE 10000 END".format(
    " ".join(f"WHEN '{code}' THEN {10 ** (6 - MINOR_DIGITS[code])}" for code in ODD)
)
"""Micro-units in a minor unit."""
KNOWN = "l.state = 'held' AND (l.unknown_ns <> l.gpu_ns OR l.idle_ns <> 0)"
"""Where some of the activity is known; elsewhere idle time is unknown, not 0."""


def floor_to(column: str, unit: str) -> str:
    """Whole multiples of `unit` in a value, rounded down also below zero."""
    return f"(div({column}, {unit}) - CASE WHEN mod({column}, {unit}) < 0 THEN 1 ELSE 0 END)"


def remainder(column: str, unit: str) -> str:
    """What `floor_to` leaves, never below zero."""
    return f"mod(mod({column}, {unit}) + {unit}, {unit})"


def round_in_lists(column: str, unit: str) -> str:
    """Values in multiples of `unit` by largest remainder: accounting.quantity.round_in_lists in
    SQL.

    A list is what is billed of one month in a currency. The rounded sum is half to even; what it
    exceeds the floors by goes to the largest remainders, ties to the earlier row. What is not known
    takes no part and stays unknown.
    """
    known = f"PARTITION BY rows.currency, rows.correction_of, {column} IS NULL"
    total = f"sum({column}) OVER ({known})"
    whole, rest = floor_to(total, unit), remainder(total, unit)
    up = (
        f"CASE WHEN 2 * {rest} > {unit} OR (2 * {rest} = {unit} AND mod(abs({whole}), 2) = 1) THEN"
        " 1 ELSE 0 END"
    )
    left = f"{whole} + {up} - sum({floor_to(column, unit)}) OVER ({known})"
    rank = f"row_number() OVER ({known} ORDER BY {remainder(column, unit)} DESC, rows.at)"
    return f"({floor_to(column, unit)} + CASE WHEN {rank} <= {left} THEN 1 ELSE 0 END)"


MEASURES = ("ns", "idle_ns", "cost", "idle_cost")


def statement(levels: tuple[str, ...], names: tuple[str, ...]) -> str:
    """The chargeback by these owner levels, row by row as `gpuledger chargeback --format csv`
    writes it.
    """
    keys = ",\n    ".join(
        f"""CASE WHEN l.currency IS NULL THEN '{"(unpriced)" if at == 0 else ""}'
        WHEN l.state NOT IN ({PAID}) THEN {"'(' || l.state || ')'" if at == 0 else "''"}
        ELSE coalesce(nullif(l.{level}, ''), '(unattributed)') END AS key{at}"""
        for at, level in enumerate(levels)
    )
    groups = ", ".join(str(at + 1) for at in range(len(levels) + 2))
    raw = ", ".join(f"coalesce(o.{level}, '') AS {level}" for level in levels)
    order = ", ".join(f'key{at} COLLATE "C"' for at in range(len(levels)))
    shown = ", ".join(f'rows.key{at} AS "{name}"' for at, name in enumerate(names))
    shown_order = ", ".join(f'rows.key{at} COLLATE "C"' for at in range(len(levels)))
    units = {
        "ns": "3600000::numeric",
        "idle_ns": "3600000::numeric",
        "cost": UNIT,
        "idle_cost": UNIT,
    }
    amounts = ", ".join(
        f"{round_in_lists(f'rows.{name}', units[name])} * {units[name]} AS shown_{name}"
        for name in MEASURES
    )
    return f"""
WITH l AS (
    SELECT l.currency, l.state, l.correction_of, {raw}, sum(l.gpu_ns) AS gpu_ns, sum(l.idle_ns) AS idle_ns,
        sum(l.unknown_ns) AS unknown_ns, sum(l.cost_micro) AS cost_micro, sum(l.idle_cost_micro) AS idle_cost_micro
    FROM {LEDGER} l {OWNER} WHERE {DAYS} AND {OR_UNPRICED}
    GROUP BY 1, 2, 3, {", ".join(str(at + 4) for at in range(len(levels)))}
), parts AS (
    SELECT l.currency, l.correction_of, {keys}, sum(l.gpu_ns) AS ns, sum(l.idle_ns) FILTER (WHERE {KNOWN}) AS idle_ns,
        sum(l.cost_micro) AS cost, sum(l.idle_cost_micro) FILTER (WHERE {KNOWN}) AS idle_cost
    FROM l WHERE l.gpu_ns <> 0 OR l.cost_micro <> 0 OR l.idle_ns <> 0 GROUP BY {groups}
), ordered AS (
    SELECT *, row_number() OVER (ORDER BY currency NULLS LAST, coalesce(cost, 0) DESC, {order}) AS at FROM parts
), rows AS (
    SELECT rows.*, {amounts} FROM ordered rows
)
SELECT {shown}, rows.shown_ns / {GPU_HOUR_NS} AS gpu_hours, rows.shown_idle_ns / {GPU_HOUR_NS} AS gpu_hours_held_idle,
    rows.shown_cost / {MICRO} AS cost, rows.shown_idle_cost / {MICRO} AS cost_held_idle, rows.currency,
    rows.correction_of
FROM rows ORDER BY rows.currency NULLS LAST, coalesce(rows.cost, 0) DESC, {shown_order}, rows.correction_of
"""


def bill(
    title: str, description: str, levels: tuple[str, ...], names: tuple[str, ...], height: int
) -> Panel:
    """A table with the columns of the CSV and a footer that adds them up."""
    panel = table(
        title,
        description,
        statement(levels, names),
        EXACT,
        width=24,
        height=height,
        decimals=2,
        no_value=" ",  # an empty cell, as in the CSV
        overrides=(
            *(column(name, unit="string") for name in names),
            column("gpu_hours", decimals=6),
            column("gpu_hours_held_idle", decimals=6, width=165),
            column("currency", unit="string", width=80),
            column("correction_of", unit="string", width=115),
        ),
    )
    panel.options["footer"] = {
        "show": True,
        "reducer": ["sum"],
        "countRows": False,
        "fields": ["gpu_hours", "gpu_hours_held_idle", "cost", "cost_held_idle"],
    }
    return panel


BOARD = Board(
    "gpuledger-chargeback",
    "Chargeback ledger",
    "what is each team billed, and does it add up?",
    "The bill with the cells of the CSV of `gpuledger chargeback`. Choose whole days, which are the"
    " billing zone's; it opens on the last month. Shares of common costs are not in it.",
    (datasource(), currency()),
    (
        (
            "Reconciliation",
            (
                stat(
                    "Charged ($currency)",
                    "All charges in the range, including time that nobody held.",
                    f"SELECT sum(l.cost_micro) / {MICRO} AS cost FROM {LEDGER} l "
                    f"WHERE {DAYS} AND l.currency = ${{currency:sqlstring}}",
                    MONEY,
                    width=5,
                    decimals=2,
                ),
                stat(
                    "Capacity times rate ($currency)",
                    "The cost of the inventory by the price book, from the conservation checks.",
                    "SELECT sum((l.capacity_cost ->> ${currency:sqlstring})::numeric) / "
                    f"{MICRO} AS cost "
                    f"FROM conservation_check l WHERE {DAYS}",
                    MONEY,
                    width=5,
                    decimals=2,
                ),
                stat(
                    "Difference ($currency)",
                    "Charges of checked days minus capacity times rate: anything but 0 means that"
                    " the bill is wrong.",
                    "SELECT sum(coalesce((l.charged_cost ->> ${currency:sqlstring})::numeric, 0) "
                    "- coalesce((l.capacity_cost ->> ${currency:sqlstring})::numeric, 0)) / "
                    f"{MICRO} AS difference "
                    f"FROM conservation_check l WHERE {DAYS}",
                    EXACT,
                    width=5,
                    decimals=6,
                    steps=((None, VERMILION), (0, GREEN), (0.000001, VERMILION)),
                ),
                stat(
                    "Days that fail",
                    "Days whose conservation check fails.",
                    "SELECT count(*) FILTER (WHERE NOT l.holds) AS days FROM conservation_check l"
                    f" WHERE {DAYS} HAVING count(*) > 0",
                    "none",
                    width=4,
                    steps=((None, GREEN), (1, VERMILION)),
                ),
                other_currencies(DAYS, width=5),
            ),
        ),
        (
            "The bill",
            (
                bill(
                    "By team ($currency)",
                    "`gpuledger chargeback --by team --format csv` for the same days: its rows in"
                    " this currency, and those without a price.",
                    ("team",),
                    ("team",),
                    12,
                ),
                bill(
                    "By team and project ($currency)",
                    "`gpuledger chargeback --by team,project --format csv` for the same days: its"
                    " rows in this currency, and those without a price.",
                    ("team", "project"),
                    ("team", "project"),
                    14,
                ),
            ),
        ),
        (
            "Conservation",
            (
                table(
                    "Day by day",
                    "Where every GPU-hour of capacity went. `until` is how far the day is rated.",
                    f"""
                  SELECT {midnight_utc(date("l.day_ms"))} AS day, CASE WHEN l.holds THEN 'yes' ELSE 'no' END AS holds,
                      l.capacity_ns / {GPU_HOUR_NS} AS capacity,
                      l.held_ns / {GPU_HOUR_NS} AS held, l.unallocated_ns / {GPU_HOUR_NS} AS unallocated,
                      l.unavailable_ns / {GPU_HOUR_NS} AS unavailable, l.unobserved_ns / {GPU_HOUR_NS} AS unobserved,
                      l.stranded_ns / {GPU_HOUR_NS} AS stranded,
                      l.imported_ns / {GPU_HOUR_NS} AS imported, to_timestamp(l.until_ms / 1000) AS "until"
                  FROM conservation_check l WHERE {DAYS} ORDER BY 1 DESC LIMIT 400
                  """,
                    EXACT,
                    width=24,
                    decimals=2,
                    overrides=(
                        column("day", unit="time:YYYY-MM-DD"),
                        column(
                            "holds", unit="string", mappings=[HOLDS], cell="color-text", width=60
                        ),
                        column("until", unit="time:YYYY-MM-DD HH:mm", width=140),
                    ),
                ),
            ),
        ),
    ),
    since="now-1M/M",
    until="now-1M/M",
)
"""The board that an accountant compares with the file."""
