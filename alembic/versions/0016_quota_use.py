"""What senders have used of their quotas, for all workers and collectors.

Revision ID: 0016
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Add the table. Collectors of before count by process."""
    op.execute(
        """
        CREATE TABLE quota_use (
            payer TEXT NOT NULL,
            quota TEXT NOT NULL,
            used DOUBLE PRECISION NOT NULL,
            rate DOUBLE PRECISION NOT NULL,
            at TIMESTAMP WITH TIME ZONE NOT NULL,
            CONSTRAINT pk_quota_use PRIMARY KEY (payer, quota)
        )
        """
    )
    op.execute("COMMENT ON TABLE quota_use IS 'What heavy senders have used of their quotas, for all collectors.'")
    op.execute("COMMENT ON COLUMN quota_use.payer IS 'node of the token, else the name of the token'")
    op.execute("COMMENT ON COLUMN quota_use.used IS 'units taken out of the bucket as of `at`'")
    op.execute("COMMENT ON COLUMN quota_use.rate IS 'units a second that flow back'")


def downgrade() -> None:
    """Drop the table."""
    op.execute("DROP TABLE quota_use")
