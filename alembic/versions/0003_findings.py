"""Findings: idle time and spending anomalies, opened and resolved.

Revision ID: 0003
Revises: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
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
