"""Nothing changes: the dashboards' role is granted by `gpuledger db grant-reader` (docs/decisions/0007).

Revision ID: 0005
Revises: 0004
"""

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A role belongs to the whole server, and often not to the owner of the schema."""


def downgrade() -> None:
    """As little."""
