"""What an anomaly must cost before it is mailed stands among the rules of notifications.

Revision ID: 0017
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Say so in the column's comment; the rows need no other column."""
    op.execute("COMMENT ON COLUMN notification_rule.kind IS 'recipient, contact, action or anomaly_floor'")


def downgrade() -> None:
    """Forget the floors."""
    op.execute("DELETE FROM notification_rule WHERE kind = 'anomaly_floor'")
    op.execute("COMMENT ON COLUMN notification_rule.kind IS 'recipient, contact or action'")
