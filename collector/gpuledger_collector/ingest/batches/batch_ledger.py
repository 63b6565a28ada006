"""The batch ledger: the table that makes a batch count once, and stores its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from gpuledger_collector.ingest.batches.attributes import Connection, ResolvedBatch
from gpuledger_collector.ingest.batches.columns import BinaryArray
from gpuledger_collector.ingest.batches.validate import Accepted
from gpuledger_common.instants import to_datetime
from gpuledger_common.wire import Answer, Rejected

Key = tuple[str, object, int]
"""Node, epoch and sequence number."""


def insert_keys(connection: Connection, resolved: Sequence[ResolvedBatch], now_ms: int) -> set[Key]:
    """Insert the ledger rows of these batches, in the order of their keys; return the keys that
    were new.
    """
    batches = [entry.batch for entry in resolved]
    names = {entry.node_id: entry.batch.node for entry in resolved}
    # One statement for the group. ON CONFLICT DO NOTHING waits for a concurrent transaction that
    # inserts the same key and skips the row if it commits; so exactly one transaction sees the key
    # in RETURNING.
    rows = connection.execute(
        """
        INSERT INTO ingest_batch (node_id, epoch, seq, sha256, received_at, samples, usage_intervals, rejected)
        SELECT node_id, epoch, seq, sha256, %s, samples, usage_intervals, rejected::jsonb
        FROM unnest(%b::bigint[], %b::uuid[], %b::bigint[], %b::bytea[], %b::bigint[], %b::bigint[], %s::text[])
            AS new (node_id, epoch, seq, sha256, samples, usage_intervals, rejected)
        ON CONFLICT DO NOTHING RETURNING node_id, epoch, seq
        """,
        (
            to_datetime(now_ms),
            BinaryArray(np.array([entry.node_id for entry in resolved], dtype="<i8")),
            # Psycopg would encode an array value by value; these are single copies of memory.
            BinaryArray(np.frombuffer(b"".join([batch.epoch.bytes for batch in batches]), "V16")),
            BinaryArray(np.array([batch.seq for batch in batches], dtype="<i8")),
            BinaryArray(np.frombuffer(b"".join([batch.sha256 for batch in batches]), "V32")),
            BinaryArray(np.array([batch.samples for batch in batches], dtype="<i8")),
            BinaryArray(np.array([len(batch.usage_intervals) for batch in batches], dtype="<i8")),
            [_as_json(batch.rejected) for batch in batches],
        ),
        binary=True,
    )
    return {(names[node_id], epoch, seq) for node_id, epoch, seq in rows}


def _as_json(rejected: list[Rejected]) -> str | None:
    if not rejected:
        return None
    return json.dumps(
        [{"record": refusal.record, "reason": refusal.reason} for refusal in rejected]
    )


def read_committed(
    connection: Connection, resolved: Sequence[ResolvedBatch]
) -> dict[Key, tuple[bytes, list[Rejected]]]:
    """Read hash and refusals of batches that are in the ledger already."""
    if not resolved:
        return {}
    names = {entry.node_id: entry.batch.node for entry in resolved}
    rows = connection.execute(
        """
        SELECT node_id, epoch, seq, sha256, rejected FROM ingest_batch
        JOIN unnest(%s::bigint[], %s::uuid[], %s::bigint[]) AS asked (node_id, epoch, seq)
        USING (node_id, epoch, seq)
        """,
        (
            [entry.node_id for entry in resolved],
            [entry.batch.epoch for entry in resolved],
            [entry.batch.seq for entry in resolved],
        ),
    )
    return {
        (names[node_id], epoch, seq): (
            bytes(sha256),
            [Rejected(**refusal) for refusal in rejected or []],
        )
        for node_id, epoch, seq, sha256, rejected in rows
    }


def answer_repeated(batch: Accepted, sha256: bytes, rejected: list[Rejected]) -> Answer:
    """Answer a batch whose key is known: the first answer again, or a refusal when the bytes
    differ.
    """
    # Never "duplicate": the agent would delete records that the ledger does not have.
    if sha256 != batch.sha256:
        return Answer(
            "refused", detail=f"other bytes are known as batch {batch.seq} of epoch {batch.epoch}"
        )
    return Answer("partial", rejected=rejected) if rejected else Answer("duplicate")


def record_conflicts(connection: Connection, batches: Sequence[Accepted], now_ms: int) -> None:
    """Record batches that reuse a key with other bytes: the mark of a forger or of a copied spool."""
    for batch in batches:
        connection.execute(
            "INSERT INTO ingest_conflict (node_name, epoch, seq, sha256, received_at) VALUES (%s,"
            " %s, %s, %s, %s)",
            (batch.node, batch.epoch, batch.seq, batch.sha256, to_datetime(now_ms)),
        )
