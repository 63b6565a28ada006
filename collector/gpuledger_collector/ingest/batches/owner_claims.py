"""Owners that workloads claimed and may not name: kept as refused claims, for people."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger_collector.accounting.placement import OWNER, PlacementClaim
from gpuledger_collector.ingest.batches.attributes import Connection, ResolvedBatch
from gpuledger_collector.ingest.batches.validate import MAX_NAME
from gpuledger_collector.storage.ledger import claims


def write_owner_claims(connection: Connection, batches: Iterable[ResolvedBatch]) -> None:
    """Store the claims of these batches, each from its first to its last time."""
    spans: dict[tuple[int, int, str], tuple[int, int]] = {}
    for resolved in batches:
        workloads = resolved.batch.workloads
        refused = {place for place, workload in workloads.items() if workload.refused}
        if not refused:
            continue
        for interval in resolved.batch.usage_intervals.values():
            if interval.workload is None or interval.workload not in refused:
                continue
            workload = workloads[interval.workload]
            accelerator_id = resolved.accelerators[interval.accelerator]
            for level, claimed in workload.refused.items():
                name = (workload.name or workload.id)[:MAX_NAME]
                subject = f"{name} claims {level} {claimed}"
                key = accelerator_id, resolved.node_id, subject
                first_ms, last_ms = spans.get(key, (interval.start_ms, interval.end_ms))
                spans[key] = min(first_ms, interval.start_ms), max(last_ms, interval.end_ms)
    # In the order of their keys, like all rows here: writers that meet never deadlock.
    claims.upsert(
        connection,
        [
            PlacementClaim(accelerator_id, node_id, OWNER, subject, first_ms, last_ms)
            for (accelerator_id, node_id, subject), (first_ms, last_ms) in sorted(spans.items())
        ],
    )
