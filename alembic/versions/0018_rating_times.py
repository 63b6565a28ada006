"""A hash of when each day was rated, and of the times of its corrections.

Revision ID: 0018
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
phase = "pre"

TABLES = ("conservation_check", "corrected_day")


def upgrade() -> None:
    """Add the columns. Days that were rated before have no hash, and are not compared."""
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ADD COLUMN times_sha256 TEXT")
        op.execute(
            f"COMMENT ON COLUMN {table}.times_sha256 IS 'of proved_at and the times of corrections; null: not recorded'"
        )


def downgrade() -> None:
    """Drop the columns."""
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} DROP COLUMN times_sha256")
