"""Links of mails that were used: each changes something once.

Revision ID: 0025
Revises: 0024
"""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
phase = "pre"

CREATE = """
CREATE TABLE used_link (
    mac TEXT NOT NULL,
    used_ms BIGINT NOT NULL,
    CONSTRAINT pk_used_link PRIMARY KEY (mac)
);

COMMENT ON TABLE used_link IS 'Links of mails whose button was pressed: they say so, and change nothing again.';

COMMENT ON COLUMN used_link.mac IS 'the signature of the link'
"""


def upgrade() -> None:
    """Create the table."""
    for statement in CREATE.split(";\n"):
        op.execute(statement)


def downgrade() -> None:
    """Drop it."""
    op.execute("DROP TABLE used_link")
