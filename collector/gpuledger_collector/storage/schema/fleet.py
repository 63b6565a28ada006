"""Nodes, accelerators, their dates in and out, and the workloads on them."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, foreign, identity, instant, metadata, text

node = sa.Table(
    "node",
    metadata,
    identity(),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    instant("first_seen_at"),
    instant("last_seen_at"),
    text("status", "ok"),
    text("status_detail"),
    text("agent_version"),
    text("source"),
    sa.Column("driver", sa.Text),
    sa.Column("heartbeat", pg.JSONB),
    postgresql_with={"fillfactor": 50},
    comment="A machine that runs one agent; kept when it has no GPU.",
)

accelerator = sa.Table(
    "accelerator",
    metadata,
    identity(),
    sa.Column("uuid", sa.Text, nullable=False, unique=True),
    sa.Column("device_uuid", sa.Text, nullable=False),
    text("model"),
    sa.Column("mig_instance", sa.Text),
    sa.Column("gpu_micro", sa.Integer, nullable=False, server_default="1000000"),
    sa.Column("memory_bytes", BIG),
    sa.Column("gpu_index", sa.Integer),
    text("health", "unknown"),
    text("health_cause"),
    sa.Column("last_seen_at", sa.DateTime(timezone=True), server_default=sa.func.now()),
    comment="What usage is counted for: a device, or a MIG instance.",
)

capacity = sa.Table(
    "capacity",
    metadata,
    identity(),
    foreign("accelerator_id", "accelerator.id"),
    foreign("node_id", "node.id", nullable=True),
    text("pool", "default"),
    sa.Column("in_ms", BIG, nullable=False),
    sa.Column("out_ms", BIG),
    sa.Column("source", sa.Text, nullable=False, comment="agent (first seen) or import (inventory file)"),
    sa.CheckConstraint("out_ms IS NULL OR out_ms > in_ms", name="order"),
    sa.Index("ix_capacity_accelerator_id", "accelerator_id"),
    comment="When an accelerator was there to be held: the inventory with dates in and out.",
)

workload = sa.Table(
    "workload",
    metadata,
    identity(),
    sa.Column("key", sa.Text, nullable=False, unique=True, comment="kind, scope and external id: stable over restarts"),
    text("kind"),
    sa.Column("external_id", sa.Text, nullable=False),
    sa.Column("user_name", sa.Text),
    sa.Column("account", sa.Text),
    sa.Column("name", sa.Text),
    sa.Column("tags", pg.JSONB, nullable=False, server_default="{}"),
    instant("first_seen_at"),
    sa.Column("last_seen_at", sa.DateTime(timezone=True), server_default=sa.func.now()),
    comment="The job, pod, container or process that holds accelerators.",
)
