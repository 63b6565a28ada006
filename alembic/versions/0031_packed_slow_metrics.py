"""Changes of slow metrics packed by the hour.

Revision ID: 0031
"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None
phase = "pre"

STATEMENTS = r"""
CREATE TABLE lock_states (
);

COMMENT ON TABLE lock_states IS 'Held by the session that does this alone; has no rows.';

CREATE TABLE gpu_state_hour (
    accelerator_id BIGINT NOT NULL,
    metric TEXT NOT NULL,
    hour_ms BIGINT NOT NULL,
    offset_ms INTEGER[] NOT NULL,
    value DOUBLE PRECISION[] NOT NULL,
    CONSTRAINT pk_gpu_state_hour PRIMARY KEY (accelerator_id, metric, hour_ms)
);

COMMENT ON TABLE gpu_state_hour IS 'Packed changes of a slow metric within an hour; late ones stay in gpu_state until the next packing.';

COMMENT ON COLUMN gpu_state_hour.offset_ms IS 'of each change, from the start of the hour';

COMMENT ON COLUMN gpu_state_hour.value IS 'after each change';

COMMENT ON TABLE gpu_state IS 'Slow metrics, one row per change, until they are packed; the last of each stays.'
"""
SPREAD = """
DO $$ BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL THEN
        IF EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = 'gpu_state'::regclass) THEN
            PERFORM create_distributed_table('gpu_state_hour', 'accelerator_id', colocate_with => 'gpu_state');
        END IF;
    END IF;
END $$
"""
"""On a ledger that Citus spreads already, beside the table from which it is filled."""
UNPACK = """
INSERT INTO gpu_state (accelerator_id, metric, at_ms, value)
SELECT p.accelerator_id, p.metric, p.hour_ms + c.offset_ms, c.value
FROM gpu_state_hour p, unnest(p.offset_ms, p.value) AS c (offset_ms, value) ON CONFLICT DO NOTHING
"""


def upgrade() -> None:
    """Create the table; the job that fills it packs the changes of before, some at a time."""
    for statement in STATEMENTS.strip().split(";\n\n"):
        op.execute(statement)
    op.execute(SPREAD)


def downgrade() -> None:
    """Make rows of what was packed, and drop the table."""
    op.execute(UNPACK)
    op.execute("DROP TABLE gpu_state_hour, lock_states")
    op.execute("COMMENT ON TABLE gpu_state IS 'Slow metrics, one row per change.'")
