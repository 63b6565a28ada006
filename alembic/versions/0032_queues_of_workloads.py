"""The queue of a scheduler in which a workload stands, as reported and as it was when its month was closed.

Revision ID: 0032
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None
phase = "pre"

QUEUE = "the queue of its scheduler, such as vision/train; null: none known"
TABLES = ("workload", "workload_attributes", "closed_workload")


def upgrade() -> None:
    """Add the column; what was reported before has no queue, and closed months stay as they are."""
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ADD COLUMN queue TEXT")
        op.execute(f"COMMENT ON COLUMN {table}.queue IS '{QUEUE}'")


def downgrade() -> None:
    """Forget the queues."""
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} DROP COLUMN queue")
