"""Who is written to, what was written, and what was done about it."""

from __future__ import annotations

import sqlalchemy as sa

from gpuledger_collector.accounting.personal_data import Person
from gpuledger_collector.storage.schema.columns import (
    BIG,
    JSONB,
    TEXT,
    column,
    foreign,
    identity,
    index,
    key,
    optional,
    required_columns,
    table,
    texts,
    version_columns,
)

table(
    "notification_rule",
    "Delivery preferences, contacts of teams, and permitted actions: rows are superseded, never"
    " edited.",
    identity(),
    column("kind", TEXT, "recipient, contact, action or anomaly_floor"),
    *required_columns(TEXT, "name"),
    *required_columns(JSONB, "terms"),
    *version_columns(),
    sa.Index(
        "uq_notification_rule_kind",
        "kind",
        "name",
        unique=True,
        postgresql_where=sa.text("superseded_at IS NULL"),
    ),
    stays="declared in a file: change it there and apply it",
)

table(
    "notification",
    "Episodes that people were notified of, each once, and their response.",
    identity(),
    column("key", TEXT, "kind, subject, start and round: notified once"),
    column("kind", TEXT, "idle or anomaly"),
    column(
        "subject", TEXT, "workload (idle), or owner and currency (anomaly)", person=Person.WORDS
    ),
    *texts("team"),
    *required_columns(JSONB, "recipients"),
    column("findings", JSONB, "their keys"),
    *required_columns(BIG, "since_ms"),
    column("until_ms", BIG, "observed up to here"),
    *required_columns(BIG, "notified_ms"),
    *optional(BIG, "escalated_ms", "acked_ms"),
    *texts("acked_by", person=Person.NAME),
    column("ack_until_ms", BIG, "acknowledged until then", nullable=True),
    *texts("why", person=Person.WORDS),
    column("closed_ms", BIG, "null: ongoing", nullable=True),
    sa.UniqueConstraint("key"),
    index("kind", "subject"),
)

table(
    "reclaim_action",
    "Reclaiming of an idle workload whose owner was notified: announced first, then carried out"
    " once.",
    identity(),
    column("key", TEXT, "notification and action: carried out once"),
    foreign("notification_id", "notification.id"),
    column("what", TEXT, "scancel, evict or webhook:NAME"),
    column("target", JSONB, "workload as the reclaim backend names it"),
    *texts("team"),
    column("state", TEXT, "shown, doing, done, failed or spared"),
    column("first_shown_ms", BIG, "since when the dry run lists it without interruption"),
    *required_columns(BIG, "last_shown_ms"),
    *optional(BIG, "acted_ms", "done_ms"),
    *texts("detail", person=Person.WORDS),
    sa.UniqueConstraint("key"),
)

table(
    "outbox",
    "Messages to send, each once; written in the transaction of the change that they report.",
    identity(),
    column("key", TEXT, "deduplication key: once per recipient"),
    column(
        "recipient",
        TEXT,
        "an address, or slack:NAME, teams:NAME or webhook:NAME",
        person=Person.MESSAGE,
    ),
    *texts("kind"),
    *texts("subject", "text", "html", person=Person.MESSAGE),
    *texts("thread"),
    column("attachments", JSONB, "file name -> text", default="{}", person=Person.MESSAGE),
    *required_columns(BIG, "made_ms", "not_before_ms"),
    column(
        "state",
        TEXT,
        "waiting, handing_over, sent, unconfirmed or dead; held for a digest, joined to one",
    ),
    column("attempts", sa.Integer, default="0"),
    *optional(BIG, "sent_ms"),
    *texts("error"),
    column("urgent", sa.Boolean, "ignores quiet hours, digests and the daily cap", default="false"),
    column("link", TEXT, "acknowledgment link", default=""),
    column("page", TEXT, "address of the page about it", default=""),
    column("planned_ms", BIG, "by the recipient's rules; null: not planned yet", nullable=True),
    column("digest_ms", BIG, "when its digest is due", nullable=True),
    column("digest_id", BIG, "message of the digest that contains it", nullable=True),
    sa.UniqueConstraint("key", "recipient"),
    index("digest_ms", postgresql_where=sa.text("state = 'held'")),
    index("not_before_ms", postgresql_where=sa.text("state IN ('waiting', 'handing_over')")),
    index("recipient", "planned_ms"),
)

table(
    "acknowledged_link",
    "Links in mails that were used: opening one again changes nothing.",
    key("mac", TEXT, "signature of the link"),
    *required_columns(BIG, "used_ms"),
)
