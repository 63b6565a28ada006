"""Closed months, their invoices, and the corrections found afterwards."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, foreign, identity, instant, metadata, text

billing_period = sa.Table(
    "billing_period",
    metadata,
    sa.Column("start_ms", BIG, primary_key=True),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("name", sa.Text, nullable=False, comment="such as 2026-10"),
    sa.Column("closed_ms", BIG, nullable=False),
    sa.Column("closed_by", sa.Text, nullable=False),
    sa.Column("level", sa.Text, nullable=False, comment="level of the owner tree that is invoiced"),
    sa.Column("lines", BIG, nullable=False),
    sa.Column("seal", sa.Text, nullable=False, comment="hexadecimal Merkle root over its lines"),
    sa.Column("receipt", pg.JSONB, nullable=False),
    sa.UniqueConstraint("name"),
    comment="Closed months; what has no row is open. Rows are added and never changed: triggers refuse it.",
)

invoice = sa.Table(
    "invoice",
    metadata,
    foreign("period_start_ms", "billing_period.start_ms", primary_key=True),
    sa.Column("currency", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("micro", BIG, nullable=False, comment="the exact amount"),
    sa.Column("minor", BIG, nullable=False, comment="booked: minor units of the currency"),
    comment="What each owner was billed at the close of a month.",
)

closed_workload = sa.Table(
    "closed_workload",
    metadata,
    foreign("period_start_ms", "billing_period.start_ms", primary_key=True),
    sa.Column("workload_id", BIG, primary_key=True),
    sa.Column("name", sa.Text),
    sa.Column("user_name", sa.Text),
    sa.Column("tags", pg.JSONB, nullable=False),
    comment="Names and tags of workloads as they stood when their month was closed, for the same export ever after.",
)

correction = sa.Table(
    "correction",
    metadata,
    identity(),
    sa.Column("booked_day_ms", BIG, nullable=False, comment="day of an open period in which it counts"),
    sa.Column("recorded_ms", BIG, nullable=False),
    sa.Column("day_ms", BIG, nullable=False, comment="the closed day that it amends"),
    sa.Column("start_ms", BIG, nullable=False),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("accelerator_id", BIG),
    sa.Column("workload_id", BIG),
    foreign("owner_id", "owner.id", nullable=True),
    sa.Column("state", sa.Text, nullable=False),
    text("pool"),
    text("gpu_model"),
    text("node"),
    foreign("price_id", "price.id", nullable=True),
    sa.Column("gpu_ns", BIG, nullable=False),
    sa.Column("busy_ns", BIG, nullable=False),
    sa.Column("idle_ns", BIG, nullable=False),
    sa.Column("unknown_ns", BIG, nullable=False),
    sa.Column("currency", sa.Text),
    sa.Column("cost_micro", BIG),
    sa.Column("idle_cost_micro", BIG),
    sa.Column("list_cost_micro", BIG),
    sa.Column("energy_mj", BIG),
    foreign("commitment_id", "commitment.id", nullable=True),
    sa.Column("contracted_cost_micro", BIG),
    sa.Index("ix_correction_day_ms", "day_ms"),
    sa.Index("ix_correction_booked_day_ms", "booked_day_ms"),
    comment="Differences to charges of closed days, booked in an open period; never changed.",
)

corrected_day = sa.Table(
    "corrected_day",
    metadata,
    sa.Column("day_ms", BIG, primary_key=True),
    sa.Column("capacity_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("held_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unallocated_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unavailable_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unobserved_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("capacity_cost", pg.JSONB, nullable=False),
    sa.Column("charged_cost", pg.JSONB, nullable=False),
    sa.Column("imported_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("until_ms", BIG, nullable=False),
    sa.Column("holds", sa.Boolean, nullable=False),
    instant("proved_at"),
    sa.Column("commitments", pg.JSONB, nullable=False, server_default="{}"),
    sa.Column("stranded_ns", sa.Numeric(30, 0), nullable=False, server_default="0"),
    comment="Proof of a closed day with its corrections; the sealed proof stays in conservation_check.",
)
