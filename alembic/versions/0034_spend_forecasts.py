"""Forecasts of what owners and budgets will have spent, stored by the day.

Revision ID: 0034
"""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None
phase = "pre"

STATEMENTS = r"""
CREATE TABLE budget_forecast (
    budget_id BIGINT NOT NULL,
    period_start_ms BIGINT NOT NULL,
    day_ms BIGINT NOT NULL,
    period_end_ms BIGINT NOT NULL,
    known_ms BIGINT NOT NULL,
    made_ms BIGINT NOT NULL,
    spent_micro BIGINT NOT NULL,
    low_micro BIGINT,
    middle_micro BIGINT,
    high_micro BIGINT,
    days_of_history INTEGER,
    CONSTRAINT pk_budget_forecast PRIMARY KEY (budget_id, period_start_ms, day_ms),
    CONSTRAINT fk_budget_forecast_budget_id FOREIGN KEY(budget_id) REFERENCES budget (id)
);

COMMENT ON TABLE budget_forecast IS 'Where budgets stand and where their periods end, as said last on each day.';

COMMENT ON COLUMN budget_forecast.day_ms IS 'the day up to which the ledger was rated';

COMMENT ON COLUMN budget_forecast.known_ms IS 'the ledger was rated up to here';

COMMENT ON COLUMN budget_forecast.spent_micro IS 'of the period, up to known_ms';

COMMENT ON COLUMN budget_forecast.low_micro IS 'at the end of the period; null: no forecast';

COMMENT ON COLUMN budget_forecast.days_of_history IS 'null: no forecast';

CREATE TABLE owner_forecast (
    owner JSONB NOT NULL,
    currency TEXT NOT NULL,
    period_start_ms BIGINT NOT NULL,
    day_ms BIGINT NOT NULL,
    period_end_ms BIGINT NOT NULL,
    known_ms BIGINT NOT NULL,
    made_ms BIGINT NOT NULL,
    spent_micro BIGINT NOT NULL,
    low_micro BIGINT,
    middle_micro BIGINT,
    high_micro BIGINT,
    days_of_history INTEGER,
    CONSTRAINT pk_owner_forecast PRIMARY KEY (owner, currency, period_start_ms, day_ms)
);

COMMENT ON TABLE owner_forecast IS 'Where the spending of owners ends with a month, as said last on each day.';

COMMENT ON COLUMN owner_forecast.owner IS 'level -> value; {} is the fleet, with what no owner pays';

COMMENT ON COLUMN owner_forecast.day_ms IS 'the day up to which the ledger was rated';

COMMENT ON COLUMN owner_forecast.known_ms IS 'the ledger was rated up to here';

COMMENT ON COLUMN owner_forecast.spent_micro IS 'of the period, up to known_ms';

COMMENT ON COLUMN owner_forecast.low_micro IS 'at the end of the period; null: no forecast';

COMMENT ON COLUMN owner_forecast.days_of_history IS 'null: no forecast'
"""


def upgrade() -> None:
    """Create the tables; watching budgets and the hourly job fill them."""
    for statement in STATEMENTS.strip().split(";\n\n"):
        op.execute(statement)


def downgrade() -> None:
    """Drop the tables: what they hold is computed again."""
    op.execute("DROP TABLE budget_forecast, owner_forecast")
