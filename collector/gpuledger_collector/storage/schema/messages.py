"""Budgets and their alerts, the messages to hand over, notifications about findings, and what is done about them."""

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
    sa.Column(
        "state",
        sa.Text,
        nullable=False,
        comment="waiting, handing_over, sent, unconfirmed or dead; held for a digest, joined to one",
    ),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("sent_ms", BIG),
    text("error"),
    sa.Column(
        "urgent",
        sa.Boolean,
        nullable=False,
        server_default=sa.false(),
        comment="passes quiet hours, digests and the cap of a day",
    ),
    sa.Column("link", sa.Text, nullable=False, server_default="", comment="where its reader says that it is known"),
    sa.Column("planned_ms", BIG, comment="for when the rules of its recipient planned it; null: not yet looked at"),
    sa.Column("digest_ms", BIG, comment="when the digest that it joins is due"),
    sa.Column("digest_id", BIG, comment="the message that tells of it"),
    sa.UniqueConstraint("key", "recipient"),
    sa.Index("ix_outbox_digest_ms", "digest_ms", postgresql_where=sa.text("state = 'held'")),
    sa.Index("ix_outbox_recipient_planned_ms", "recipient", "planned_ms"),
    sa.Index(
        "ix_outbox_not_before_ms", "not_before_ms", postgresql_where=sa.text("state IN ('waiting', 'handing_over')")
    ),
    comment="Messages to send, each once; written in the transaction of the change that they tell of.",
)

used_link = sa.Table(
    "used_link",
    metadata,
    sa.Column("mac", sa.Text, primary_key=True, comment="the signature of the link"),
    sa.Column("used_ms", BIG, nullable=False),
    comment="Links of mails whose button was pressed: they say so, and change nothing again.",
)

notification_rule = sa.Table(
    "notification_rule",
    metadata,
    identity(),
    sa.Column("kind", sa.Text, nullable=False, comment="recipient, contact or action"),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("terms", pg.JSONB, nullable=False),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    sa.Index(
        "uq_notification_rule_kind", "kind", "name", unique=True, postgresql_where=sa.text("superseded_at IS NULL")
    ),
    comment="How recipients want their messages, who is written to, and what may be done by itself; never edited.",
)

notification = sa.Table(
    "notification",
    metadata,
    identity(),
    sa.Column("key", sa.Text, nullable=False, comment="kind, subject, begin and round: an episode is told once"),
    sa.Column("kind", sa.Text, nullable=False, comment="idle or anomaly"),
    sa.Column(
        "subject", sa.Text, nullable=False, comment="workload of an idle episode, owner and currency of an anomaly"
    ),
    text("team"),
    sa.Column("recipients", pg.JSONB, nullable=False),
    sa.Column("findings", pg.JSONB, nullable=False, comment="keys"),
    sa.Column("since_ms", BIG, nullable=False),
    sa.Column("until_ms", BIG, nullable=False, comment="seen up to here"),
    sa.Column("told_ms", BIG, nullable=False),
    sa.Column("escalated_ms", BIG),
    sa.Column("acked_ms", BIG),
    text("acked_by"),
    sa.Column("ack_until_ms", BIG, comment="meant so until then"),
    text("why"),
    sa.Column("closed_ms", BIG, comment="when the episode ended; null: it goes on"),
    sa.UniqueConstraint("key"),
    sa.Index("ix_notification_kind_subject", "kind", "subject"),
    comment="Episodes that people were told of, each once, and what they said to it.",
)

action = sa.Table(
    "action",
    metadata,
    identity(),
    sa.Column("key", sa.Text, nullable=False, comment="letter and what is done: done once"),
    foreign("notification_id", "notification.id"),
    sa.Column("what", sa.Text, nullable=False, comment="scancel, evict or webhook:NAME"),
    sa.Column("target", pg.JSONB, nullable=False, comment="the workload as the way of doing it names it"),
    text("team"),
    sa.Column("state", sa.Text, nullable=False, comment="shown, doing, done, failed or spared"),
    sa.Column("first_shown_ms", BIG, nullable=False, comment="since when the dry run shows it without a break"),
    sa.Column("last_shown_ms", BIG, nullable=False),
    sa.Column("acted_ms", BIG),
    sa.Column("done_ms", BIG),
    text("detail"),
    sa.UniqueConstraint("key"),
    comment="What is done to a workload that is idle and was told of it: first shown, then done once.",
)
