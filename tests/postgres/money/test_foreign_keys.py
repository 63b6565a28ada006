"""Charges are checked against the tables that they name, by one plan for each key."""

import psycopg
import pytest

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.foreign_keys import plan_checks_once

SETTINGS = "SELECT current_setting('plan_cache_mode'), current_setting('enable_seqscan')"
NOTE = f"""
CREATE TABLE noted (plan_cache_mode text, enable_seqscan text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO noted {SETTINGS}; RETURN NULL; END $$;
CREATE TRIGGER note AFTER INSERT ON charge FOR EACH ROW EXECUTE FUNCTION note();
"""


def test_charges_are_written_with_checks_that_are_planned_once(fleet, run):
    """A check is a statement of Postgres for each row, planned as its session plans."""
    fleet.capacity(1, 0, DAY)
    fleet.workload(1, team="vision")
    fleet.evidence([Held(1, 1, 0, HOUR, busy=HOUR, idle=0)])
    fleet.connection.execute(NOTE)
    code, _, err = run("chargeback", "--from", "2025-10-01", "--to", "2025-10-02")
    assert code == 0, err
    assert set(fleet.rows("SELECT * FROM noted")) == {("auto", "off")}


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
