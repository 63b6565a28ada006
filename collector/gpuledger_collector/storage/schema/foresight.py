"""What looks ahead: queues as they were read, and forecasts with what came of them. None of it can reach a bill."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from gpuledger_collector.storage.schema.columns import BIG, instant, metadata

queue_reading = sa.Table(
    "queue_reading",
    metadata,
    sa.Column("source", sa.Text, primary_key=True, comment="the scheduler whose whole queue it is, such as slurm:NAME"),
    sa.Column("at_ms", BIG, primary_key=True, autoincrement=False),
    sa.Column("workloads", sa.Integer, nullable=False),
    sa.Column("gpu_micro", BIG, nullable=False),
    sa.Column(
        "waiting",
        pg.JSONB,
        nullable=False,
        comment="objects of pool, gpu_model, team, user, account, gpu_micro, workloads, oldest_ms; "
        "empty: nothing waited",
    ),
    instant("received_at"),
    sa.Column("pools", pg.ARRAY(sa.Text), comment="pools that waiting names, ascending; null: not summed yet"),
    sa.Column("pool_gpu_micro", pg.ARRAY(BIG), comment="what waits for each of them"),
    sa.Column(
        "summed_at",
        sa.DateTime(timezone=True),
        comment="received_at of the reading that was summed; another: an older collector wrote since, read waiting",
    ),
    sa.Index("ix_queue_reading_at_ms", "at_ms"),
    comment="What waited for GPUs at an instant, by a scheduler; no row: nobody looked.",
)

backtest = sa.Table(
    "backtest",
    metadata,
    sa.Column("grouped", sa.Text, primary_key=True, comment="pool, owner or model"),
    sa.Column("series", sa.Text, primary_key=True),
    sa.Column("origin_ms", BIG, primary_key=True, comment="the last instant of the series that the forecast knew"),
    sa.Column("step_ms", BIG, primary_key=True),
    sa.Column("horizon_ms", BIG, primary_key=True),
    sa.Column("made_ms", BIG, nullable=False),
    sa.Column("replayed", sa.Boolean, nullable=False, comment="made afterwards, of what was known at origin_ms"),
    sa.Column(
        "forecast",
        pg.JSONB,
        nullable=False,
        comment="quantiles, values and naive per step, models with their weights, note",
    ),
    sa.Column("known", sa.Integer, nullable=False, comment="steps of which the demand has become known"),
    sa.Column("inside", sa.Integer, nullable=False, comment="of them, between the lowest quantile and 0.9"),
    sa.Column("under", pg.JSONB, nullable=False, comment="of them, at or under each quantile"),
    sa.Column(
        "loss", sa.Double, comment="sum over known steps of the mean quantile loss, in GPUs; null: not known yet"
    ),
    sa.Column("naive_loss", sa.Double, comment="the same of persistence"),
    sa.Column("actual", sa.Double, comment="sum of the demand over the known steps, in GPUs"),
    sa.Column("scored_ms", BIG),
    comment="Forecasts of demand as they were made, and what came of them.",
)
