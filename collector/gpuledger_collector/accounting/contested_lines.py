"""The lines that a dispute is about: how one is named, what is left of them, and what accepting the
dispute makes of them.

A decision follows from the evidence as it was sealed, and from nothing that came after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger_collector.accounting import seal
from gpuledger_collector.accounting.adjustments import Adjustment
from gpuledger_collector.accounting.disputes import Dispute, DisputeRefused, Remedy
from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.owner_tree import LEVELS, path_of
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.reattribution import UNNUMBERED, Key, Reattribution, spans_of
from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message
from gpuledger_collector.accounting.usage import HELD, UNAVAILABLE

SHORT = 8
"""Fewest letters of a line's hash that name it."""
MOST_LINES = 20_000
EvidenceLine = Mapping[str, Any]
"""A line in the evidence: its hash (`id`) and what is sealed of it."""


@dataclass(frozen=True, slots=True)
class Contest:
    """What is to be contested: an owner's lines of some days, narrowed down by names where they are
    given.
    """

    owner: Mapping[str, str]
    period: Period
    accelerator: str | None = None
    workload: str | None = None
    line: str | None = None


def require_levels(owner: Mapping[str, str]) -> None:
    """Raise DisputeRefused for an owner of whom no level is named."""
    if not owner or set(owner) - set(LEVELS):
        raise DisputeRefused(f"owner: name at least one level of {', '.join(LEVELS)}")


def require_contestable(lines: Sequence[ExportedCharge]) -> None:
    """Raise DisputeRefused where there is nothing to contest, or too much at once."""
    if not any(left_of(lines).values()) and not any(
        line.charge.adjustment or line.charge.inference for line in lines
    ):
        raise DisputeRefused("nothing of this owner was charged then: there is nothing to contest")
    if len(lines) > MOST_LINES:
        raise DisputeRefused(
            f"{len(lines)} lines are too many for one dispute; name fewer days, or a workload"
        )


def require_unreserved(owner: Mapping[str, str]) -> None:
    """Raise DisputeRefused for an owner with a name that the ledger itself uses."""
    reserved = next((name for name in owner.values() if is_reserved(name)), None)
    if reserved is not None:
        raise DisputeRefused(f"owner: {reserved_message(reserved)}")


def line_id(line: ExportedCharge) -> str:
    """What names a line: its hash as a leaf of the month's seal, hexadecimal."""
    return seal.leaf(seal.line_of(line)).hex()


def lines_named(lines: Sequence[ExportedCharge], name: str) -> list[ExportedCharge]:
    """The line whose hash begins so, if there is one. Raises DisputeRefused where it is not clear."""
    if len(name) < SHORT:
        raise DisputeRefused(
            f"line: give at least {SHORT} letters of its hash (gpuledger disputes lines shows them)"
        )
    named = [line for line in lines if line_id(line).startswith(name.lower())]
    if len(named) > 1:
        raise DisputeRefused(f"line: {name} names {len(named)} lines; give more of its letters")
    return named


def left_of(lines: Iterable[ExportedCharge]) -> dict[object, int]:
    """GPU-nanoseconds that are left of a day, accelerator and workload once corrections are taken
    off.
    """
    left: dict[object, int] = defaultdict(int)
    for line in lines:
        charge = line.charge
        left[(charge.day_ms, charge.accelerator_id, charge.workload_id)] += charge.gpu_ns
    return left


def total_of(lines: Iterable[ExportedCharge]) -> tuple[int, dict[str, int]]:
    """GPU-nanoseconds and, by currency, micro-units of some lines; what has no price costs nothing
    here.
    """
    gpu_ns, cost = 0, dict[str, int]()
    for line in lines:
        charge = line.charge
        gpu_ns += charge.gpu_ns
        if charge.currency is not None:
            cost[charge.currency] = cost.get(charge.currency, 0) + (charge.cost_micro or 0)
    return gpu_ns, dict(sorted(cost.items()))


def entries_called(lines: Iterable[ExportedCharge], names: set[str]) -> list[ExportedCharge]:
    """The lines of the entries of these names, and of their reversals."""
    entries = [
        (line, line.charge.adjustment) for line in lines if line.charge.adjustment is not None
    ]
    contested = {entry.id for _, entry in entries if entry.name in names}
    return [line for line, entry in entries if contested & {entry.id, entry.reverses}]


def is_about_adjustments(lines: Iterable[EvidenceLine]) -> bool:
    """Whether adjustments alone are contested."""
    return all("adjustment" in line for line in lines)


def contested_entries(lines: Iterable[EvidenceLine]) -> dict[str, int]:
    """What is contested of each adjustment, by name in their order, in micro-units.

    Raises DisputeRefused where something else is contested as well.
    """
    contested: dict[str, int] = defaultdict(int)
    for line in lines:
        if "adjustment" not in line:
            raise DisputeRefused(
                "not only adjustments are contested, which alone can be reversed: contest their"
                " lines"
            )
        contested[line["adjustment"]] += line["cost_micro"]
    return dict(sorted(contested.items()))


def require_whole(name: str, contested_micro: int, opposite: Adjustment) -> None:
    """Raise DisputeRefused for an entry that is contested in part: its opposite takes all of it back."""
    if contested_micro != -sum(share.micro for share in opposite.entry_shares()):
        raise DisputeRefused(
            f"{name!r} is contested in part, and can only be reversed whole: gpuledger"
            " adjustments reverse"
        )


def decisions_of(
    dispute: Dispute,
    lines: Sequence[EvidenceLine],
    remedy: Remedy,
    accelerators: Mapping[str, int],
    workloads: Mapping[str, int],
) -> list[Reattribution]:
    """The contested time by workload and accelerator, whose numbers are given by their names.

    Of one contested line only time of exactly its owner moves, otherwise that of the dispute's
    owner and below it. Raises DisputeRefused.
    """
    # What a correction took from the owner already is not the owner's any more: only what is left
    # moves.
    left: dict[tuple[Key, int], int] = defaultdict(int)
    spans: list[tuple[Key, int, Period]] = []
    for line in lines:
        if line["workload"] is not None:
            key = (workloads[line["workload"]], accelerators.get(line["accelerator"]))
            left[(key, line["day_ms"])] += line["gpu_ns"]
            spans.append((key, line["day_ms"], Period(line["start_ms"], line["end_ms"])))
    keyed = spans_of(
        ((key, span) for key, day_ms, span in spans if left[(key, day_ms)] > 0), dispute.period
    )
    _require_movable(keyed, lines, remedy)
    state, owner = (UNAVAILABLE, None) if remedy.owner is None else (HELD, path_of(remedy.owner))
    contested = dispute.owner if dispute.line is None else lines[0]["owner"]
    return [
        Reattribution(
            UNNUMBERED,
            workload_id,
            accelerator_id,
            span.start_ms,
            span.end_ms,
            state,
            owner,
            contested,
        )
        for (workload_id, accelerator_id), spans_of_key in keyed.items()
        for span in spans_of_key
    ]


def _require_movable(keyed: Iterable[Key], lines: Sequence[EvidenceLine], remedy: Remedy) -> None:
    """Raise DisputeRefused where no time could move, with what can be done instead."""
    keys = list(keyed)
    if not keys and any(line.get("adjustment") for line in lines):
        raise DisputeRefused(
            "adjustments are amounts, and no time that could move: an acceptance that reverses"
            " (--reverse) takes them back, and what is right is booked anew"
        )
    if not keys and any(line.get("node_cost") for line in lines):
        raise DisputeRefused(
            "a node's cost follows who held its accelerators: contest the lines of that time"
        )
    if not keys and any(line.get("inference") for line in lines):
        raise DisputeRefused(
            "what a shared model server costs a tenant follows from its tokens, its weights and the"
            " server's own time: correct what is declared ([[inference]], [[tenant]]) or the tokens"
        )
    if not keys:
        raise DisputeRefused(
            "no workload is known to have held this time: give it one (tags, rules), not a"
            " reattribution"
        )
    if remedy.owner is None and any(accelerator_id is None for _, accelerator_id in keys):
        raise DisputeRefused(
            "usage imported as counts has no accelerator that could be unavailable: name an owner"
        )
