"""Usage, prices, owners, charges and the proof of each day."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, foreign, identity, instant, metadata, text

usage_hour = sa.Table(
    "usage_hour",
    metadata,
    sa.Column("accelerator_id", BIG, nullable=False),
    sa.Column("hour_ms", BIG, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("workload_id", BIG),
    sa.Column("held_ms", BIG, nullable=False, comment="this state's (and workload's) part of the hour"),
    sa.Column("busy_ms", BIG, nullable=False),
    sa.Column("idle_ms", BIG, nullable=False),
    sa.Column("unknown_ms", BIG, nullable=False),
    sa.Column("energy_mj", BIG),
    sa.Column("workload_attributes_id", BIG, comment="what was reported of the workload for this time"),
    sa.Index(
        "uq_usage_hour_attributes",
        "accelerator_id",
        "hour_ms",
        "state",
        "workload_id",
        "workload_attributes_id",
        unique=True,
        postgresql_nulls_not_distinct=True,
    ),
    sa.Index("ix_usage_hour_hour_ms", "hour_ms"),
    comment="Hourly usage ledger per accelerator and workload: the fold of the usage intervals, overlaps resolved.",
)

imported_usage = sa.Table(
    "imported_usage",
    metadata,
    foreign("workload_id", "workload.id", primary_key=True),
    sa.Column("start_ms", BIG, primary_key=True),
    sa.Column("end_ms", BIG, comment="null: still running"),
    sa.Column("gpu_micro", BIG, nullable=False),
    text("gpu_model"),
    text("pool", "imported"),
    text("node"),
    sa.Column("submitted_ms", BIG),
    text("state"),
    sa.Column("workload_attributes_id", BIG, comment="what the import says of the workload"),
    sa.CheckConstraint("end_ms IS NULL OR end_ms >= start_ms", name="order"),
    sa.Index("ix_imported_usage_start_ms_end_ms", "start_ms", "end_ms"),
    comment="Usage imported as counts of GPUs, from schedulers without an agent.",
)

price = sa.Table(
    "price",
    metadata,
    identity(),
    text("pool"),
    text("gpu_model"),
    sa.Column("purchase", sa.Text, nullable=False),
    sa.Column("rate_per_gpu_hour", sa.Numeric(18, 9), nullable=False),
    sa.Column("list_rate", sa.Numeric(18, 9)),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("effective_from_ms", BIG, nullable=False),
    sa.Column("effective_to_ms", BIG),
    text("region"),
    text("node"),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    sa.Column("basis", pg.JSONB, comment="of a derived rate: what it was derived from, and its parts"),
    comment="The price book: versions are added, never edited.",
)

commitment = sa.Table(
    "commitment",
    metadata,
    identity(),
    sa.Column("name", sa.Text, nullable=False),
    text("pool"),
    text("gpu_model"),
    text("node"),
    text("region"),
    sa.Column("gpus", BIG, nullable=False),
    sa.Column(
        "upfront_micro",
        BIG,
        nullable=False,
        comment="micro-units of the currency, amortised over the hours of the term",
    ),
    sa.Column(
        "rate_per_gpu_hour", sa.Numeric(18, 9), nullable=False, comment="recurring: paid for every committed GPU-hour"
    ),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("starts_ms", BIG, nullable=False),
    sa.Column("ends_ms", BIG, nullable=False),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    sa.CheckConstraint(
        "ends_ms > starts_ms AND starts_ms % 3600000 = 0 AND ends_ms % 3600000 = 0",
        name="term",
    ),
    comment="Capacity paid for a term, used or not: versions are superseded, never edited.",
)

purchase_choice = sa.Table(
    "purchase_choice",
    metadata,
    identity(),
    text("name"),
    sa.Column("position", sa.Integer, nullable=False),
    text("pool"),
    text("gpu_model"),
    text("node"),
    sa.Column("tags", pg.JSONB, nullable=False, comment="tags of a workload; only for usage imported as counts"),
    sa.Column("purchase", sa.Text, nullable=False),
    sa.Column("effective_from_ms", BIG),
    sa.Column("effective_to_ms", BIG),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    comment="Which way of buying applies where; the first that matches, by position.",
)

exchange_rate = sa.Table(
    "exchange_rate",
    metadata,
    identity(),
    sa.Column("from_currency", sa.Text, nullable=False),
    sa.Column("to_currency", sa.Text, nullable=False),
    sa.Column("rate", sa.Numeric(18, 9), nullable=False),
    sa.Column("effective_from_ms", BIG, nullable=False),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    comment="For the view of a report only: the ledger keeps its currencies.",
)

owner = sa.Table(
    "owner",
    metadata,
    identity(),
    text("org"),
    text("team"),
    text("project"),
    text("experiment"),
    text("run"),
    text("user_name"),
    sa.UniqueConstraint("org", "team", "project", "experiment", "run", "user_name"),
    comment="A path in the owner tree; empty levels are unattributed.",
)

attribution_rule = sa.Table(
    "attribution_rule",
    metadata,
    identity(),
    text("name"),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("match", pg.JSONB, nullable=False),
    sa.Column("assign", pg.JSONB, nullable=False),
    sa.Column("effective_from_ms", BIG),
    sa.Column("effective_to_ms", BIG),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    comment="Dated, ordered rules from tags to owners.",
)

charge = sa.Table(
    "charge",
    metadata,
    sa.Column("day_ms", BIG, nullable=False, comment="start of the UTC day that this line belongs to"),
    sa.Column("start_ms", BIG, nullable=False),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("accelerator_id", BIG, comment="null for usage imported as counts"),
    sa.Column("workload_id", BIG, comment="null for states without one"),
    foreign("owner_id", "owner.id", nullable=True),
    sa.Column("state", sa.Text, nullable=False),
    text("pool"),
    text("gpu_model"),
    text("node"),
    foreign("price_id", "price.id", nullable=True),
    sa.Column("gpu_ns", BIG, nullable=False),
    sa.Column("busy_ns", BIG, nullable=False),
    sa.Column("idle_ns", BIG, nullable=False),
    sa.Column("unknown_ns", BIG, nullable=False),
    sa.Column("currency", sa.Text, comment="null: unpriced"),
    sa.Column("cost_micro", BIG, comment="null: unpriced, never 0"),
    sa.Column("idle_cost_micro", BIG),
    sa.Column("list_cost_micro", BIG),
    sa.Column("energy_mj", BIG),
    sa.Column(
        "commitment_id",
        BIG,
        sa.ForeignKey("commitment.id"),
        comment="what covers it: its cost is then the amortised one",
    ),
    sa.Column("contracted_cost_micro", BIG, comment="at the rate of the price book; null: unknown"),
    sa.Index("ix_charge_day_ms", "day_ms"),
    sa.Index("ix_charge_workload_id", "workload_id"),
    comment="Charges: one line per day, accelerator (or pool), workload, state and rate; hours are rated one by one.",
)

ledger_day = sa.Table(
    "ledger_day",
    metadata,
    sa.Column("day_ms", BIG, nullable=False),
    foreign("owner_id", "owner.id", nullable=True),
    sa.Column("state", sa.Text, nullable=False),
    text("pool"),
    text("gpu_model"),
    sa.Column("currency", sa.Text),
    sa.Column("gpu_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("busy_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("idle_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unknown_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("cost_micro", BIG),
    sa.Column("idle_cost_micro", BIG),
    sa.Column("energy_mj", sa.Numeric(30, 0)),
    sa.Column("list_cost_micro", BIG),
    sa.Column("contracted_cost_micro", BIG),
    sa.Index("ix_ledger_day_day_ms", "day_ms"),
    comment="Daily ledger per owner: what reports and dashboards read.",
)

ledger_month = sa.Table(
    "ledger_month",
    metadata,
    sa.Column("start_ms", BIG, nullable=False),
    sa.Column("end_ms", BIG, nullable=False, comment="the days from start_ms to here, not included, are in it"),
    foreign("owner_id", "owner.id", nullable=True),
    sa.Column("state", sa.Text, nullable=False),
    text("pool"),
    text("gpu_model"),
    sa.Column("currency", sa.Text),
    sa.Column("gpu_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("busy_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("idle_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unknown_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("cost_micro", sa.Numeric(30, 0)),
    sa.Column("idle_cost_micro", sa.Numeric(30, 0)),
    sa.Column("energy_mj", sa.Numeric(30, 0)),
    sa.Column(
        "list_cost_micro",
        sa.Numeric(30, 0),
        comment="at contracted rates where there is no list; null: some of it unknown",
    ),
    sa.Column("contracted_cost_micro", sa.Numeric(30, 0)),
    sa.Index(
        "uq_ledger_month_key",
        "start_ms",
        "end_ms",
        "owner_id",
        "state",
        "pool",
        "gpu_model",
        "currency",
        unique=True,
        postgresql_nulls_not_distinct=True,
    ),
    comment="The daily ledger of a month that is over, added up: all of its lines are here, or none while a day has "
    "changed.",
)

conservation_check = sa.Table(
    "conservation_check",
    metadata,
    sa.Column("day_ms", BIG, primary_key=True),
    sa.Column("capacity_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("held_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unallocated_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unavailable_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unobserved_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("capacity_cost", pg.JSONB, nullable=False, comment="currency -> micro-units: capacity x rate"),
    sa.Column("charged_cost", pg.JSONB, nullable=False, comment="currency -> micro-units: the sum of the charges"),
    sa.Column("imported_ns", sa.Numeric(30, 0), nullable=False, comment="usage without inventory: outside the proof"),
    sa.Column("until_ms", BIG, nullable=False, comment="the day is rated up to here; a full day is final"),
    sa.Column("holds", sa.Boolean, nullable=False),
    instant("proved_at"),
    sa.Column(
        "commitments",
        pg.JSONB,
        nullable=False,
        server_default="{}",
        comment="by name: what was committed, covered and left unused, in time and money",
    ),
    sa.Column("stranded_ns", sa.Numeric(30, 0), nullable=False, server_default="0"),
    comment="Proof of conservation, a row per rated day.",
)

day_recompute = sa.Table(
    "day_recompute",
    metadata,
    identity(),
    sa.Column("day_ms", BIG, nullable=False),
    sa.Index("ix_day_recompute_day_ms", "day_ms"),
    comment="Days to rate again; marks are added by folds, imports and changes of prices or rules.",
)

shared_cost = sa.Table(
    "shared_cost",
    metadata,
    identity(),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False, comment="amount, or the state whose cost is shared out"),
    sa.Column("amount_micro", BIG, comment="a month's, null for a state's cost"),
    sa.Column("currency", sa.Text),
    sa.Column("pool", sa.Text, nullable=False, server_default="", comment="of the state's cost; empty: every pool"),
    sa.Column("key", sa.Text, nullable=False, comment="cost, gpu_hours, even or weights"),
    sa.Column("level", sa.Text, nullable=False, comment="level of the owner tree that shares"),
    sa.Column("weights", pg.JSONB, nullable=False, comment="owner -> whole number, for key weights"),
    sa.Column("scope", pg.JSONB, nullable=False, comment="level -> owner: only those below share"),
    sa.Column("from_on", sa.Date),
    sa.Column("to_on", sa.Date),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    comment="Costs that owners share by a stated key; versions are added, never edited.",
)

carbon_intensity = sa.Table(
    "carbon_intensity",
    metadata,
    identity(),
    sa.Column("region", sa.Text, nullable=False, server_default="", comment="name of the grid, for people"),
    sa.Column("pool", sa.Text, nullable=False, server_default="", comment="empty: any"),
    sa.Column("grams_per_kwh", sa.Numeric(12, 3), nullable=False, comment="CO2 equivalent"),
    sa.Column(
        "pue", sa.Numeric(6, 3), nullable=False, comment="energy of the building over that of the machines, 1 or more"
    ),
    sa.Column("from_on", sa.Date),
    sa.Column("to_on", sa.Date),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    comment="Dated carbon intensities of the grid by pool; versions are added, never edited.",
)

billing_zone = sa.Table(
    "billing_zone",
    metadata,
    identity(),
    sa.Column("zone", sa.Text, nullable=False, comment="IANA name"),
    sa.Column("from_ms", BIG, nullable=False, comment="its first day begins here; 0: it always held"),
    instant("recorded_at"),
    instant("superseded_at", nullable=True),
    comment="In which zone days and months of the bill begin; without a row in UTC.",
)
