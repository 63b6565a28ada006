"""Five-minute series per owner.

Revision ID: 0016
Revises: 0015
"""

from alembic import op

revision = "0016"
down_revision = "0015"
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
