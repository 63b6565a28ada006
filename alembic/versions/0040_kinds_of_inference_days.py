"""Tokens of days of shared model servers by kind, for prices over days of different weights.

Revision ID: 0040
"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None
phase = "pre"

COMMENTS = {
    "computed": "input tokens that were not cached, in millionths, scaled to those of the server,"
    " on the lines of all currencies; null: split before these were stored",
    "cached": "cached input tokens, as computed",
    "output": "output tokens, as computed",
}


def upgrade() -> None:
    """Add the columns, empty: the job `store_inference_days` splits these days again, once."""
    for name, comment in COMMENTS.items():
        op.execute(f"ALTER TABLE inference_day ADD COLUMN {name} NUMERIC(30, 0)")
        op.execute(f"COMMENT ON COLUMN inference_day.{name} IS '{comment}'")


def downgrade() -> None:
    """Drop the columns: what they hold is computed again."""
    for name in COMMENTS:
        op.execute(f"ALTER TABLE inference_day DROP COLUMN {name}")
