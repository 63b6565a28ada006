"""Shared model servers: what is declared of them, what their workloads cost and counted by day, and
how days of closed months were split.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TypeVar

from gpuledger_collector.accounting.adjustments import POLICIES
from gpuledger_collector.accounting.api_prices import ApiPrice
from gpuledger_collector.accounting.inference import TOKEN_COUNTERS, Asker, TokenRecord, Tokens
from gpuledger_collector.accounting.inference_charges import UNPRICED, PlaceCost, WorkloadDay
from gpuledger_collector.accounting.inference_lines import InferenceLine, ServerDay, ServerLine
from gpuledger_collector.accounting.inference_share import InferenceShare
from gpuledger_collector.accounting.inference_split import Claimant, SharedServer, TenantOwner
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import DatedDays, Period
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.unit_cost import CountedHour
from gpuledger_collector.storage.billing.prices import request_dated_days
from gpuledger_collector.storage.ledger.dated_rows import DatedTable
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import (
    select,
    select_as,
    select_value,
    select_values,
    to_object,
)

SERVERS = DatedTable("inference_server", SharedServer, "name, from_on NULLS FIRST, id")
TENANTS = DatedTable("inference_tenant", TenantOwner, "gateway, tenant, from_on NULLS FIRST, id")
API_PRICES = DatedTable("api_price", ApiPrice, "name, from_on NULLS FIRST, id")
_Dated = TypeVar("_Dated", SharedServer, TenantOwner)
_SHARE = "server, gateway, tenant, trust, weights"
_TEXTS = ", ".join(["%s::text[]"] * 5)
_COLUMNS = (
    "day_ms, workload_id, owner_id, state, pool, gpu_model, currency, adjustment_id, node_cost_id,"
    " cost_micro, gpu_ns, busy_ns, idle_ns, unknown_ns"
)
_SOURCES = {
    False: "charge",
    True: f"(SELECT {_COLUMNS} FROM charge UNION ALL SELECT {_COLUMNS} FROM correction)",
}
"""Charges, without the corrections of their days and with them."""
_DAYS = "day_ms >= %(start)s AND day_ms < %(end)s"


@dataclass(frozen=True, slots=True)
class WorkloadHour:
    """What a workload held in an hour: the longest of its accelerators, and all of them together."""

    workload_id: int
    hour_ms: int
    longest_ms: int
    held_ms: int


@dataclass(frozen=True, slots=True)
class WorkloadActivity:
    """What the accelerators of a workload did in an hour, together; `longest_ms`: the longest that
    one of them was held. `is_shared`: others held one of them, too.
    """

    workload_id: int
    hour_ms: int
    longest_ms: int
    held_ms: int
    busy_ms: int
    unknown_ms: int
    is_shared: bool


def replace_servers(
    connection: Connection, wanted: Sequence[SharedServer], now_ms: int
) -> ImportOutcome:
    """Replace the servers in force; days on which some server charges its tenants before or
    afterwards are marked for rating where one that came or went holds on them.
    """
    before = SERVERS.in_force(connection)
    outcome = SERVERS.replace(connection, wanted, now_ms)
    after = SERVERS.in_force(connection)
    return _request_charged_days(
        connection, outcome, [*before, *after], _different(before, after), now_ms
    )


def replace_tenants(
    connection: Connection, wanted: Sequence[TenantOwner], now_ms: int
) -> ImportOutcome:
    """Replace the owners of tenants in force; days of servers that charge tenants are marked for
    rating where an owner that came or went holds on them.
    """
    before = TENANTS.in_force(connection)
    outcome = TENANTS.replace(connection, wanted, now_ms)
    after = TENANTS.in_force(connection)
    return _request_charged_days(
        connection, outcome, SERVERS.in_force(connection), _different(before, after), now_ms
    )


def _different(before: Sequence[_Dated], after: Sequence[_Dated]) -> list[_Dated]:
    """What is on one side only; declarations have mappings, and no hash."""
    gone = [each for each in before if each not in after]
    return gone + [each for each in after if each not in before]


def _request_charged_days(
    connection: Connection,
    outcome: ImportOutcome,
    servers: Iterable[SharedServer],
    different: Sequence[DatedDays],
    now_ms: int,
) -> ImportOutcome:
    """Mark the days from the first to the last on which both a change and a server that charges
    hold.
    """
    charged = [server for server in servers if server.is_charged]
    if not charged or not different:
        return outcome
    first = _later_on(_first_on(charged), _first_on(different))
    last = _earlier_on(_last_on(charged), _last_on(different))
    if first is not None and last is not None and last <= first:
        return outcome
    return replace(outcome, days_to_recompute=request_dated_days(connection, first, last, now_ms))


def _first_on(dated: Sequence[DatedDays]) -> dt.date | None:
    starts = [each.from_on for each in dated if each.from_on is not None]
    return min(starts) if len(starts) == len(dated) else None


def _last_on(dated: Sequence[DatedDays]) -> dt.date | None:
    ends = [each.to_on for each in dated if each.to_on is not None]
    return max(ends) if len(ends) == len(dated) else None


def _later_on(left: dt.date | None, right: dt.date | None) -> dt.date | None:
    return max((each for each in (left, right) if each is not None), default=None)


def _earlier_on(left: dt.date | None, right: dt.date | None) -> dt.date | None:
    return min((each for each in (left, right) if each is not None), default=None)


def share_ids(connection: Connection, charges: Iterable[Charge]) -> dict[InferenceShare, int]:
    """The ids of the shares of servers that charges are about; new ones are added, which
    `connection` had better commit at once.
    """
    shares = {charge.inference for charge in charges if charge.inference is not None}
    if not shares:
        return {}
    known = _known_share_ids(connection, shares)
    # In order, so that processes that add the same shares do not wait for each other.
    if new := sorted(shares - known.keys()):
        connection.execute(
            f"INSERT INTO inference_share ({_SHARE}) SELECT * FROM unnest({_TEXTS}) ON CONFLICT DO"
            " NOTHING",
            [list(column) for column in zip(*new, strict=True)],
        )
        known |= _known_share_ids(connection, new)
    return known


def _known_share_ids(
    connection: Connection, shares: Iterable[InferenceShare]
) -> dict[InferenceShare, int]:
    """The ids of stored shares of the same servers and weights.

    A server has thousands of tenants, so that its rows are read and not asked for one by one.
    """
    servers = sorted({(share.server, share.weights) for share in shares})
    rows = connection.execute(
        f"SELECT {_SHARE}, id FROM inference_share WHERE (server, weights) IN (SELECT * FROM"
        " unnest(%s::text[], %s::text[]))",
        [list(column) for column in zip(*servers, strict=True)],
    )
    return {InferenceShare(*words): number for *words, number in rows}


def read_shares(connection: Connection, ids: Sequence[int]) -> dict[int, InferenceShare]:
    """Shares of servers by number."""
    if not ids:
        return {}
    rows = connection.execute(
        f"SELECT id, {_SHARE} FROM inference_share WHERE id = ANY(%s)", (list(ids),)
    )
    return {number: InferenceShare(*words) for number, *words in rows}


def find_unknown_models(
    connection: Connection, records: Iterable[TokenRecord]
) -> list[TokenRecord]:
    """The records whose model no declared server answers; none where no server is declared."""
    servers = SERVERS.in_force(connection)
    if not servers:
        return []
    known: dict[Asker, bool] = {}
    unknown = []
    for record in records:
        asker = record.asker
        if asker not in known:
            known[asker] = any(server.answers(asker) for server in servers)
        if not known[asker]:
            unknown.append(record)
    return unknown


def list_charged_workloads(
    connection: Connection, days: Sequence[Period], *, corrected: bool = False
) -> dict[int, set[int]]:
    """By day the workloads that were charged for time on it; the days adjoin."""
    charged: dict[int, set[int]] = defaultdict(set)
    rows = connection.execute(
        f"SELECT day_ms, workload_id FROM {_SOURCES[corrected]} c WHERE {_DAYS} AND state = 'held'"
        " AND workload_id IS NOT NULL GROUP BY 1, 2 HAVING sum(gpu_ns) <> 0",
        {"start": days[0].start_ms, "end": days[-1].end_ms},
    )
    for day_ms, workload_id in rows:
        charged[day_ms].add(workload_id)
    return charged


def read_owners(connection: Connection, ids: Iterable[int]) -> dict[int, OwnerPath]:
    """Owners by number."""
    return {
        row.id: to_object(OwnerPath, row)
        for row in select(
            connection,
            "SELECT id, org, team, project, experiment, run, user_name AS user FROM owner WHERE id"
            " = ANY(%s)",
            (sorted(set(ids)),),
        )
    }


def count_unpriced(connection: Connection, period: Period, ids: Sequence[int]) -> int:
    """GPU-nanoseconds of workloads that have no price."""
    return int(
        select_value(
            connection,
            f"SELECT coalesce(sum(gpu_ns), 0) FROM charge WHERE {_DAYS} AND workload_id = ANY(%(ids)s)"
            " AND cost_micro IS NULL",
            {"start": period.start_ms, "end": period.end_ms, "ids": list(ids)},
        )
    )


def read_workload_days(
    connection: Connection, period: Period, ids: Sequence[int], *, corrected: bool = False
) -> list[WorkloadDay]:
    """What workloads were charged for days of a period, as booked; with all corrections of these
    days, or without. By day and key of the workload; `UNPRICED` is the currency of what has no
    price.
    """
    rows = select(
        connection,
        "SELECT c.* FROM (SELECT day_ms, workload_id, owner_id, pool, gpu_model, coalesce(currency,"
        f" '{UNPRICED}') AS currency, node_cost_id IS NULL AS is_time, coalesce(sum(cost_micro),"
        " 0)::bigint AS cost_micro, sum(busy_ns)::numeric AS busy_ns, sum(idle_ns)::numeric AS"
        f" idle_ns, sum(unknown_ns)::numeric AS unknown_ns FROM {_SOURCES[corrected]} c WHERE"
        f" {_DAYS} AND workload_id = ANY(%(ids)s) GROUP BY 1, 2, 3, 4, 5, 6, 7) c JOIN workload w ON"
        " w.id = c.workload_id ORDER BY c.day_ms, w.key, c.pool, c.gpu_model, c.currency, c.is_time",
        {"start": period.start_ms, "end": period.end_ms, "ids": list(ids)},
    )
    return [
        WorkloadDay(
            row.day_ms,
            row.workload_id,
            row.owner_id,
            row.pool,
            row.gpu_model,
            row.currency,
            row.is_time,
            row.cost_micro,
            int(row.busy_ns),
            int(row.idle_ns),
            int(row.unknown_ns),
        )
        for row in rows
    ]


def read_adjusted_places(
    connection: Connection, period: Period, *, corrected: bool = False
) -> list[PlaceCost]:
    """The places of which policies (markups, discounts, volume prices) changed the cost of a day."""
    source = _SOURCES[corrected]
    return select_as(
        connection,
        PlaceCost,
        "WITH a AS (SELECT day_ms, owner_id, pool, gpu_model, currency, sum(cost_micro) AS micro"
        f" FROM {source} c WHERE {_DAYS} AND adjustment_id IS NOT NULL AND state = ANY(%(kinds)s)"
        " GROUP BY 1, 2, 3, 4, 5)"
        " SELECT a.day_ms, a.owner_id AS payer, a.pool, a.gpu_model, a.currency, coalesce((SELECT"
        f" sum(c.cost_micro) FROM {source} c WHERE c.day_ms = a.day_ms AND c.owner_id IS NOT"
        " DISTINCT FROM a.owner_id AND c.pool = a.pool AND c.gpu_model = a.gpu_model AND c.currency"
        " = a.currency AND c.state = 'held' AND c.node_cost_id IS NULL), 0)::bigint AS held_micro,"
        " a.micro::bigint AS adjusted_micro FROM a ORDER BY 1, 3, 4, 5, 2",
        {"start": period.start_ms, "end": period.end_ms, "kinds": list(POLICIES)},
    )


def read_model_counts(
    connection: Connection,
    period: Period,
    ids: Sequence[int],
    served_model: str,
    counters: Sequence[str] = TOKEN_COUNTERS,
) -> dict[int, list[CountedHour]]:
    """What the counters of workloads counted, by workload; of one model, or of all."""
    hours: dict[int, list[CountedHour]] = {}
    rows = connection.execute(
        "SELECT s.workload_id, s.via, s.source, s.counter, h.hour_ms, sum(h.units)::bigint,"
        " max(h.covered_ms), max(h.restarts) FROM counter_series s JOIN counter_hour h ON"
        " h.series_id = s.id WHERE s.workload_id = ANY(%(ids)s) AND s.counter = ANY(%(counters)s)"
        " AND (%(label)s = '' OR position(%(label)s in ',' || s.part || ',') > 0) AND"
        " h.hour_ms >= %(start)s AND h.hour_ms < %(end)s GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 5",
        {
            "ids": list(ids),
            "counters": list(counters),
            "label": _label(served_model) if served_model else "",
            "start": period.start_ms,
            "end": period.end_ms,
        },
    )
    for workload_id, *cells in rows:
        hours.setdefault(workload_id, []).append(CountedHour(*cells))
    return hours


def list_serving(connection: Connection, ids: Sequence[int], served_model: str) -> set[int]:
    """Those of the workloads whose counters are of a model."""
    return set(
        select_values(
            connection,
            "SELECT DISTINCT workload_id FROM counter_series WHERE workload_id = ANY(%s) AND"
            " position(%s in ',' || part || ',') > 0",
            (list(ids), _label(served_model)),
        )
    )


def _label(served_model: str) -> str:
    """The label as `part_of` of the counters' table writes it, between commas."""
    return f",model_name={served_model},"


def read_workload_hours(
    connection: Connection, period: Period, ids: Sequence[int]
) -> list[WorkloadHour]:
    """What workloads held by hour; of usage that was imported as counts nothing is known."""
    return select_as(
        connection,
        WorkloadHour,
        "SELECT workload_id, hour_ms, max(ms)::bigint AS longest_ms, sum(ms)::bigint AS held_ms FROM"
        " (SELECT workload_id, accelerator_id, hour_ms - hour_ms %% 3600000 AS hour_ms,"
        " sum(held_ms)::bigint AS ms FROM usage_hour WHERE workload_id = ANY(%(ids)s) AND state = 'held' AND"
        " hour_ms >= %(start)s AND hour_ms < %(end)s GROUP BY 1, 2, 3) h GROUP BY 1, 2 ORDER BY 1, 2",
        {"start": period.start_ms, "end": period.end_ms, "ids": list(ids)},
    )


def read_activity(
    connection: Connection, period: Period, ids: Sequence[int]
) -> list[WorkloadActivity]:
    """What the accelerators of workloads did by hour; of usage that was imported as counts nothing
    is known.
    """
    return select_as(
        connection,
        WorkloadActivity,
        "SELECT workload_id, hour_ms, max(held_ms)::bigint AS longest_ms, sum(held_ms)::bigint AS"
        " held_ms, sum(busy_ms)::bigint AS busy_ms, sum(unknown_ms)::bigint AS unknown_ms,"
        " bool_or(is_shared) AS is_shared FROM (SELECT u.workload_id, u.accelerator_id, u.hour_ms"
        " - u.hour_ms %% 3600000 AS hour_ms, sum(u.held_ms) AS held_ms, sum(u.busy_ms) AS busy_ms,"
        " sum(u.unknown_ms) AS unknown_ms, bool_or(EXISTS (SELECT FROM usage_hour other WHERE"
        " other.accelerator_id = u.accelerator_id AND other.hour_ms = u.hour_ms AND other.state ="
        " 'held' AND other.workload_id <> u.workload_id)) AS is_shared FROM usage_hour u WHERE"
        " u.workload_id = ANY(%(ids)s) AND u.state = 'held' AND u.hour_ms >= %(start)s AND"
        " u.hour_ms < %(end)s GROUP BY 1, 2, 3) h GROUP BY 1, 2 ORDER BY 1, 2",
        {"start": period.start_ms, "end": period.end_ms, "ids": list(ids)},
    )


def write_closed(
    connection: Connection,
    period: Period,
    lines: Iterable[InferenceLine],
    servers: Iterable[ServerLine],
) -> None:
    """Keep how the days of a month are split, at its close."""
    with connection.cursor() as cursor:
        with cursor.copy(
            "COPY closed_inference (period_start_ms, day_ms, server, gateway, tenant, model, trust,"
            " owner, input, cached, output, requests, weighted, currency, used_micro, idle_micro,"
            " borrowed_micro, lent_micro, is_charged) FROM STDIN"
        ) as copy:
            for line in lines:
                copy.write_row((period.start_ms, *_cells(line)))
        with cursor.copy(
            "COPY closed_inference_server (period_start_ms, day_ms, server, currency, cost_micro,"
            " used_micro, counted_input, counted_output, is_scaled, weights) FROM STDIN"
        ) as copy:
            for server in servers:
                copy.write_row(
                    (
                        period.start_ms,
                        server.day_ms,
                        server.server,
                        server.currency,
                        server.cost_micro,
                        server.used_micro,
                        server.counted_input,
                        server.counted_output,
                        server.is_scaled,
                        server.weights,
                    )
                )


def _cells(line: InferenceLine) -> tuple[object, ...]:
    claimant, tokens = line.claimant, line.tokens
    return (
        line.day_ms,
        line.server,
        claimant.gateway,
        claimant.tenant,
        claimant.model,
        claimant.trust,
        json.dumps(dict(line.owner)),
        tokens.input,
        tokens.cached,
        tokens.output,
        tokens.requests,
        line.weighted,
        line.currency,
        line.used_micro,
        line.idle_micro,
        line.borrowed_micro,
        line.lent_micro,
        line.is_charged,
    )


def read_closed_lines(connection: Connection, period: Period) -> list[InferenceLine]:
    """How the days of a period in closed months were split, as kept at their close."""
    rows = select(
        connection,
        f"SELECT * FROM closed_inference WHERE {_DAYS} ORDER BY server, day_ms, currency, gateway,"
        " tenant, model, trust",
        {"start": period.start_ms, "end": period.end_ms},
    )
    owners: dict[str, Mapping[str, str]] = {}
    return [
        InferenceLine(
            server=row.server,
            day_ms=row.day_ms,
            claimant=Claimant(row.gateway, row.tenant, row.model, row.trust),
            owner=owners.setdefault(json.dumps(row.owner, sort_keys=True), row.owner),
            tokens=Tokens(row.input, row.cached, row.output, row.requests),
            weighted=int(row.weighted),
            currency=row.currency,
            used_micro=row.used_micro,
            idle_micro=row.idle_micro,
            borrowed_micro=row.borrowed_micro,
            lent_micro=row.lent_micro,
            is_charged=row.is_charged,
        )
        for row in rows
    ]


def read_closed_servers(connection: Connection, period: Period) -> list[ServerLine]:
    """What shared servers cost and counted on days of a period in closed months."""
    return select_as(
        connection,
        ServerLine,
        "SELECT server, day_ms, currency, cost_micro, used_micro, counted_input, counted_output,"
        f" is_scaled, weights FROM closed_inference_server WHERE {_DAYS} ORDER BY server, day_ms,"
        " currency",
        {"start": period.start_ms, "end": period.end_ms},
    )


def list_closed_months(connection: Connection) -> set[int]:
    """The starts of closed months of which the split was kept."""
    return set(
        select_values(connection, "SELECT DISTINCT period_start_ms FROM closed_inference_server")
    )


def replace_days(
    connection: Connection, period: Period, days: Iterable[ServerDay], now_ms: int
) -> None:
    """Replace what dashboards show of the days of a period."""
    connection.execute(
        f"DELETE FROM inference_day WHERE {_DAYS}",
        {"start": period.start_ms, "end": period.end_ms},
    )
    with (
        connection.cursor() as cursor,
        cursor.copy(
            "COPY inference_day (server, day_ms, currency, cost_micro, used_micro, asked, counted,"
            " weighted, weights, computed, cached, output, split_ms) FROM STDIN"
        ) as copy,
    ):
        for day in days:
            copy.write_row((*astuple(day), now_ms))


def first_incomplete_ms(connection: Connection) -> int | None:
    """The first hour of which tokens are known, where no day is stored for dashboards, or else the
    first day that was stored without its tokens by kind; None: nothing is missing.
    """
    first: int | None = select_value(
        connection,
        "SELECT coalesce((SELECT min(hour_ms) FROM token_hour WHERE NOT EXISTS (SELECT FROM"
        " inference_day)), (SELECT min(day_ms) FROM inference_day WHERE computed IS NULL))",
    )
    return first
