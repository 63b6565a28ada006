"""Budgets on total cost and on GPU-hours.

Revision ID: 0010
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
phase = "pre"

STATEMENTS = r"""
ALTER TABLE budget ADD COLUMN measure TEXT DEFAULT 'direct' NOT NULL;

COMMENT ON TABLE budget IS 'What an owner may spend or use in a period; changing amount, measure, owner or period supersedes the row.';

COMMENT ON COLUMN budget.measure IS 'direct, total or gpu_hours';

COMMENT ON COLUMN budget.amount_micro IS 'millionths of the currency, or of a GPU-hour';

COMMENT ON COLUMN budget.currency IS 'empty: GPU-hours';

CREATE TABLE budget_share (
    budget_id BIGINT NOT NULL,
    start_ms BIGINT NOT NULL,
    end_ms BIGINT NOT NULL,
    shared_micro BIGINT NOT NULL,
    CONSTRAINT pk_budget_share PRIMARY KEY (budget_id, start_ms),
    CONSTRAINT fk_budget_share_budget_id FOREIGN KEY(budget_id) REFERENCES budget (id)
);

COMMENT ON TABLE budget_share IS 'Shares of common costs that count against a budget on total cost, as of its last evaluation.';

COMMENT ON COLUMN budget_share.start_ms IS 'of a month, or of the budget''s part of it'
"""


def upgrade() -> None:
    """Add the measure, and the table."""
    for statement in STATEMENTS.strip().split(";\n\n"):
        op.execute(statement)


def downgrade() -> None:
    """Refuse: budgets on total cost and on GPU-hours cannot be expressed."""
    raise NotImplementedError("measures of budgets cannot be undone; restore a backup of the ledger instead")
