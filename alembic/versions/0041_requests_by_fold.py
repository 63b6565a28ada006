"""Requests to rate a day that follow from folded usage alone.

Revision ID: 0041
"""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Add the column; what a collector of the version before requests counts as a change."""
    op.execute("ALTER TABLE day_recompute ADD COLUMN by_fold BOOLEAN DEFAULT false NOT NULL")
    op.execute(
        "COMMENT ON COLUMN day_recompute.by_fold IS 'usage of the day was folded, nothing else'"
    )


def downgrade() -> None:
    """Drop the column: a report then rates the present day each time."""
    op.execute("ALTER TABLE day_recompute DROP COLUMN by_fold")
