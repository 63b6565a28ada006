"""An index of the charges that move the cost of shared servers.

Revision ID: 0032
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Find the charges of a tenant's part without reading all of them."""
    op.execute(
        "CREATE INDEX ix_charge_inference_id ON charge (inference_id)"
        " WHERE inference_id IS NOT NULL"
    )


def downgrade() -> None:
    """Drop the index."""
    op.execute("DROP INDEX ix_charge_inference_id")
