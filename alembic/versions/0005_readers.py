"""Read-only role for dashboards.

Revision ID: 0005
Revises: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
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
