"""When accelerators and workloads were last named, so that names which nobody uses can go.

Revision ID: 0035
Revises: 0034
"""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """What is there counts as named now: nothing goes before its time."""
    for table in ("accelerator", "workload"):
        op.execute(f"ALTER TABLE {table} ADD COLUMN last_seen_at timestamptz NOT NULL DEFAULT now()")
    op.execute("CREATE INDEX ix_workload_last_seen_at ON workload (last_seen_at)")


def downgrade() -> None:
    """Forget when."""
    for table in ("accelerator", "workload"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN last_seen_at")
