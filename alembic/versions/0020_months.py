"""The ledger of months that are over, beside that of days: a month's bill is asked for again and again.

The database itself keeps it true, whichever version of the collector writes: a month that is written is held against
its days, and a day that changes takes its months away in the same transaction; the report then reads days, until rating
has added the month up again. Nothing is filled here.

Its triggers are the only ones that a `pre` migration binds to a table that was there before: they refuse nothing that
an older collector does, and touch the new table alone.

Revision ID: 0020
Revises: 0019
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
phase = "pre"

CREATE = """
CREATE TABLE ledger_month (
    start_ms BIGINT NOT NULL,
    end_ms BIGINT NOT NULL,
    owner_id BIGINT,
    state TEXT NOT NULL,
    pool TEXT DEFAULT '' NOT NULL,
    gpu_model TEXT DEFAULT '' NOT NULL,
    currency TEXT,
    gpu_ns NUMERIC(30, 0) NOT NULL,
    busy_ns NUMERIC(30, 0) NOT NULL,
    idle_ns NUMERIC(30, 0) NOT NULL,
    unknown_ns NUMERIC(30, 0) NOT NULL,
    cost_micro NUMERIC(30, 0),
    idle_cost_micro NUMERIC(30, 0),
    energy_mj NUMERIC(30, 0),
    list_cost_micro NUMERIC(30, 0),
    contracted_cost_micro NUMERIC(30, 0),
    CONSTRAINT fk_ledger_month_owner_id_owner FOREIGN KEY (owner_id) REFERENCES owner (id)
);

CREATE UNIQUE INDEX uq_ledger_month_key ON ledger_month
    (start_ms, end_ms, owner_id, state, pool, gpu_model, currency) NULLS NOT DISTINCT;

COMMENT ON TABLE ledger_month IS
    'The daily ledger of a month that is over, added up: all of its lines are here, or none while a day has changed.';

COMMENT ON COLUMN ledger_month.end_ms IS 'the days from start_ms to here, not included, are in it';

COMMENT ON COLUMN ledger_month.list_cost_micro IS 'at contracted rates where there is no list; null: some of it unknown'
"""
FUNCTIONS = (
    """
CREATE FUNCTION gpuledger_forget_months() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM ledger_month;
    ELSE
        DELETE FROM ledger_month m USING (SELECT DISTINCT day_ms FROM touched) t
            WHERE m.start_ms <= t.day_ms AND m.end_ms > t.day_ms;
    END IF;
    RETURN NULL;
END $$""",
    """
CREATE FUNCTION gpuledger_check_months() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE month RECORD;
BEGIN
    FOR month IN
        SELECT * FROM (SELECT DISTINCT start_ms, end_ms FROM touched) t
        WHERE EXISTS (SELECT FROM ledger_month m WHERE m.start_ms = t.start_ms AND m.end_ms = t.end_ms)
    LOOP
        IF EXISTS (
            SELECT FROM (
                SELECT 1 AS side, owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns, unknown_ns,
                    cost_micro, idle_cost_micro, energy_mj, list_cost_micro, contracted_cost_micro
                FROM ledger_month WHERE start_ms = month.start_ms AND end_ms = month.end_ms
                UNION ALL
                SELECT -1, owner_id, state, pool, gpu_model, currency, sum(gpu_ns), sum(busy_ns), sum(idle_ns),
                    sum(unknown_ns), sum(cost_micro), sum(idle_cost_micro), sum(energy_mj),
                    CASE WHEN currency IS NULL OR count(*) = count(coalesce(list_cost_micro, contracted_cost_micro))
                        THEN sum(coalesce(list_cost_micro, contracted_cost_micro)) END,
                    CASE WHEN currency IS NULL OR count(*) = count(contracted_cost_micro)
                        THEN sum(contracted_cost_micro) END
                FROM ledger_day WHERE day_ms >= month.start_ms AND day_ms < month.end_ms
                GROUP BY owner_id, state, pool, gpu_model, currency
            ) AS both_sides
            GROUP BY owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns, unknown_ns, cost_micro,
                idle_cost_micro, energy_mj, list_cost_micro, contracted_cost_micro
            HAVING sum(side) <> 0
        ) THEN
            RAISE EXCEPTION 'the month of % is not the sum of its days',
                to_timestamp(month.start_ms / 1000.0) AT TIME ZONE 'UTC' USING ERRCODE = 'restrict_violation';
        END IF;
    END LOOP;
    RETURN NULL;
END $$""",
)
EVENTS = (("insert", "INSERT", "NEW"), ("delete", "DELETE", "OLD"), ("update", "UPDATE", "OLD"),
          ("update_to", "UPDATE", "NEW"))  # fmt: skip
BOUND = (("ledger_day", "gpuledger_forget_months"), ("ledger_month", "gpuledger_check_months"))


def triggers() -> list[str]:
    """The statements that bind the functions to their tables."""
    made = [
        f"CREATE TRIGGER months_{name} AFTER {event} ON {table} REFERENCING {rows} TABLE AS touched "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
        for table, function in BOUND
        for name, event, rows in EVENTS
    ]
    made.append(
        "CREATE TRIGGER months_truncate AFTER TRUNCATE ON ledger_day "
        "FOR EACH STATEMENT EXECUTE FUNCTION gpuledger_forget_months()"
    )
    return made


def upgrade() -> None:
    """Create table, functions and triggers."""
    for statement in [*CREATE.split(";\n"), *FUNCTIONS, *triggers()]:
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    for name in ("truncate", *(name for name, _, _ in EVENTS)):
        op.execute(f"DROP TRIGGER months_{name} ON ledger_day")
    op.execute("DROP TABLE ledger_month")
    for _, function in BOUND:
        op.execute(f"DROP FUNCTION {function}()")
