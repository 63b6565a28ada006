"""Check what charges name once for a statement, not once for each of a hundred thousand rows.

Revision ID: 0044
"""

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None
phase = "pre"

KEYS = {
    "owner_id": "owner",
    "price_id": "price",
    "commitment_id": "commitment",
    "inference_id": "inference_share",
}
FUNCTIONS = """
CREATE FUNCTION gpuledger_check_charges() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    owners BIGINT[];
    prices BIGINT[];
    commitments BIGINT[];
    shares BIGINT[];
    missing TEXT;
BEGIN
    SELECT array_agg(DISTINCT owner_id) FILTER (WHERE owner_id IS NOT NULL),
        array_agg(DISTINCT price_id) FILTER (WHERE price_id IS NOT NULL),
        array_agg(DISTINCT commitment_id) FILTER (WHERE commitment_id IS NOT NULL),
        array_agg(DISTINCT inference_id) FILTER (WHERE inference_id IS NOT NULL)
        INTO owners, prices, commitments, shares
        FROM (SELECT DISTINCT owner_id, price_id, commitment_id, inference_id FROM touched) AS named;
    -- Locked as a foreign key locks what it names: nobody deletes it before this transaction ends.
    missing := CASE
        WHEN (SELECT count(*) FROM (SELECT FROM owner WHERE id = ANY (owners) ORDER BY id
            FOR KEY SHARE) AS t) < cardinality(owners) THEN 'owner'
        WHEN (SELECT count(*) FROM (SELECT FROM price WHERE id = ANY (prices) ORDER BY id
            FOR KEY SHARE) AS t) < cardinality(prices) THEN 'price'
        WHEN (SELECT count(*) FROM (SELECT FROM commitment WHERE id = ANY (commitments) ORDER BY id
            FOR KEY SHARE) AS t) < cardinality(commitments) THEN 'commitment'
        WHEN (SELECT count(*) FROM (SELECT FROM inference_share WHERE id = ANY (shares) ORDER BY id
            FOR KEY SHARE) AS t) < cardinality(shares) THEN 'inference_share'
        END;
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'a charge names a row of % that is not there', missing
            USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NULL;
END $$;;

CREATE FUNCTION gpuledger_refuse_charged() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    gone BIGINT[];
    is_charged BOOLEAN;
BEGIN
    EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM removed EXCEPT SELECT id FROM %I) AS t',
        TG_TABLE_NAME) INTO gone;
    IF gone IS NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM charge WHERE %I = ANY ($1))', TG_ARGV[0]) INTO is_charged
        USING gone;
    IF is_charged THEN
        RAISE EXCEPTION 'these rows of % stay: charges name them', TG_TABLE_NAME
            USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NULL;
END $$
"""


def upgrade() -> None:
    """Two functions and their triggers take the place of four foreign keys."""
    for function in FUNCTIONS.strip().split(";;\n\n"):
        op.execute(function)
    for event in ("INSERT", "UPDATE"):
        op.execute(
            f"CREATE TRIGGER keys_{event.lower()} AFTER {event} ON charge REFERENCING NEW TABLE AS"
            " touched FOR EACH STATEMENT EXECUTE FUNCTION gpuledger_check_charges()"
        )
    for column, table in KEYS.items():
        for event in ("DELETE", "UPDATE"):
            op.execute(
                f"CREATE TRIGGER charged_{event.lower()} AFTER {event} ON {table} REFERENCING OLD TABLE"
                " AS removed FOR EACH STATEMENT EXECUTE FUNCTION"
                f" gpuledger_refuse_charged('{column}')"
            )
        op.execute(f"ALTER TABLE charge DROP CONSTRAINT fk_charge_{column}")


def downgrade() -> None:
    """Bring the foreign keys back, which reads all charges."""
    for column, table in KEYS.items():
        op.execute(
            f"ALTER TABLE charge ADD CONSTRAINT fk_charge_{column} FOREIGN KEY ({column})"
            f" REFERENCES {table} (id)"
        )
        for event in ("delete", "update"):
            op.execute(f"DROP TRIGGER charged_{event} ON {table}")
    for event in ("insert", "update"):
        op.execute(f"DROP TRIGGER keys_{event} ON charge")
    op.execute("DROP FUNCTION gpuledger_refuse_charged()")
    op.execute("DROP FUNCTION gpuledger_check_charges()")
