"""When accelerators and workloads were last named, so that names which nobody uses can go.

Revision ID: 0027
Revises: 0026
"""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """New rows count as named when they are made; of those that are there it is not known, and begins to count later."""
    for table in ("accelerator", "workload"):
        op.execute(f"ALTER TABLE {table} ADD COLUMN last_seen_at timestamptz")
        op.execute(f"ALTER TABLE {table} ALTER COLUMN last_seen_at SET DEFAULT now()")


def downgrade() -> None:
    """Forget when."""
    for table in ("accelerator", "workload"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN last_seen_at")
