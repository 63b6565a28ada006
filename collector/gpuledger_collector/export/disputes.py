"""Disputes as JSON and as a page of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from gpuledger_collector.accounting.contested_lines import line_id
from gpuledger_collector.accounting.dispute_moves import Decided, Move, ReversedShare
from gpuledger_collector.accounting.disputes import Dispute, DisputeRecord
from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.money import Money, round_amounts
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Calendar, format_instant
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.export.cells import lines_text
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_common.plurals import plural


def owner_text(owner: Mapping[str, str]) -> str:
    """An owner's levels as one text."""
    return ", ".join(f"{level}={value}" for level, value in owner.items()) or "(unattributed)"


def amounts(cost: Mapping[str, int]) -> str:
    """Micro-units by currency in minor units, such as `24.00 USD`."""
    return (
        " + ".join(
            f"{Money(micro, currency).plain()} {currency}" for currency, micro in cost.items()
        )
        or "nothing priced"
    )


def days_text(dispute: Dispute) -> str:
    """The span of a dispute."""
    return f"{format_instant(dispute.period.start_ms)} to {format_instant(dispute.period.end_ms)}"


DISPUTES = Report[Dispute](
    "disputes",
    (
        Column("id", lambda dispute: dispute.id),
        Column("state", lambda dispute: dispute.state),
        Column("owner", lambda dispute: owner_text(dispute.owner)),
        Column("days", days_text),
        Column("amount", lambda dispute: amounts(dispute.cost)),
        Column("reason", lambda dispute: dispute.reason),
    ),
)


def _cost(line: ExportedCharge) -> str:
    charge = line.charge
    if charge.currency is None:
        return ""
    return f"{Money(charge.cost_micro or 0, charge.currency).plain()} {charge.currency}"


def _money(line: ExportedCharge) -> Money | None:
    charge = line.charge
    return None if charge.currency is None else Money(charge.cost_micro or 0, charge.currency)


LINES = Report[ExportedCharge](
    "dispute_lines",
    (
        Column("id", line_id),
        Column("from", lambda item: format_instant(item.charge.start_ms)),
        Column("to", lambda item: format_instant(item.charge.end_ms)),
        Column("workload", lambda item: item.workload_key),
        Column("accelerator", lambda item: item.accelerator_uuid),
        Column("gpu_hours", lambda item: f"{hours_decimal([item.charge.gpu_ns])[0]:.6f}"),
        Column("cost", _cost),
        Column(
            "correction",
            lambda item: "correction" if item.booked_day_ms is not None else None,
        ),
    ),
)
LINES_TABLE = Report[ExportedCharge](
    "dispute_lines_table",
    (
        Column("id", lambda item: line_id(item)[:12]),
        Column("from", lambda item: item.charge.start_ms, Kind.INSTANT),
        Column("to", lambda item: item.charge.end_ms, Kind.INSTANT),
        Column("workload", lambda item: item.workload_key, is_optional=True),
        Column("accelerator", lambda item: item.accelerator_uuid, is_optional=True),
        Column("gpu_hours", lambda item: hours_decimal([item.charge.gpu_ns])[0], Kind.HOURS),
        Column("cost", _money, Kind.MONEY),
        Column("currency", lambda item: item.charge.currency),
        Column(
            "correction",
            lambda item: "correction" if item.booked_day_ms is not None else None,
            is_optional=True,
        ),
    ),
)
"""The lines in a table, with the start of their ids: it is enough to name one."""


def move_lines(decided: Decided, calendar: Calendar) -> list[str]:
    """A sentence for each move, and their sum; the amounts shown add up to the sum shown."""
    moves = decided.moves
    hours = hours_decimal([move.gpu_ns for move in moves])
    lines = [
        f"  {calendar.date_of(move.day_ms)}  {_move_text(move, length, cost)}"
        f"{' (a correction: the day is closed)' if move.closed else ''}"
        for move, length, cost in zip(moves, hours, _minor_costs(moves), strict=True)
    ]
    lines.append(f"{sum(hours, Decimal(0)):.6f} GPU-hours, {amounts(decided.loss)} in all")
    if decided.gain != decided.loss:
        lines.append(f"for {_destination(decided.to)}, at its own price, {amounts(decided.gain)}")
    return lines


def reversal_lines(shares: Sequence[ReversedShare], calendar: Calendar) -> list[str]:
    """A sentence for each amount that a reversal books."""
    return [
        f"  {calendar.date_of(share.day_ms)}  {_path_text(share.owner)} pays "
        f"{more_or_less({share.currency: share.cost_micro})}: {share.adjustment}"
        f"{' (a correction: the day is closed)' if share.closed else ''}"
        for share in shares
    ]


def more_or_less(cost: Mapping[str, int]) -> str:
    """How much more or less is paid, by currency."""
    return " and ".join(
        f"{amounts({currency: abs(micro)})} {'more' if micro > 0 else 'less'}"
        for currency, micro in cost.items()
    )


def _move_text(move: Move, hours: Decimal, cost: str) -> str:
    owner = _path_text(move.owner)
    if not move.gpu_ns:
        return (
            f"{owner} pays {cost.lstrip('-')} {'more' if cost.startswith('-') else 'less'} by its"
            " volume price"
        )
    return f"{hours:.6f} GPU-hours, {cost} from {owner} to {_destination(move.to)}"


def difference_text(
    owner: Mapping[str, str], loss: Mapping[str, int], to: OwnerPath | None, gain: Mapping[str, int]
) -> str:
    """What a contesting owner pays less, and what the destination pays more."""
    name, verb = _destination(to), "costs" if to is None else "pays"
    return f"{owner_text(owner)} pays {amounts(loss)} less, {name} {verb} {amounts(gain)} more"


def _minor_costs(moves: Sequence[Move]) -> list[str]:
    """The costs of moves in minor units, rounded together by currency."""
    texts = ["no price"] * len(moves)
    for currency in {move.currency for move in moves if move.currency is not None}:
        places = [at for at, move in enumerate(moves) if move.currency == currency]
        parts = round_amounts([moves[at].cost_micro or 0 for at in places], currency)
        for at, part in zip(places, parts, strict=True):
            texts[at] = f"{part.plain()} {currency}"
    return texts


def _path_text(owner: OwnerPath) -> str:
    return owner_text(owner.levels())


def _destination(owner: OwnerPath | None) -> str:
    return "unavailable time" if owner is None else _path_text(owner)


def move_object(move: Move, calendar: Calendar) -> dict[str, Any]:
    """A move as JSON: `to` null means that the time becomes unavailable; money as integers of
    micro-units.
    """
    return {
        "day": str(calendar.date_of(move.day_ms)),
        "from": move.owner.levels(),
        "to": None if move.to is None else move.to.levels(),
        "currency": move.currency,
        "gpu_ns": move.gpu_ns,
        "cost_micro": move.cost_micro,
        "correction": move.closed,
    }


def reversal_object(share: ReversedShare, calendar: Calendar) -> dict[str, Any]:
    """An amount that a reversal books, as JSON."""
    return {
        "day": str(calendar.date_of(share.day_ms)),
        "owner": share.owner.levels(),
        "adjustment": share.adjustment,
        "currency": share.currency,
        "cost_micro": share.cost_micro,
        "correction": share.closed,
    }


def as_object(dispute: Dispute) -> dict[str, Any]:
    """A dispute without its evidence, as JSON: instants in RFC 3339, money as integers of
    micro-units.
    """
    return {
        "id": dispute.id,
        "state": dispute.state,
        "owner": dict(dispute.owner),
        "from": format_instant(dispute.period.start_ms),
        "to": format_instant(dispute.period.end_ms),
        "accelerator": dispute.accelerator,
        "workload": dispute.workload,
        "line": dispute.line,
        "reason": dispute.reason,
        "opened": format_instant(dispute.opened_ms),
        "opened_by": dispute.opened_by,
        "resolved": None if dispute.resolved_ms is None else format_instant(dispute.resolved_ms),
        "gpu_ns": dispute.gpu_ns,
        "cost_micro": dict(dispute.cost),
        "seal": dispute.seal,
        "entries": [
            {
                "at": format_instant(entry.at_ms),
                "who": entry.who,
                "kind": entry.kind,
                "words": entry.words,
            }
            for entry in dispute.entries
        ],
    }


def record_object(record: DisputeRecord) -> dict[str, Any]:
    """A dispute with its evidence and what is paid by now, as JSON."""
    return {
        **as_object(record.dispute),
        "seal_holds": record.seal_holds,
        "billed_now": record.billed_now,
        "rated": record.is_rated,
        "evidence": record.content,
    }


def as_text(record: DisputeRecord, most: int, would_change: Sequence[str] = ()) -> str:
    """A page about a dispute; at most so many lines of each kind.

    `would_change`: what an acceptance would do, see `move_lines` and `reversal_lines`.
    """
    sentences = list(_sentences(record, most))
    if would_change:
        sentences += ["if it is accepted now, this changes:", *would_change]
    return lines_text(sentences)


def _sentences(record: DisputeRecord, most: int) -> Iterator[str]:
    dispute, lines = record.dispute, record.content["lines"]
    hours = hours_decimal([dispute.gpu_ns])[0]
    yield (
        f"dispute {dispute.id}, {dispute.state}: {owner_text(dispute.owner)}, {days_text(dispute)}"
    )
    yield f"contested: {hours:.6f} GPU-hours, {amounts(dispute.cost)}"
    for entry in dispute.entries:
        yield f"  {format_instant(entry.at_ms)}  {entry.who} ({entry.kind}): {entry.words}"
    yield f"the lines ({len(lines)}):"
    for line in lines[:most]:
        yield f"  {_sealed_line(line)}"
    if len(lines) > most:
        yield f"  ... and {len(lines) - most} more (--format json shows all)"
    yield "what they rest on, as it stood at the opening:"
    yield from (f"  {sentence}" for sentence in _grounds(record.content))
    verdict = "is as it was sealed" if record.seal_holds else "is NOT what was sealed"
    yield f"the evidence {verdict}: {dispute.seal}"
    waiting = "" if record.is_rated else " (days wait to be rated again)"
    yield f"now {owner_text(dispute.owner)} pays {amounts(record.billed_now)} of it{waiting}"


def _sealed_line(line: Mapping[str, Any]) -> str:
    micro, currency = line["cost_micro"], line["currency"]
    rate = "" if line["rate"] is None else f" at {line['rate']}"
    cost = (
        "no price"
        if currency is None
        else f"{Money(micro or 0, currency).plain()} {currency}{rate}"
    )
    span = f"{format_instant(line['start_ms'])} to {format_instant(line['end_ms'])}"
    where = line["accelerator"] or "counted usage"
    booked = "" if line["booked_day_ms"] is None else "  correction"
    held = where if line["workload"] is None else f"{line['workload']} on {where}"
    return f"{line['id'][:12]}  {span}  {held}  {cost}{booked}"


def _grounds(evidence: Mapping[str, Any]) -> Iterator[str]:
    usage_intervals = evidence["usage_intervals"]
    batches = {(row["node"], row["epoch"], row["seq"]) for row in usage_intervals["rows"]}
    nodes = sorted({row["node"] for row in usage_intervals["rows"]})
    least = "at least " if usage_intervals["count"] > len(usage_intervals["rows"]) else ""
    yield (
        f"{usage_intervals['count']} usage intervals in {least}{len(batches)} batches of "
        f"{', '.join(nodes) or 'no agent'}; "
        f"SHA-256 over all {usage_intervals['sha256'][:16]}"
    )
    yield f"{plural(evidence['hours']['count'], 'hour')} of usage folded from them"
    if evidence["counts"]["count"]:
        yield f"{plural(evidence['counts']['count'], 'count')} of GPUs, imported"
    raw = sum(entry["samples"] for entry in evidence["samples"])
    packed = sum(entry["rows"] for entry in evidence["packed_samples"]["rows"])
    yield f"{plural(raw, 'sample')} kept raw, {packed} packed"
    for entry in evidence["workloads"]:
        tags = (
            ", ".join(f"{name}={value}" for name, value in sorted(entry["tags"].items()))
            or "no tags"
        )
        who = entry["user_name"] or "nobody known"
        yield f"workload {entry['key']} of {who}: {tags}"
    for entry in evidence["rules"]:
        names = (
            ", ".join(f"{rule['name']} ({rule['id']})" for rule in entry["rules"])
            or "no rule; its tags say whose"
        )
        yield f"rules for {entry['workload']} in {entry['pool']}: {names}"
    for entry in evidence["prices"]:
        yield (
            f"price {entry['id']}: {entry['rate_per_gpu_hour']} {entry['currency']}"
            f" {entry['purchase']} from {format_instant(entry['effective_from_ms'])}, recorded"
            f" {entry['recorded_at']}"
        )
    broken = [entry for entry in evidence["proofs"] if not entry["holds"]]
    yield (
        f"{len(evidence['proofs'])} proofs of days,"
        f" {'all hold' if not broken else f'{len(broken)} do not hold'}"
    )
    for entry in evidence["closed"]:
        yield f"{entry['name']} was closed, its seal is {entry['seal']}"
