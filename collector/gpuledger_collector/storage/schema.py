"""The declared schema: what the migrations must add up to (a test compares the two).

Units stand in the names: `_ms` integer milliseconds (instants: UTC unix), `gpu_micro` millionths of a device,
`gpu_ns` GPU-nanoseconds (micro-GPUs x milliseconds, 3.6e12 make one GPU-hour), `_micro` millionths of the currency's
major unit, `_mj` millijoules. Big tables carry `accelerator_id` in every key, have no triggers and can be partitioned
or sharded by it later.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_agent.catalogue import HOT

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

BIG = sa.BigInteger
STATES = ("held", "unallocated", "unavailable", "unobserved")
"""States of an accelerator's time as stored; `unobserved` is never reported, only derived by rating."""

_HOT_TYPES = {"f4": sa.REAL, "f8": sa.Double, "i8": sa.BigInteger}


def _id() -> sa.Column[int]:
    return sa.Column("id", BIG, sa.Identity(), primary_key=True)


def _at(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str, default: str = "") -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default=default)


def _fk(name: str, target: str, *, nullable: bool = False, primary_key: bool = False) -> sa.Column[int]:
    return sa.Column(name, BIG, sa.ForeignKey(target), nullable=nullable, primary_key=primary_key)


node = sa.Table(
    "node",
    metadata,
    _id(),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    _at("first_seen_at"),
    _at("last_seen_at"),
    _text("status", "ok"),
    _text("status_detail"),
    _text("agent_version"),
    _text("source"),
    sa.Column("driver", sa.Text),
    sa.Column("heartbeat", pg.JSONB),
    comment="A machine that runs one agent; kept when it has no GPU.",
)

accelerator = sa.Table(
    "accelerator",
    metadata,
    _id(),
    sa.Column("uuid", sa.Text, nullable=False, unique=True),
    sa.Column("device_uuid", sa.Text, nullable=False),
    _text("model"),
    sa.Column("mig_instance", sa.Text),
    sa.Column("gpu_micro", sa.Integer, nullable=False, server_default="1000000"),
    sa.Column("memory_bytes", BIG),
    sa.Column("gpu_index", sa.Integer),
    _text("health", "unknown"),
    _text("health_cause"),
    comment="What usage is counted for: a device, or a MIG instance.",
)

capacity = sa.Table(
    "capacity",
    metadata,
    _id(),
    _fk("accelerator_id", "accelerator.id"),
    _fk("node_id", "node.id", nullable=True),
    _text("pool", "default"),
    sa.Column("in_ms", BIG, nullable=False),
    sa.Column("out_ms", BIG),
    sa.Column("source", sa.Text, nullable=False, comment="agent (first seen) or import (inventory file)"),
    sa.CheckConstraint("out_ms IS NULL OR out_ms > in_ms", name="order"),
    sa.Index("ix_capacity_accelerator_id", "accelerator_id"),
    comment="When an accelerator was there to be held: the inventory with dates in and out.",
)

workload = sa.Table(
    "workload",
    metadata,
    _id(),
    sa.Column("key", sa.Text, nullable=False, unique=True, comment="kind, scope and external id: stable over restarts"),
    _text("kind"),
    sa.Column("external_id", sa.Text, nullable=False),
    sa.Column("user_name", sa.Text),
    sa.Column("account", sa.Text),
    sa.Column("name", sa.Text),
    sa.Column("tags", pg.JSONB, nullable=False, server_default="{}"),
    _at("first_seen_at"),
    comment="The job, pod, container or process that holds accelerators.",
)

ingest_batch = sa.Table(
    "ingest_batch",
    metadata,
    _fk("node_id", "node.id", primary_key=True),
    sa.Column("epoch", pg.UUID, primary_key=True),
    sa.Column("seq", BIG, primary_key=True),
    sa.Column("sha256", sa.LargeBinary, nullable=False),
    _at("received_at"),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("stretches", sa.Integer, nullable=False),
    sa.Column("rejected", pg.JSONB, comment="refused records: the same batch again gets the same answer"),
    sa.Index("ix_ingest_batch_received_at", "received_at"),
    comment="The batch ledger: one row makes a batch count once.",
)

ingest_conflict = sa.Table(
    "ingest_conflict",
    metadata,
    _id(),
    _text("node_name"),
    sa.Column("epoch", pg.UUID, nullable=False),
    sa.Column("seq", BIG, nullable=False),
    sa.Column("sha256", sa.LargeBinary, nullable=False),
    _at("received_at"),
    comment="Other bytes under a known batch key: refused and recorded.",
)

gpu_sample = sa.Table(
    "gpu_sample",
    metadata,
    sa.Column("accelerator_id", BIG, nullable=False),
    sa.Column("at_ms", BIG, nullable=False),
    *[sa.Column(metric.name, _HOT_TYPES[metric.column_kind]) for metric in HOT],
    sa.Index("ix_gpu_sample_at_ms", "at_ms", postgresql_using="brin"),
    postgresql_partition_by="RANGE (at_ms)",
    comment="Raw samples: one wide row per accelerator and instant.",
)

gpu_state = sa.Table(
    "gpu_state",
    metadata,
    sa.Column("accelerator_id", BIG, primary_key=True),
    sa.Column("metric", sa.Text, primary_key=True),
    sa.Column("at_ms", BIG, primary_key=True),
    sa.Column("value", sa.Double),
    comment="Slow metrics, written when they change.",
)

gpu_latest = sa.Table(
    "gpu_latest",
    metadata,
    sa.Column("accelerator_id", BIG, primary_key=True),
    sa.Column("at_ms", BIG, nullable=False),
    sa.Column("state", sa.Text),
    sa.Column("workload_id", BIG),
    *[sa.Column(metric.name, _HOT_TYPES[metric.column_kind]) for metric in HOT],
    comment="The newest sample of each accelerator, for pages that ask about now.",
)

stretch = sa.Table(
    "stretch",
    metadata,
    sa.Column("accelerator_id", BIG, nullable=False),
    sa.Column("workload_id", BIG),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("start_ms", BIG, nullable=False),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("held_ms", BIG, nullable=False),
    sa.Column("busy_ms", BIG, nullable=False),
    sa.Column("idle_ms", BIG, nullable=False),
    sa.Column("unknown_ms", BIG, nullable=False),
    sa.Column("energy_mj", BIG),
    sa.Column("node_id", BIG, nullable=False),
    sa.Column("epoch", pg.UUID, nullable=False),
    sa.Column("seq", BIG, nullable=False),
    sa.Column("record", sa.Integer, nullable=False, comment="position in its batch"),
    sa.Index("ix_stretch_accelerator_id_start_ms", "accelerator_id", "start_ms"),
    sa.Index("ix_stretch_end_ms", "end_ms", postgresql_using="brin"),
    postgresql_partition_by="RANGE (start_ms)",
    comment="Evidence of holding: what agents integrated, as they reported it.",
)

dirty_hour = sa.Table(
    "dirty_hour",
    metadata,
    _id(),
    sa.Column("accelerator_id", BIG, nullable=False),
    sa.Column("hour_ms", BIG, nullable=False),
    sa.Index("ix_dirty_hour_hour_ms", "hour_ms"),
    comment="Hours with new evidence: marks are only ever added, and removed by the fold that saw them.",
)

gpu_minute = sa.Table(
    "gpu_minute",
    metadata,
    sa.Column("accelerator_id", BIG, primary_key=True),
    sa.Column("minute_ms", BIG, primary_key=True),
    sa.Column("samples", sa.SmallInteger, nullable=False),
    sa.Column("utilization_ratio", sa.REAL),
    sa.Column("sm_active_ratio", sa.REAL),
    sa.Column("tensor_active_ratio", sa.REAL),
    sa.Column("dram_active_ratio", sa.REAL),
    sa.Column("memory_used_bytes", sa.Double),
    sa.Column("power_watts", sa.REAL),
    sa.Column("temperature_celsius", sa.REAL),
    sa.Column("zero_ratio", sa.REAL, comment="part of the samples at zero utilisation"),
    sa.Column("memory_copy_ratio", sa.REAL),
    sa.Column("sm_clock_hertz", sa.REAL),
    sa.Column("slowed_ratio", sa.REAL, comment="part of the samples with a power-cap, thermal or slowdown bit"),
    sa.Column("processes", sa.REAL),
    comment="Minute rollup of the samples: means over the minute.",
)

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
    sa.Index(
        "uq_usage_hour_key",
        "accelerator_id",
        "hour_ms",
        "state",
        "workload_id",
        unique=True,
        postgresql_nulls_not_distinct=True,
    ),
    sa.Index("ix_usage_hour_hour_ms", "hour_ms"),
    comment="Hourly usage ledger per accelerator and workload: the fold of the stretches, overlaps resolved.",
)

imported_usage = sa.Table(
    "imported_usage",
    metadata,
    _fk("workload_id", "workload.id", primary_key=True),
    sa.Column("start_ms", BIG, primary_key=True),
    sa.Column("end_ms", BIG, comment="null: still running"),
    sa.Column("gpu_micro", BIG, nullable=False),
    _text("gpu_model"),
    _text("pool", "imported"),
    _text("node"),
    sa.Column("submitted_ms", BIG),
    _text("state"),
    sa.CheckConstraint("end_ms IS NULL OR end_ms >= start_ms", name="order"),
    sa.Index("ix_imported_usage_start_ms_end_ms", "start_ms", "end_ms"),
    comment="Usage imported as counts of GPUs, from schedulers without an agent.",
)

price = sa.Table(
    "price",
    metadata,
    _id(),
    _text("pool"),
    _text("gpu_model"),
    sa.Column("purchase", sa.Text, nullable=False),
    sa.Column("rate_per_gpu_hour", sa.Numeric(18, 9), nullable=False),
    sa.Column("list_rate", sa.Numeric(18, 9)),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("effective_from_ms", BIG, nullable=False),
    sa.Column("effective_to_ms", BIG),
    _text("region"),
    _text("node"),
    _at("recorded_at"),
    _at("superseded_at", nullable=True),
    comment="The price book: versions are added, never edited.",
)

owner = sa.Table(
    "owner",
    metadata,
    _id(),
    _text("org"),
    _text("team"),
    _text("project"),
    _text("experiment"),
    _text("run"),
    _text("user_name"),
    sa.UniqueConstraint("org", "team", "project", "experiment", "run", "user_name"),
    comment="A path in the owner tree; empty levels are unattributed.",
)

attribution_rule = sa.Table(
    "attribution_rule",
    metadata,
    _id(),
    _text("name"),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("match", pg.JSONB, nullable=False),
    sa.Column("assign", pg.JSONB, nullable=False),
    sa.Column("effective_from_ms", BIG),
    sa.Column("effective_to_ms", BIG),
    _at("recorded_at"),
    _at("superseded_at", nullable=True),
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
    _fk("owner_id", "owner.id", nullable=True),
    sa.Column("state", sa.Text, nullable=False),
    _text("pool"),
    _text("gpu_model"),
    _text("node"),
    _fk("price_id", "price.id", nullable=True),
    sa.Column("gpu_ns", BIG, nullable=False),
    sa.Column("busy_ns", BIG, nullable=False),
    sa.Column("idle_ns", BIG, nullable=False),
    sa.Column("unknown_ns", BIG, nullable=False),
    sa.Column("currency", sa.Text, comment="null: unpriced"),
    sa.Column("cost_micro", BIG, comment="null: unpriced, never 0"),
    sa.Column("idle_cost_micro", BIG),
    sa.Column("list_cost_micro", BIG),
    sa.Column("energy_mj", BIG),
    sa.Index("ix_charge_day_ms", "day_ms"),
    sa.Index("ix_charge_workload_id", "workload_id"),
    comment="Charges: one line per day, accelerator (or pool), workload, state and rate; hours are rated one by one.",
)

ledger_day = sa.Table(
    "ledger_day",
    metadata,
    sa.Column("day_ms", BIG, nullable=False),
    _fk("owner_id", "owner.id", nullable=True),
    sa.Column("state", sa.Text, nullable=False),
    _text("pool"),
    _text("gpu_model"),
    sa.Column("currency", sa.Text),
    sa.Column("gpu_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("busy_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("idle_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unknown_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("cost_micro", BIG),
    sa.Column("idle_cost_micro", BIG),
    sa.Column("energy_mj", sa.Numeric(30, 0)),
    sa.Index("ix_ledger_day_day_ms", "day_ms"),
    comment="Daily ledger per owner: what reports and dashboards read.",
)

day_proof = sa.Table(
    "day_proof",
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
    _at("proved_at"),
    comment="Proof of conservation, a row per rated day.",
)

dirty_day = sa.Table(
    "dirty_day",
    metadata,
    _id(),
    sa.Column("day_ms", BIG, nullable=False),
    sa.Index("ix_dirty_day_day_ms", "day_ms"),
    comment="Days to rate again; marks are added by folds, imports and changes of prices or rules.",
)

job_run = sa.Table(
    "job_run",
    metadata,
    _id(),
    sa.Column("job", sa.Text, nullable=False),
    _at("started_at"),
    _at("ended_at", nullable=True),
    sa.Column("outcome", sa.Text),
    _text("detail"),
    sa.Index("ix_job_run_job_started_at", "job", "started_at"),
    comment="Executions of scheduled jobs.",
)


# Budgets, their alerts, and the outbox

budget = sa.Table(
    "budget",
    metadata,
    _id(),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("owner", pg.JSONB, nullable=False, comment="level -> value; empty: the whole fleet"),
    sa.Column("period", sa.Text, nullable=False, comment="month, quarter or range"),
    sa.Column("start_ms", BIG, comment="of a range"),
    sa.Column("end_ms", BIG, comment="of a range"),
    sa.Column("amount_micro", BIG, nullable=False),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("terms", pg.JSONB, nullable=False, comment="thresholds and who is told"),
    _at("recorded_at"),
    _at("superseded_at", nullable=True),
    sa.Index("uq_budget_name", "name", unique=True, postgresql_where=sa.text("superseded_at IS NULL")),
    comment="What an owner may spend in a period; another amount, owner or period is another budget of the same name.",
)

budget_alert = sa.Table(
    "budget_alert",
    metadata,
    _id(),
    _fk("budget_id", "budget.id"),
    sa.Column("period_start_ms", BIG, nullable=False),
    sa.Column("rule", sa.Text, nullable=False, comment="actual, forecast or pace"),
    sa.Column("percent", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False, comment="pending, firing, acked or resolved"),
    sa.Column("seen", sa.Integer, nullable=False, comment="evaluations in a row that crossed"),
    sa.Column("evaluated_ms", BIG, nullable=False),
    sa.Column("fired_ms", BIG),
    sa.Column("escalated_ms", BIG),
    sa.Column("spent_micro", BIG, comment="when it fired"),
    _text("acked_by"),
    sa.UniqueConstraint("budget_id", "period_start_ms", "rule", "percent"),
    comment="State of a threshold in a period: it fires once.",
)

outbox = sa.Table(
    "outbox",
    metadata,
    _id(),
    sa.Column("key", sa.Text, nullable=False, comment="names the event; once per recipient"),
    sa.Column("recipient", sa.Text, nullable=False, comment="an address, or slack:NAME, or webhook:NAME"),
    _text("kind"),
    _text("subject"),
    _text("text"),
    _text("html"),
    _text("thread"),
    sa.Column("attachments", pg.JSONB, nullable=False, server_default="{}", comment="file name -> text"),
    sa.Column("made_ms", BIG, nullable=False),
    sa.Column("not_before_ms", BIG, nullable=False),
    sa.Column("state", sa.Text, nullable=False, comment="waiting, handing_over, sent, unconfirmed or dead"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("sent_ms", BIG),
    _text("error"),
    sa.UniqueConstraint("key", "recipient"),
    sa.Index(
        "ix_outbox_not_before_ms", "not_before_ms", postgresql_where=sa.text("state IN ('waiting', 'handing_over')")
    ),
    comment="Messages to send, each once; written in the transaction of the change that they tell of.",
)


# Closed periods

billing_period = sa.Table(
    "billing_period",
    metadata,
    sa.Column("start_ms", BIG, primary_key=True),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("name", sa.Text, nullable=False, comment="such as 2026-10"),
    sa.Column("closed_ms", BIG, nullable=False),
    sa.Column("closed_by", sa.Text, nullable=False),
    sa.Column("level", sa.Text, nullable=False, comment="level of the owner tree that is invoiced"),
    sa.Column("lines", BIG, nullable=False),
    sa.Column("seal", sa.Text, nullable=False, comment="hexadecimal Merkle root over its lines"),
    sa.Column("receipt", pg.JSONB, nullable=False),
    sa.UniqueConstraint("name"),
    comment="Closed months; what has no row is open. Rows are added and never changed: triggers refuse it.",
)

invoice = sa.Table(
    "invoice",
    metadata,
    _fk("period_start_ms", "billing_period.start_ms", primary_key=True),
    sa.Column("currency", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("micro", BIG, nullable=False, comment="the exact amount"),
    sa.Column("minor", BIG, nullable=False, comment="booked: minor units of the currency"),
    comment="What each owner was billed at the close of a month.",
)

closed_workload = sa.Table(
    "closed_workload",
    metadata,
    _fk("period_start_ms", "billing_period.start_ms", primary_key=True),
    sa.Column("workload_id", BIG, primary_key=True),
    sa.Column("name", sa.Text),
    sa.Column("user_name", sa.Text),
    sa.Column("tags", pg.JSONB, nullable=False),
    comment="Names and tags of workloads as they stood when their month was closed, for the same export ever after.",
)

correction = sa.Table(
    "correction",
    metadata,
    _id(),
    sa.Column("booked_day_ms", BIG, nullable=False, comment="day of an open period in which it counts"),
    sa.Column("recorded_ms", BIG, nullable=False),
    sa.Column("day_ms", BIG, nullable=False, comment="the closed day that it amends"),
    sa.Column("start_ms", BIG, nullable=False),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("accelerator_id", BIG),
    sa.Column("workload_id", BIG),
    _fk("owner_id", "owner.id", nullable=True),
    sa.Column("state", sa.Text, nullable=False),
    _text("pool"),
    _text("gpu_model"),
    _text("node"),
    _fk("price_id", "price.id", nullable=True),
    sa.Column("gpu_ns", BIG, nullable=False),
    sa.Column("busy_ns", BIG, nullable=False),
    sa.Column("idle_ns", BIG, nullable=False),
    sa.Column("unknown_ns", BIG, nullable=False),
    sa.Column("currency", sa.Text),
    sa.Column("cost_micro", BIG),
    sa.Column("idle_cost_micro", BIG),
    sa.Column("list_cost_micro", BIG),
    sa.Column("energy_mj", BIG),
    sa.Index("ix_correction_day_ms", "day_ms"),
    sa.Index("ix_correction_booked_day_ms", "booked_day_ms"),
    comment="Differences to charges of closed days, booked in an open period; never changed.",
)

corrected_day = sa.Table(
    "corrected_day",
    metadata,
    sa.Column("day_ms", BIG, primary_key=True),
    sa.Column("capacity_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("held_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unallocated_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unavailable_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("unobserved_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("capacity_cost", pg.JSONB, nullable=False),
    sa.Column("charged_cost", pg.JSONB, nullable=False),
    sa.Column("imported_ns", sa.Numeric(30, 0), nullable=False),
    sa.Column("until_ms", BIG, nullable=False),
    sa.Column("holds", sa.Boolean, nullable=False),
    _at("proved_at"),
    comment="Proof of a closed day with its corrections; the sealed proof stays in day_proof.",
)


# Findings

finding = sa.Table(
    "finding",
    metadata,
    _id(),
    sa.Column("key", sa.Text, nullable=False, unique=True, comment="kind, subject, begin: a finding counts once"),
    sa.Column("kind", sa.Text, nullable=False, comment="idle or anomaly"),
    sa.Column("state", sa.Text, nullable=False, comment="idle state; usage, price or both for an anomaly"),
    sa.Column("subject", sa.Text, nullable=False, comment="accelerator's UUID, or the owner whose spending it is"),
    sa.Column("accelerator_id", BIG),
    sa.Column("workload_id", BIG),
    _text("team"),
    sa.Column("owner", pg.JSONB, nullable=False, comment="level -> value; empty: the pool's"),
    sa.Column("since_ms", BIG, nullable=False, comment="when it began"),
    sa.Column("opened_ms", BIG, nullable=False, comment="when it could first be told"),
    sa.Column("until_ms", BIG, nullable=False, comment="seen up to here"),
    sa.Column("resolved_ms", BIG, comment="when it ended; null: it goes on"),
    sa.Column("confidence", sa.REAL, nullable=False),
    sa.Column("currency", sa.Text, comment="null: unpriced"),
    sa.Column("cost_micro", BIG, comment="so far; null: unpriced, never 0"),
    sa.Column("per_day_micro", BIG, comment="a day more of it, at the rate in force when last seen"),
    sa.Column("evidence", pg.JSONB, nullable=False),
    sa.Index("ix_finding_kind_since_ms", "kind", "since_ms"),
    sa.Index("ix_finding_accelerator_id", "accelerator_id"),
    comment="Things that a person should see, opened and resolved.",
)

finding_mark = sa.Table(
    "finding_mark",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("until_ms", BIG, nullable=False),
    comment="How far each search for findings has come.",
)

# Remote write: scrapes of Prometheus, until the meter has made stretches of them.

scrape_head = sa.Table(
    "scrape_head",
    metadata,
    sa.Column("accelerator_id", BIG, primary_key=True, autoincrement=False),
    sa.Column("newest_ms", BIG, nullable=False),
    comment="The newest scrape of each accelerator; its row is the lock of those who write scrapes of it.",
)

scrape = sa.Table(
    "scrape",
    metadata,
    sa.Column("accelerator_id", BIG, primary_key=True, autoincrement=False),
    sa.Column("at_ms", BIG, primary_key=True, autoincrement=False),
    sa.Column("node_id", BIG, nullable=False),
    sa.Column("workload_ids", pg.ARRAY(BIG), nullable=False, comment="whom its labels name, empty: nobody"),
    sa.Column("readings", BIG, nullable=False, comment="bits of the hot metrics that are in gpu_sample already"),
    sa.Column("pods", pg.ARRAY(sa.Text), nullable=False, comment="to whom each pod_utilization belongs"),
    sa.Column("pod_utilization", pg.ARRAY(sa.Double), nullable=False),
    sa.Column("sm_active", sa.Double),
    sa.Column("engine_active", sa.Double),
    sa.Column("energy_joules", sa.Double),
    sa.Column("power_watts", sa.Double),
    comment="What remote write showed of an accelerator at an instant, merged from all requests that spoke of it.",
)

dirty_scrape = sa.Table(
    "dirty_scrape",
    metadata,
    _id(),
    sa.Column("accelerator_id", BIG, nullable=False),
    sa.Column("slot_ms", BIG, nullable=False),
    sa.Index("ix_dirty_scrape_accelerator_id", "accelerator_id"),
    comment="Slots with new scrapes: marks are only ever added, and removed by the metering that saw them.",
)

# Trust: who may do what, and who changed what.

token = sa.Table(
    "token",
    metadata,
    _id(),
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

contest = sa.Table(
    "contest",
    metadata,
    sa.Column("accelerator_id", BIG, primary_key=True, autoincrement=False),
    sa.Column("node_id", BIG, primary_key=True, autoincrement=False, comment="the second node"),
    sa.Column("holder_id", BIG, nullable=False, comment="the node where the inventory has it"),
    sa.Column("first_ms", BIG, nullable=False),
    sa.Column("last_ms", BIG, nullable=False),
    sa.Column("reports", BIG, nullable=False),
    comment="Accelerators that a second node reported while the first still did; they stay where they were.",
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


def _estimate(what: str) -> list[sa.Column[int]]:
    """Low, expected and high of one kind of saving in the window; null: it has no price, never 0."""
    return [sa.Column(f"{what}_{which}_micro", BIG) for which in ("low", "expected", "high")]


recommendation = sa.Table(
    "recommendation",
    metadata,
    _id(),
    sa.Column("key", sa.Text, nullable=False, unique=True, comment="kind and subject: advised once"),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    _text("team"),
    sa.Column("owner", pg.JSONB, nullable=False, comment="level -> value; empty: the pool's"),
    sa.Column("advice", sa.Text, nullable=False, comment="the sentence that people read"),
    sa.Column("evidence", pg.JSONB, nullable=False),
    sa.Column("scope", pg.JSONB, nullable=False, comment="which charges show its realised saving"),
    sa.Column("start_ms", BIG, nullable=False, comment="the observed window: all amounts are of it"),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("price_ids", pg.ARRAY(BIG), nullable=False, comment="version of the price book: the rates used"),
    sa.Column("currency", sa.Text),
    *_estimate("cash"),
    *_estimate("capacity"),
    *_estimate("energy"),
    sa.Column("freed_gpu_ns", BIG, nullable=False, comment="expected"),
    sa.Column("state", sa.Text, nullable=False, comment="open, accepted, rejected, done or expired"),
    sa.Column("made_ms", BIG, nullable=False),
    sa.Column("expires_ms", BIG, nullable=False),
    sa.Column("decided_ms", BIG),
    _text("decided_by"),
    _text("reason"),
    sa.Column("realised_micro", BIG, comment="by the ledger since acceptance; may be negative; null: not yet"),
    sa.Column("realised_until_ms", BIG),
    sa.Column("realised", pg.JSONB, comment="what was compared: costs and busy time before and after"),
    comment="Advice, what it would have saved in the observed window, and what came of it.",
)

recommendation_run = sa.Table(
    "recommendation_run",
    metadata,
    sa.Column("made_ms", BIG, primary_key=True, autoincrement=False),
    sa.Column("start_ms", BIG, nullable=False),
    sa.Column("end_ms", BIG, nullable=False),
    sa.Column("joint", pg.JSONB, nullable=False, comment="by currency, all open advice followed at once"),
    sa.Column("not_evaluated", pg.JSONB, nullable=False, comment="what could not be judged, and why"),
    comment="The last look for advice.",
)

# Archive: samples of old days, packed, and days whose evidence has been let go.

sample_archive = sa.Table(
    "sample_archive",
    metadata,
    sa.Column("day_ms", BIG, primary_key=True, autoincrement=False, comment="start of the UTC day"),
    sa.Column("accelerator_id", BIG, primary_key=True, autoincrement=False),
    sa.Column("rows", sa.Integer, nullable=False),
    sa.Column("metrics", sa.Integer, nullable=False, comment="how many have a reading on this day"),
    sa.Column("blob", sa.LargeBinary, nullable=False, comment="storage/packing.py says its format"),
    sa.Column("sha256", sa.LargeBinary, nullable=False, comment="of the blob"),
    comment="Samples of an accelerator and day, packed; late ones lie in gpu_sample until the next packing.",
)

dropped_day = sa.Table(
    "dropped_day",
    metadata,
    sa.Column("day_ms", BIG, primary_key=True, autoincrement=False),
    _at("dropped_at"),
    comment="Days whose stretches retention removed: their hours, and those of the day after, are not folded again.",
)
