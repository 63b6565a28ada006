"""Rows that are written over all the time find room on their own page, and their indexes stay as they are (HOT).

Revision ID: 0022
Revises: 0021
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
phase = "pre"

ROOM = {"gpu_latest": 50, "node": 50}
"""Percent of a page that is filled at first: a newer version of each row fits beside it."""


def upgrade() -> None:
    """Leave the room on pages that are written from now on."""
    for table, percent in ROOM.items():
        op.execute(f"ALTER TABLE {table} SET (fillfactor = {percent})")


def downgrade() -> None:
    """Fill pages as before."""
    for table in ROOM:
        op.execute(f"ALTER TABLE {table} RESET (fillfactor)")
