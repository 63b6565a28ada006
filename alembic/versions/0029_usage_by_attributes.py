"""One hour may have a workload under two sets of attributes: the hourly ledger has a row for each.

Contested accelerators stand in `claim` with the other refused claims.

Revision ID: 0029
Revises: 0028
"""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None
phase = "post"

KEY = "accelerator_id, hour_ms, state, workload_id"

CONTEST = """
CREATE TABLE contest (
    accelerator_id BIGINT NOT NULL,
    node_id BIGINT NOT NULL,
    holder_id BIGINT NOT NULL,
    first_ms BIGINT NOT NULL,
    last_ms BIGINT NOT NULL,
    reports BIGINT NOT NULL,
    CONSTRAINT pk_contest PRIMARY KEY (accelerator_id, node_id)
)"""


def upgrade() -> None:
    """The key takes in the attributes."""
    op.execute(
        f"CREATE UNIQUE INDEX uq_usage_hour_attributes ON usage_hour ({KEY}, workload_attributes_id) "
        "NULLS NOT DISTINCT"
    )
    op.execute("DROP INDEX uq_usage_hour_key")
    op.execute("DROP TABLE contest")


def downgrade() -> None:
    """The key leaves them out."""
    op.execute(f"CREATE UNIQUE INDEX uq_usage_hour_key ON usage_hour ({KEY}) NULLS NOT DISTINCT")
    op.execute("DROP INDEX uq_usage_hour_attributes")
    op.execute(CONTEST)
