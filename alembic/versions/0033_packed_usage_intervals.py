"""Usage intervals of old days packed.

Revision ID: 0033
"""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None
phase = "pre"

STATEMENTS = r"""
CREATE TABLE usage_interval_day (
    accelerator_id BIGINT NOT NULL,
    day_ms BIGINT NOT NULL,
    rows INTEGER NOT NULL,
    workload_ids BIGINT[] NOT NULL,
    states TEXT[] NOT NULL,
    node_ids BIGINT[] NOT NULL,
    epochs UUID[] NOT NULL,
    accelerator_attributes_ids BIGINT[] NOT NULL,
    attributes_offsets BIGINT[] NOT NULL,
    seqs BIGINT[] NOT NULL,
    power_mw INTEGER[] NOT NULL,
    context BYTEA NOT NULL,
    gap BYTEA NOT NULL,
    length BYTEA NOT NULL,
    missing BYTEA NOT NULL,
    idle BYTEA NOT NULL,
    unknown BYTEA NOT NULL,
    energy BYTEA NOT NULL,
    seq BYTEA NOT NULL,
    record BYTEA NOT NULL,
    gap_least BIGINT NOT NULL,
    length_least BIGINT NOT NULL,
    energy_least BIGINT NOT NULL,
    seq_step_ms BIGINT NOT NULL,
    sha256 BYTEA NOT NULL,
    packed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_usage_interval_day PRIMARY KEY (accelerator_id, day_ms)
);

CREATE INDEX ix_usage_interval_day_day_ms ON usage_interval_day (day_ms);

COMMENT ON TABLE usage_interval_day IS 'Packed usage intervals of an accelerator and day; late ones stay in usage_interval until the next packing.';

COMMENT ON COLUMN usage_interval_day.day_ms IS 'start of the UTC day on which they begin';

COMMENT ON COLUMN usage_interval_day.workload_ids IS 'by context: what intervals in a row have in common';

COMMENT ON COLUMN usage_interval_day.attributes_offsets IS 'added to the workload''s id';

COMMENT ON COLUMN usage_interval_day.context IS 'format: storage/telemetry/interval_codec.py';

COMMENT ON COLUMN usage_interval_day.sha256 IS 'of the intervals as they were before they were packed';

COMMENT ON COLUMN usage_interval_day.packed_at IS 'when the row was last written';

COMMENT ON TABLE usage_interval IS 'Evidence of use: intervals that agents integrated, as reported, until their day is packed.'
"""
SPREAD = """
DO $$ BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL THEN
        IF EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = 'usage_interval'::regclass)
        THEN
            PERFORM create_distributed_table(
                'usage_interval_day', 'accelerator_id', colocate_with => 'usage_interval');
        END IF;
    END IF;
END $$
"""
"""On a ledger that Citus spreads already, beside the table from which it is filled."""
REFUSE = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM usage_interval_day) THEN
        RAISE EXCEPTION 'usage intervals are packed: the version before cannot read them';
    END IF;
END $$
"""


def upgrade() -> None:
    """Create the table; the job that fills it packs days of before, some accelerators at a time."""
    for statement in STATEMENTS.strip().split(";\n\n"):
        op.execute(statement)
    op.execute(SPREAD)



def downgrade() -> None:
    """Drop the table, unless it holds evidence that is nowhere else."""
    op.execute(REFUSE)
    op.execute("DROP TABLE usage_interval_day")
    op.execute(
        "COMMENT ON TABLE usage_interval IS"
        " 'Evidence of use: intervals that agents integrated, as reported.'"
    )
