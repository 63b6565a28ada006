"""Heat of nodes: how busy the accelerators of each node were, by quarters of an hour.

Revision ID: 0018
Revises: 0017
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
phase = "pre"

CREATE = """
CREATE TABLE node_heat (
    hour_ms BIGINT NOT NULL,
    node_id BIGINT NOT NULL,
    accelerator_ids BIGINT[] NOT NULL,
    utilization DOUBLE PRECISION[] NOT NULL,
    utilization_minutes INTEGER[] NOT NULL,
    sm_active DOUBLE PRECISION[] NOT NULL,
    sm_active_minutes INTEGER[] NOT NULL,
    CONSTRAINT pk_node_heat PRIMARY KEY (hour_ms, node_id),
    CONSTRAINT fk_node_heat_node_id_node FOREIGN KEY (node_id) REFERENCES node (id)
);

COMMENT ON TABLE node_heat IS
    'Activity of a node''s accelerators by quarters of an hour, from gpu_minute: what heat maps read.';

COMMENT ON COLUMN node_heat.accelerator_ids IS 'whose minutes are in it';

COMMENT ON COLUMN node_heat.utilization IS 'by quarter the sum of its minutes'' ratios; null: nobody knows, never 0';

COMMENT ON COLUMN node_heat.utilization_minutes IS 'by quarter how many accelerator-minutes are in the sum';

CREATE TABLE heat_day (
    day_ms BIGINT NOT NULL,
    made_ms BIGINT NOT NULL,
    CONSTRAINT pk_heat_day PRIMARY KEY (day_ms)
);

COMMENT ON TABLE heat_day IS
    'Days of node_heat that were made as a whole, and when: minutes of before it was there are taken in so.';
"""
TABLES = ("heat_day", "node_heat")


def upgrade() -> None:
    """Create them."""
    for statement in CREATE.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
