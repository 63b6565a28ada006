"""A backup brings everything back, seals included; a person's name goes and every sum stays."""

import csv
import io
import json

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from fakes.fleet import DAY, HOUR, Held
from fakes.postgres import fresh_database
from fakes.profiles import examples
from gpuledger_collector.storage.access import privacy
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.server.backup import backup

pytestmark = pytest.mark.slow

MONTH = ("--from", "2025-10-01", "--to", "2025-11-01")
NOVEMBER = ("--from", "2025-11-01", "--to", "2025-12-01")


@pytest.fixture
def two_months(fleet, run):
    """October closed, November open; alice and bob, whom a rule makes owners of their own."""
    run("prices", "set", "--rate", "2.10", "--currency", "USD", "--from", "2025-01-01")
    fleet.accelerator(1)
    fleet.capacity(1, 0, 40 * DAY)
    for number, user in ((1, "alice"), (2, "bob")):
        fleet.workload(number, team="vision", user=user)
        fleet.connection.execute(
            "UPDATE workload SET user_name = %s WHERE external_id = %s", (user, str(number))
        )
    for start in (0, 31 * DAY):
        fleet.evidence(
            [
                Held(1, 1, start, start + 3 * HOUR, busy=HOUR),
                Held(1, 2, start + 4 * HOUR, start + 5 * HOUR),
            ]
        )
    assert run("close", "--period", "2025-10")[0] == 0
    assert run("chargeback", *NOVEMBER)[0] in {0, 1}
    return fleet


def bill(run, span, by="team"):
    return list(
        csv.DictReader(io.StringIO(run("chargeback", *span, "--by", by, "--format", "csv")[1]))
    )


def test_a_backup_brings_everything_back(two_months, run, postgres, tmp_path):
    """Into an empty database only: bills, closed month and its seal are the same there; a full
    database is refused.
    """
    target = tmp_path / "ledger.dump"
    code, _, err = run("db", "backup", target)
    assert code == 0, err
    assert target.stat().st_size > 10_000
    assert oct(target.stat().st_mode & 0o777) == "0o600"
    assert run("db", "backup", target)[0] == 2
    code, _, err = run("db", "restore", target)
    assert code == 2
    assert "restore into an empty one" in err
    before = [bill(run, MONTH), bill(run, NOVEMBER), run("periods")[1]]
    with fresh_database(postgres) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        there = restored(dsn, target)
        assert [bill(there, MONTH), bill(there, NOVEMBER), there("periods")[1]] == before
        assert there("periods", "--verify", "2025-10")[0] == 0
        assert there("db", "check")[0] == 0


def test_a_backup_writes_through_no_file_that_others_put_there(dsn, tmp_path):
    """In a folder where others may write: neither a link nor a file that they hold open."""
    victim, part = tmp_path / "victim", tmp_path / ".ledger.dump.part"
    victim.write_text("keep me")
    part.symlink_to(victim)
    target = tmp_path / "ledger.dump"
    assert backup(dsn, target) == target.stat().st_size > 0
    assert victim.read_text() == "keep me"
    target.unlink()
    part.touch()
    part.chmod(0o666)
    with part.open("rb") as held:
        backup(dsn, target)
        assert held.read() == b""
    assert target.stat().st_mode & 0o777 == 0o600


def restored(dsn, target):
    """A function that runs commands on the restored database."""
    from typer.testing import CliRunner

    from gpuledger_collector.cli import build

    def there(*arguments):
        result = CliRunner().invoke(build(), [*map(str, arguments), "--dsn", dsn])
        return result.exit_code, result.stdout, result.stderr

    code, out, err = there("db", "restore", target)
    assert code == 0, out + err
    return there


def test_a_file_that_is_no_backup_leaves_nothing_behind(postgres, tmp_path):
    """One sentence, exit 2, and the database is as empty as before."""
    from typer.testing import CliRunner

    from gpuledger_collector.cli import build
    from gpuledger_collector.cli.common import explain

    broken = tmp_path / "no.dump"
    broken.write_bytes(b"PGDMP" + bytes(100))
    with fresh_database(postgres) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
        result = CliRunner().invoke(build(), ["db", "restore", str(broken), "--dsn", dsn])
        sentence, code = explain(result.exception)
        assert code == 2
        assert sentence.startswith(f"{broken} cannot be read as a backup")
        assert sentence.count("pg_restore") == 1
        assert connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchone() == (0,)


def test_an_erased_name_is_gone_and_the_sums_stay(two_months, run):
    """From workloads, tags and open owners; the sealed month stays as it was sealed, and the
    command says so.
    """
    before = [bill(run, MONTH), bill(run, NOVEMBER)]
    by_user = {row["user"]: row["cost"] for row in bill(run, NOVEMBER, "team,user")}
    assert by_user["alice"] == "6.30"
    assert run("privacy", "erase", "alice", "--dry-run")[0] == 0
    places = json.loads(run("privacy", "show", "alice", "--format", "json")[1])
    assert {"workload", "closed_workload", "owner"} <= {place["table"] for place in places}
    code, out, err = run("privacy", "erase", "alice")
    assert code == 0, err
    assert "stays: as it was sealed" in out
    assert [bill(run, MONTH), bill(run, NOVEMBER)] == before
    after = {row["user"]: row["cost"] for row in bill(run, NOVEMBER, "team,user")}
    assert "alice" not in after
    (pseudonym,) = [user for user in after if user.startswith("erased-")]
    assert after[pseudonym] == "6.30"
    assert after["bob"] == by_user["bob"] == "2.10"
    assert run("periods", "--verify", "2025-10")[0] == 0
    left = json.loads(run("privacy", "show", "alice", "--format", "json")[1])
    assert all(place["stays"] for place in left)
    assert "workload" not in {place["table"] for place in left}
    assert run("audit", "verify")[0] == 0
    assert "alice" not in run("audit", "list", "--format", "json")[1]


def test_open_days_forget_at_once_and_closed_ones_get_no_correction(two_months, run):
    """A correction would book the old name beside the pseudonym, and tell whose it is."""
    two_months.workload(3, team="vision", user="carol")
    for day in (31, 33):
        two_months.evidence([Held(1, 3, day * DAY + 6 * HOUR, day * DAY + 8 * HOUR)])
    assert "carol" in {row["user"] for row in bill(run, NOVEMBER, "team,user")}
    assert run("privacy", "erase", "carol")[0] == 0
    assert named_in(two_months.connection, "carol") == set()
    assert run("privacy", "erase", "alice")[0] == 0
    two_months.connection.commit()
    assert two_months.connection.execute("SELECT count(*) FROM correction").fetchone() == (0,)
    assert two_months.connection.execute("SELECT count(*) FROM day_recompute").fetchone() == (0,)


def test_what_only_looks_like_a_name_stays(two_months, run):
    """A team that is called like the user keeps its name: only what names a user is erased."""
    two_months.workload(3, team="alice", user="carol")
    run("privacy", "erase", "alice")
    row = two_months.connection.execute(
        "SELECT tags->>'team' FROM workload WHERE external_id = '3'"
    ).fetchone()
    assert row == ("alice",)


TOLD = (
    (
        "INSERT INTO notification (key, kind, subject, team, recipients, findings, since_ms,"
        " until_ms, notified_ms, acked_by) VALUES ('k', 'idle', 'slurm::1', 'vision',"
        " '[\"alice@example.com\", \"lead@example.com\"]', '[]', 0, 0, 0, 'alice')"
    ),
    (
        "INSERT INTO outbox (key, recipient, subject, text, html, attachments, made_ms,"
        " not_before_ms, state) VALUES ('a', 'alice@example.com', 'Your GPUs', 'Dear alice',"
        " 'alice', '{\"idle.csv\": \"1,alice\"}', 0, 0, 'sent'),('b', 'lead@example.com', 'vision',"
        " 'alice: 3 GPUs idle', '', '{}', 0, 0, 'dead'),('c', 'lead@example.com', 'vision', 'malice"
        " and alice2 have no part in it', '', '{}', 0, 0, 'sent')"
    ),
    (
        "INSERT INTO queue_reading (source, at_ms, workloads, gpu_micro, waiting, received_at)"
        ' VALUES (\'slurm:a\', 1, 1, 1, \'[{"user": "alice", "account": "alice", "team":'
        ' "vision"}]\', now())'
    ),
    (
        "INSERT INTO finding (key, kind, state, subject, team, owner, since_ms, opened_ms,"
        " until_ms, confidence, evidence) VALUES ('f', 'anomaly', 'usage', 'vision/alice',"
        " 'vision', '{\"user\": \"alice\"}', 0, 0, 0, 1, '{}')"
    ),
)


def named_in(connection, name):
    """Every table of the schema whose rows hold a text anywhere."""
    tables = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN"
        " ('r', 'p') AND NOT relispartition"
    ).fetchall()
    return {
        table
        for (table,) in tables
        if connection.execute(
            sql.SQL("SELECT count(*) FROM {} t WHERE t::text ~ %s").format(sql.Identifier(table)),
            (rf"\y{name}\y",),
        ).fetchone()[0]
    }


def test_after_an_erasure_a_name_stands_only_where_it_must(two_months, run):
    """The whole database is searched: messages, letters, queues and findings forget, sealed records
    stay and are named with their reason; a message to come is said to be.
    """
    connection = two_months.connection
    lines = (
        "--owner",
        "team=vision",
        "--from",
        "2025-11-01",
        "--to",
        "2025-11-02",
        "--reason",
        "alice has left",
    )
    code, _, err = run("disputes", "open", *lines)
    assert code == 0, err
    for statement in TOLD:
        connection.execute(statement)
    connection.execute("UPDATE outbox SET state = 'waiting' WHERE key = 'b'")
    connection.commit()
    before = bill(run, NOVEMBER)
    assert named_in(connection, "alice") >= {
        "notification",
        "outbox",
        "queue_reading",
        "finding",
        "dispute",
        "workload",
    }
    code, out, err = run("privacy", "erase", "alice")
    assert code == 0, err
    assert "still to be sent" in out
    connection.execute("UPDATE outbox SET state = 'sent' WHERE key = 'b'")
    connection.commit()
    assert run("privacy", "erase", "alice")[0] == 0
    connection.rollback()
    assert named_in(connection, "alice") <= {
        table.name for table in metadata.tables.values() if table.info["stays"]
    }
    left = {
        place["table"]
        for place in json.loads(run("privacy", "show", "alice", "--format", "json")[1])
    }
    assert left == named_in(connection, "alice")
    rows = dict(connection.execute("SELECT key, text FROM outbox").fetchall())
    assert rows == {"a": "", "b": "", "c": "malice and alice2 have no part in it"}
    assert connection.execute("SELECT recipients->>1 FROM notification").fetchone() == (
        "lead@example.com",
    )
    assert bill(run, NOVEMBER) == before


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12))
@examples(30)
def test_any_name_is_a_text_and_never_a_pattern(postgres, name):
    """A name with signs of regular expressions finds itself and nothing else."""
    with psycopg.connect(postgres) as connection:
        query = "SELECT %(text)s ~ %(word)s"
        for text, found in ((f"({name})", True), (f"x{name}x", False), ("", False)):
            row = connection.execute(query, {"text": text, "word": privacy._word(name)}).fetchone()
            assert row == (found,), text


def test_a_name_goes_as_often_as_it_stands(postgres):
    """Next to itself too: the sign between two of them bounds both."""
    with psycopg.connect(postgres) as connection:
        query = "SELECT regexp_replace(%s, %s, 'gone', 'g')"
        text = connection.execute(
            query, ("alice alice,alice malice alice2", privacy._word("alice"))
        ).fetchone()
    assert text == ("gone gone,gone malice alice2",)
