"""What the cash view reads: payments as they were declared, and charges less what was paid for
before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from gpuledger_collector.accounting.adjustments import INTERNAL
from gpuledger_collector.accounting.cash import (
    NANO_MICRO_HOUR,
    PURCHASE,
    Hardware,
    Purchase,
    Version,
    purchases,
)
from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.locations import REGION, Locations
from gpuledger_collector.accounting.measures import SUMMED
from gpuledger_collector.accounting.period import Period, parse_instant
from gpuledger_collector.storage.billing import commitments, locations, periods, reports
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select
from gpuledger_common.instants import to_ms

_DEPRECIATION = (
    "div(abs(l.gpu_ns) * ((p.basis #>> '{parts,depreciation}')::numeric * 1000000000),"
    " %(unit)s::numeric)"
)
"""As accounting.cash has it: rounded towards zero, for hardware whose purchase is declared."""
_PAID = f"""CASE WHEN l.cost_micro IS NOT NULL AND (l.commitment_id IS NOT NULL OR l.state = ANY(%(internal)s)) THEN 0
    ELSE l.cost_micro - coalesce(sign(l.gpu_ns) * CASE WHEN p.basis #>> '{{from,count}}' IS NOT NULL
        THEN {_DEPRECIATION} END, 0) END"""
_COLUMNS = """owner_id, state, pool, gpu_model, node, currency, workload_id, commitment_id, price_id, gpu_ns, busy_ns,
    idle_ns, unknown_ns, cost_micro, idle_cost_micro, energy_mj"""


def payments(connection: Connection, period: Period, until_ms: int) -> list[Purchase]:
    """The payments that count in a period, up to an instant."""
    closed = {month.name: month.closed_ms for month in periods.list_closed(connection)}
    versions = [*_commitments(connection), *_hardware(connection)]
    return purchases(versions, period, zones.calendar(connection), closed, until_ms)


def lines(
    connection: Connection, period: Period, by: Sequence[str], *, apart: bool
) -> list[ChargedLine]:
    """What the period's time cost in cash by these dimensions; the cost that is borne stands beside
    it.

    Reads every charge: days and months do not know how a charge was paid.
    """
    if REGION in by:
        return locations.lines_by_region(
            connection, period, by, partial(lines, connection, apart=apart)
        )
    keys = [
        f"coalesce({reports.CHARGE_DIMENSIONS[name]}, '') AS k{at}" for at, name in enumerate(by)
    ]
    summed = {**{name: f"l.{name}" for name in SUMMED}, "cost_micro": _PAID}
    sums = ", ".join(f"sum({value}) AS {name}" for name, value in summed.items())
    groups = ", ".join(str(at + 1) for at in range(len(by) + 3))
    rows = select(
        connection,
        f"""
        SELECT {"".join(key + ", " for key in keys)} l.state, l.currency, l.correction_of, {sums},
            sum(l.cost_micro) AS borne_micro
        FROM (
            SELECT {_COLUMNS}, day_ms AS billed_ms, NULL::bigint AS amended_ms, '' AS correction_of FROM charge
            WHERE day_ms >= %(start)s AND day_ms < %(end)s
            UNION ALL SELECT {_COLUMNS}, booked_day_ms, day_ms, {reports.AMENDS if apart else "''"} FROM correction
            WHERE booked_day_ms >= %(start)s AND booked_day_ms < %(end)s
        ) l LEFT JOIN price p ON p.id = l.price_id LEFT JOIN owner o ON o.id = l.owner_id
        LEFT JOIN workload w ON w.id = l.workload_id{reports.CLOSED_WORKLOADS if reports.reads_closed(by) else ""}
        GROUP BY {groups} ORDER BY {groups}
        """,
        {
            "start": period.start_ms,
            "end": period.end_ms,
            "unit": NANO_MICRO_HOUR,
            "internal": list(INTERNAL),
        },
    )
    return [
        ChargedLine(
            tuple(getattr(row, f"k{at}") for at in range(len(by))),
            row.state,
            row.currency,
            row.correction_of,
            effective_cost_micro=None if row.borne_micro is None else int(row.borne_micro),
            **reports.sums_of(row),
        )
        for row in rows
    ]


def purchase_lines(
    found: Sequence[Purchase], by: Sequence[str], places: Callable[[int], Locations], *, apart: bool
) -> list[ChargedLine]:
    """Payments as lines of a report: of no owner, in the place that they were made for."""
    return [
        ChargedLine(
            tuple(_cell(one, name, places) for name in by),
            PURCHASE,
            one.source.currency,
            one.correction_of if apart else "",
            cost_micro=one.micro,
            effective_cost_micro=0,
        )
        for one in found
    ]


def _cell(payment: Purchase, dimension: str, places: Callable[[int], Locations]) -> str:
    source = payment.source
    if dimension == REGION:
        place = places(payment.booked_ms).of_purchase(
            source.pool, source.region, payment.span.start_ms
        )
        return "" if place is None else place.region
    return str(getattr(source, _PLACES[dimension])) if dimension in _PLACES else ""


_PLACES = {"pool": "pool", "model": "gpu_model", "node": "node"}


def _commitments(connection: Connection) -> list[Version]:
    versions = select(
        connection, "SELECT id, recorded_at, superseded_at FROM commitment ORDER BY name, id"
    )
    found = commitments.COMMITMENTS.by_id(connection, [version.id for version in versions])
    return [_version(found[version.id], version) for version in versions]


def _hardware(connection: Connection) -> list[Version]:
    rows = select(
        connection,
        """
        SELECT basis->>'name' AS name, basis->'from' AS facts, currency, pool, gpu_model, node, region, recorded_at,
            superseded_at, effective_from_ms
        FROM price WHERE basis #>> '{from,count}' IS NOT NULL ORDER BY 1, id
        """,
    )
    found = []
    for row in rows:
        bought_ms = parse_instant(row.facts["in_service"])
        # The rate after the hardware is written off names the same purchase, and is no second one.
        if row.effective_from_ms == bought_ms:
            hardware = Hardware(
                row.name,
                int(row.facts["count"]),
                row.facts["per"],
                Decimal(row.facts["capex"]),
                row.currency,
                bought_ms,
                row.pool,
                row.gpu_model,
                row.node,
                row.region,
            )
            found.append(_version(hardware, row))
    return found


def _version(value: Commitment | Hardware, row: Any) -> Version:
    superseded_ms = None if row.superseded_at is None else to_ms(row.superseded_at)
    return Version(value, to_ms(row.recorded_at), superseded_ms)
