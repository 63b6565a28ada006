"""Plans of capacity, as the demand board shows them.

Revision ID: 0012
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
phase = "pre"

STATEMENTS = r"""
CREATE TABLE capacity_plan (
    pool TEXT NOT NULL,
    made_ms BIGINT NOT NULL,
    plan JSONB NOT NULL,
    CONSTRAINT pk_capacity_plan PRIMARY KEY (pool)
);

COMMENT ON TABLE capacity_plan IS 'Latest plan of each pool to the end of the quarter; no row: its past is too short.';

COMMENT ON COLUMN capacity_plan.plan IS 'as printed by gpuledger plan capacity --format json'
"""


def upgrade() -> None:
    """Create the table."""
    for statement in STATEMENTS.strip().split(";\n\n"):
        op.execute(statement)


def downgrade() -> None:
    """Drop the table: the next run of the job would write it again."""
    op.execute("DROP TABLE capacity_plan")
