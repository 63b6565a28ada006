"""The deep proof: hours folded again from usage intervals, and days rated again from hours, imports
and declarations.

It runs the product's own fold and rating in a transaction that is rolled back, and compares what
they give with what is stored, line by line: also the accelerator, the workload and the node of each
charge, which no sum of the ledger has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

from gpuledger_collector.accounting.identities import (
    CHARGES,
    HOURS,
    RECORDED,
    Mismatch,
    differences,
)
from gpuledger_collector.accounting.inference_share import InferenceShare
from gpuledger_collector.accounting.ledger import ConservationCheck
from gpuledger_collector.accounting.ledger_rows import RecomputeRequest
from gpuledger_collector.accounting.measures import MEASURES, add_known, amounts_of
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.services.hourly_usage import BATCH, fold_requested
from gpuledger_collector.services.rating import rated_again
from gpuledger_collector.storage.billing import identities, reports
from gpuledger_collector.storage.billing.identities import path_text
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

Amounts = tuple[int | None, ...]


def unlike_evidence(connection: Connection, period: Period) -> Iterator[Mismatch]:
    """Where the rated days of a period are not what evidence and declarations give now; nothing is
    changed.

    A day that has not ended is left out: it is rated again by the minute. Of a day whose usage
    intervals retention has removed the hours are taken as they are.
    """
    calendar = zones.calendar(connection)
    checks = [
        check
        for check in reports.conservation_checks(connection, period)
        if check.until_ms >= calendar.day_of(check.day_ms).end_ms
    ]
    days = {check.day_ms: calendar.day_of(check.day_ms) for check in checks}
    expired = identities.expired_days(connection, list(days.values()))
    for check in checks:
        day = days[check.day_ms]
        with connection.transaction(force_rollback=True):
            if day.start_ms not in expired:
                yield from _unlike_hours(connection, day, calendar)
            yield from _unlike_charges(connection, day, calendar, check)


def _unlike_hours(connection: Connection, day: Period, calendar: Calendar) -> list[Mismatch]:
    """Fold the hours of a day again, and compare; rating then sees them as folded.

    Raises EvidenceDamaged when packed evidence is not what was packed.
    """
    # Imports numpy, which a proof without evidence does not need.
    from gpuledger_collector.storage.telemetry import interval_packing

    interval_packing.require_sealed(connection, day)
    identities.copy_hours(connection, day)
    # Requests of no row: nothing is removed that waits to be folded.
    requests = [RecomputeRequest(0, *hour) for hour in identities.evident_hours(connection, day)]
    for at in range(0, len(requests), BATCH):
        fold_requested(connection, requests[at : at + BATCH])
    expected, stored = identities.unlike_hours(connection, day)
    date = calendar.date_of(day.start_ms).isoformat()
    return differences(HOURS, _prefix_date(date, expected), _prefix_date(date, stored))


def _prefix_date(date: str, rows: dict[tuple[str, ...], Amounts]) -> dict[tuple[str, ...], Amounts]:
    return {(date, *key): amounts for key, amounts in rows.items()}


def _unlike_charges(
    connection: Connection, day: Period, calendar: Calendar, check: ConservationCheck
) -> Iterator[Mismatch]:
    """Rate a day again, and compare its charges with what was billed for it, and its check with the
    recorded one.
    """
    date = calendar.date_of(day.start_ms).isoformat()
    rated = rated_again(connection, day)
    billed = list(reports.billed_so_far(connection, day.start_ms))
    # A correction states what changed, not from when to when the line reaches.
    is_corrected = any(line.booked_day_ms is not None for line in billed)
    sides = (
        _by_place(date, charges, is_corrected)
        for charges in (rated.charges, [line.charge for line in billed])
    )
    yield from differences(CHARGES, *sides)
    for field in fields(ConservationCheck):
        expected, stored = getattr(rated.check, field.name), getattr(check, field.name)
        if expected != stored:
            amounts = (value if isinstance(value, int) else None for value in (expected, stored))
            yield Mismatch(
                identity=RECORDED,
                place={"day": date},
                measure=field.name,
                expected=next(amounts),
                stored=next(amounts),
            )


def _by_place(
    date: str, charges: Iterable[Charge], is_corrected: bool
) -> dict[tuple[str, ...], Amounts]:
    """Add charges up by all that identifies a line, apart from the ids of prices that say the same."""
    sums: dict[tuple[str, ...], Sequence[int | None]] = {}
    for charge in charges:
        price = charge.price
        terms = () if price is None else (price.purchase, price.rate, price.list_rate, price.region)
        declared = (charge.commitment, charge.adjustment, charge.node_cost)
        place = (
            date,
            _text(charge.accelerator_id),
            _text(charge.workload_id),
            "" if charge.owner is None else path_text(charge.owner),
            charge.state,
            charge.pool,
            charge.gpu_model,
            charge.node,
            charge.currency or "",
            " ".join(str(term) for term in terms if term not in (None, "")),
            ", ".join(
                [
                    *(each.name for each in declared if each is not None),
                    *_share_texts(charge.inference, is_corrected),
                ]
            ),
            "" if is_corrected else f"{charge.start_ms} to {charge.end_ms}",
        )
        known = sums.get(place, (None,) * len(MEASURES))
        sums[place] = [add_known(*pair) for pair in zip(known, amounts_of(charge), strict=True)]
    return {place: tuple(amounts) for place, amounts in sums.items()}


def _share_texts(share: InferenceShare | None, is_corrected: bool) -> list[str]:
    """What tells the part of a shared server from others; a correction may have other weights."""
    if share is None:
        return []
    weights = [] if is_corrected else [share.weights]
    return [share.server, share.gateway, share.tenant, share.trust, *weights]


def _text(number: int | None) -> str:
    return "" if number is None else str(number)
