"""What could be saved, what was, and what idle GPUs cost a day: panels of the boards on money and
on idle GPUs.

Estimates, as `gpuledger recommend` gives them; no part of a bill.
"""

from __future__ import annotations

from dashboards.grafana import (
    BLUE,
    GREEN,
    MONEY,
    ORANGE,
    VERMILION,
    Panel,
    column,
    link,
    stat,
    table,
)
from dashboards.sql import MICRO
from gpuledger_collector.insight.findings import AT_LISTED_RATES

CHOSEN = "r.currency = ${currency:sqlstring}"
WINDOW = "of the window that the last search looked at"
KEEP = ("datasource", "currency")
CHOICES = ("currency", "pool", "model")
TO_IDLE = link("Idle and right-sizing", "gpuledger-idle", "${datasource:queryparam}", keep=CHOICES)
TO_IDLE_OF_TEAM = link(
    "Idle and right-sizing", "gpuledger-idle", "${datasource:queryparam}", keep=(*CHOICES, "team")
)
TO_TEAM = link(
    "Showback of this team",
    "gpuledger-team",
    "var-team=${__data.fields.team:percentencode}",
    keep=KEEP,
)

WHOSE = """CASE WHEN r.team <> '' THEN r.team
    WHEN r.kind = 'reserve' OR r.key LIKE 'reclaim:free/%' THEN 'All' ELSE '(unattributed)' END"""
"""The team that advice is for; All, as Grafana calls every choice: advice on what a pool has free or
reserved.
"""


def joint(name: str, place: int) -> str:
    """An amount of all open advice together; `place`: 0 low, 1 expected, 2 high."""
    return f"(r.joint -> ${{currency:sqlstring}} -> '{name}' ->> {place})::numeric / {MICRO}"


def numbers() -> tuple[Panel, ...]:
    """What to save, what was saved, and what a further day of idle GPUs costs."""
    return (
        stat(
            "To save ($currency)",
            "If all open advice were followed, counted once: money that is no longer paid,"
            f" expected, and in the worst and best case, {WINDOW} (often 30 days). Of the whole"
            " fleet; may be empty until a search has run.",
            f'SELECT {joint("cash", 1)} AS "expected", {joint("cash", 0)} AS "low",'
            f' {joint("cash", 2)} AS "high" FROM recommendation_run r',
            MONEY,
            width=9,
            decimals=0,
        ),
        stat(
            "Capacity to free ($currency)",
            f"What the GPUs cost that all open advice would leave free for others, {WINDOW}: paid"
            " all the same. May be empty.",
            f'SELECT {joint("capacity", 1)} AS "worth" FROM recommendation_run r',
            MONEY,
            width=5,
            decimals=0,
        ),
        stat(
            "Saved by advice ($currency)",
            "Accepted advice, by the ledger, since each was accepted: what was charged before"
            " against what was charged since. Below 0, it cost more. May be empty until advice is"
            " accepted and measured.",
            f"SELECT sum(r.realized_micro) / {MICRO} AS saved FROM recommendation r "
            f"WHERE {CHOSEN} AND r.state IN ('accepted', 'done')",
            MONEY,
            width=5,
            decimals=0,
            steps=((None, BLUE), (-1e15, VERMILION), (0, GREEN)),  # the first is that of no number
            no_value="none yet",
        ),
        stat(
            "Idle GPUs, a day ($currency)",
            "What the GPUs of all open idle findings cost a day, held or free, whatever else is"
            " chosen. May be empty.",
            f"SELECT sum(r.per_day_micro) / {MICRO} AS cost FROM finding r "
            f"WHERE r.kind = 'idle' AND r.resolved_ms IS NULL AND {CHOSEN}",
            MONEY,
            width=5,
            decimals=0,
            steps=((None, GREEN), (0.01, ORANGE)),
            links=(TO_IDLE,),
        ),
    )


def advice() -> Panel:
    """The advice itself, the dearest first."""
    return table(
        "Recommendations ($currency)",
        f"Open and accepted advice, by what it saves, {WINDOW}, {AT_LISTED_RATES}; rows overlap and"
        " must not be added up. Decide with `gpuledger recommend accept ID`. May be empty, and"
        " then nothing is to be saved.",
        f"""
        SELECT r.advice, {WHOSE} AS team, r.state, r.cash_expected_micro / {MICRO} AS saves,
            r.capacity_expected_micro / {MICRO} AS frees, r.realized_micro / {MICRO} AS "saved so far",
            to_timestamp(r.made_ms / 1000) AS "since", r.id AS "ID"
        FROM recommendation r
        WHERE r.state IN ('open', 'accepted') AND coalesce({CHOSEN}, true)
        ORDER BY r.state DESC, greatest(r.cash_expected_micro, r.capacity_expected_micro) DESC NULLS LAST, r.key
        LIMIT 50
        """,
        MONEY,
        width=24,
        height=7,
        decimals=0,
        overrides=(
            column("advice", unit="string"),
            column("team", unit="string", links=[TO_TEAM], width=110),
            column("state", unit="string", width=80),
            *(column(name, width=90) for name in ("saves", "frees")),
            column("saved so far", width=105),
            column("since", unit="time:YYYY-MM-DD", width=95),
            column("ID", width=60),
        ),
    )
