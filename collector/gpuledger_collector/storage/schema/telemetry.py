"""What agents and remote write sent, as it came, and what is derived from it for drawing."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import (
    BIG,
    INSTANT,
    JSONB,
    TEXT,
    TIMES_NS,
    column,
    foreign,
    hot_columns,
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
    "ingest_batch",
    "Accepted batches: the row makes a batch count once.",
    foreign("node_id", "node.id", primary_key=True),
    *keys(pg.UUID, "epoch"),
    *keys(BIG, "seq"),
    *required_columns(sa.LargeBinary, "sha256"),
    *required_columns(INSTANT, "received_at"),
    *required_columns(sa.Integer, "samples", "usage_intervals"),
    column(
        "rejected", JSONB, "rejected records: a repeated batch gets the same answer", nullable=True
    ),
    index("received_at"),
)

table(
    "ingest_conflict",
    "Batches refused because their key was known with other content.",
    identity(),
    *texts("node_name"),
    *required_columns(pg.UUID, "epoch"),
    *required_columns(BIG, "seq"),
    *required_columns(sa.LargeBinary, "sha256"),
    *required_columns(INSTANT, "received_at"),
)

table(
    "gpu_sample",
    "Raw samples: one wide row per accelerator and instant.",
    *required_columns(BIG, "accelerator_id", "at_ms"),
    *hot_columns(),
    index("at_ms", postgresql_using="brin"),
    postgresql_partition_by="RANGE (at_ms)",
)

table(
    "gpu_state",
    "Slow metrics, one row per change, until they are packed; the last of each stays.",
    *keys(BIG, "accelerator_id"),
    *keys(TEXT, "metric"),
    *keys(BIG, "at_ms"),
    *optional(sa.Double, "value"),
)

table(
    "gpu_state_hour",
    "Packed changes of a slow metric within an hour; late ones stay in gpu_state until the next"
    " packing.",
    *keys(BIG, "accelerator_id"),
    *keys(TEXT, "metric"),
    *keys(BIG, "hour_ms"),
    column("offset_ms", pg.ARRAY(sa.Integer), "of each change, from the start of the hour"),
    column("value", pg.ARRAY(sa.Double), "after each change"),
)

table(
    "gpu_latest",
    "The latest sample of each accelerator, for pages about now.",
    *keys(BIG, "accelerator_id"),
    *required_columns(BIG, "at_ms"),
    *optional(TEXT, "state"),
    *optional(BIG, "workload_id"),
    *hot_columns(),
    postgresql_with={"fillfactor": 50},
)

table(
    "gpu_minute",
    "Minute rollup of the samples: means over the minute.",
    *keys(BIG, "accelerator_id", "minute_ms"),
    *required_columns(sa.SmallInteger, "samples"),
    *optional(
        sa.REAL, "utilization_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"
    ),
    *optional(sa.Double, "memory_used_bytes"),
    *optional(sa.REAL, "power_watts", "temperature_celsius"),
    column("zero_ratio", sa.REAL, "fraction of the samples with zero utilization", nullable=True),
    *optional(sa.REAL, "memory_copy_ratio", "sm_clock_hertz"),
    column(
        "slowed_ratio",
        sa.REAL,
        "fraction of the samples with a power-cap, thermal or slowdown bit",
        nullable=True,
    ),
    *optional(sa.REAL, "processes"),
)

table(
    "sample_archive",
    "Packed samples of an accelerator and day; late ones stay in gpu_sample until the next"
    " packing.",
    key("day_ms", BIG, "start of the UTC day"),
    *keys(BIG, "accelerator_id"),
    *required_columns(sa.Integer, "rows"),
    column("metrics", sa.Integer, "number of metrics with a reading on this day"),
    column("blob", sa.LargeBinary, "format: storage/telemetry/sample_codec.py"),
    column("sha256", sa.LargeBinary, "of the blob"),
)

table(
    "usage_interval",
    "Evidence of use: intervals that agents integrated, as reported, until their day is packed.",
    *required_columns(BIG, "accelerator_id"),
    *optional(BIG, "workload_id"),
    *required_columns(TEXT, "state"),
    *required_columns(BIG, "start_ms", "end_ms", "held_ms", "busy_ms", "idle_ms", "unknown_ms"),
    *optional(BIG, "energy_mj"),
    *required_columns(BIG, "node_id"),
    *required_columns(pg.UUID, "epoch"),
    *required_columns(BIG, "seq"),
    column("record", sa.Integer, "position in the batch"),
    column(
        "accelerator_attributes_id", BIG, "as the batch describes the accelerator", nullable=True
    ),
    column("workload_attributes_id", BIG, "as the batch describes the workload", nullable=True),
    index("accelerator_id", "start_ms"),
    sa.Index(
        "ix_usage_interval_long",
        "accelerator_id",
        "start_ms",
        postgresql_where=sa.text("end_ms - start_ms > 3600000"),
    ),
    index("end_ms", postgresql_using="brin"),
    postgresql_partition_by="RANGE (start_ms)",
)

table(
    "usage_interval_day",
    "Packed usage intervals of an accelerator and day; late ones stay in usage_interval until the"
    " next packing.",
    *keys(BIG, "accelerator_id"),
    key("day_ms", BIG, "start of the UTC day on which they begin"),
    *required_columns(sa.Integer, "rows"),
    column("format", sa.SmallInteger, "1: as packed at first; 2", default=sa.text("1")),
    column("states", pg.ARRAY(TEXT), "by source of intervals; of format 1 by context"),
    *required_columns(pg.ARRAY(BIG), "node_ids"),
    *required_columns(pg.ARRAY(pg.UUID), "epochs"),
    *required_columns(pg.ARRAY(BIG), "accelerator_attributes_ids", "seqs"),
    column("context", sa.LargeBinary, "format: storage/telemetry/interval_codec.py"),
    *required_columns(
        sa.LargeBinary, "gap", "missing", "idle", "unknown", "energy", "seq", "record"
    ),
    *required_columns(BIG, "gap_least", "energy_least", "seq_step_ms"),
    column(
        "workload_ids",
        pg.ARRAY(BIG),
        "of format 1, by context: what intervals in a row have in common",
        nullable=True,
    ),
    column(
        "attributes_offsets",
        pg.ARRAY(BIG),
        "of format 1, added to the workload's id",
        nullable=True,
    ),
    *optional(pg.ARRAY(sa.Integer), "power_mw"),
    *optional(sa.LargeBinary, "length"),
    *optional(BIG, "length_least"),
    column("contexts", sa.Integer, "of format 2: how many there are", nullable=True),
    *optional(
        sa.LargeBinary,
        *("source", "workload", "attributes", "power"),
        *("ticks", "jitter", "idle_ticks", "unknown_ticks"),
    ),
    *optional(
        BIG,
        *("ticks_least", "jitter_least", "idle_least", "unknown_least", "record_least"),
        *("workload_first", "attributes_first", "tick_ms", "power_step_mw", "seq_offset_ms"),
    ),
    column("sha256", sa.LargeBinary, "of the intervals as they were before they were packed"),
    column("packed_at", INSTANT, "when the row was last written"),
    index("day_ms"),
)

table(
    "hour_recompute",
    "Requests to fold an hour again: only added, and removed by the fold that read them.",
    identity(),
    *required_columns(BIG, "accelerator_id", "hour_ms"),
    index("hour_ms"),
)

table(
    "expired_day",
    "Days whose usage intervals retention removed: they and the day after are not folded again.",
    *keys(BIG, "day_ms"),
    *required_columns(INSTANT, "dropped_at"),
)

table(
    "retention_boundary",
    "Up to where retention removed rows of a derived table: late evidence before that does not"
    " recreate them.",
    key("name", TEXT, "of the table"),
    *required_columns(BIG, "before_ms"),
)

table(
    "scrape_head",
    "Instant of the latest scrape of each accelerator; writers of its scrapes lock the row.",
    *keys(BIG, "accelerator_id"),
    *required_columns(BIG, "newest_ms"),
)

table(
    "scrape",
    "Readings of an accelerator at an instant by remote write, merged from all requests.",
    *keys(BIG, "accelerator_id", "at_ms"),
    *required_columns(BIG, "node_id"),
    column("workload_ids", pg.ARRAY(BIG), "named by its labels; empty: none"),
    column("readings", BIG, "bits of the hot metrics already written to gpu_sample"),
    column("pods", pg.ARRAY(TEXT), "pod of each pod_utilization"),
    *required_columns(pg.ARRAY(sa.Double), "pod_utilization"),
    column(
        "accelerator_attributes_ids",
        pg.ARRAY(BIG),
        "as its labels describe the accelerator",
        default="{}",
    ),
    column(
        "workload_attributes_ids", pg.ARRAY(BIG), "as they describe the workloads", default="{}"
    ),
    *optional(sa.Double, "sm_active", "engine_active", "energy_joules", "power_watts"),
)

table(
    "scrape_recompute",
    "Requests to meter a slot again: only added, and removed by the metering that read them.",
    identity(),
    *required_columns(BIG, "accelerator_id", "slot_ms"),
    index("accelerator_id"),
)

table(
    "counter_series",
    "Counters of work done by workloads: read from an endpoint or reported by the run.",
    identity(),
    foreign("workload_id", "workload.id"),
    column(
        "via", TEXT, "agent, remote_write or reported; two paths to one endpoint are not added up"
    ),
    column("source", TEXT, "endpoint, without credentials"),
    column("part", TEXT, "labels that distinguish series of one endpoint"),
    column("counter", TEXT, "what it counts, in the words of accounting/counters.py"),
    *texts("engine"),
    sa.UniqueConstraint("workload_id", "via", "source", "part", "counter"),
)

table(
    "counter_reading",
    "Counter readings, kept some weeks for late ones.",
    *keys(BIG, "series_id", "at_ms"),
    *required_columns(BIG, "value"),
    column("started_ms", BIG, "start of the counting process; null: unknown", nullable=True),
    index("at_ms"),
)

table(
    "counter_hour",
    "Units counted in each hour between readings without a restart in between.",
    *keys(BIG, "series_id", "hour_ms"),
    *required_columns(BIG, "units"),
    column(
        "covered_ms",
        BIG,
        "time of the hour covered by such readings; the rest is unknown, not zero",
    ),
    *required_columns(sa.Integer, "restarts"),
    index("hour_ms"),
)

table(
    "owner_5min",
    "Usage of owners by five minutes: hours add up to usage_hour, the cost of days to charge.",
    column("at_ms", BIG, "start of the five minutes"),
    foreign("owner_id", "owner.id", comment="organization, team and project only", nullable=True),
    *required_columns(TEXT, "state"),
    *texts("pool", "gpu_model"),
    *optional(TEXT, "currency"),
    *required_columns(BIG, *TIMES_NS),
    *optional(BIG, "energy_mj"),
    column("cost_micro", BIG, "null: unpriced, never 0", nullable=True),
    index("at_ms"),
)

table(
    "series_day",
    "Days in owner_5min and the rating they derive from; a newer one in conservation_check"
    " recomputes them.",
    *keys(BIG, "day_ms"),
    *required_columns(INSTANT, "proved_at"),
)

table(
    "node_utilization",
    "Activity of a node's accelerators by quarter of an hour, from gpu_minute, for heat maps.",
    *keys(BIG, "hour_ms"),
    foreign("node_id", "node.id", primary_key=True),
    column("accelerator_ids", pg.ARRAY(BIG), "accelerators included"),
    column(
        "utilization", pg.ARRAY(sa.Double), "by quarter, sum of the minutes' ratios; null: unknown"
    ),
    column(
        "utilization_minutes", pg.ARRAY(sa.Integer), "by quarter, accelerator-minutes in the sum"
    ),
    *required_columns(pg.ARRAY(sa.Double), "sm_active"),
    *required_columns(pg.ARRAY(sa.Integer), "sm_active_minutes"),
)

table(
    "node_utilization_day",
    "Days of node_utilization computed as a whole, and when: covers minutes older than the table.",
    *keys(BIG, "day_ms"),
    *required_columns(BIG, "made_ms"),
)
