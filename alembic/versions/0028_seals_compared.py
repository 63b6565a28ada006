"""When the lines of a closed month were compared with its seal last, and whether they were those.

Revision ID: 0028
"""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None
phase = "pre"

ASKED = "when its lines were compared with its seal; null: not since it was closed"
HOLDS = "whether they were those that were sealed"


def upgrade() -> None:
    """Add the columns; no seal counts as compared."""
    op.execute("ALTER TABLE month_proof ADD COLUMN seal_asked_ms BIGINT, ADD COLUMN seal_holds BOOLEAN")
    op.execute(f"COMMENT ON COLUMN month_proof.seal_asked_ms IS '{ASKED}'")
    op.execute(f"COMMENT ON COLUMN month_proof.seal_holds IS '{HOLDS}'")


def downgrade() -> None:
    """Forget the comparisons."""
    op.execute("ALTER TABLE month_proof DROP COLUMN seal_asked_ms, DROP COLUMN seal_holds")
