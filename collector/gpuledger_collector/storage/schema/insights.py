"""Findings and recommendations: estimates, never a bill."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, identity, metadata, text

finding = sa.Table(
    "finding",
    metadata,
    identity(),
    sa.Column("key", sa.Text, nullable=False, unique=True, comment="kind, subject, begin: a finding counts once"),
    sa.Column("kind", sa.Text, nullable=False, comment="idle or anomaly"),
    sa.Column("state", sa.Text, nullable=False, comment="idle state; usage, price or both for an anomaly"),
    sa.Column("subject", sa.Text, nullable=False, comment="accelerator's UUID, or the owner whose spending it is"),
    sa.Column("accelerator_id", BIG),
    sa.Column("workload_id", BIG),
    text("team"),
    sa.Column("owner", pg.JSONB, nullable=False, comment="level -> value; empty: the pool's"),
    sa.Column("since_ms", BIG, nullable=False, comment="when it began"),
    sa.Column("opened_ms", BIG, nullable=False, comment="when it could first be told"),
    sa.Column("until_ms", BIG, nullable=False, comment="seen up to here"),
    sa.Column("resolved_ms", BIG, comment="when it ended; null: it goes on"),
    sa.Column("confidence", sa.REAL, nullable=False),
    sa.Column("currency", sa.Text, comment="null: unpriced"),
    sa.Column("cost_micro", BIG, comment="so far; null: unpriced, never 0"),
    sa.Column("per_day_micro", BIG, comment="a day more of it, at the rate in force when last seen"),
    sa.Column("evidence", pg.JSONB, nullable=False),
    sa.Index("ix_finding_kind_since_ms", "kind", "since_ms"),
    sa.Index("ix_finding_accelerator_id", "accelerator_id"),
    comment="Things that a person should see, opened and resolved.",
)

finding_progress = sa.Table(
    "finding_progress",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("until_ms", BIG, nullable=False),
    comment="How far each search for findings has come.",
)

# Remote write: scrapes of Prometheus, until the meter has made usage intervals of them.


def _estimate(what: str) -> list[sa.Column[int]]:
    """Low, expected and high of one kind of saving in the window; null: it has no price, never 0."""
    return [sa.Column(f"{what}_{which}_micro", BIG) for which in ("low", "expected", "high")]


recommendation = sa.Table(
    "recommendation",
    metadata,
    identity(),
    sa.Column("key", sa.Text, nullable=False, unique=True, comment="kind and subject: advised once"),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    text("team"),
    sa.Column("owner", pg.JSONB, nullable=False, comment="level -> value; empty: the pool's"),
    sa.Column("advice", sa.Text, nullable=False, comment="the sentence that people read"),
    sa.Column("evidence", pg.JSONB, nullable=False),
    sa.Column("scope", pg.JSONB, nullable=False, comment="which charges show its realised saving"),
    sa.Column("start_ms", BIG, nullable=False, comment="the observed window: all amounts are of it"),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("price_ids", pg.ARRAY(BIG), nullable=False, comment="version of the price book: the rates used"),
    sa.Column("currency", sa.Text),
    *_estimate("cash"),
    *_estimate("capacity"),
    *_estimate("energy"),
    sa.Column("freed_gpu_ns", BIG, nullable=False, comment="expected"),
    sa.Column("state", sa.Text, nullable=False, comment="open, accepted, rejected, done or expired"),
    sa.Column("made_ms", BIG, nullable=False),
    sa.Column("expires_ms", BIG, nullable=False),
    sa.Column("decided_ms", BIG),
    text("decided_by"),
    text("reason"),
    sa.Column("realised_micro", BIG, comment="by the ledger since acceptance; may be negative; null: not yet"),
    sa.Column("realised_until_ms", BIG),
    sa.Column("realised", pg.JSONB, comment="what was compared: costs and busy time before and after"),
    comment="Advice, what it would have saved in the observed window, and what came of it.",
)

recommendation_run = sa.Table(
    "recommendation_run",
    metadata,
    sa.Column("made_ms", BIG, primary_key=True, autoincrement=False),
    sa.Column("start_ms", BIG, nullable=False),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("joint", pg.JSONB, nullable=False, comment="by currency, all open advice followed at once"),
    sa.Column("not_evaluated", pg.JSONB, nullable=False, comment="what could not be judged, and why"),
    comment="The last look for advice.",
)

# Archive: samples of old days, packed, and days whose evidence has been let go.
