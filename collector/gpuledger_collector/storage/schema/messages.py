"""Budgets, their alerts, and the messages to hand over."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, foreign, identity, instant, metadata, text

budget = sa.Table(
    "budget",
    metadata,
    identity(),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("owner", pg.JSONB, nullable=False, comment="level -> value; empty: the whole fleet"),
    sa.Column("period", sa.Text, nullable=False, comment="month, quarter or range"),
    sa.Column("start_ms", BIG, comment="of a range"),
    sa.Column("end_ms", BIG, comment="of a range"),
    sa.Column("amount_micro", BIG, nullable=False),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("terms", pg.JSONB, nullable=False, comment="thresholds and who is told"),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    sa.Index("uq_budget_name", "name", unique=True, postgresql_where=sa.text("superseded_at IS NULL")),
    comment="What an owner may spend in a period; another amount, owner or period is another budget of the same name.",
)

budget_alert = sa.Table(
    "budget_alert",
    metadata,
    identity(),
    foreign("budget_id", "budget.id"),
    sa.Column("period_start_ms", BIG, nullable=False),
    sa.Column("rule", sa.Text, nullable=False, comment="actual, forecast or pace"),
    sa.Column("percent", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False, comment="pending, firing, acked or resolved"),
    sa.Column("seen", sa.Integer, nullable=False, comment="evaluations in a row that crossed"),
    sa.Column("evaluated_ms", BIG, nullable=False),
    sa.Column("fired_ms", BIG),
    sa.Column("escalated_ms", BIG),
    sa.Column("spent_micro", BIG, comment="when it fired"),
    text("acked_by"),
    sa.UniqueConstraint("budget_id", "period_start_ms", "rule", "percent"),
    comment="State of a threshold in a period: it fires once.",
)

outbox = sa.Table(
    "outbox",
    metadata,
    identity(),
    sa.Column("key", sa.Text, nullable=False, comment="names the event; once per recipient"),
    sa.Column("recipient", sa.Text, nullable=False, comment="an address, or slack:NAME, or webhook:NAME"),
    text("kind"),
    text("subject"),
    text("text"),
    text("html"),
    text("thread"),
    sa.Column("attachments", pg.JSONB, nullable=False, server_default="{}", comment="file name -> text"),
    sa.Column("made_ms", BIG, nullable=False),
    sa.Column("not_before_ms", BIG, nullable=False),
    sa.Column("state", sa.Text, nullable=False, comment="waiting, handing_over, sent, unconfirmed or dead"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("sent_ms", BIG),
    text("error"),
    sa.UniqueConstraint("key", "recipient"),
    sa.Index(
        "ix_outbox_not_before_ms", "not_before_ms", postgresql_where=sa.text("state IN ('waiting', 'handing_over')")
    ),
    comment="Messages to send, each once; written in the transaction of the change that they tell of.",
)


# Closed periods
