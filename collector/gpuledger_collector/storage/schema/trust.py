"""Tokens, refused claims, the audit log, and the runs of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, identity, instant, metadata, text

token = sa.Table(
    "token",
    metadata,
    identity(),
    sa.Column("name", sa.Text, nullable=False, comment="rotation makes a second one of the same name"),
    sa.Column("role", sa.Text, nullable=False, comment="agent, viewer, finance or admin"),
    sa.Column("node", sa.Text, comment="of an agent: the only node that it may report; null: any"),
    sa.Column("owner", pg.JSONB, comment="of a viewer: level -> value, the subtree that it may see"),
    sa.Column("hash", sa.Text, nullable=False, unique=True, comment="SHA-256 of the secret, hexadecimal"),
    sa.Column("made_ms", BIG, nullable=False),
    sa.Column("expires_ms", BIG),
    sa.Column("last_used_ms", BIG, comment="to about a minute"),
    sa.Column("revoked_ms", BIG),
    sa.CheckConstraint("role IN ('agent', 'viewer', 'finance', 'admin')", name="role"),
    sa.CheckConstraint("(role = 'viewer') = (owner IS NOT NULL)", name="owner"),
    sa.CheckConstraint("role = 'agent' OR node IS NULL", name="node"),
    comment="Tokens by the hash of their secret; rows are never deleted.",
)

claim = sa.Table(
    "claim",
    metadata,
    sa.Column("accelerator_id", BIG, primary_key=True, autoincrement=False),
    sa.Column("node_id", BIG, primary_key=True, autoincrement=False, comment="the node that makes the claim"),
    sa.Column("kind", sa.Text, primary_key=True, comment="node, pool, board or holder"),
    sa.Column("subject", sa.Text, primary_key=True, comment="what is claimed: a pool, or the node, board or workload"),
    sa.Column("first_ms", BIG, nullable=False),
    sa.Column("last_ms", BIG, nullable=False),
    comment="Claims that were refused because they would change what somebody else pays; a person decides.",
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("number", BIG, primary_key=True, autoincrement=False, comment="1, 2, 3 and so on, without a gap"),
    sa.Column("at_ms", BIG, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False, comment="kind of what was changed"),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("before", pg.JSON, comment="null: it was not there"),
    sa.Column("after", pg.JSON, comment="null: it is not in force any more"),
    sa.Column("previous", sa.Text, nullable=False, comment="hash of the row before; empty: this is the first"),
    sa.Column("hash", sa.Text, nullable=False, comment="SHA-256 over all of this row, hexadecimal"),
    comment="Who changed what, chained by hashes. Rows are added and never changed: triggers refuse it.",
)

# Recommendations

job_run = sa.Table(
    "job_run",
    metadata,
    identity(),
    sa.Column("job", sa.Text, nullable=False),
    instant("started_at"),
    instant("ended_at", nullable=True),
    sa.Column("outcome", sa.Text),
    text("detail"),
    sa.Index("ix_job_run_job_started_at", "job", "started_at"),
    comment="Executions of scheduled jobs.",
)


# Budgets, their alerts, and the outbox
