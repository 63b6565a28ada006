"""Tokens, changes of the audit log and where a person's name is stored, as lists."""

from __future__ import annotations

from gpuledger_collector.accounting.audit_log import Entry
from gpuledger_collector.accounting.personal_data import Place
from gpuledger_collector.accounting.tokens import ListedToken
from gpuledger_collector.export.report import Column, Kind, Report

TOKENS: Report[ListedToken] = Report(
    "tokens",
    (
        Column("id", lambda item: item.token.id, Kind.NUMBER),
        Column("name", lambda item: item.token.name),
        Column("role", lambda item: item.token.role),
        Column("node", lambda item: item.token.node),
        Column("owner", lambda item: item.token.owner, Kind.OWNER),
        Column("made_ms", lambda item: item.token.made_ms, Kind.NUMBER),
        Column("expires_ms", lambda item: item.token.expires_ms, Kind.NUMBER),
        Column("revoked_ms", lambda item: item.token.revoked_ms, Kind.NUMBER),
        Column("last_used_ms", lambda item: item.token.last_used_ms, Kind.NUMBER),
        Column("live", lambda item: item.is_live),
    ),
)
AUDIT: Report[Entry] = Report(
    "audit",
    (
        Column("number", lambda entry: entry.number, Kind.NUMBER),
        Column("at", lambda entry: entry.at_ms, Kind.INSTANT),
        Column("who", lambda entry: entry.who),
        Column("what", lambda entry: entry.what),
        Column("subject", lambda entry: entry.subject),
        Column("before", lambda entry: entry.before, Kind.JSON),
        Column("after", lambda entry: entry.after, Kind.JSON),
        Column("hash", lambda entry: entry.hash),
    ),
)
PRIVACY: Report[Place] = Report(
    "privacy",
    (
        Column("table", lambda place: place.table),
        Column("column", lambda place: place.column),
        Column("rows", lambda place: place.rows, Kind.COUNT),
        Column("stays", lambda place: place.kept),
    ),
)
