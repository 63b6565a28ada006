"""Nodes, accelerators and workloads with their time lines, and the ledgers of hours, days and
months.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.accounting.personal_data import Person
from gpuledger_collector.storage.schema.columns import (
    BIG,
    INSTANT,
    JSONB,
    SUM,
    TEXT,
    TIMES_NS,
    checked,
    column,
    foreign,
    identity,
    index,
    key,
    keys,
    optional,
    required_columns,
    table,
    texts,
    version_columns,
)


def charge_columns(
    reference: Callable[..., sa.Column[int]] = foreign,
) -> list[sa.Column[Any]]:
    """Declare what a charge and a correction of it have in common."""
    return [
        *required_columns(BIG, "start_ms", "end_ms"),
        column("accelerator_id", BIG, "null: usage imported as counts", nullable=True),
        column("workload_id", BIG, "null: state without a workload", nullable=True),
        reference("owner_id", "owner.id", nullable=True),
        *required_columns(TEXT, "state"),
        *texts("pool", "gpu_model", "node"),
        reference("price_id", "price.id", nullable=True),
        *required_columns(BIG, *TIMES_NS),
        column("currency", TEXT, "null: unpriced", nullable=True),
        column("cost_micro", BIG, "null: unpriced, never 0", nullable=True),
        *optional(BIG, "idle_cost_micro", "list_cost_micro", "energy_mj"),
        reference(
            "commitment_id",
            "commitment.id",
            comment="covers it: its cost is the amortized one",
            nullable=True,
        ),
        column(
            "contracted_cost_micro",
            BIG,
            "at the rate of the price book; null: unknown",
            nullable=True,
        ),
        column(
            "adjustment_id",
            BIG,
            "null: held time; else the state is the adjustment's kind",
            nullable=True,
        ),
        column(
            "node_cost_id",
            BIG,
            "a share of what a node costs: no GPU-time; null: GPU-time",
            nullable=True,
        ),
        reference(
            "inference_id",
            "inference_share.id",
            comment="cost of a shared server that moves to or from this owner; null: does not move",
            nullable=True,
        ),
    ]


def job_columns() -> list[sa.Column[Any]]:
    """Declare the job and the queue of a workload."""
    return [
        column(
            "job",
            TEXT,
            "the work that it is a part of, such as JobSet vision/train; null: none known",
            nullable=True,
        ),
        column("job_uid", TEXT, "which job of that name; null: not known", nullable=True),
        column(
            "queue",
            TEXT,
            "the queue of its scheduler, such as vision/train; null: none known",
            nullable=True,
        ),
    ]


def check_columns() -> list[sa.Column[Any]]:
    """Declare the sums and the result of a conservation check."""
    return [
        *required_columns(
            SUM, "capacity_ns", "held_ns", "unallocated_ns", "unavailable_ns", "unobserved_ns"
        ),
        column("capacity_cost", JSONB, "currency -> micro-units: capacity x rate"),
        column("charged_cost", JSONB, "currency -> micro-units: the sum of the charges"),
        column("imported_ns", SUM, "usage without inventory: not part of the check"),
        column("until_ms", BIG, "rated up to here"),
        *required_columns(sa.Boolean, "holds"),
        *required_columns(INSTANT, "proved_at"),
        column(
            "commitments",
            JSONB,
            "by name: committed, covered and unused time and money",
            default="{}",
        ),
        column("stranded_ns", SUM, default="0"),
        column(
            "times_sha256",
            TEXT,
            "of proved_at and the times of corrections; null: by an older collector",
            nullable=True,
        ),
    ]


table(
    "node",
    "A machine that runs one agent; kept even without a GPU.",
    identity(),
    column("name", TEXT, unique=True),
    *required_columns(INSTANT, "first_seen_at", "last_seen_at"),
    column("status", TEXT, default="ok"),
    *texts("status_detail", "agent_version", "source"),
    *optional(TEXT, "driver"),
    *optional(JSONB, "heartbeat"),
    postgresql_with={"fillfactor": 50},
)

table(
    "node_retirement",
    "Nodes that somebody took out of the fleet: rows are superseded, never edited.",
    identity(),
    column("node", TEXT, "name"),
    column("at_ms", BIG, "its accelerators are there until then, or again when it reports later"),
    *version_columns(),
    sa.Index(None, "node", unique=True, postgresql_where=sa.text("superseded_at IS NULL")),
)

table(
    "accelerator",
    "A device or a MIG instance: what usage is counted for.",
    identity(),
    column("uuid", TEXT, unique=True),
    *required_columns(TEXT, "device_uuid"),
    *texts("model"),
    *optional(TEXT, "mig_instance"),
    column("gpu_micro", sa.Integer, default="1000000"),
    *optional(BIG, "memory_bytes"),
    *optional(sa.Integer, "gpu_index"),
    column("health", TEXT, default="unknown"),
    *texts("health_cause"),
    column(
        "health_since_ms",
        BIG,
        "since when its reports say this health; null: not known",
        nullable=True,
    ),
    column("last_seen_at", INSTANT, default=sa.func.now(), nullable=True),
)

table(
    "accelerator_attributes",
    "Reported attributes of an accelerator, one row per content; usage intervals refer to them."
    " Never changed.",
    identity(),
    foreign("accelerator_id", "accelerator.id"),
    column("digest", sa.LargeBinary, "SHA-256 of the content"),
    *texts("model"),
    *optional(TEXT, "mig_instance"),
    *required_columns(sa.Integer, "gpu_micro"),
    *texts("pool"),
    sa.UniqueConstraint("accelerator_id", "digest"),
)

table(
    "capacity",
    "When, where and as what an accelerator was available: derived from usage intervals and"
    " inventory.",
    identity(),
    foreign("accelerator_id", "accelerator.id"),
    foreign("node_id", "node.id", nullable=True),
    column("pool", TEXT, default="default"),
    *required_columns(BIG, "in_ms"),
    *optional(BIG, "out_ms"),
    column("source", TEXT, "agent (first seen) or import (inventory file)"),
    *texts("gpu_model"),
    column("gpu_micro", sa.Integer, "share of its board", default="1000000"),
    column("accelerator_attributes_id", BIG, "null: not reported", nullable=True),
    sa.CheckConstraint("out_ms IS NULL OR out_ms > in_ms", name="order"),
    index("accelerator_id"),
)

table(
    "inventory",
    "Rows of imported inventory files as stated: they decide where an accelerator is.",
    identity(),
    foreign("accelerator_id", "accelerator.id"),
    foreign("node_id", "node.id", nullable=True),
    column("pool", TEXT, default="default"),
    *texts("gpu_model"),
    *required_columns(BIG, "in_ms"),
    *optional(BIG, "out_ms"),
    sa.CheckConstraint("out_ms IS NULL OR out_ms > in_ms", name="order"),
    index("accelerator_id"),
)

table(
    "workload",
    "The job, pod, container or process that holds accelerators, as last reported.",
    identity(),
    column("key", TEXT, "kind, scope and external id: stable over restarts", unique=True),
    *texts("kind"),
    *required_columns(TEXT, "external_id"),
    *optional(TEXT, "user_name", "account", person=Person.NAME),
    *optional(TEXT, "name"),
    column("tags", JSONB, default="{}"),
    *required_columns(INSTANT, "first_seen_at"),
    column("last_seen_at", INSTANT, default=sa.func.now(), nullable=True),
    *job_columns(),
)

table(
    "workload_attributes",
    "Reported attributes of a workload, one row per content; usage intervals refer to them. Never"
    " changed.",
    identity(),
    foreign("workload_id", "workload.id"),
    column("digest", sa.LargeBinary, "SHA-256 of the content"),
    *optional(TEXT, "user_name", "account", person=Person.NAME),
    *optional(TEXT, "name"),
    column("tags", JSONB, default="{}"),
    *job_columns(),
    sa.UniqueConstraint("workload_id", "digest"),
)

table(
    "refused_claim",
    "Claims refused because they would change what another owner pays; a person decides.",
    *keys(BIG, "accelerator_id"),
    key("node_id", BIG, "node that makes the claim"),
    key("kind", TEXT, "node, pool, board, holder or owner"),
    key("subject", TEXT, "the claimed pool, node, board, workload or owner"),
    *required_columns(BIG, "first_ms", "last_ms"),
)

table(
    "owner",
    "A path in the owner tree; empty levels are unattributed.",
    identity(),
    *texts("org", "team", "project", "experiment", "run"),
    *texts("user_name", person=Person.NAME),
    sa.UniqueConstraint("org", "team", "project", "experiment", "run", "user_name"),
    stays="an owner of sealed months or of charges that are rated again soon",
)

table(
    "attribution_rule",
    "Dated, ordered rules that map tags to owners.",
    identity(),
    *texts("name"),
    *required_columns(sa.Integer, "position"),
    *required_columns(JSONB, "match", "assign"),
    *optional(BIG, "effective_from_ms", "effective_to_ms"),
    *version_columns(),
    stays="declared in a file: it no longer matches; put the pseudonym there and apply it",
)

table(
    "billing_zone",
    "Time zone in which days and months of the bill begin; UTC without a row.",
    identity(),
    column("zone", TEXT, "IANA name"),
    column("from_ms", BIG, "start of its first day; 0: always in force"),
    *version_columns(),
)

table(
    "fiscal_year",
    "Month in which fiscal years begin; none is declared without a row.",
    identity(),
    column("first_month", sa.Integer, "1 to 12"),
    *version_columns(),
)

table(
    "usage_hour",
    "Hourly usage per accelerator and workload, folded from usage intervals with overlaps"
    " resolved.",
    *required_columns(BIG, "accelerator_id", "hour_ms"),
    *required_columns(TEXT, "state"),
    *optional(BIG, "workload_id"),
    column("held_ms", BIG, "time of the hour in this state (and by this workload)"),
    *required_columns(BIG, "busy_ms", "idle_ms", "unknown_ms"),
    *optional(BIG, "energy_mj"),
    column("workload_attributes_id", BIG, "as reported for this time", nullable=True),
    index("hour_ms"),
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
)

table(
    "pool_hour",
    "Hours of pools, added up from usage_hour; deleted where that changes, until a job adds them up"
    " again.",
    *keys(BIG, "hour_ms"),
    column("pools", pg.ARRAY(TEXT), "by pool and model: the pool; empty: no usage"),
    *required_columns(pg.ARRAY(TEXT), "models"),
    column("held_ns", pg.ARRAY(BIG), "GPU-time that was held"),
    column("seen_ns", pg.ARRAY(BIG), "GPU-time in any state"),
    column("free", pg.ARRAY(sa.Integer), "whole GPUs that nobody held all hour"),
    column("taken", pg.ARRAY(sa.Integer), "whole GPUs that were not free all hour"),
)

table(
    "imported_usage",
    "Usage imported as counts of GPUs, from schedulers without an agent.",
    foreign("workload_id", "workload.id", primary_key=True),
    *keys(BIG, "start_ms"),
    column("end_ms", BIG, "null: still running", nullable=True),
    *required_columns(BIG, "gpu_micro"),
    *texts("gpu_model"),
    column("pool", TEXT, default="imported"),
    *texts("node"),
    *optional(BIG, "submitted_ms"),
    *texts("state"),
    column("workload_attributes_id", BIG, "as the import describes the workload", nullable=True),
    column(
        "source",
        TEXT,
        "sacct or table (of jobs); null: not recorded, the form of the id tells",
        nullable=True,
    ),
    sa.CheckConstraint("end_ms IS NULL OR end_ms >= start_ms", name="order"),
    index("start_ms", "end_ms"),
)

table(
    "token_asker",
    "Who asked for what at a gateway of model servers: tenants, models and backends by its words.",
    identity(),
    *required_columns(TEXT, "gateway"),
    column("tenant", TEXT, "empty: a key without a team", person=Person.NAME),
    *required_columns(TEXT, "model"),
    column("backend", TEXT, "address or namespace/name; empty: not known"),
    column("trust", TEXT, "authenticated, or a claim of the caller"),
    sa.UniqueConstraint("gateway", "tenant", "model", "backend", "trust"),
)

table(
    "token_hour",
    "Tokens that askers were answered, by hour: requests and counters of gateways added up.",
    foreign("asker_id", "token_asker.id", primary_key=True),
    *keys(BIG, "hour_ms"),
    column("input", BIG, "cached ones included"),
    *required_columns(BIG, "cached", "output", "requests"),
    index("hour_ms"),
)

table(
    "token_request",
    "Requests (or sums of some) that token_hour has, kept so that none is counted twice.",
    *keys(TEXT, "gateway"),
    key("source_id", TEXT, "id of the request, as its gateway says"),
    *required_columns(BIG, "asker_id"),
    *required_columns(BIG, "start_ms", "end_ms", "input", "cached", "output", "requests"),
    index("end_ms"),
    # Askers without an hour have no other requests.
    index(
        "asker_id",
        postgresql_where=sa.text("input = 0 AND cached = 0 AND output = 0 AND requests = 0"),
    ),
)

table(
    "token_page",
    "Metrics pages of gateways that token counters are read from.",
    identity(),
    *required_columns(TEXT, "gateway"),
    column("page", TEXT, "address of the page, without credentials"),
    sa.UniqueConstraint("gateway", "page"),
)

table(
    "token_page_reading",
    "When a gateway's page was read: a series that was not on it then began at zero since.",
    *keys(BIG, "page_id", "at_ms"),
    column("started_ms", BIG, "start of the gateway's process; null: unknown", nullable=True),
    index("at_ms"),
)

table(
    "token_series",
    "Token counters on a gateway's page.",
    identity(),
    foreign("page_id", "token_page.id"),
    foreign("asker_id", "token_asker.id"),
    column("counter", TEXT, "input, cached, output or requests"),
    column("part", TEXT, "labels that distinguish series of one asker"),
    sa.UniqueConstraint("page_id", "asker_id", "counter", "part"),
    index("asker_id"),
)

table(
    "token_reading",
    "Readings of token counters, kept some days for late ones.",
    *keys(BIG, "series_id", "at_ms"),
    *required_columns(BIG, "value"),
    index("at_ms"),
)

table(
    "day_recompute",
    "Requests to rate a day again, added by folds, imports and changes of prices or rules.",
    identity(),
    *required_columns(BIG, "day_ms"),
    column("by_fold", sa.Boolean, "usage of the day was folded, nothing else", default="false"),
    index("day_ms"),
)

table(
    "charge",
    "Charges: one line per day, accelerator (or pool), workload, state and rate.",
    column("day_ms", BIG, "start of the day in the billing zone"),
    *charge_columns(checked),
    index("day_ms"),
    index("workload_id"),
)

table(
    "ledger_day",
    "Charges added up by day and owner, for reports and dashboards.",
    *required_columns(BIG, "day_ms"),
    foreign("owner_id", "owner.id", nullable=True),
    *required_columns(TEXT, "state"),
    *texts("pool", "gpu_model"),
    *optional(TEXT, "currency"),
    *required_columns(SUM, *TIMES_NS),
    *optional(BIG, "cost_micro", "idle_cost_micro"),
    *optional(SUM, "energy_mj"),
    *optional(BIG, "list_cost_micro", "contracted_cost_micro"),
    index("day_ms"),
)

table(
    "ledger_month",
    "ledger_day added up by ended month: all lines of a month, or none while a day has changed.",
    *required_columns(BIG, "start_ms"),
    column("end_ms", BIG, "end of the month, exclusive"),
    foreign("owner_id", "owner.id", nullable=True),
    *required_columns(TEXT, "state"),
    *texts("pool", "gpu_model"),
    *optional(TEXT, "currency"),
    *required_columns(SUM, *TIMES_NS),
    *optional(SUM, "cost_micro", "idle_cost_micro", "energy_mj"),
    column(
        "list_cost_micro",
        SUM,
        "contracted rate without a list rate; null: partly unknown",
        nullable=True,
    ),
    *optional(SUM, "contracted_cost_micro"),
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
)

table(
    "conservation_check",
    "Conservation check of each rated day: charges and capacity agree in time and money.",
    *keys(BIG, "day_ms"),
    *check_columns(),
)

table(
    "month_proof",
    "What the proof of a month said when it was asked last. Pages show it; close and reconcile ask"
    " anew.",
    *keys(BIG, "start_ms", "end_ms"),
    *required_columns(BIG, "asked_ms"),
    *required_columns(sa.Boolean, "holds"),
    column("wrong_days", JSONB, "dates on which it does not hold"),
    column("depth", TEXT, "what was compared: tables, declarations or evidence"),
    column("ledger_state", TEXT, "hash of the ratings of its days that it is about"),
    column(
        "seal_asked_ms",
        BIG,
        "when its lines were compared with its seal; null: not since it was closed",
        nullable=True,
    ),
    column("seal_holds", sa.Boolean, "whether they were those that were sealed", nullable=True),
)
