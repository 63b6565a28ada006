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
    text("gpu_model"),
    sa.Column("gpu_micro", sa.Integer, nullable=False, server_default="1000000", comment="share of its board"),
    sa.Column("accelerator_attributes_id", BIG, comment="what was reported of it; null: nobody has reported it"),
    sa.CheckConstraint("out_ms IS NULL OR out_ms > in_ms", name="order"),
    sa.Index("ix_capacity_accelerator_id", "accelerator_id"),
    comment="When an accelerator was there to be held, where and as what: derived from usage intervals and inventory.",
)

inventory = sa.Table(
    "inventory",
    metadata,
    identity(),
    foreign("accelerator_id", "accelerator.id"),
    foreign("node_id", "node.id", nullable=True),
    text("pool", "default"),
    text("gpu_model"),
    sa.Column("in_ms", BIG, nullable=False),
    sa.Column("out_ms", BIG),
    sa.CheckConstraint("out_ms IS NULL OR out_ms > in_ms", name="order"),
    sa.Index("ix_inventory_accelerator_id", "accelerator_id"),
    comment="Rows of imported inventory files, as they were stated: the last word on where an accelerator is.",
)

accelerator_attributes = sa.Table(
    "accelerator_attributes",
    metadata,
    identity(),
    foreign("accelerator_id", "accelerator.id"),
    sa.Column("digest", sa.LargeBinary, nullable=False, comment="SHA-256 of the content"),
    text("model"),
    sa.Column("mig_instance", sa.Text),
    sa.Column("gpu_micro", sa.Integer, nullable=False),
    text("pool"),
    sa.UniqueConstraint("accelerator_id", "digest"),
    comment="What was reported of an accelerator, once per content: usage intervals refer to it. Never changed.",
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
    comment="The job, pod, container or process that holds accelerators, as it was reported last.",
)

workload_attributes = sa.Table(
    "workload_attributes",
    metadata,
    identity(),
    foreign("workload_id", "workload.id"),
    sa.Column("digest", sa.LargeBinary, nullable=False, comment="SHA-256 of the content"),
    sa.Column("user_name", sa.Text),
    sa.Column("account", sa.Text),
    sa.Column("name", sa.Text),
    sa.Column("tags", pg.JSONB, nullable=False, server_default="{}"),
    sa.UniqueConstraint("workload_id", "digest"),
    comment="What was reported of a workload, once per content: usage intervals refer to it. Never changed.",
)
