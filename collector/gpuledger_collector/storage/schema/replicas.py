"""What replicas of several versions must know of each other."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import instant, metadata

schema_step = sa.Table(
    "schema_step",
    metadata,
    sa.Column("revision", sa.Text, primary_key=True),
    sa.Column("follows", sa.Text, nullable=False),
    sa.Column("phase", sa.Text, nullable=False, comment="pre: older collectors go on; post: they do not"),
    instant("applied_at"),
    sa.CheckConstraint("phase IN ('pre', 'post')", name="phase"),
    comment="Migrations that ran, so that an older collector knows whether it may go on serving.",
)

replica = sa.Table(
    "replica",
    metadata,
    sa.Column("id", pg.UUID, primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("revision", sa.Text, nullable=False, comment="the newest migration that it knows"),
    instant("started_at"),
    instant("seen_at"),
    sa.Column(
        "last_error", sa.Text, nullable=False, server_default="", comment="why batches could last not be written"
    ),
    instant("last_error_at", nullable=True),
    comment="Collectors by their heartbeat; those that ended or fell silent are removed.",
)
