"""Series for drawing: what owners held every five minutes."""

from __future__ import annotations

import sqlalchemy as sa

from gpuledger_collector.storage.schema.columns import BIG, instant, metadata, text

owner_5min = sa.Table(
    "owner_5min",
    metadata,
    sa.Column("at_ms", BIG, nullable=False, comment="begin of the five minutes"),
    sa.Column(
        "owner_id",
        BIG,
        sa.ForeignKey("owner.id"),
        comment="organisation, team and project; levels below are left out",
    ),
    sa.Column("state", sa.Text, nullable=False),
    text("pool"),
    text("gpu_model"),
    sa.Column("currency", sa.Text),
    sa.Column("gpu_ns", BIG, nullable=False),
    sa.Column("busy_ns", BIG, nullable=False),
    sa.Column("idle_ns", BIG, nullable=False),
    sa.Column("unknown_ns", BIG, nullable=False),
    sa.Column("energy_mj", BIG),
    sa.Column("cost_micro", BIG, comment="null: unpriced, never 0"),
    sa.Index("ix_owner_5min_at_ms", "at_ms"),
    comment="What owners held every five minutes: its hours add up to usage_hour, the money of its days to charge.",
)

series_day = sa.Table(
    "series_day",
    metadata,
    sa.Column("day_ms", BIG, primary_key=True, autoincrement=False),
    instant("proved_at"),
    comment="Days in owner_5min, and which rating they were made from: another one in day_proof makes them again.",
)
