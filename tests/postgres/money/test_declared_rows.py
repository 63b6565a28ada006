"""No declared row is changed unseen: prices, rules, adjustments and the like are compared with the
audit log.
"""

import json

import psycopg
import pytest

from fakes import rich_ledger
from fakes.fleet import NOW_MS
from fakes.furnishing import furnishing
from fakes.rich_ledger import CLOSED, OPEN
from fakes.worlds import world
from gpuledger_collector.accounting.identities import DECLARED
from gpuledger_collector.services.close import verify
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.storage.access import audited, privacy
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.schema import metadata
from postgres.money.test_cells import another

INVENTORY = """node,uuid,gpu_model,pool,in_at,out_at
n9,GPU-0009,H100,spare,2025-11-10T00:00:00Z,2025-11-11T00:00:00Z
"""
SHARED = """
[[inference]]
name = "qwen"
gateway = "litellm"
models = ["qwen*"]
backends = ["http://10.0.0.7:8000/*"]
served_by = { app = "qwen" }
served_model = "Qwen3-32B"
weights = "1 : 0.1 : 4"
idle = "reservations"
reserved = { t-vision = 0.5 }
effective_from = 2025-10-01
effective_to = 2026-10-01

[[tenant]]
gateway = "litellm"
tenant = "t-vision"
owner = { team = "vision" }
effective_from = 2025-10-01
effective_to = 2026-10-01

[[api_price]]
name = "an API"
models = ["qwen*"]
input = 0.15
cached = 0.003
output = 0.6
currency = "USD"
effective_from = 2025-10-01
effective_to = 2026-10-01
"""
UNTOLD = {"id"}
"""Columns of which the log says nothing: numbers that the database gave."""


def furnish(dsn):
    """The rich ledger, with an inventory file, a retired node and a shared model server as well."""
    rich_ledger.furnish(dsn)
    with furnishing(dsn) as (_, run, files):
        run("import", "inventory", files.write("inventory.csv", INVENTORY))
        run("nodes", "retire", "n3")
        run("apply", files.write("shared.toml", SHARED))
        run("reconcile", "--period", OPEN)


@pytest.fixture
@world(furnish)
def declared(fleet, monkeypatch):
    """The ledger of `furnish`, at its time."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    return fleet


@pytest.fixture
def connection(declared, dsn):
    """A connection past the triggers of declared tables; nothing is committed."""
    with psycopg.connect(dsn) as opened:
        for table in (*audited.TABLES, "inventory", "billing_zone"):
            opened.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield opened
        opened.rollback()


def found(connection):
    """Table and column of each deviation."""
    return {(each.table, each.what) for each in audited.compare(connection).deviations}


def test_every_column_of_every_declared_table_is_compared(connection):
    """A changed cell is named by table and column, a row that was removed or added as that."""
    assert found(connection) == set()
    tried = 0
    for table in audited.TABLES:
        columns = metadata.tables[table].columns
        assert connection.execute(f"SELECT FROM {table}").rowcount, (
            f"nothing of {table} is declared"
        )
        for column in columns:
            value = another(column)
            if column.name in UNTOLD or value is None:
                continue
            with connection.transaction(force_rollback=True):
                row = f'SELECT id FROM {table} ORDER BY "{column.name}" IS NULL, id LIMIT 1'
                if not is_allowed(
                    connection, f'UPDATE {table} w SET "{column.name}" = {value} WHERE id = ({row})'
                ):
                    continue
                what = (
                    "sha256" if column.name in {"evidence", "reverses", "shares"} else column.name
                )
                assert (table, what) in found(connection), column
                tried += 1
        with connection.transaction(force_rollback=True):
            if is_allowed(
                connection, f"DELETE FROM {table} WHERE id = (SELECT min(id) FROM {table})"
            ):
                assert found(connection) == {(table, "removed")}
    print(f"{tried} cells of {len(audited.TABLES)} declared tables")
    assert tried > 100


def is_allowed(connection, statement):
    """Change a row; False where a constraint of the database refuses it."""
    try:
        with connection.transaction():
            assert connection.execute(statement).rowcount == 1
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg.IntegrityError:
        return False
    return True


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        (
            "UPDATE price SET rate_per_gpu_hour = 2 WHERE pool = 'counted'",
            (
                "The price 'counted H100 spot from 2025-01-01T00:00:00Z': rate_per_gpu_hour was"
                " changed without an entry"
            ),
        ),
        (
            (
                "UPDATE adjustment SET amount_micro = 2 * amount_micro WHERE kind = 'credit' AND"
                " name LIKE '%-11'"
            ),
            "The adjustment 'outage of 2025-11': amount_micro was changed without an entry",
        ),
        (
            'UPDATE attribution_rule SET assign = \'{"team": "nlp"}\'',
            "The attribution_rule 'detectors': assign was changed without an entry",
        ),
        (
            "UPDATE inventory SET out_ms = NULL",
            "The inventory 'GPU-0009': rows was changed without an entry",
        ),
        (
            "UPDATE billing_zone SET zone = 'UTC'",
            "The billing_zone 'UTC': zone was changed without an entry",
        ),
        (
            (
                "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
                " effective_from_ms, recorded_at) VALUES ('eu', '', 'on_demand', 1, 'EUR', 0,"
                " '2025-11-20T13:00:00Z')"
            ),
            "was added without an entry",
        ),
        (
            "DELETE FROM exchange_rate",
            "The exchange_rate 'USD to EUR': was removed without an entry",
        ),
    ],
)
def test_reconcile_and_verify_name_what_was_changed(connection, statement, sentence):
    """Of an open and of a closed month; a close is refused by what `reconcile` says."""
    assert connection.execute(statement).rowcount == 1
    sheet = reconcile(connection, zones.calendar(connection).month(OPEN))
    assert not sheet.holds
    assert sheet.identity_holds(DECLARED) is False
    (closed,) = periods.list_closed(connection)
    assert any(sentence in text for text in verify(connection, closed).failures)


def test_a_row_of_before_the_log_is_said_once_and_refuses_nothing(declared, run):
    """A ledger whose log is younger than its prices."""
    declared.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('old', '', 'on_demand', 1, 'EUR', 0,"
        " '2024-01-01T00:00:00Z')"
    )
    code, text, _ = run("reconcile", "--period", OPEN)
    assert code == 0
    assert text.count("which it does not cover: 1 of price.") == 1
    assert json.loads(run("reconcile", "--period", OPEN, "--format", "json")[1])[
        "uncovered_rows"
    ] == {"price": 1}
    assert run("periods", "--verify", CLOSED)[0] == 0


def test_an_entry_of_before_its_hash_was_logged_is_not_covered(connection):
    """True-ups that an earlier version booked: their terms are compared, their parts are not."""
    connection.execute("ALTER TABLE audit DISABLE TRIGGER USER")
    connection.execute(
        "UPDATE audit SET after = (after::jsonb - 'sha256')::json WHERE what = 'adjustment'"
    )
    comparison = audited.compare(connection)
    assert comparison.deviations == []
    assert comparison.uncovered == {"adjustment": 2}


def test_a_person_who_was_erased_is_no_change(declared, run, written):
    """An erasure puts a pseudonym into declared owners, and the log keeps the name."""
    discount = (
        '[[adjustment]]\nname = "of ada"\nkind = "discount"\npercent = 5\nowner = { user ='
        ' "ada" }\n'
    )
    assert run("apply", written("ada.toml", discount))[0] == 0
    with declared.connection.transaction():
        privacy.erase(declared.connection, "ada", "officer", 1_763_700_000_000)
    assert found(declared.connection) == set()
    declared.connection.execute("UPDATE adjustment SET percent = 6 WHERE name = 'of ada'")
    assert ("adjustment", "percent") in found(declared.connection)
