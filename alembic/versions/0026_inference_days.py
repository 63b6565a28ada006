"""What shared servers cost and counted by day, for dashboards.

Revision ID: 0026
"""

from alembic import op

revision = "0026"
down_revision = "0024"
branch_labels = None
depends_on = None
phase = "pre"

STATEMENTS = r"""
CREATE TABLE inference_day (
    server TEXT NOT NULL,
    day_ms BIGINT NOT NULL,
    currency TEXT NOT NULL,
    cost_micro BIGINT NOT NULL,
    used_micro BIGINT NOT NULL,
    asked BIGINT NOT NULL,
    counted BIGINT,
    weighted NUMERIC(30, 0) NOT NULL,
    weights TEXT NOT NULL,
    split_ms BIGINT NOT NULL,
    CONSTRAINT pk_inference_day PRIMARY KEY (server, day_ms, currency)
);

CREATE INDEX ix_inference_day_day_ms ON inference_day (day_ms);

COMMENT ON TABLE inference_day IS 'What shared servers cost and counted by day, as last split; for dashboards.';

COMMENT ON COLUMN inference_day.currency IS 'empty: it cost nothing';

COMMENT ON COLUMN inference_day.asked IS 'input and output tokens of gateways';

COMMENT ON COLUMN inference_day.counted IS 'the same by the server; null: not known';

COMMENT ON COLUMN inference_day.weighted IS 'tokens by their weights, scaled to those of the server';

COMMENT ON COLUMN inference_day.weights IS 'of an input, a cached and an output token'
"""


def upgrade() -> None:
    """Add the table; the job `store_inference_days` fills it."""
    for statement in STATEMENTS.strip().split(";\n\n"):
        op.execute(statement)


def downgrade() -> None:
    """Forget it."""
    op.execute("DROP TABLE inference_day")
