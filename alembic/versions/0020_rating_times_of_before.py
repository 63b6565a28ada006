"""Hashes of the times of days that were rated before there was a hash, and of what is known of corrections.

Revision ID: 0020
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
phase = "pre"

INSTANT = "to_char({at} AT TIME ZONE 'UTC', {form})"
SECONDS, FRACTION = """'YYYY-MM-DD"T"HH24:MI:SS'""", """'YYYY-MM-DD"T"HH24:MI:SS.US'"""
WHOLE = "date_trunc('second', proved_at) = proved_at"
PROVED = (
    f"CASE WHEN {WHOLE} THEN {INSTANT.format(at='proved_at', form=SECONDS)} "
    f"ELSE {INSTANT.format(at='proved_at', form=FRACTION)} END || '+00:00'"
)
LINES = """
    coalesce((SELECT string_agg(E'\\n' || concat_ws(' ', id, recorded_ms, start_ms, end_ms,
            coalesce(list_cost_micro::text, 'None'), coalesce(contracted_cost_micro::text, 'None')), '' ORDER BY id)
        FROM correction WHERE correction.day_ms = corrected_day.day_ms), '')
"""
TEXTS = {"conservation_check": PROVED, "corrected_day": f"{PROVED} || {LINES}"}
"""What is hashed, as `storage/ledger/rating_times.py` spells it; of corrections with two costs that it did not have."""
COMMENT = "of proved_at and the times of corrections; null: {}"


def upgrade() -> None:
    """Hash the times as they are now, also of closed months; of corrections all, since they are hashed with more."""
    for table, text in TEXTS.items():
        missing = "" if table == "corrected_day" else " WHERE times_sha256 IS NULL"
        op.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        op.execute(f"UPDATE {table} SET times_sha256 = encode(sha256(convert_to({text}, 'UTF8')), 'hex'){missing}")
        op.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        op.execute(f"COMMENT ON COLUMN {table}.times_sha256 IS '{COMMENT.format('by an older collector')}'")


def downgrade() -> None:
    """Forget the hashes of corrections, which the version before computes otherwise."""
    op.execute("UPDATE corrected_day SET times_sha256 = NULL")
    for table in TEXTS:
        op.execute(f"COMMENT ON COLUMN {table}.times_sha256 IS '{COMMENT.format('not recorded')}'")
