"""What runs produced: readings of counters, and what was counted in each hour."""

from __future__ import annotations

import sqlalchemy as sa

from gpuledger_collector.storage.schema.columns import BIG, foreign, identity, metadata, text

counter_series = sa.Table(
    "counter_series",
    metadata,
    identity(),
    foreign("workload_id", "workload.id"),
    sa.Column(
        "via",
        sa.Text,
        nullable=False,
        comment="agent, remote_write or reported: two ways to one endpoint are not added",
    ),
    sa.Column("source", sa.Text, nullable=False, comment="endpoint, without credentials"),
    sa.Column("part", sa.Text, nullable=False, comment="labels that tell series of one endpoint apart"),
    sa.Column(
        "counter",
        sa.Text,
        nullable=False,
        comment="what it counts: accounting/counters.py has the words",
    ),
    text("engine"),
    sa.UniqueConstraint("workload_id", "via", "source", "part", "counter"),
    comment="Counters of what workloads produce, of an endpoint or told by the run.",
)

counter_reading = sa.Table(
    "counter_reading",
    metadata,
    sa.Column("series_id", BIG, primary_key=True, autoincrement=False),
    sa.Column("at_ms", BIG, primary_key=True, autoincrement=False),
    sa.Column("value", BIG, nullable=False),
    sa.Column("started_ms", BIG, comment="when the counting process began; null: it does not say"),
    sa.Index("ix_counter_reading_at_ms", "at_ms"),
    comment="Counters as they were read; kept some weeks for those that come late.",
)

counter_hour = sa.Table(
    "counter_hour",
    metadata,
    sa.Column("series_id", BIG, primary_key=True, autoincrement=False),
    sa.Column("hour_ms", BIG, primary_key=True, autoincrement=False),
    sa.Column("units", BIG, nullable=False),
    sa.Column(
        "covered_ms",
        BIG,
        nullable=False,
        comment="time of the hour between such readings: the rest is not known, never zero",
    ),
    sa.Column("restarts", sa.Integer, nullable=False),
    sa.Index("ix_counter_hour_hour_ms", "hour_ms"),
    comment="What was counted in each hour, between two readings of one life of a counter.",
)
