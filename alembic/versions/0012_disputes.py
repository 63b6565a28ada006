"""Disputes of lines and providers' bills.

Revision ID: 0012
Revises: 0011
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

CREATE = """
"""
TABLES: tuple[str, ...] = ()


def upgrade() -> None:
    """Create them."""
    for statement in CREATE.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
