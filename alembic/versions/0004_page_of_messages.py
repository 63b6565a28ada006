"""Keep with a message the address of the page that it is about, for chats and webhooks.

Revision ID: 0004
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Add the address; messages of before have none."""
    op.execute("ALTER TABLE outbox ADD COLUMN page TEXT NOT NULL DEFAULT ''")
    op.execute("COMMENT ON COLUMN outbox.page IS 'address of the page about it'")
    op.execute("COMMENT ON COLUMN outbox.recipient IS 'an address, or slack:NAME, teams:NAME or webhook:NAME'")


def downgrade() -> None:
    """Drop the address."""
    op.execute("COMMENT ON COLUMN outbox.recipient IS 'an address, or slack:NAME, or webhook:NAME'")
    op.execute("ALTER TABLE outbox DROP COLUMN page")
