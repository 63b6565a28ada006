"""What agents sent, as it came: batches, samples, usage intervals, and the samples of old days, packed."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, HOT_TYPES, foreign, identity, instant, metadata, text
from gpuledger_common.catalogue import HOT

ingest_batch = sa.Table(
    "ingest_batch",
    metadata,
    foreign("node_id", "node.id", primary_key=True),
    sa.Column("epoch", pg.UUID, primary_key=True),
    sa.Column("seq", BIG, primary_key=True),
    sa.Column("sha256", sa.LargeBinary, nullable=False),
    instant("received_at"),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("usage_intervals", sa.Integer, nullable=False),
    sa.Column("rejected", pg.JSONB, comment="refused records: the same batch again gets the same answer"),
    sa.Index("ix_ingest_batch_received_at", "received_at"),
    comment="The batch ledger: one row makes a batch count once.",
)

ingest_conflict = sa.Table(
    "ingest_conflict",
    metadata,
    identity(),
    text("node_name"),
    sa.Column("epoch", pg.UUID, nullable=False),
    sa.Column("seq", BIG, nullable=False),
    sa.Column("sha256", sa.LargeBinary, nullable=False),
    instant("received_at"),
    comment="Other bytes under a known batch key: refused and recorded.",
)

gpu_sample = sa.Table(
    "gpu_sample",
    metadata,
    sa.Column("accelerator_id", BIG, nullable=False),
    sa.Column("at_ms", BIG, nullable=False),
    *[sa.Column(metric.name, HOT_TYPES[metric.column_kind]) for metric in HOT],
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
    *[sa.Column(metric.name, HOT_TYPES[metric.column_kind]) for metric in HOT],
    postgresql_with={"fillfactor": 50},
    comment="The newest sample of each accelerator, for pages that ask about now.",
)

usage_interval = sa.Table(
    "usage_interval",
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
    sa.Column("accelerator_attributes_id", BIG, comment="what its batch says of the accelerator"),
    sa.Column("workload_attributes_id", BIG, comment="what its batch says of the workload"),
    sa.Index("ix_usage_interval_accelerator_id_start_ms", "accelerator_id", "start_ms"),
    sa.Index("ix_usage_interval_end_ms", "end_ms", postgresql_using="brin"),
    postgresql_partition_by="RANGE (start_ms)",
    comment="Evidence of holding: what agents integrated, as they reported it.",
)

hour_recompute = sa.Table(
    "hour_recompute",
    metadata,
    identity(),
    sa.Column("accelerator_id", BIG, nullable=False),
    sa.Column("hour_ms", BIG, nullable=False),
    sa.Index("ix_hour_recompute_hour_ms", "hour_ms"),
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

expired_day = sa.Table(
    "expired_day",
    metadata,
    sa.Column("day_ms", BIG, primary_key=True, autoincrement=False),
    instant("dropped_at"),
    comment="Days whose usage intervals retention removed: their hours, and those of the day after, are not folded "
    "again.",
)

expired = sa.Table(
    "expired",
    metadata,
    sa.Column("name", sa.Text, primary_key=True, comment="the table"),
    sa.Column("before_ms", BIG, nullable=False),
    comment="Up to where retention has removed a table that is derived: late evidence of before makes no rows of it "
    "again.",
)
