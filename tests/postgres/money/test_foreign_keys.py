"""Rows that are written by thousands are checked against the tables that they name by one plan for
each key.
"""

import psycopg
import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector.accounting.inference import Asker, TokenRecord, Tokens
from gpuledger_collector.services.upkeep import roll_up_series
from gpuledger_collector.storage.billing import months
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.foreign_keys import (
    checks_planned_once,
    insert_selected,
    plan_checks_once,
)
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.ledger.token_usage import store_token_usage
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.schema.columns import target_of

SETTINGS = "SELECT current_setting('plan_cache_mode'), current_setting('enable_seqscan')"
BULK = {
    *("ledger_day", "ledger_month", "owner_5min", "token_hour", "closed_workload"),
    *("imported_usage", "workload_attributes", "bill_line"),
}
"""Tables with foreign keys that are written by thousands, each by `write_by_thousands`."""
FEW = {
    "correction": "written as charges are",
    "node_utilization": "a row for each node and hour",
    **dict.fromkeys(("counter_series", "token_series"), "once for each series"),
    **dict.fromkeys(("accelerator_attributes", "capacity", "inventory"), "once for each change"),
    "ingest_batch": "one for each batch",
    "invoice": "one for each owner and month",
    **dict.fromkeys(("budget_alert", "budget_share", "budget_forecast"), "of each budget"),
    **dict.fromkeys(("dispute_entry", "reattribution"), "of each dispute"),
    **dict.fromkeys(("reclaim_action", "scaling_outcome"), "one for each decision"),
}
"""The other tables with foreign keys, and why theirs need no plan."""
NOTE = f"""
CREATE TABLE noted (name text, plan_cache_mode text, enable_seqscan text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO noted SELECT split_part(TG_TABLE_NAME, '_p2', 1), s.* FROM ({SETTINGS}) s; RETURN NULL; END $$
"""
USAGE = """workload_id,start,end,gpus,pool
j1,2025-10-01T00:00:00Z,2025-10-01T05:00:00Z,1,batch
"""
BILL = (
    "ProviderName,BilledCost,EffectiveCost,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,"
    "ChargeCategory,ChargeDescription,ChargePeriodStart,ChargePeriodEnd\n"
    "Cloud,5,5,USD,2025-10-01T00:00:00Z,2025-11-01T00:00:00Z,"
    "Usage,GPUs,2025-10-01T00:00:00Z,2025-10-02T00:00:00Z\n"
)


def test_every_table_with_foreign_keys_is_known(fleet):
    """A new one belongs to one of both."""
    tables = fleet.rows(
        "SELECT DISTINCT conrelid::regclass::text FROM pg_constraint WHERE contype = 'f' AND"
        " conparentid = 0"
    )
    assert {name for (name,) in tables} == BULK | FEW.keys()


def write_by_thousands(fleet, run, dsn, written):
    """Let each service that writes many rows write one."""
    now_ms = OCTOBER + 40 * DAY
    assert run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")[0] == 0
    assert run("import", "usage", written("usage.csv", USAGE))[0] == 0
    assert run("import", "bill", written("bill.csv", BILL))[0] == 0
    asker = Asker("litellm", "t", "m", "")
    record = TokenRecord(asker, "r1", OCTOBER, OCTOBER + HOUR, Tokens(1, 0, 1, 1))
    with Database(dsn).transaction() as connection:
        store_token_usage(connection, [record])
    code, _, err = run("chargeback", "--from", "2025-10-01", "--to", "2025-10-02")
    assert code == 0, err
    assert roll_up_series(Database(dsn), 0, now_ms) > 0
    with Database(dsn).transaction(Lock.LEDGER) as connection:
        months.add_up(connection, lambda: zones.calendar(connection), now_ms)
    code, out, err = run("close", "--period", "2025-10")
    assert code == 0, (out, err)


def test_what_is_written_by_thousands_has_its_checks_planned_once(fleet, run, dsn, written):
    """A check is a statement of Postgres for each row, planned as its session plans."""
    fleet.capacity(1, 0, 31 * DAY)
    fleet.workload(1, team="vision")
    fleet.evidence([Held(1, 1, 0, HOUR, busy=HOUR, idle=0)])
    fleet.connection.execute(NOTE)
    for name in sorted(BULK):
        fleet.connection.execute(
            f"CREATE TRIGGER note AFTER INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION note()"
        )
    write_by_thousands(fleet, run, dsn, written)
    noted = set(fleet.rows("SELECT * FROM noted"))
    assert noted == {(name, "auto", "off") for name in BULK}


def test_statements_after_the_block_are_planned_as_before(dsn):
    """Within the transaction, too."""
    with Database(dsn).transaction() as connection:
        before = connection.execute(SETTINGS).fetchone()
        with checks_planned_once(connection):
            assert connection.execute(SETTINGS).fetchone() == ("auto", "off")
        assert connection.execute(SETTINGS).fetchone() == before == ("force_custom_plan", "on")


def test_rows_of_a_query_are_inserted_and_counted(dsn):
    """Several times in a transaction; a row that is there already is left out where that is said."""
    query = "SELECT %(org)s AS org, 'o%%' || g AS team FROM generate_series(1, 3) g"
    with Database(dsn).transaction() as connection:
        for count in (3, 0):
            inserted = insert_selected(
                connection,
                "owner (org, team)",
                query,
                {"org": "o"},
                on_conflict="ON CONFLICT DO NOTHING",
            )
            assert inserted == count
        rows = connection.execute("SELECT org, team FROM owner ORDER BY id").fetchall()
    assert rows == [("o", "o%1"), ("o", "o%2"), ("o", "o%3")]


def test_the_next_transaction_plans_as_before(dsn):
    """Partitions that are not needed are not locked there."""
    with Database(dsn).sharing_connection() as database:
        with database.transaction() as connection:
            before = connection.execute(SETTINGS).fetchone()
            plan_checks_once(connection)
            assert connection.execute(SETTINGS).fetchone() == ("auto", "off")
        with database.transaction() as connection:
            assert connection.execute(SETTINGS).fetchone() == before == ("force_custom_plan", "on")


def test_a_charge_of_an_unknown_owner_is_refused(dsn):
    """Planned once or not, a key is checked."""
    with Database(dsn).transaction() as connection:
        plan_checks_once(connection)
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.execute(
                "INSERT INTO ledger_day (day_ms, owner_id, state, pool, gpu_model, gpu_ns, busy_ns,"
                " idle_ns, unknown_ns) VALUES (0, 7, 'held', '', '', 1, 0, 0, 1)"
            )
        connection.execute("ROLLBACK")


KEYS = {
    "owner_id": ("owner", "INSERT INTO owner (team) VALUES (gen_random_uuid()) RETURNING id"),
    "price_id": (
        "price",
        "INSERT INTO price (gpu_model, purchase, rate_per_gpu_hour, currency, effective_from_ms,"
        " recorded_at) VALUES ('', 'on_demand', 2, 'USD', 0, now()) RETURNING id",
    ),
    "commitment_id": (
        "commitment",
        "INSERT INTO commitment (name, gpus, upfront_micro, rate_per_gpu_hour, currency, starts_ms,"
        " ends_ms, recorded_at) VALUES ('c', 1, 0, 1, 'USD', 0, 3600000, now()) RETURNING id",
    ),
    "inference_id": (
        "inference_share",
        "INSERT INTO inference_share (server, weights) VALUES (gen_random_uuid(), '') RETURNING id",
    ),
}
"""What a charge names: its table, and a row of it."""
CHARGE = (
    "INSERT INTO charge (day_ms, start_ms, end_ms, state, gpu_ns, busy_ns, idle_ns, unknown_ns, {})"
    " VALUES (0, 0, 1, 'held', 1, 0, 0, 1, %s)"
)


def test_what_a_charge_names_is_declared():
    """A column of the walk over cells refers to a row of its table."""
    found = {
        column.name: target.table.name
        for column in metadata.tables["charge"].columns
        if (target := target_of(column)) is not None
    }
    assert found == {name: table for name, (table, _) in KEYS.items()}


@pytest.mark.parametrize("column", KEYS)
def test_a_charge_names_what_is_there(dsn, column):
    """Also when it is changed; and what it names stays as long as it does."""
    table, insert = KEYS[column]
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in (CHARGE.format(column), f"UPDATE charge SET {column} = %s"):
            with pytest.raises(psycopg.errors.ForeignKeyViolation, match=f"a row of {table} "):
                connection.execute(statement, (4711,))
            (number,) = connection.execute(insert).fetchone()
            connection.execute(statement, (number,))
            if statement.startswith("UPDATE"):
                connection.execute(f"DELETE FROM {table} WHERE id <> %s", (number,))
        for change in (f"DELETE FROM {table}", f"UPDATE {table} SET id = DEFAULT"):
            with pytest.raises(psycopg.errors.ForeignKeyViolation, match="charges name them"):
                connection.execute(change)
        connection.execute(f"UPDATE {table} SET id = id")
        connection.execute("DELETE FROM charge")
        connection.execute(f"DELETE FROM {table}")


def test_what_a_charge_is_about_to_name_is_not_deleted(dsn):
    """Who deletes it waits for the transaction that charges, and is refused."""
    with psycopg.connect(dsn) as charging, psycopg.connect(dsn, autocommit=True) as deleting:
        (number,) = deleting.execute(KEYS["owner_id"][1]).fetchone()
        charging.execute(CHARGE.format("owner_id"), (number,))
        deleting.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            deleting.execute("DELETE FROM owner")
        charging.commit()
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            deleting.execute("DELETE FROM owner")
        charging.execute("DELETE FROM charge")
        charging.commit()
        # The other way round: what is deleted meanwhile is not there.
        with deleting.transaction():
            deleting.execute("DELETE FROM owner")
            charging.execute("SET lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                charging.execute(CHARGE.format("owner_id"), (number,))
        charging.rollback()
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            charging.execute(CHARGE.format("owner_id"), (number,))
