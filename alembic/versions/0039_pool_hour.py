"""Hours of pools, added up from the hourly ledger.

Revision ID: 0039
"""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None
phase = "pre"

STATEMENTS = r"""
CREATE TABLE pool_hour (
    hour_ms BIGINT NOT NULL,
    pools TEXT[] NOT NULL,
    models TEXT[] NOT NULL,
    held_ns BIGINT[] NOT NULL,
    seen_ns BIGINT[] NOT NULL,
    free INTEGER[] NOT NULL,
    taken INTEGER[] NOT NULL,
    CONSTRAINT pk_pool_hour PRIMARY KEY (hour_ms)
);

COMMENT ON TABLE pool_hour IS 'Hours of pools, added up from usage_hour; deleted where that changes, until a job adds them up again.';

COMMENT ON COLUMN pool_hour.pools IS 'by pool and model: the pool; empty: no usage';

COMMENT ON COLUMN pool_hour.held_ns IS 'GPU-time that was held';

COMMENT ON COLUMN pool_hour.seen_ns IS 'GPU-time in any state';

COMMENT ON COLUMN pool_hour.free IS 'whole GPUs that nobody held all hour';

COMMENT ON COLUMN pool_hour.taken IS 'whole GPUs that were not free all hour'
"""


def upgrade() -> None:
    """Create the table; a job fills it."""
    for statement in STATEMENTS.strip().split(";\n\n"):
        op.execute(statement)


def downgrade() -> None:
    """Drop the table: what it holds is computed again."""
    op.execute("DROP TABLE pool_hour")
