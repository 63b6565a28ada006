"""Collectors, their jobs, and the migrations that ran."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import (
    INSTANT,
    TEXT,
    column,
    identity,
    index,
    key,
    keys,
    optional,
    required_columns,
    table,
    texts,
)

table(
    "replica",
    "Collectors with a recent heartbeat.",
    *keys(pg.UUID, "id"),
    *required_columns(TEXT, "host", "version"),
    column("revision", TEXT, "latest migration that it knows"),
    *required_columns(INSTANT, "started_at", "seen_at"),
    column("last_error", TEXT, "last failure to write batches", default=""),
    *optional(INSTANT, "last_error_at"),
)

table(
    "quota_use",
    "What heavy senders have used of their quotas, for all collectors.",
    key("payer", TEXT, "node of the token, else the name of the token"),
    key("quota", TEXT),
    column("used", sa.Double, "units taken out of the bucket as of `at`"),
    column("rate", sa.Double, "units a second that flow back"),
    *required_columns(INSTANT, "at"),
)

table(
    "job_run",
    "Executions of scheduled jobs.",
    identity(),
    *required_columns(TEXT, "job"),
    *required_columns(INSTANT, "started_at"),
    *optional(INSTANT, "ended_at"),
    *optional(TEXT, "outcome"),
    *texts("detail"),
    index("job", "started_at"),
)

table(
    "applied_migration",
    "Migrations that ran, so that an older collector knows whether it may continue to serve.",
    *keys(TEXT, "revision"),
    *required_columns(TEXT, "follows"),
    column("phase", TEXT, "pre: older collectors continue; post: they do not"),
    *required_columns(INSTANT, "applied_at"),
    sa.CheckConstraint("phase IN ('pre', 'post')", name="phase"),
)
