"""Preview a decision: what the evidence of a dispute makes of it, and its days rated with it and
without it, in memory; the ledger is not changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuledger_collector.accounting import contested_lines
from gpuledger_collector.accounting.adjustments import Adjustment, Place, opposite_of
from gpuledger_collector.accounting.contested_lines import EvidenceLine
from gpuledger_collector.accounting.corrections import difference
from gpuledger_collector.accounting.dispute_moves import (
    Decided,
    Move,
    ReversedShare,
    destination_cost,
    find_moves,
)
from gpuledger_collector.accounting.disputes import (
    Dispute,
    DisputeRecord,
    Remedy,
    Reversal,
    after_decision,
)
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.rating import Charge, held_costs
from gpuledger_collector.accounting.reattribution import Reattribution
from gpuledger_collector.services.commitment_coverage import book_of
from gpuledger_collector.services.rating import DayUsage, price_usage, usage_of
from gpuledger_collector.storage.billing import adjustments, periods
from gpuledger_collector.storage.billing import disputes as rows
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

Effect = Decided | list[ReversedShare]
"""What accepting a dispute changes: time that moves, or adjustments that are taken back."""


def preview_acceptance(
    database: Database, number: int, remedy: Remedy | Reversal, now_ms: int
) -> tuple[Effect, bool]:
    """What accepting a dispute would change, and whether nothing of it waits to be rated.

    It is exact for what is rated. Raises NoDispute, BadStep, DisputeRefused.
    """
    with database.transaction(read_only=True) as connection:
        effect = effect_of(connection, number, remedy, now_ms)
        return effect, rows.is_rated(connection, rows.read(connection, number).period)


def preview_default(database: Database, record: DisputeRecord, now_ms: int) -> Effect:
    """What accepting a dispute would take from its owner, whoever gets it.

    Raises BadStep, and DisputeRefused where nothing of it can move.
    """
    only_entries = contested_lines.is_about_adjustments(record.content["lines"])
    remedy = Reversal() if only_entries else Remedy({})
    with database.transaction(read_only=True) as connection:
        return effect_of(connection, record.dispute.id, remedy, now_ms)


def _evidence_lines(connection: Connection, number: int) -> list[EvidenceLine]:
    lines: list[EvidenceLine] = json.loads(rows.evidence(connection, number))["lines"]
    return lines


def effect_of(
    connection: Connection, number: int, remedy: Remedy | Reversal, now_ms: int
) -> Effect:
    """What accepting a dispute changes. Raises NoDispute, BadStep, DisputeRefused."""
    dispute = rows.read(connection, number)
    after_decision(dispute.state, remedy)
    if isinstance(remedy, Reversal):
        return preview_reversals(connection, opposites_of(connection, dispute, "", ""))
    return preview_decision(connection, reattributions_of(connection, dispute, remedy), now_ms)


def affected_by(
    connection: Connection, number: int, remedy: Remedy | Reversal, now_ms: int
) -> list[Period]:
    """The days whose charges depend on a resolution. Raises NoDispute, BadStep, DisputeRefused."""
    dispute = rows.read(connection, number)
    after_decision(dispute.state, remedy)
    if isinstance(remedy, Remedy):
        return affected_days(connection, reattributions_of(connection, dispute, remedy), now_ms)
    calendar = zones.calendar(connection)
    shares = preview_reversals(connection, opposites_of(connection, dispute, "", ""))
    return [calendar.day_of(day_ms) for day_ms in sorted({share.day_ms for share in shares})]


def opposites_of(
    connection: Connection, dispute: Dispute, reason: str, approver: str
) -> list[Adjustment]:
    """The opposite of each contested entry, of which the evidence must hold the whole.

    Raises DisputeRefused.
    """
    contested = contested_lines.contested_entries(_evidence_lines(connection, dispute.id))
    known = adjustments.current(connection)
    opposites = [opposite_of(known, name, reason, approver) for name in contested]
    for (name, micro), opposite in zip(contested.items(), opposites, strict=True):
        contested_lines.require_whole(name, micro, opposite)
    return opposites


def reattributions_of(
    connection: Connection, dispute: Dispute, remedy: Remedy
) -> list[Reattribution]:
    """The contested time by workload and accelerator: what the evidence's lines say, and nothing
    that came after it.

    Raises DisputeRefused.
    """
    lines = _evidence_lines(connection, dispute.id)
    accelerators = rows.ids_by_name(
        connection, "accelerator", "uuid", {line["accelerator"] for line in lines}
    )
    workloads = rows.ids_by_name(
        connection, "workload", "key", {line["workload"] for line in lines}
    )
    return contested_lines.decisions_of(dispute, lines, remedy, accelerators, workloads)


def preview_decision(
    connection: Connection, decisions: Sequence[Reattribution], now_ms: int
) -> Decided:
    """What these decisions of one dispute would change, by day, owner and currency.

    It is the difference of two ratings of what is folded and rated: evidence that waits for either
    is not seen.
    """
    closed = periods.list_closed(connection)
    days = list(affected_days(connection, decisions, now_ms))
    book = book_of(connection, Period(days[0].start_ms, days[-1].end_ms) if days else None)
    calendar = zones.calendar(connection)
    to = decisions[0].owner
    moves: list[Move] = []
    gain: dict[str, int] = {}
    moved: dict[Place, int] = {}
    month = ""
    for day in days:
        if month != calendar.month_of(day.start_ms):
            month, moved = calendar.month_of(day.start_ms), {}
        # Both sides by the same rating: whatever else has changed since the days were rated is on
        # both.
        before, *_ = price_usage(usage_of(connection, day, now_ms), book)
        after, *_ = price_usage(
            _with_volumes(usage_of(connection, day, now_ms, decisions), moved), book
        )
        for charges, sign in ((before, -1), (after, 1)):
            for place, gpu_ns in _volumes(charges).items():
                moved[place] = moved.get(place, 0) + sign * gpu_ns
        changes = difference(before, after)
        moves += find_moves(changes, to, closed=any(each.period.clip(day) for each in closed))
        for currency, micro in destination_cost(changes, to).items():
            gain[currency] = gain.get(currency, 0) + micro
    return Decided(moves, to, dict(sorted(gain.items())))


def preview_reversals(
    connection: Connection, opposites: Sequence[Adjustment]
) -> list[ReversedShare]:
    """What booking these entries, which take contested adjustments back, would change."""
    closed, calendar = periods.list_closed(connection), zones.calendar(connection)
    shares = []
    for opposite in opposites:
        day = calendar.day_of(adjustments.span_of(opposite, calendar).start_ms)
        is_closed = any(each.period.clip(day) for each in closed)
        shares += [
            ReversedShare(
                day.start_ms,
                share.owner,
                opposite.name,
                opposite.currency or "",
                share.micro,
                is_closed,
            )
            for share in opposite.entry_shares()
        ]
    return shares


def affected_days(
    connection: Connection, decisions: Sequence[Reattribution], now_ms: int
) -> list[Period]:
    """Days whose charges depend on a decision: its own, and later ones of a month with a volume
    price.
    """
    calendar = zones.calendar(connection)
    starts = {
        calendar.day_of(day.start_ms).start_ms
        for decision in decisions
        for day in calendar.days(Period(decision.start_ms, decision.end_ms))
        if day.start_ms < now_ms
    }
    for name in {calendar.month_of(start_ms) for start_ms in starts}:
        month = calendar.month(name)
        first_ms = min(start_ms for start_ms in starts if month.start_ms <= start_ms < month.end_ms)
        starts |= _tiered_days(connection, calendar, Period(first_ms, month.end_ms), now_ms)
    return [calendar.day_of(start_ms) for start_ms in sorted(starts)]


def _tiered_days(connection: Connection, calendar: Calendar, rest: Period, now_ms: int) -> set[int]:
    """Starts of the days of the rest of a month whose volume price follows from its first day."""
    if not adjustments.tiered_between(
        connection, calendar.date_of(rest.start_ms), calendar.date_of(rest.end_ms)
    ):
        return set()
    return {day.start_ms for day in calendar.days(rest) if day.start_ms < now_ms}


def _volumes(charges: Sequence[Charge]) -> dict[Place, int]:
    return {place: held.gpu_ns for place, held in held_costs(charges).items()}


def _with_volumes(usage: DayUsage, moved: Mapping[Place, int]) -> DayUsage:
    """The usage of a day after a decision has moved hours of earlier days of its month."""
    if not any(moved.values()):
        return usage
    known = usage.adjusting.volumes
    volumes = {place: known.get(place, 0) + moved.get(place, 0) for place in {*known, *moved}}
    return replace(usage, adjusting=replace(usage.adjusting, volumes=volumes))
