"""Parts of the ledger's lock, so that days are rated at the same time.

Revision ID: 0013
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
phase = "pre"

PARTS = [f"lock_ledger_{number:02}" for number in range(32)]


def upgrade() -> None:
    """Create the tables; LOCK TABLE of the one that they inherit from locks all of them, in an earlier version too."""
    for part in PARTS:
        op.execute(f"CREATE TABLE {part} () INHERITS (lock_ledger)")
        op.execute(f"COMMENT ON TABLE {part} IS 'Held by the session that does this alone; has no rows.'")


def downgrade() -> None:
    """Drop the tables."""
    for part in PARTS:
        op.execute(f"DROP TABLE {part}")
