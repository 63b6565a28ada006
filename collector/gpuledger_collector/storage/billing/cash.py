"""What the cash view reads: payments as they were declared, and charges less what was paid for
before.
"""

from __future__ import annotations

import datetime as dt
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
from gpuledger_collector.accounting.period import Period, parse_instant
from gpuledger_collector.storage.billing import commitments, locations, periods, reports
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
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
    closed = {month.name: month.closed_ms for month in periods.closed(connection)}
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
    keys = [f"coalesce({reports.CHARGE_DIMENSIONS[name]}, '')" for name in by]
    groups = ", ".join(str(at + 1) for at in range(len(by) + 3))
    rows = connection.execute(
        f"""
        SELECT {"".join(key + ", " for key in keys)} l.state, l.currency, l.correction_of, sum(l.gpu_ns),
            sum(l.busy_ns), sum(l.idle_ns), sum(l.unknown_ns), sum({_PAID}), sum(l.idle_cost_micro), sum(l.energy_mj),
            sum(l.cost_micro)
        FROM (
            SELECT {_COLUMNS}, NULL::bigint AS amended_ms, '' AS correction_of FROM charge
            WHERE day_ms >= %(start)s AND day_ms < %(end)s
            UNION ALL SELECT {_COLUMNS}, day_ms, {reports.AMENDS if apart else "''"} FROM correction
            WHERE booked_day_ms >= %(start)s AND booked_day_ms < %(end)s
        ) l LEFT JOIN price p ON p.id = l.price_id LEFT JOIN owner o ON o.id = l.owner_id
        LEFT JOIN workload w ON w.id = l.workload_id
        GROUP BY {groups} ORDER BY {groups}
        """,
        {
            "start": period.start_ms,
            "end": period.end_ms,
            "unit": NANO_MICRO_HOUR,
            "internal": list(INTERNAL),
        },
    )
    names = (
        "gpu_ns",
        "busy_ns",
        "idle_ns",
        "unknown_ns",
        "cost_micro",
        "idle_cost_micro",
        "energy_mj",
    )
    found = []
    for row in rows:
        cells, (state, currency, month), amounts = (
            row[: len(by)],
            row[len(by) : len(by) + 3],
            row[len(by) + 3 :],
        )
        known = [None if amount is None else int(amount) for amount in amounts]
        measures: dict[str, Any] = dict(zip((*names, "effective_cost_micro"), known, strict=True))
        found.append(ChargedLine(cells, state, currency, month, **measures))
    return found


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
    versions = connection.execute(
        "SELECT id, recorded_at, superseded_at FROM commitment ORDER BY name, id"
    ).fetchall()
    found = commitments.COMMITMENTS.by_id(connection, [row[0] for row in versions])
    return [
        _version(found[number], recorded, superseded) for number, recorded, superseded in versions
    ]


def _hardware(connection: Connection) -> list[Version]:
    rows = connection.execute("""
        SELECT basis->>'name', basis->'from', currency, pool, gpu_model, node, region, recorded_at, superseded_at,
            effective_from_ms
        FROM price WHERE basis #>> '{from,count}' IS NOT NULL ORDER BY 1, id
        """)
    found = []
    for name, facts, currency, pool, model, node, region, recorded, superseded, from_ms in rows:
        bought_ms = parse_instant(facts["in_service"])
        # The rate after the hardware is written off names the same purchase, and is no second one.
        if from_ms == bought_ms:
            value = Hardware(
                name,
                int(facts["count"]),
                facts["per"],
                Decimal(facts["capex"]),
                currency,
                bought_ms,
                pool,
                model,
                node,
                region,
            )
            found.append(_version(value, recorded, superseded))
    return found


def _version(
    value: Commitment | Hardware, recorded: dt.datetime, superseded: dt.datetime | None
) -> Version:
    return Version(value, to_ms(recorded), None if superseded is None else to_ms(superseded))
