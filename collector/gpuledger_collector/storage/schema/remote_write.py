"""Scrapes of exporters that a Prometheus sent, until they are metered."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, identity, metadata

scrape_head = sa.Table(
    "scrape_head",
    metadata,
    sa.Column("accelerator_id", BIG, primary_key=True, autoincrement=False),
    sa.Column("newest_ms", BIG, nullable=False),
    comment="The newest scrape of each accelerator; its row is the lock of those who write scrapes of it.",
)

scrape = sa.Table(
    "scrape",
    metadata,
    sa.Column("accelerator_id", BIG, primary_key=True, autoincrement=False),
    sa.Column("at_ms", BIG, primary_key=True, autoincrement=False),
    sa.Column("node_id", BIG, nullable=False),
    sa.Column("workload_ids", pg.ARRAY(BIG), nullable=False, comment="whom its labels name, empty: nobody"),
    sa.Column("readings", BIG, nullable=False, comment="bits of the hot metrics that are in gpu_sample already"),
    sa.Column("pods", pg.ARRAY(sa.Text), nullable=False, comment="to whom each pod_utilization belongs"),
    sa.Column("pod_utilization", pg.ARRAY(sa.Double), nullable=False),
    sa.Column(
        "accelerator_attributes_ids",
        pg.ARRAY(BIG),
        nullable=False,
        server_default="{}",
        comment="what its labels say of the accelerator",
    ),
    sa.Column(
        "workload_attributes_ids",
        pg.ARRAY(BIG),
        nullable=False,
        server_default="{}",
        comment="what they say of those whom they name",
    ),
    sa.Column("sm_active", sa.Double),
    sa.Column("engine_active", sa.Double),
    sa.Column("energy_joules", sa.Double),
    sa.Column("power_watts", sa.Double),
    comment="What remote write showed of an accelerator at an instant, merged from all requests that spoke of it.",
)

scrape_recompute = sa.Table(
    "scrape_recompute",
    metadata,
    identity(),
    sa.Column("accelerator_id", BIG, nullable=False),
    sa.Column("slot_ms", BIG, nullable=False),
    sa.Index("ix_scrape_recompute_accelerator_id", "accelerator_id"),
    comment="Slots with new scrapes: marks are only ever added, and removed by the metering that saw them.",
)

# Trust: who may do what, and who changed what.
