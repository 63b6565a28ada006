"""Shared model servers whose output tokens weigh what their GPU seconds say.

Revision ID: 0035
"""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None
phase = "pre"


def upgrade() -> None:
    """Add where the weight of an output token comes from; servers keep the declared one."""
    op.execute("ALTER TABLE inference_server ADD COLUMN weights_from TEXT DEFAULT '' NOT NULL")
    op.execute(
        "COMMENT ON COLUMN inference_server.weights_from IS"
        " 'gpu_seconds: of each day; empty: declared'"
    )


def downgrade() -> None:
    """Drop the column; refuse where a server follows it."""
    if (
        op.get_bind()
        .exec_driver_sql("SELECT EXISTS (SELECT FROM inference_server WHERE weights_from <> '')")
        .scalar()
    ):
        raise NotImplementedError(
            "servers that are weighed by GPU seconds cannot be undone; restore a backup instead"
        )
    op.execute("ALTER TABLE inference_server DROP COLUMN weights_from")
