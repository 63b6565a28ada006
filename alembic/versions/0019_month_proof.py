"""What the proof said of each month when it was asked last, for pages that do not ask it themselves.

Revision ID: 0019
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Add the table. Until it is asked, the proof of every month waits."""
    op.execute(
        """
        CREATE TABLE month_proof (
            start_ms BIGINT NOT NULL,
            end_ms BIGINT NOT NULL,
            asked_ms BIGINT NOT NULL,
            holds BOOLEAN NOT NULL,
            wrong_days JSONB NOT NULL,
            depth TEXT NOT NULL,
            ledger_state TEXT NOT NULL,
            CONSTRAINT pk_month_proof PRIMARY KEY (start_ms, end_ms)
        )
        """
    )
    op.execute(
        "COMMENT ON TABLE month_proof IS "
        "'What the proof of a month said when it was asked last. Pages show it; close and reconcile ask anew.'"
    )
    op.execute("COMMENT ON COLUMN month_proof.wrong_days IS 'dates on which it does not hold'")
    op.execute("COMMENT ON COLUMN month_proof.depth IS 'what was compared: tables, declarations or evidence'")
    op.execute("COMMENT ON COLUMN month_proof.ledger_state IS 'hash of the ratings of its days that it is about'")


def downgrade() -> None:
    """Drop the table."""
    op.execute("DROP TABLE month_proof")
