"""How nodes say they are bought, with dates.

Revision ID: 0030
"""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None
phase = "pre"

STATEMENTS = r"""
CREATE TABLE node_purchase (
    node TEXT NOT NULL,
    from_ms BIGINT NOT NULL,
    purchase TEXT NOT NULL,
    CONSTRAINT pk_node_purchase PRIMARY KEY (node, from_ms)
);

COMMENT ON TABLE node_purchase IS 'How nodes are bought as the labels of their clouds say it: a row where that changes.';

COMMENT ON COLUMN node_purchase.node IS 'name';

COMMENT ON COLUMN node_purchase.from_ms IS 'the hour from which it holds'
"""


def upgrade() -> None:
    """Create the table."""
    for statement in STATEMENTS.strip().split(";\n\n"):
        op.execute(statement)


def downgrade() -> None:
    """Drop the table; refuse where a node has said something: agents say what is now, and no more
    what was.
    """
    if op.get_bind().exec_driver_sql("SELECT EXISTS (SELECT FROM node_purchase)").scalar():
        raise NotImplementedError(
            "what nodes said of how they are bought cannot be undone; restore a backup of the ledger"
            " instead"
        )
    op.execute("DROP TABLE node_purchase")
