"""Collectors say beside their heartbeat why their last batches could not be written.

Revision ID: 0026
Revises: 0025
"""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Make room for it."""
    op.execute("ALTER TABLE replica ADD COLUMN last_error text NOT NULL DEFAULT ''")
    op.execute("ALTER TABLE replica ADD COLUMN last_error_at timestamptz")
    op.execute("COMMENT ON COLUMN replica.last_error IS 'why batches could last not be written'")


def downgrade() -> None:
    """Forget it."""
    op.execute("ALTER TABLE replica DROP COLUMN last_error_at")
    op.execute("ALTER TABLE replica DROP COLUMN last_error")
