"""A reattribution names the owner whose time it moves, so that time of anybody else inside its span stays.

Decisions that are there already get the owner of their dispute, of one contested line the owner of that line. The days
that they touch are rated again: what they took from somebody else goes back, in a closed month as a correction.

Revision ID: 0028
Revises: 0027
"""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None
phase = "pre"

COMMENTS = (
    "COMMENT ON COLUMN reattribution.contested IS "
    "'level -> value: time of this owner moves; null: as the dispute has it'",
    "COMMENT ON TABLE reattribution IS "
    "'Dated exceptions to attribution that accepted disputes made; rating applies them in order. Never changed.'",
)
FILL = """
    UPDATE reattribution r SET contested = CASE WHEN d.line IS NULL THEN d.owner
        ELSE coalesce(d.evidence::jsonb #> '{lines,0,owner}', d.owner) END
    FROM dispute d WHERE d.id = r.dispute_id
"""
MARK = """
    INSERT INTO dirty_day (day_ms) SELECT DISTINCT p.day_ms FROM day_proof p
    JOIN reattribution r ON r.start_ms < p.until_ms AND r.end_ms > p.day_ms
"""
BEFORE = "Dated exceptions to attribution that accepted disputes made; rating honours the newest. Never changed."


def upgrade() -> None:
    """Add the column, fill it, and mark the days."""
    op.execute("ALTER TABLE reattribution ADD COLUMN contested JSONB")
    for comment in COMMENTS:
        op.execute(comment)
    op.execute("ALTER TABLE reattribution DISABLE TRIGGER reattribution_only_grows")
    op.execute(FILL)
    op.execute("ALTER TABLE reattribution ENABLE TRIGGER reattribution_only_grows")
    op.execute(MARK)


def downgrade() -> None:
    """Forget whose time it is."""
    op.execute("ALTER TABLE reattribution DROP COLUMN contested")
    op.execute(f"COMMENT ON TABLE reattribution IS '{BEFORE}'")
