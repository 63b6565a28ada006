"""Contested lines with their evidence, what was attributed anew by decision, and providers' bills."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, foreign, identity, instant, metadata, text

dispute = sa.Table(
    "dispute",
    metadata,
    identity(),
    sa.Column("owner", pg.JSONB, nullable=False, comment="level -> value: whose lines are contested"),
    sa.Column("start_ms", BIG, nullable=False),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("accelerator_id", BIG, comment="null: any"),
    sa.Column("workload_id", BIG, comment="null: any"),
    sa.Column("line", sa.Text, comment="hash of the one line that is contested; null: all of them"),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, comment="open, answered, accepted or rejected"),
    sa.Column("opened_ms", BIG, nullable=False),
    sa.Column("opened_by", sa.Text, nullable=False),
    sa.Column("gpu_ns", sa.Numeric(30, 0), nullable=False, comment="contested, as billed at the opening"),
    sa.Column("cost", pg.JSONB, nullable=False, comment="currency -> micro-units, as billed at the opening"),
    sa.Column("evidence", sa.Text, nullable=False, comment="canonical JSON, as it stood at the opening"),
    sa.Column("seal", sa.Text, nullable=False, comment="SHA-256 of the evidence, hexadecimal"),
    sa.Column("resolved_ms", BIG),
    sa.CheckConstraint("end_ms > start_ms", name="order"),
    sa.CheckConstraint("state IN ('open', 'answered', 'accepted', 'rejected')", name="state"),
    sa.CheckConstraint("(resolved_ms IS NOT NULL) = (state IN ('accepted', 'rejected'))", name="resolved"),
    comment="Lines that an owner contests, with the evidence as it stood; resolved once.",
)

dispute_entry = sa.Table(
    "dispute_entry",
    metadata,
    identity(),
    foreign("dispute_id", "dispute.id"),
    sa.Column("at_ms", BIG, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False, comment="opened, answered, accepted or rejected"),
    sa.Column("words", sa.Text, nullable=False),
    sa.Index("ix_dispute_entry_dispute_id", "dispute_id"),
    comment="What was said in a dispute, in order; rows are only added.",
)

reattribution = sa.Table(
    "reattribution",
    metadata,
    identity(),
    foreign("dispute_id", "dispute.id"),
    sa.Column("start_ms", BIG, nullable=False),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("accelerator_id", BIG, comment="null: any"),
    sa.Column("workload_id", BIG, nullable=False),
    sa.Column("state", sa.Text, nullable=False, comment="held: by another owner; unavailable: it could not be used"),
    sa.Column("owner", pg.JSONB, comment="level -> value, for held; empty: unattributed"),
    instant("recorded_at"),
    sa.Column("contested", pg.JSONB, comment="level -> value: time of this owner moves; null: as the dispute has it"),
    sa.CheckConstraint("end_ms > start_ms", name="order"),
    sa.CheckConstraint("state IN ('held', 'unavailable')", name="state"),
    sa.CheckConstraint("(state = 'held') = (owner IS NOT NULL)", name="owner"),
    sa.Index("ix_reattribution_start_ms_end_ms", "start_ms", "end_ms"),
    comment="Dated exceptions to attribution that accepted disputes made; rating applies them in order. Never changed.",
)

bill = sa.Table(
    "bill",
    metadata,
    identity(),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("period_start_ms", BIG, nullable=False),
    sa.Column("period_end_ms", BIG, nullable=False),
    sa.Column("file_name", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False, comment="of the file, hexadecimal"),
    sa.Column("lines", BIG, nullable=False),
    instant("imported_at"),
    instant("superseded_at", nullable=True),
    sa.Index("ix_bill_provider_period_start_ms", "provider", "period_start_ms"),
    comment="Providers' bills by billing period; a newer file of a period supersedes the one before.",
)

bill_line = sa.Table(
    "bill_line",
    metadata,
    foreign("bill_id", "bill.id", primary_key=True),
    sa.Column("line", BIG, primary_key=True, autoincrement=False, comment="line (CSV) or row (Parquet) of the file"),
    sa.Column("start_ms", BIG, nullable=False),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("category", sa.Text, nullable=False, comment="ChargeCategory"),
    text("charge_class"),
    text("description"),
    text("sku"),
    text("resource"),
    text("resource_name"),
    text("region"),
    text("service"),
    text("commitment"),
    sa.Column("quantity", sa.Numeric, comment="PricingQuantity, else ConsumedQuantity; null: none"),
    text("unit"),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("billed", sa.Numeric, nullable=False),
    sa.Column("effective", sa.Numeric),
    comment="Lines of providers' bills, amounts as they were written.",
)

bill_match = sa.Table(
    "bill_match",
    metadata,
    identity(),
    sa.Column("position", sa.Integer, nullable=False),
    text("provider"),
    text("sku"),
    text("resource"),
    text("region"),
    text("service"),
    text("pool"),
    text("node"),
    sa.Column("gpus", sa.Numeric(12, 6), comment="GPUs of one unit; null: what the inventory says of the node, else 1"),
    sa.Column(
        "leave_out", sa.Boolean, nullable=False, comment="nothing of ours: told apart, and compared with nothing"
    ),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    comment="Which pool or node a line of a provider's bill is about; the first that matches holds.",
)
