"""Archive: samples of old days, packed, and days whose evidence retention removed.

Revision ID: 0009
Revises: 0008
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

CREATE = """
CREATE TABLE sample_archive (
    day_ms BIGINT NOT NULL,
    accelerator_id BIGINT NOT NULL,
    rows INTEGER NOT NULL,
    metrics INTEGER NOT NULL,
    blob BYTEA NOT NULL,
    sha256 BYTEA NOT NULL,
    CONSTRAINT pk_sample_archive PRIMARY KEY (day_ms, accelerator_id)
);

ALTER TABLE sample_archive ALTER COLUMN blob SET STORAGE EXTERNAL;

COMMENT ON TABLE sample_archive IS
    'Samples of an accelerator and day, packed; late ones lie in gpu_sample until the next packing.';

COMMENT ON COLUMN sample_archive.day_ms IS 'start of the UTC day';

COMMENT ON COLUMN sample_archive.metrics IS 'how many have a reading on this day';

COMMENT ON COLUMN sample_archive.blob IS 'storage/packing.py says its format';

COMMENT ON COLUMN sample_archive.sha256 IS 'of the blob';

CREATE TABLE dropped_day (
    day_ms BIGINT NOT NULL,
    dropped_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_dropped_day PRIMARY KEY (day_ms)
);

COMMENT ON TABLE dropped_day IS
    'Days whose stretches retention removed: their hours, and those of the day after, are not folded again.';
"""
TABLES = ("dropped_day", "sample_archive")


def upgrade() -> None:
    """Create them."""
    for statement in CREATE.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
