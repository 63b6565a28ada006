"""What retention has removed of a derived table is remembered, so that late evidence does not make half of it again.

Revision ID: 0021
Revises: 0020
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
phase = "pre"

CREATE = """
CREATE TABLE let_go (
    name TEXT NOT NULL,
    before_ms BIGINT NOT NULL,
    CONSTRAINT pk_let_go PRIMARY KEY (name)
);

COMMENT ON TABLE let_go IS
    'Up to where retention has removed a table that is derived: late evidence of before makes no rows of it again.';

COMMENT ON COLUMN let_go.name IS 'the table';
"""
TABLES = ("let_go",)


def upgrade() -> None:
    """Create them."""
    for statement in CREATE.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
