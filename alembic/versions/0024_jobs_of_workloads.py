"""The job that a workload is a part of, as reported and as it was when its month was closed; claims of owners.

Revision ID: 0024
"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
phase = "pre"

JOB = "the work that it is a part of, such as JobSet vision/train; null: none known"
UID = "which job of that name; null: not known"
TABLES = ("workload", "workload_attributes", "closed_workload")


def upgrade() -> None:
    """Add the columns; what was reported before has no job, and closed months stay as they are."""
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ADD COLUMN job TEXT, ADD COLUMN job_uid TEXT")
        op.execute(f"COMMENT ON COLUMN {table}.job IS '{JOB}'")
        op.execute(f"COMMENT ON COLUMN {table}.job_uid IS '{UID}'")
    op.execute("COMMENT ON COLUMN refused_claim.kind IS 'node, pool, board, holder or owner'")
    op.execute("COMMENT ON COLUMN refused_claim.subject IS 'the claimed pool, node, board, workload or owner'")


def downgrade() -> None:
    """Forget the jobs."""
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} DROP COLUMN job, DROP COLUMN job_uid")
    op.execute("DELETE FROM refused_claim WHERE kind = 'owner'")
    op.execute("COMMENT ON COLUMN refused_claim.kind IS 'node, pool, board or holder'")
    op.execute("COMMENT ON COLUMN refused_claim.subject IS 'the claimed pool, node, board or workload'")
