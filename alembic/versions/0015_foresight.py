"""Stored backtests, queue readings, scaling decisions and their outcomes.

Revision ID: 0015
Revises: 0014
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

CREATE = """
CREATE TABLE queue_reading (
    source TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    workloads INTEGER NOT NULL,
    gpu_micro BIGINT NOT NULL,
    waiting JSONB NOT NULL,
    received_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_queue_reading PRIMARY KEY (source, at_ms)
);

CREATE INDEX ix_queue_reading_at_ms ON queue_reading (at_ms);

COMMENT ON TABLE queue_reading IS 'What waited for GPUs at an instant, by a scheduler; no row: nobody looked.';

COMMENT ON COLUMN queue_reading.source IS 'the scheduler whose whole queue it is, such as slurm:NAME';

COMMENT ON COLUMN queue_reading.waiting IS
    'objects of pool, gpu_model, team, user, account, gpu_micro, workloads, oldest_ms; empty: nothing waited';

CREATE TABLE backtest (
    grouped TEXT NOT NULL,
    series TEXT NOT NULL,
    origin_ms BIGINT NOT NULL,
    step_ms BIGINT NOT NULL,
    horizon_ms BIGINT NOT NULL,
    made_ms BIGINT NOT NULL,
    replayed BOOLEAN NOT NULL,
    forecast JSONB NOT NULL,
    known INTEGER NOT NULL,
    inside INTEGER NOT NULL,
    under JSONB NOT NULL,
    loss DOUBLE PRECISION,
    naive_loss DOUBLE PRECISION,
    actual DOUBLE PRECISION,
    scored_ms BIGINT,
    CONSTRAINT pk_backtest PRIMARY KEY (grouped, series, origin_ms, step_ms, horizon_ms)
);

COMMENT ON TABLE backtest IS 'Forecasts of demand as they were made, and what came of them.';

COMMENT ON COLUMN backtest.grouped IS 'pool, owner or model';

COMMENT ON COLUMN backtest.origin_ms IS 'the last instant of the series that the forecast knew';

COMMENT ON COLUMN backtest.replayed IS 'made afterwards, of what was known at origin_ms';

COMMENT ON COLUMN backtest.forecast IS 'quantiles, values and naive per step, models with their weights, note';

COMMENT ON COLUMN backtest.known IS 'steps of which the demand has become known';

COMMENT ON COLUMN backtest.inside IS 'of them, between the lowest quantile and 0.9';

COMMENT ON COLUMN backtest.under IS 'of them, at or under each quantile';

COMMENT ON COLUMN backtest.loss IS 'sum over known steps of the mean quantile loss, in GPUs; null: not known yet';

COMMENT ON COLUMN backtest.naive_loss IS 'the same of persistence';

COMMENT ON COLUMN backtest.actual IS 'sum of the demand over the known steps, in GPUs';
"""
TABLES: tuple[str, ...] = ("backtest", "queue_reading")


def upgrade() -> None:
    """Create them."""
    for statement in CREATE.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
