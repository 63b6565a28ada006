"""A second format of packed usage intervals, for which short jobs take fewer bytes.

Revision ID: 0038
"""

from alembic import op

revision = "0038"
down_revision = "0035"
branch_labels = None
depends_on = None
phase = "pre"

OLD = {
    "workload_ids": "of format 1, by context: what intervals in a row have in common",
    "attributes_offsets": "of format 1, added to the workload''s id",
    "power_mw": None,
    "length": None,
    "length_least": None,
}
"""Columns of the first format alone, and what is said of them."""
STATEMENTS = [
    "ALTER TABLE usage_interval_day ADD COLUMN format SMALLINT NOT NULL DEFAULT 1",
    "ALTER TABLE usage_interval_day ADD COLUMN contexts INTEGER",
    *(
        f"ALTER TABLE usage_interval_day ADD COLUMN {name} BYTEA"
        for name in (
            *("source", "workload", "attributes", "power"),
            *("ticks", "jitter", "idle_ticks", "unknown_ticks"),
        )
    ),
    *(
        f"ALTER TABLE usage_interval_day ADD COLUMN {name} BIGINT"
        for name in (
            *("ticks_least", "jitter_least", "idle_least", "unknown_least", "record_least"),
            *("workload_first", "attributes_first", "tick_ms", "power_step_mw", "seq_offset_ms"),
        )
    ),
    *(f"ALTER TABLE usage_interval_day ALTER COLUMN {name} DROP NOT NULL" for name in OLD),
    "COMMENT ON COLUMN usage_interval_day.format IS '1: as packed at first; 2'",
    "COMMENT ON COLUMN usage_interval_day.contexts IS 'of format 2: how many there are'",
    "COMMENT ON COLUMN usage_interval_day.states IS"
    " 'by source of intervals; of format 1 by context'",
    *(
        f"COMMENT ON COLUMN usage_interval_day.{name} IS '{comment}'"
        for name, comment in OLD.items()
        if comment
    ),
]
REFUSE = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM usage_interval_day WHERE format > 1) THEN
        RAISE EXCEPTION 'usage intervals are packed: the version before cannot read them';
    END IF;
END $$
"""


def upgrade() -> None:
    """Add columns; the job that packs days packs those of before again, some accelerators at a time."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """Drop the columns, unless they hold evidence that is nowhere else."""
    op.execute(REFUSE)
    for statement in STATEMENTS:
        if " ADD COLUMN " in statement:
            column = statement.split(" ADD COLUMN ")[1].split()[0]
            op.execute(f"ALTER TABLE usage_interval_day DROP COLUMN {column}")
    for name in OLD:
        op.execute(f"ALTER TABLE usage_interval_day ALTER COLUMN {name} SET NOT NULL")
    op.execute(
        "COMMENT ON COLUMN usage_interval_day.workload_ids IS"
        " 'by context: what intervals in a row have in common'"
    )
    op.execute(
        "COMMENT ON COLUMN usage_interval_day.attributes_offsets IS 'added to the workload''s id'"
    )
    op.execute("COMMENT ON COLUMN usage_interval_day.states IS NULL")
