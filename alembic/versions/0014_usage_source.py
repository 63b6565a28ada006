"""What brought imported usage.

Revision ID: 0014
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Add the column. Rows of before keep null: the form of their ids tells what brought them."""
    op.execute("ALTER TABLE imported_usage ADD COLUMN source TEXT")
    op.execute(
        "COMMENT ON COLUMN imported_usage.source IS "
        "'sacct or table (of jobs); null: not recorded, the form of the id tells'"
    )


def downgrade() -> None:
    """Drop the column."""
    op.execute("ALTER TABLE imported_usage DROP COLUMN source")
