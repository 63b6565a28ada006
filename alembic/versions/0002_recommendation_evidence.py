"""Keep with the last recommendations a hash of what they rest on, so that they are read until it changes.

Revision ID: 0002
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Add the hash; collectors of before write none, and what they computed is computed once more."""
    op.execute("ALTER TABLE recommendation_run ADD COLUMN evidence_hash TEXT")
    op.execute(
        "COMMENT ON COLUMN recommendation_run.evidence_hash IS "
        "'of what they rest on: they are read until it changes'"
    )


def downgrade() -> None:
    """Drop the hash."""
    op.execute("ALTER TABLE recommendation_run DROP COLUMN evidence_hash")
