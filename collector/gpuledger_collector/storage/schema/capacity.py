"""What looks ahead: queues as they were read, forecasts, and capacity that was advised, with what
came of both.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.accounting.personal_data import Person
from gpuledger_collector.storage.schema.columns import (
    BIG,
    INSTANT,
    JSONB,
    TEXT,
    column,
    foreign,
    identity,
    index,
    key,
    keys,
    optional,
    required_columns,
    table,
    version_columns,
)

table(
    "queue_reading",
    "A scheduler's queue for GPUs at an instant; no row: not read.",
    key("source", TEXT, "scheduler, such as slurm:NAME"),
    *keys(BIG, "at_ms"),
    *required_columns(sa.Integer, "workloads"),
    *required_columns(BIG, "gpu_micro"),
    column(
        "waiting",
        JSONB,
        "objects of pool, gpu_model, team, user, account, gpu_micro, workloads, oldest_ms",
    ),
    *required_columns(INSTANT, "received_at"),
    column(
        "pools",
        pg.ARRAY(TEXT),
        "pools named by waiting, ascending; null: not summed yet",
        nullable=True,
    ),
    column("pool_gpu_micro", pg.ARRAY(BIG), "waiting GPUs of each pool", nullable=True),
    column(
        "summed_at",
        INSTANT,
        "received_at of the summed reading; if it differs, read waiting",
        nullable=True,
    ),
    index("at_ms"),
)

table(
    "scheduler_cluster",
    "The cluster whose schedulers are asked for queues, and their last answer.",
    key("cluster", TEXT, "its name; empty: there is one"),
    *required_columns(BIG, "read_ms"),
    column("reading", JSONB, "quotas, their use and what waits, as of read_ms"),
    column("problems", JSONB, "lists that were not answered then: resource, trouble, detail"),
)

table(
    "queue_quota",
    "Quotas of queues with dates: a row where a scheduler changed one.",
    identity(),
    *required_columns(TEXT, "cluster", "scheduler", "queue"),
    column("flavor", TEXT, "of nodes; empty: the scheduler has none"),
    *required_columns(TEXT, "resource"),
    column("parent", TEXT, "queue or cohort above it; empty: none"),
    column("pool", TEXT, "of the flavor's nodes; empty: not known"),
    column("has_children", sa.Boolean, "its quota is that of the queues below it"),
    column("quota_micro", BIG, "millionths of a GPU; null: no bound, or none", nullable=True),
    column("borrowing_micro", BIG, "most beyond the quota; null: no limit", nullable=True),
    column("lending_micro", BIG, "most that others may take; null: no limit", nullable=True),
    column("from_ms", BIG, "first reading that had it"),
    column("until_ms", BIG, "first reading that had it no longer; null: it holds", nullable=True),
    sa.Index(
        "uq_queue_quota_place",
        "scheduler",
        "queue",
        "flavor",
        "resource",
        unique=True,
        postgresql_where=sa.text("until_ms IS NULL"),
    ),
    index("from_ms"),
)

table(
    "tenant_queue",
    "Queues that workloads name, and the queue that has their quota, with dates.",
    identity(),
    *required_columns(TEXT, "cluster", "scheduler", "name", "queue"),
    *required_columns(BIG, "from_ms"),
    column("until_ms", BIG, "null: it holds", nullable=True),
    sa.Index(
        "uq_tenant_queue_name",
        "scheduler",
        "name",
        unique=True,
        postgresql_where=sa.text("until_ms IS NULL"),
    ),
)

table(
    "queue_hour",
    "GPU-time of queues by hour, from what their scheduler said each minute.",
    *keys(TEXT, "scheduler", "queue", "flavor", "resource"),
    *keys(BIG, "hour_ms"),
    column("known_ms", BIG, "how much of the hour its quota was known"),
    column("reserved_ns", BIG, "quota; null: it has none", nullable=True),
    column("observed_ms", BIG, "how much of the hour its use was known"),
    *required_columns(BIG, "used_ns"),
    column("borrowed_ns", BIG, "used beyond the quota"),
    column("lent_ns", BIG, "of the quota, used by other queues"),
    column("unused_ns", BIG, "of the quota, used by nobody"),
    index("hour_ms"),
)

table(
    "queue_wait_hour",
    "GPU-time that workloads waited for quota, by hour; no row: not known.",
    *keys(TEXT, "scheduler", "queue", "resource"),
    *keys(BIG, "hour_ms"),
    *required_columns(BIG, "observed_ms", "waiting_ns"),
    column("beside_unused_ns", BIG, "of that, what unused quota of other queues would have served"),
    index("hour_ms"),
)

table(
    "scheduler_workload",
    "Workloads that schedulers have admitted, as last read: what an eviction ends.",
    *keys(TEXT, "cluster", "uid"),
    *required_columns(TEXT, "name", "queue"),
    *required_columns(BIG, "gpu_micro", "admitted_ms"),
)

table(
    "queue_eviction",
    "Workloads that a scheduler stopped before they had finished.",
    *keys(TEXT, "cluster", "uid"),
    *keys(BIG, "evicted_ms"),
    *required_columns(TEXT, "workload", person=Person.WORDS),
    column("queue", TEXT, "whose quota it used"),
    *required_columns(BIG, "gpu_micro"),
    column("admitted_ms", BIG, "null: nobody saw its start", nullable=True),
    column("reason", TEXT, "as the scheduler says it; empty: it ended between two readings"),
    column(
        "preempted_by",
        TEXT,
        "the workload that it made room for; empty: none is named",
        person=Person.WORDS,
    ),
    column("preempting_queue", TEXT, "its queue; empty: none is named"),
    index("evicted_ms"),
)

table(
    "backtest",
    "Forecasts of demand as made, and how they turned out.",
    key("grouped", TEXT, "pool, owner or model"),
    *keys(TEXT, "series", person=Person.WORDS),
    key("origin_ms", BIG, "end of the data that the forecast used"),
    *keys(BIG, "step_ms", "horizon_ms"),
    *required_columns(BIG, "made_ms"),
    column("replayed", sa.Boolean, "computed later from what was known at origin_ms"),
    column("forecast", JSONB, "quantiles, values and naive per step, model weights, note"),
    column("known", sa.Integer, "steps whose demand is known by now"),
    column("inside", sa.Integer, "of these, between the lowest quantile and 0.9"),
    column("under", JSONB, "of these, at or below each quantile"),
    column(
        "loss", sa.Double, "sum of the mean quantile loss, GPUs; null: not known yet", nullable=True
    ),
    column("naive_loss", sa.Double, "the same for the naive forecast", nullable=True),
    column("actual", sa.Double, "sum of the demand over the known steps, GPUs", nullable=True),
    *optional(BIG, "scored_ms"),
)

table(
    "capacity_plan",
    "Latest plan of each pool to the end of the quarter; no row: its past is too short.",
    *keys(TEXT, "pool"),
    *required_columns(BIG, "made_ms"),
    column("plan", JSONB, "as printed by gpuledger plan capacity --format json"),
)

table(
    "scaling_pool",
    "Limits of the capacity of a pool, and whether decisions are acted on.",
    identity(),
    *required_columns(TEXT, "pool"),
    column("terms", JSONB, "limits, lead time, mode, money and webhook: insight/scaling/pools.py"),
    *version_columns(),
    sa.Index(
        "uq_scaling_pool_pool",
        "pool",
        unique=True,
        postgresql_where=sa.text("superseded_at IS NULL"),
    ),
)

table(
    "scaling_decision",
    "Advised capacity and its inputs; a change of target is posted to a webhook at most once.",
    identity(),
    *required_columns(TEXT, "pool"),
    *required_columns(BIG, "made_ms"),
    column("as_of_ms", BIG, "start of the last step with known demand"),
    *required_columns(BIG, "step_ms", "lead_ms", "valid_until_ms"),
    column("policy", TEXT, "predictive, reactive or young"),
    column("mode", TEXT, "advice or act"),
    *required_columns(sa.Double, "demand_gpus"),
    column("ahead", JSONB, "quantile -> expected demand within the lead time"),
    column("reactive_gpus", sa.Double, "capacity by the best reactive setting"),
    column("wanted_gpus", sa.Double, "before the limits of the pool apply"),
    *required_columns(sa.Double, "desired_gpus"),
    *required_columns(BIG, "desired_nodes"),
    column("before_gpus", sa.Double, "previously desired; null: first decision", nullable=True),
    column("quantile", sa.Double, "of the rise, by a forecast; null: without one", nullable=True),
    *required_columns(TEXT, "setting", "reason"),
    column("inputs_hash", TEXT, "SHA-256 of demand and terms"),
    column("notified", TEXT, "webhook that is notified of the change; empty: none", default=""),
    index("pool", "made_ms"),
)

table(
    "scaling_outcome",
    "Outcome of a decision while in force: waiting and idle capacity if it had been followed.",
    foreign("decision_id", "scaling_decision.id", primary_key=True),
    column("from_ms", BIG, "when the ordered capacity serves"),
    column("until_ms", BIG, "when the next decision serves"),
    column("known_ms", BIG, "part of this time with known demand, covered by the amounts"),
    *required_columns(sa.Double, "demand_gpu_s"),
    column("wait_gpu_s", sa.Double, "demand above the desired capacity, GPU-seconds"),
    column("waste_gpu_s", sa.Double, "desired capacity above demand, GPU-seconds"),
    *required_columns(sa.Double, "reactive_wait_gpu_s", "reactive_waste_gpu_s"),
    *optional(TEXT, "currency"),
    column(
        "waste_micro", BIG, "waste at the rate in force; null: unpriced, never 0", nullable=True
    ),
    *required_columns(BIG, "judged_ms"),
)
