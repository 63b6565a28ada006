"""Days of open months are rated again where an owner is called like a row of the reports, such as (unallocated).

Rating escapes such names from now on. What was rated before shows its time in the reports' own row until then; days of
closed months stay as they were sealed.

Revision ID: 0030
Revises: 0029
"""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None
phase = "post"

MARK = r"""
INSERT INTO dirty_day (day_ms) SELECT DISTINCT l.day_ms FROM ledger_day l WHERE l.owner_id IN (
    SELECT o.id FROM owner o, unnest(ARRAY[o.org, o.team, o.project, o.experiment, o.run, o.user_name]) AS name
    WHERE name ~ '^\s*(tag:)*\s*\(.*\)\s*$'
) AND NOT EXISTS (SELECT FROM billing_period b WHERE l.day_ms >= b.start_ms AND l.day_ms < b.end_ms)
"""


def upgrade() -> None:
    """Mark the days."""
    op.execute(MARK)


def downgrade() -> None:
    """Marks do no harm: rating removes them."""
