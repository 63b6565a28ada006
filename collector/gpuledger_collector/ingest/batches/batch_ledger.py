"""The batch ledger: the table that makes a batch count once, and remembers what it was answered."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence

import numpy as np

from gpuledger_collector.ingest.batches.attributes import Connection, Numbered
from gpuledger_collector.ingest.batches.columns import BinaryArray
from gpuledger_collector.ingest.batches.validate import Accepted
from gpuledger_common.wire import Answer, Rejected

Key = tuple[str, object, int]
"""Node, epoch and sequence number."""


def insert_keys(connection: Connection, numbered: Sequence[Numbered], now: dt.datetime) -> set[Key]:
    """Insert the ledger rows of these batches (in the order of their keys); the keys that were new."""
    batches = [one.batch for one in numbered]
    names = {one.node_id: one.batch.node for one in numbered}
    rows = connection.execute(
        """
        INSERT INTO ingest_batch (node_id, epoch, seq, sha256, received_at, samples, usage_intervals, rejected)
        SELECT node_id, epoch, seq, sha256, %s, samples, usage_intervals, rejected::jsonb
        FROM unnest(%b::bigint[], %b::uuid[], %b::bigint[], %b::bytea[], %b::bigint[], %b::bigint[], %s::text[])
            AS new (node_id, epoch, seq, sha256, samples, usage_intervals, rejected)
        ON CONFLICT DO NOTHING RETURNING node_id, epoch, seq
        """,
        (
            now,
            BinaryArray(np.array([one.node_id for one in numbered], dtype="<i8")),
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
    return json.dumps([{"record": refusal.record, "reason": refusal.reason} for refusal in rejected])


def look_up(connection: Connection, numbered: Sequence[Numbered]) -> dict[Key, tuple[bytes, list[Rejected]]]:
    """Hash and refusals of batches that are in the ledger already."""
    if not numbered:
        return {}
    names = {one.node_id: one.batch.node for one in numbered}
    rows = connection.execute(
        """
        SELECT node_id, epoch, seq, sha256, rejected FROM ingest_batch
        JOIN unnest(%s::bigint[], %s::uuid[], %s::bigint[]) AS asked (node_id, epoch, seq)
        USING (node_id, epoch, seq)
        """,
        (
            [one.node_id for one in numbered],
            [one.batch.epoch for one in numbered],
            [one.batch.seq for one in numbered],
        ),
    )
    return {
        (names[node_id], epoch, seq): (bytes(digest), [Rejected(**refusal) for refusal in rejected or []])
        for node_id, epoch, seq, digest, rejected in rows
    }


def verdict(batch: Accepted, known: tuple[bytes, list[Rejected]]) -> Answer:
    """The answer to a batch whose key is known: the first answer again, or a refusal when the bytes differ."""
    digest, rejected = known
    if digest != batch.sha256:
        return Answer("refused", detail=f"other bytes are known as batch {batch.seq} of epoch {batch.epoch}")
    return Answer("partial", rejected=rejected) if rejected else Answer("duplicate")


def record_conflicts(connection: Connection, batches: Sequence[Accepted], now: dt.datetime) -> None:
    """Keep what a forger, or a spool that was copied, tried to say."""
    for batch in batches:
        connection.execute(
            "INSERT INTO ingest_conflict (node_name, epoch, seq, sha256, received_at) VALUES (%s, %s, %s, %s, %s)",
            (batch.node, batch.epoch, batch.seq, batch.sha256, now),
        )
