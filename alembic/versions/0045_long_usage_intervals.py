"""An index of the few usage intervals that are longer than an hour.

Revision ID: 0045
"""

from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None
phase = "pre"

INDEX = """
DO $$ BEGIN
    CREATE INDEX ix_usage_interval_long ON ONLY usage_interval (accelerator_id, start_ms)
        WHERE end_ms - start_ms > 3600000;
EXCEPTION WHEN feature_not_supported THEN
    RAISE NOTICE 'long usage intervals have no index on a ledger that is distributed already';
END $$
"""
"""Of days that are to come: those that are there would be read whole for it, and nobody could write
to them meanwhile.
"""


def upgrade() -> None:
    """Days that are there are read as before, by an index that they have."""
    op.execute(INDEX)


def downgrade() -> None:
    """Drop it."""
    op.execute("DROP INDEX IF EXISTS ix_usage_interval_long")
