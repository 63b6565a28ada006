"""Findings and recommendations: estimates, never part of a bill."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.accounting.personal_data import Person
from gpuledger_collector.storage.schema.columns import (
    BIG,
    JSONB,
    TEXT,
    column,
    identity,
    index,
    keys,
    optional,
    required_columns,
    table,
    texts,
)

table(
    "finding",
    "Conditions that a person should see, opened and resolved.",
    identity(),
    column("key", TEXT, "kind, subject, start: a finding counts once", unique=True),
    column("kind", TEXT, "idle or anomaly"),
    column("state", TEXT, "idle state; for an anomaly usage, price or both"),
    column("subject", TEXT, "UUID of the accelerator, or the spending owner", person=Person.WORDS),
    *optional(BIG, "accelerator_id", "workload_id"),
    *texts("team"),
    column("owner", JSONB, "level -> value; empty: the pool's"),
    column("since_ms", BIG, "start of the condition"),
    column("opened_ms", BIG, "when it could first be detected"),
    column("until_ms", BIG, "observed up to here"),
    column("resolved_ms", BIG, "null: ongoing", nullable=True),
    *required_columns(sa.REAL, "confidence"),
    column("currency", TEXT, "null: unpriced", nullable=True),
    column("cost_micro", BIG, "so far; null: unpriced, never 0", nullable=True),
    column(
        "per_day_micro",
        BIG,
        "cost of another day at the rate in force when last seen",
        nullable=True,
    ),
    *required_columns(JSONB, "evidence"),
    index("accelerator_id"),
    index("kind", "since_ms"),
)

table(
    "finding_progress",
    "Up to where each search for findings has run.",
    *keys(TEXT, "kind"),
    *required_columns(BIG, "until_ms"),
)

table(
    "late_evidence",
    "Evidence that arrived after the search for idle accelerators had passed its hour.",
    *keys(BIG, "accelerator_id"),
    column("late_ms", BIG, "start of the first hour that is to be searched again", nullable=True),
    column("again_ms", BIG, "start of the first hour that is being searched again", nullable=True),
    column("change", BIG, "number of the last change; what was read before it is read again"),
    index("change"),
)

table(
    "recommendation",
    "Advice, its savings in the observed window, and the savings realized since.",
    identity(),
    column("key", TEXT, "kind and subject: recommended once", unique=True),
    *required_columns(TEXT, "kind"),
    *required_columns(TEXT, "subject", person=Person.WORDS),
    *texts("team"),
    column("owner", JSONB, "level -> value; empty: the pool's"),
    column("advice", TEXT, "sentence for people", person=Person.WORDS),
    *required_columns(JSONB, "evidence"),
    column("scope", JSONB, "charges that show its realized saving"),
    column("start_ms", BIG, "start of the observed window of all amounts"),
    *required_columns(BIG, "end_ms"),
    column("price_ids", pg.ARRAY(BIG), "rates used"),
    *optional(TEXT, "currency"),
    *optional(
        BIG,
        "cash_low_micro",
        "cash_expected_micro",
        "cash_high_micro",
        "capacity_low_micro",
        "capacity_expected_micro",
        "capacity_high_micro",
        "energy_low_micro",
        "energy_expected_micro",
        "energy_high_micro",
    ),
    column("freed_gpu_ns", BIG, "expected"),
    column("state", TEXT, "open, accepted, rejected, done or expired"),
    *required_columns(BIG, "made_ms", "expires_ms"),
    *optional(BIG, "decided_ms"),
    *texts("decided_by", person=Person.NAME),
    *texts("reason", person=Person.WORDS),
    column(
        "realized_micro",
        BIG,
        "by the ledger since acceptance, may be negative; null: not yet",
        nullable=True,
    ),
    *optional(BIG, "realized_until_ms"),
    column("realized", JSONB, "costs and busy time before and after", nullable=True),
)

table(
    "recommendation_run",
    "The last search for recommendations.",
    *keys(BIG, "made_ms"),
    *required_columns(BIG, "start_ms", "end_ms"),
    column("joint", JSONB, "by currency: savings of all open advice together"),
    column("not_evaluated", JSONB, "what could not be judged, and why"),
    column(
        "evidence_hash", TEXT, "of what they rest on: they are read until it changes", nullable=True
    ),
)
