"""Sums of queue readings by pool, beside what waits: weeks of them are read at every question for capacity.

The columns stay empty here; the collector sums the readings of before in its daily tidying, and until then what waits
is summed where it is read.

Revision ID: 0019
Revises: 0018
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
phase = "pre"

CREATE = """
ALTER TABLE queue_reading ADD COLUMN pools TEXT[];

ALTER TABLE queue_reading ADD COLUMN pool_gpu_micro BIGINT[];

ALTER TABLE queue_reading ADD COLUMN summed_at TIMESTAMP WITH TIME ZONE;

COMMENT ON COLUMN queue_reading.pools IS 'pools that waiting names, ascending; null: not summed yet';

COMMENT ON COLUMN queue_reading.pool_gpu_micro IS 'what waits for each of them';

COMMENT ON COLUMN queue_reading.summed_at IS
    'received_at of the reading that was summed; another: an older collector wrote since, read waiting';
"""
COLUMNS = ("summed_at", "pool_gpu_micro", "pools")


def upgrade() -> None:
    """Add them."""
    for statement in CREATE.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    for column in COLUMNS:
        op.execute(f"ALTER TABLE queue_reading DROP COLUMN {column}")
