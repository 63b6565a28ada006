"""Whose time the commitments of a day cover: what rating and reconciliation both go by, each from
its own reading.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from gpuledger_collector.accounting.attribution import edges_of
from gpuledger_collector.accounting.commitments import (
    Commitment,
    Coverage,
    CoveredShare,
    Demand,
    Key,
    cover,
)
from gpuledger_collector.accounting.node_costs import NodePlace
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.accounting.rating import (
    ImportedUsage,
    imported_rating_intervals,
    present_ms,
)
from gpuledger_collector.accounting.usage import rating_intervals
from gpuledger_collector.services.placements import RatedPlacement
from gpuledger_collector.storage.billing import commitments, locations, node_purchases, prices
from gpuledger_collector.storage.ledger import rules
from gpuledger_collector.storage.locks import Connection


def book_of(connection: Connection, period: Period | None) -> PriceBook:
    """Read the price book in force with its purchase choices, and what nodes say of a period; it also
    cuts hours where attribution rules change.

    `period`: what is priced; None: hours are only cut.
    """
    return PriceBook(
        prices.current(connection),
        commitments.CHOICES.in_force(connection),
        edges_of(rules.current(connection)),
        locations.current(connection),
        None if period is None else node_purchases.during(connection, period),
    )


def list_places(
    placements: Mapping[int, Sequence[RatedPlacement]], day: Period
) -> Iterator[tuple[Key, RatedPlacement, list[Period]]]:
    """Each accelerator in each of its places and when it was there; one that went and came back is
    rated as one.
    """
    for accelerator_id, placements_of_one in placements.items():
        # Of a large fleet nearly all stay where they are.
        if len(placements_of_one) == 1:
            if (part := placements_of_one[0].period.clip(day)) is not None:
                yield (0, accelerator_id, 0), placements_of_one[0], [part]
            continue
        together: dict[object, tuple[RatedPlacement, list[Period]]] = {}
        for placement in placements_of_one:
            if (part := placement.period.clip(day)) is not None:
                together.setdefault(placement.accelerator, (placement, []))[1].append(part)
        for at, (placement, capacity) in enumerate(together.values()):
            yield (0, accelerator_id, at), placement, capacity


def node_places(
    placements: Mapping[int, Sequence[RatedPlacement]], day: Period
) -> Iterator[NodePlace]:
    """Node and pool of each accelerator on a day, and when it was there."""
    for _, placement, capacity in list_places(placements, day):
        yield placement.accelerator.node, placement.accelerator.pool, capacity


def key_of_count(usage: ImportedUsage) -> Key:
    """The key of usage imported as a count."""
    return (1, usage.workload_id, usage.start_ms)


def is_counted(key: Key) -> bool:
    """Whether a key is that of usage imported as a count."""
    return key[0] == 1


def cover_day(
    commitments: Sequence[Commitment],
    day: Period,
    until_ms: int,
    placements: Mapping[int, Sequence[RatedPlacement]],
    imported: Sequence[ImportedUsage],
    book: PriceBook,
) -> Coverage:
    """Whose time the commitments in force cover: of accelerators as long as they were there, and of
    imported usage.
    """
    in_force = [commitment for commitment in commitments if commitment.term.clip(day) is not None]
    if not in_force:
        return Coverage()
    parts = rating_intervals(day, book.cuts(day))
    demands = []
    for key, placement, capacity in list_places(placements, day):
        accelerator = placement.accelerator
        ns = {
            part.start_ms: gpu_ns(accelerator.gpu_micro, present_ms(capacity, part, until_ms))
            for part in parts
        }
        demands.append(
            Demand(
                key=key,
                pool=accelerator.pool,
                gpu_model=accelerator.gpu_model,
                node=accelerator.node,
                region=book.locations.region(accelerator.pool, day.start_ms),
                ns=ns,
                name=accelerator.uuid,
            )
        )
    starts = [part.start_ms for part in parts]
    begins: dict[Key, dict[int, int]] = {}
    for usage in imported:
        intervals = imported_rating_intervals(usage, day, book, until_ms)
        begins[key_of_count(usage)] = {
            starts[bisect_right(starts, interval.start_ms) - 1]: interval.start_ms
            for interval in intervals
        }
        ns = {
            starts[bisect_right(starts, interval.start_ms) - 1]: gpu_ns(
                usage.gpu_micro, interval.ms
            )
            for interval in intervals
        }
        demands.append(
            Demand(
                key=key_of_count(usage),
                pool=usage.pool,
                gpu_model=usage.gpu_model,
                node=usage.node,
                region=book.locations.region(usage.pool, day.start_ms),
                ns=ns,
                name=usage.key,
            )
        )
    coverage = cover(in_force, demands, parts, until_ms)
    for key, at in begins.items():
        # Imported usage may begin inside a rating interval: rating asks for its shares by where it
        # begins.
        shares: dict[int, list[CoveredShare]] = coverage.shares.get(key, {})
        if shares:
            coverage.shares[key] = {
                at[start_ms]: shares_of_part for start_ms, shares_of_part in shares.items()
            }
    return coverage
