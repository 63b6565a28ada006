"""Budgets, their alerts and the outbox of messages.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
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
