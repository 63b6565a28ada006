"""The receipt of one GPU's time, from the charges and the hourly ledger, with its proof."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.gpu_receipt import (
    ACTIVITY_UNKNOWN,
    BUSY,
    IDLE,
    GpuDay,
    GpuHour,
    GpuPart,
    GpuReceipt,
    cost_holds,
    is_of_slice,
    lines_of,
)
from gpuledger_collector.accounting.ledger import ConservationCheck, ExportedCharge
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.accounting.rating import capacity_cost, present_ms
from gpuledger_collector.accounting.usage import HELD, STRANDED, UNOBSERVED
from gpuledger_collector.services.commitment_coverage import book_of, list_places
from gpuledger_collector.services.placements import RatedPlacement, placements_of, with_stranded
from gpuledger_collector.storage.billing import fleet_hours, reports
from gpuledger_collector.storage.billing.fleet_hours import StateHour
from gpuledger_collector.storage.ledger import evidence_periods, inventory, zones
from gpuledger_collector.storage.locks import Connection

MOST_RECEIPT_DAYS = 92
"""Days of a receipt: a quarter."""
Placements = Mapping[int, Sequence[RatedPlacement]]


class UnknownGpu(LookupError):
    """No accelerator has a UUID; the text is one sentence."""


def read_gpu_receipt(connection: Connection, uuid: str, period: Period) -> GpuReceipt:
    """Read the receipt of a board or a slice for the days of a period, for a reader of the entire
    fleet.

    Raises UnknownGpu; ValueError for too many days.
    """
    parts = fleet_hours.parts_of_gpu(connection, uuid)
    if not parts:
        raise UnknownGpu(f"no GPU has the UUID {uuid!r}: the map of the fleet has all of them")
    calendar = zones.calendar(connection)
    # A day may have 25 hours, and centuries of days are not listed to be refused.
    too_long = period.ms > (MOST_RECEIPT_DAYS + 1) * DAY_MS
    days = [] if too_long else calendar.days(period)
    if too_long or len(days) > MOST_RECEIPT_DAYS:
        raise ValueError(f"from and to: a receipt has at most {MOST_RECEIPT_DAYS} days")
    is_slice = all(part.uuid == uuid != part.device for part in parts)
    ids = [part.accelerator_id for part in parts]
    placements = _placements(connection, parts, period, with_rest=not is_slice)
    charges = [
        line
        for line in reports.charged_to_accelerators(connection, period, ids)
        if not is_slice or is_of_slice(line)
    ]
    state_hours = fleet_hours.hours_of_accelerators(connection, ids, period)
    checks = reports.conservation_checks(connection, period)
    until_ms = max((check.until_ms for check in checks), default=period.start_ms)
    hours = _hours(placements, state_hours, Period(period.start_ms, min(period.end_ms, until_ms)))
    return GpuReceipt(
        asked=uuid,
        parts=parts,
        first_ms=fleet_hours.first_instant_ms(connection, ids) or 0,
        period=period,
        days=days,
        hours=hours,
        lines=lines_of(charges, until_ms, evidence_periods.list_periods(connection, ids, period)),
        proofs=_proofs(calendar, checks, placements, charges, hours, book_of(connection, period)),
    )


def _placements(
    connection: Connection, parts: Sequence[GpuPart], period: Period, *, with_rest: bool
) -> Placements:
    rows = inventory.capacity(connection, period, [part.accelerator_id for part in parts])
    placements = placements_of(rows)
    return with_stranded(placements, rows, period) if with_rest else placements


def _hours(
    placements: Placements, state_hours: Sequence[StateHour], counted: Period
) -> list[GpuHour]:
    """Hours of the ledger, and what of the GPU's time nobody observed or no slice has.

    The hour in which the counted time ends may have been folded since: what came after that end is
    left out of its longest state, as it is of no charge yet.
    """
    seen: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for row in state_hours:
        hour = seen[row.accelerator_id, row.hour_ms - row.hour_ms % HOUR_MS]
        if row.state == HELD:
            hour[BUSY] += row.busy_ms
            hour[IDLE] += row.idle_ms
            hour[ACTIVITY_UNKNOWN] += row.held_ms - row.busy_ms - row.idle_ms
        else:
            hour[row.state] += row.held_ms
    hours = []
    for period in counted.hours():
        start_ms = period.start_ms - period.start_ms % HOUR_MS
        states: Counter[str] = Counter()
        for number, own_placements in placements.items():
            folded = seen.get((number, start_ms), Counter())
            is_over = period.end_ms < counted.end_ms or period.end_ms % HOUR_MS == 0
            states += _hour_of(own_placements, period, folded, is_over=is_over)
        if states:
            hours.append(GpuHour(period.start_ms, dict(states)))
    return hours


def _hour_of(
    placements: Sequence[RatedPlacement], period: Period, seen: Counter[str], *, is_over: bool
) -> Counter[str]:
    """GPU-nanoseconds of one accelerator's hour by state."""
    states: Counter[str] = Counter()
    present, gpu_micro = 0, 0
    for placement in placements:
        ms = present_ms([placement.period], period, period.end_ms)
        if placement.accelerator.stranded:
            states[STRANDED] += gpu_ns(placement.accelerator.gpu_micro, ms)
        elif ms or not gpu_micro:
            present, gpu_micro = present + ms, placement.accelerator.gpu_micro
    later = 0 if is_over else max(0, seen.total() - present)
    longest = max(seen, key=lambda state: seen[state], default="")
    for state, ms in seen.items():
        states[state] += gpu_ns(gpu_micro, ms - (later if state == longest else 0))
    states[UNOBSERVED] += gpu_ns(gpu_micro, max(0, present - seen.total()))
    return +states


def _proofs(
    calendar: Calendar,
    checks: Sequence[ConservationCheck],
    placements: Placements,
    charges: Sequence[ExportedCharge],
    hours: Sequence[GpuHour],
    book: PriceBook,
) -> list[GpuDay]:
    """The proof of each rated day: capacity x rate from the inventory and the price book, as the
    conservation check of the day computes it, against the lines and the hours.
    """
    proofs = []
    for check in checks:
        day = calendar.day_of(check.day_ms)
        capacities = [
            capacity_cost(placement.accelerator, day, present, book, check.until_ms)
            for _, placement, present in list_places(placements, day)
        ]
        own_charges = [line for line in charges if line.charge.day_ms == day.start_ms]
        proofs.append(
            GpuDay(
                date=calendar.date_of(day.start_ms).isoformat(),
                period=day,
                until_ms=check.until_ms,
                capacity_ns=sum(capacity.capacity_ns for capacity in capacities),
                charged_ns=sum(line.charge.gpu_ns for line in own_charges),
                hours_ns=sum(
                    sum(hour.states.values())
                    for hour in hours
                    if day.start_ms <= hour.at_ms < day.end_ms
                ),
                cost_holds=cost_holds(own_charges, capacities),
                day_holds=check.holds,
            )
        )
    return proofs
