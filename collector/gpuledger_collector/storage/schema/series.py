"""Series for drawing: what owners held every five minutes, and how busy nodes were every quarter of an hour."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, foreign, instant, metadata, text

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
    comment="Days in owner_5min, and which rating they were made from: another one in conservation_check makes "
    "them again.",
)

node_utilization = sa.Table(
    "node_utilization",
    metadata,
    sa.Column("hour_ms", BIG, primary_key=True),
    foreign("node_id", "node.id", primary_key=True),
    sa.Column("accelerator_ids", pg.ARRAY(BIG), nullable=False, comment="whose minutes are in it"),
    sa.Column(
        "utilization",
        pg.ARRAY(sa.Double),
        nullable=False,
        comment="by quarter the sum of its minutes' ratios; null: nobody knows, never 0",
    ),
    sa.Column(
        "utilization_minutes",
        pg.ARRAY(sa.Integer),
        nullable=False,
        comment="by quarter how many accelerator-minutes are in the sum",
    ),
    sa.Column("sm_active", pg.ARRAY(sa.Double), nullable=False),
    sa.Column("sm_active_minutes", pg.ARRAY(sa.Integer), nullable=False),
    comment="Activity of a node's accelerators by quarters of an hour, from gpu_minute: what heat maps read.",
)

node_utilization_day = sa.Table(
    "node_utilization_day",
    metadata,
    sa.Column("day_ms", BIG, primary_key=True, autoincrement=False),
    sa.Column("made_ms", BIG, nullable=False),
    comment="Days of node_utilization that were made as a whole, and when: minutes of before it was there are "
    "taken in so.",
)
