"""Collectors that are alive, and in which phase each later migration ran.

Revision ID: 0017
Revises: 0016
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
phase = "pre"

CREATE = """
CREATE TABLE schema_step (
    revision TEXT NOT NULL,
    follows TEXT NOT NULL,
    phase TEXT NOT NULL,
    applied_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_schema_step PRIMARY KEY (revision),
    CONSTRAINT ck_schema_step_phase CHECK (phase IN ('pre', 'post'))
);

COMMENT ON TABLE schema_step IS 'Migrations that ran, so that an older collector knows whether it may go on serving.';

COMMENT ON COLUMN schema_step.phase IS 'pre: older collectors go on; post: they do not';

CREATE TABLE replica (
    id UUID NOT NULL,
    host TEXT NOT NULL,
    version TEXT NOT NULL,
    revision TEXT NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_replica PRIMARY KEY (id)
);

COMMENT ON TABLE replica IS 'Collectors by their heartbeat; those that ended or fell silent are removed.';

COMMENT ON COLUMN replica.revision IS 'the newest migration that it knows';
"""
TABLES = ("replica", "schema_step")


def upgrade() -> None:
    """Create them."""
    for statement in CREATE.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
