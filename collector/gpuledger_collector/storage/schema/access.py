"""Tokens, readers of the database, the audit log, and the tables that serve as locks."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.accounting.personal_data import Person
from gpuledger_collector.storage.locks import ABOUT, LEDGER_PARTS, Lock
from gpuledger_collector.storage.schema.columns import (
    BIG,
    INSTANT,
    JSONB,
    TEXT,
    column,
    identity,
    key,
    keys,
    optional,
    required_columns,
    table,
)

table(
    "token",
    "Tokens by the hash of their secret; rows are never deleted.",
    identity(),
    column("name", TEXT, "rotation adds a second one of the same name", person=Person.WORDS),
    column("role", TEXT, "agent, viewer, finance or admin"),
    column("node", TEXT, "only node that an agent may report; null: any", nullable=True),
    column("owner", JSONB, "level -> value: subtree that a viewer may see", nullable=True),
    column("hash", TEXT, "SHA-256 of the secret, hexadecimal", unique=True),
    *required_columns(BIG, "made_ms"),
    *optional(BIG, "expires_ms"),
    column("last_used_ms", BIG, "accurate to about a minute", nullable=True),
    *optional(BIG, "revoked_ms"),
    sa.CheckConstraint("role IN ('agent', 'viewer', 'finance', 'admin')", name="role"),
    sa.CheckConstraint("(role = 'viewer') = (owner IS NOT NULL)", name="owner"),
    sa.CheckConstraint("role = 'agent' OR node IS NULL", name="node"),
    stays="who had access: the audit log names the token; gpuledger token revoke ends it",
)

table(
    "database_reader",
    "Roles created by `gpuledger db grant-reader`; a collector ends their sessions that exceed"
    " limits.",
    *keys(TEXT, "role"),
    column("granted_at", INSTANT, default=sa.func.now()),
)

table(
    "audit",
    "Who changed what, chained by hashes. Triggers refuse any change of a row.",
    key("number", BIG, "consecutive from 1"),
    *required_columns(BIG, "at_ms"),
    *required_columns(TEXT, "who", person=Person.NAME),
    column("what", TEXT, "kind of the changed object"),
    *required_columns(TEXT, "subject", person=Person.WORDS),
    column("before", pg.JSON, "null: did not exist", nullable=True, person=Person.WORDS),
    column("after", pg.JSON, "null: no longer in force", nullable=True, person=Person.WORDS),
    column("previous", TEXT, "hash of the previous row; empty: first row"),
    column("hash", TEXT, "SHA-256 over the row, hexadecimal"),
    stays="the audit log is only added to",
)

for lock in Lock:
    table(lock.value, ABOUT)
for part in LEDGER_PARTS:
    table(part, ABOUT, postgresql_inherits=Lock.LEDGER.value)
