"""Five-minute series per owner.

Revision ID: 0016
Revises: 0015
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

CREATE = """
CREATE TABLE owner_5min (
    at_ms BIGINT NOT NULL,
    owner_id BIGINT,
    state TEXT NOT NULL,
    pool TEXT DEFAULT '' NOT NULL,
    gpu_model TEXT DEFAULT '' NOT NULL,
    currency TEXT,
    gpu_ns BIGINT NOT NULL,
    busy_ns BIGINT NOT NULL,
    idle_ns BIGINT NOT NULL,
    unknown_ns BIGINT NOT NULL,
    energy_mj BIGINT,
    cost_micro BIGINT,
    CONSTRAINT fk_owner_5min_owner_id_owner FOREIGN KEY (owner_id) REFERENCES owner (id)
);

CREATE INDEX ix_owner_5min_at_ms ON owner_5min (at_ms);

COMMENT ON TABLE owner_5min IS
    'What owners held every five minutes: its hours add up to usage_hour, the money of its days to charge.';

COMMENT ON COLUMN owner_5min.at_ms IS 'begin of the five minutes';

COMMENT ON COLUMN owner_5min.owner_id IS 'organisation, team and project; levels below are left out';

COMMENT ON COLUMN owner_5min.cost_micro IS 'null: unpriced, never 0';

CREATE TABLE series_day (
    day_ms BIGINT NOT NULL,
    proved_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_series_day PRIMARY KEY (day_ms)
);

COMMENT ON TABLE series_day IS
    'Days in owner_5min, and which rating they were made from: another one in day_proof makes them again.';
"""
TABLES = ("series_day", "owner_5min")


def upgrade() -> None:
    """Create them."""
    for statement in CREATE.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
