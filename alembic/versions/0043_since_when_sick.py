"""Since when an accelerator has the health that its reports say.

Revision ID: 0043
"""

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Add the column; of the health that is stored already nobody knows since when it is so."""
    op.execute("ALTER TABLE accelerator ADD COLUMN health_since_ms BIGINT")
    op.execute(
        "COMMENT ON COLUMN accelerator.health_since_ms IS"
        " 'since when its reports say this health; null: not known'"
    )


def downgrade() -> None:
    """Drop the column."""
    op.execute("ALTER TABLE accelerator DROP COLUMN health_since_ms")
