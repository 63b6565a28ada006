"""What one owner pays of shared costs, worked out by Postgres: nothing of others leaves it but
sums.

It splits as accounting.shared_costs does, to the micro-unit and in the same order: by largest
remainder over the owners of a level, ties by name, then over each owner's lines, ties by their
order. Amounts are `numeric`: a product of an amount and a weight exceeds 64 bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.shared_costs import AMOUNT, COST, DIMENSIONS, SharedCost
from gpuledger_collector.accounting.usage import HELD
from gpuledger_collector.storage.billing.locations import LineSource, line_source
from gpuledger_collector.storage.billing.reports import lines_query
from gpuledger_collector.storage.database import SORT_MEMORY
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select

POOL = f"k{len(LEVELS)}"
"""The column of a line's pool."""
_NEEDED = ("gpu_ns", "cost_micro", "energy_mj")
_WEIGHTS = {
    COST: "greatest(coalesce(sum(cost_micro), 0), 0)",
    "gpu_hours": "sum(gpu_ns)",
    "even": "1::numeric",
    "weights": "coalesce(({weights}::jsonb ->> bearer)::numeric, 0)",
}
"""SQL of an owner's weight by the key of a shared cost."""


@dataclass
class SqlStatement:
    """An SQL statement that grows by common table expressions, and the values of its parameters."""

    tables: list[str] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)

    def bind(self, value: object) -> str:
        """The placeholder of a value."""
        name = f"value_{len(self.values)}"
        self.values[name] = value
        return f"%({name})s"

    def add(self, name: str, query: str) -> None:
        """Add a common table expression; it is computed once."""
        self.tables.append(f"{name} AS MATERIALIZED ({query})")

    def rows(self, connection: Connection, query: str) -> list[Any]:
        """What a query of these tables returns; columns are attributes."""
        with connection.transaction():
            # Of lines that are computed the server expects a few hundred: it would compare each
            # with each.
            connection.execute(
                "SELECT set_config('enable_nestloop', 'off', true), set_config('work_mem', %s,"
                " true)",
                (SORT_MEMORY,),
            )
            found = select(connection, f"WITH {', '.join(self.tables)} {query}", self.values)
            connection.execute("SELECT set_config('enable_nestloop', 'on', true)")
        return found

    def lines(self, name: str, source: LineSource) -> None:
        """Add what shares and carbon need of charged lines, each with its `place` in the order in
        which it is read.
        """
        columns = ", ".join([*key_columns(source.by), "state", "currency", *_NEEDED])
        parts = [
            f"SELECT {number} AS part, {columns} FROM ({self.charged_lines_sql(source.by, period)}) l"
            for number, period in enumerate(source.periods)
        ]
        order = ", ".join(["part", *key_columns(source.by), "state", "currency"])
        self.add(
            name,
            f"SELECT l.*, row_number() OVER (ORDER BY {order}) AS place FROM"
            f" ({' UNION ALL '.join(parts)}) l",
        )

    def charged_lines_sql(self, by: Sequence[str], period: Period, *, apart: bool = False) -> str:
        """SQL of the charged lines of a period."""
        query = lines_query(by, apart=apart).replace("%(start)s", self.bind(period.start_ms))
        return query.replace("%(end)s", self.bind(period.end_ms))


def key_columns(by: Sequence[str]) -> list[str]:
    """The columns of a line's keys."""
    return [f"k{at}" for at in range(len(by))]


@dataclass(frozen=True, slots=True)
class SplitCost:
    """A shared cost in the days of a month on which it is shared; the amount for them, of source
    amount.
    """

    cost: SharedCost
    period: Period
    amount_micro: int


def own_shares(
    connection: Connection,
    split_costs: Sequence[SplitCost],
    by: Sequence[str],
    owner: Mapping[str, str],
) -> Iterator[tuple[SplitCost, ChargedLine, int]]:
    """The share of each line of an owner (level -> value) in each of some costs of one period, in
    micro-units.

    Lines have the keys (*DIMENSIONS, *by), and no amounts.
    """
    source = line_source(connection, split_costs[0].period, (*DIMENSIONS, *by))
    statement, shares = SqlStatement(), []
    statement.lines("line", source)
    own = " AND ".join(
        [
            "true",
            *(f"k{LEVELS.index(level)} = {statement.bind(name)}" for level, name in owner.items()),
        ]
    )
    for number, split_cost in enumerate(split_costs):
        add_owners(statement, f"share_{number}", "line", split_cost)
        add_lines(statement, f"share_{number}", "line", split_cost, own)
        shares.append(f"SELECT {number} AS number, place, micro FROM share_{number}")
    keys = key_columns(source.by)
    query = (
        f"SELECT {', '.join(keys)}, number, part, state, currency, micro FROM"
        f" ({' UNION ALL '.join(shares)}) s JOIN line USING (place) WHERE {own} ORDER BY number,"
        " place"
    )
    for row in statement.rows(connection, query):
        line = ChargedLine(tuple(row[: len(keys)]), row.state, row.currency)
        named = source.named(line, source.periods[row.part])
        yield split_costs[row.number], named, int(row.micro)


def add_owners(statement: SqlStatement, name: str, lines: str, split_cost: SplitCost) -> None:
    """Add how a cost is split over the owners of its level, as shared_costs.share does:
    NAME_owners.

    It has the `currency`, the `bearer` and its part (`micro`); it is empty where nobody shares the
    cost.
    """
    cost = split_cost.cost
    scope = "".join(
        f" AND k{LEVELS.index(level)} = {statement.bind(owner)}"
        for level, owner in cost.scope.items()
    )
    if cost.source == AMOUNT:
        currency = f"{statement.bind(cost.currency)}::text"
        scope += f" AND currency = {currency}"
        total = (
            f"SELECT {currency} AS currency, {statement.bind(split_cost.amount_micro)}::numeric AS"
            " micro"
        )
    else:
        moved = _moved_condition_sql(statement, cost)
        total = (
            f"SELECT currency, sum(coalesce(cost_micro, 0)) AS micro FROM {lines} WHERE {moved}"
            " GROUP BY 1"
        )
    # Corrections may make the time of a line negative; a negative weight has no share.
    statement.add(
        f"{name}_held",
        f"SELECT place, currency, gpu_ns, cost_micro, k{LEVELS.index(cost.level)} AS bearer FROM"
        f" {lines} WHERE state = '{HELD}' AND currency IS NOT NULL AND gpu_ns > 0{scope}",
    )
    weight = _WEIGHTS[cost.key]
    if cost.key == "weights":
        weight = weight.format(weights=statement.bind(json.dumps(dict(cost.weights))))
    over_owners = (
        "SELECT w.currency, bearer, weight, micro AS total, sum(weight) OVER (PARTITION BY"
        f" w.currency) AS weights FROM (SELECT currency, bearer, {weight} AS weight FROM"
        f" {name}_held GROUP BY 1, 2) w JOIN ({total}) t ON t.currency = w.currency WHERE micro > 0"
    )
    statement.add(f"{name}_owners", _split(over_owners, "currency", 'bearer COLLATE "C"'))


def add_lines(
    statement: SqlStatement, name: str, lines: str, split_cost: SplitCost, own: str = "true"
) -> None:
    """Add what a cost adds to each line (`place`, `micro`; negative: takes from it), after
    `add_owners`.

    `own` is SQL of a condition: lines of owners none of whose lines meets it are left out.
    """
    bearers = f"SELECT k{LEVELS.index(split_cost.cost.level)} FROM {lines} WHERE {own}"
    # Within an owner by cost; where nothing cost anything (a rate of zero), by time.
    over_lines = (
        "SELECT q.*, CASE WHEN costs > 0 THEN cost ELSE gpu_ns END AS weight, CASE WHEN costs > 0"
        " THEN costs ELSE times END AS weights FROM (SELECT h.*, sum(cost) OVER of_owner AS costs,"
        " sum(gpu_ns) OVER of_owner AS times FROM (SELECT h.*, s.micro AS total,"
        f" greatest(coalesce(cost_micro, 0), 0) AS cost FROM {name}_held h JOIN {name}_owners s ON"
        f" s.currency = h.currency AND s.bearer = h.bearer WHERE h.bearer IN ({bearers})) h WINDOW"
        " of_owner AS (PARTITION BY currency, bearer)) q"
    )
    query = (
        f"SELECT place, micro FROM ({_split(over_lines, 'currency, bearer', 'place')}) q WHERE"
        " micro <> 0"
    )
    if split_cost.cost.source != AMOUNT:
        query += f" UNION ALL {moved_away_sql(statement, name, lines, split_cost, 'place')}"
    statement.add(name, query)


def moved_away_sql(
    statement: SqlStatement, name: str, lines: str, split_cost: SplitCost, columns: str
) -> str:
    """SQL of what is moved away from lines of a state: these columns, and `micro`; only where
    somebody gets it.
    """
    return (
        f"SELECT {columns}, -cost_micro AS micro FROM {lines} WHERE"
        f" {_moved_condition_sql(statement, split_cost.cost)} AND cost_micro <> 0 AND currency IN (SELECT"
        f" currency FROM {name}_owners)"
    )


def _moved_condition_sql(statement: SqlStatement, cost: SharedCost) -> str:
    """SQL of the condition of lines of which a cost is moved."""
    of_pool = f" AND {POOL} = {statement.bind(cost.pool)}" if cost.pool else ""
    return f"state = {statement.bind(cost.source)} AND currency IS NOT NULL{of_pool}"


def _split(weighed: str, within: str, order: str) -> str:
    """SQL that splits `total` by `weight` (of `weights` together) within groups, as
    largest_remainder.split does.
    """
    return (
        f"SELECT q.*, low + (row_number() OVER (PARTITION BY {within} ORDER BY rest DESC, {order}) "
        f"<= total - sum(low) OVER (PARTITION BY {within}))::int AS micro FROM (SELECT q.*, "
        "div(total * weight, weights) AS low, mod(total * weight, weights) AS rest "
        f"FROM ({weighed}) q WHERE weights > 0) q"
    )
