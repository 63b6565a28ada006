"""Capacity in time: what pools allow, what was advised, and what came of it. None of it can reach a bill."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, foreign, identity, instant, metadata

scaling_pool = sa.Table(
    "scaling_pool",
    metadata,
    identity(),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column(
        "terms",
        pg.JSONB,
        nullable=False,
        comment="limits, lead time, mode, money and webhook: insight/scaling/pools.py",
    ),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    sa.Index("uq_scaling_pool_pool", "pool", unique=True, postgresql_where=sa.text("superseded_at IS NULL")),
    comment="What a pool allows its capacity to be, and whether anybody is told to act on it.",
)

scaling_decision = sa.Table(
    "scaling_decision",
    metadata,
    identity(),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("made_ms", BIG, nullable=False),
    sa.Column("as_of_ms", BIG, nullable=False, comment="begin of the last step whose demand was known"),
    sa.Column("step_ms", BIG, nullable=False),
    sa.Column("lead_ms", BIG, nullable=False),
    sa.Column("valid_until_ms", BIG, nullable=False),
    sa.Column("policy", sa.Text, nullable=False, comment="predictive, reactive or young"),
    sa.Column("mode", sa.Text, nullable=False, comment="advice or act"),
    sa.Column("demand_gpus", sa.Double, nullable=False),
    sa.Column("ahead", pg.JSONB, nullable=False, comment="quantile -> demand expected within the lead time"),
    sa.Column("reactive_gpus", sa.Double, nullable=False, comment="what the best reactive setting would have held"),
    sa.Column("wanted_gpus", sa.Double, nullable=False, comment="before the limits of the pool"),
    sa.Column("desired_gpus", sa.Double, nullable=False),
    sa.Column("desired_nodes", BIG, nullable=False),
    sa.Column("before_gpus", sa.Double, comment="desired before this decision; null: the first one"),
    sa.Column("quantile", sa.Double, comment="of the rise, where a forecast decided; null: none did"),
    sa.Column("setting", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column(
        "inputs_hash", sa.Text, nullable=False, comment="SHA-256 of the demand and the terms that were looked at"
    ),
    sa.Column(
        "told",
        sa.Text,
        nullable=False,
        server_default="",
        comment="the webhook that the change was put out for; empty: nobody",
    ),
    sa.Index("ix_scaling_decision_pool_made_ms", "pool", "made_ms"),
    comment="Capacity that was advised, with what it was advised from; a change of target may be told to a webhook, "
    "once.",
)

scaling_outcome = sa.Table(
    "scaling_outcome",
    metadata,
    foreign("decision_id", "scaling_decision.id", primary_key=True),
    sa.Column("from_ms", BIG, nullable=False, comment="when what was ordered then serves"),
    sa.Column("until_ms", BIG, nullable=False, comment="when the next decision serves"),
    sa.Column("known_ms", BIG, nullable=False, comment="of this time, with known demand; the amounts are of it"),
    sa.Column("demand_gpu_s", sa.Double, nullable=False),
    sa.Column("wait_gpu_s", sa.Double, nullable=False, comment="demand above what was desired, GPU-seconds"),
    sa.Column("waste_gpu_s", sa.Double, nullable=False, comment="what was desired above demand, GPU-seconds"),
    sa.Column("reactive_wait_gpu_s", sa.Double, nullable=False),
    sa.Column("reactive_waste_gpu_s", sa.Double, nullable=False),
    sa.Column("currency", sa.Text),
    sa.Column("waste_micro", BIG, comment="waste at the rate in force; null: unpriced, never 0"),
    sa.Column("judged_ms", BIG, nullable=False),
    comment="What came of a decision while it served: had it been followed, who would have waited, what would have "
    "stood by.",
)
