"""Which accelerators the search for idle ones looks at again, and from when on.

Revision ID: 0042
"""

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Add the table; what a collector of the version before notes is of the whole fleet."""
    op.execute(
        """
        CREATE TABLE late_evidence (
            accelerator_id BIGINT NOT NULL,
            late_ms BIGINT,
            again_ms BIGINT,
            change BIGINT NOT NULL,
            CONSTRAINT pk_late_evidence PRIMARY KEY (accelerator_id)
        )
        """
    )
    for name, comment in (
        ("late_ms", "start of the first hour that is to be searched again"),
        ("again_ms", "start of the first hour that is being searched again"),
        ("change", "number of the last change; what was read before it is read again"),
    ):
        op.execute(f"COMMENT ON COLUMN late_evidence.{name} IS '{comment}'")
    op.execute(
        "COMMENT ON TABLE late_evidence IS 'Evidence that arrived after the search for idle"
        " accelerators had passed its hour.'"
    )
    op.execute("CREATE INDEX ix_late_evidence_change ON late_evidence (change)")


def downgrade() -> None:
    """Note the first hour for the whole fleet, and drop the table."""
    op.execute(
        "INSERT INTO finding_progress (kind, until_ms) SELECT 'idle_late', min(least(late_ms,"
        " again_ms)) FROM late_evidence HAVING min(least(late_ms, again_ms)) IS NOT NULL"
        " ON CONFLICT (kind) DO UPDATE SET until_ms = least(finding_progress.until_ms,"
        " excluded.until_ms)"
    )
    op.execute("DROP TABLE late_evidence")
