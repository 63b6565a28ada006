"""Billing periods: close, corrections, receipts.

Revision ID: 0004
Revises: 0003
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

CREATE = ""
TABLES: tuple[str, ...] = ()
"""Children first."""


def upgrade() -> None:
    """Create them."""
    for statement in CREATE.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Drop them, children first."""
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
