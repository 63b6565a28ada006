"""A dashboards' role that attacks: on the embedded database, and on a server of others where the
owner is nobody.
"""

import contextlib
import dataclasses
import threading
import time

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fakes.batches import batch, body_of
from fakes.collector import MSGPACK, running
from fakes.postgres import administrator
from fakes.replicas import until
from gpuledger_collector import wiring
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.schedule import Leadership
from gpuledger_collector.services.upkeep import create_partitions
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access import readers, tokens
from gpuledger_collector.storage.access.reader_watch import ReaderWatch
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.telemetry.partitions import DAY_MS

pytestmark = pytest.mark.slow

READER, STRANGER = "hostile_reader", "nobody_in_particular"
OLD_KEYS = range(0x67707501, 0x67707518)
"""What the advisory locks were once called."""


@dataclasses.dataclass(frozen=True)
class Server:
    """`own`: DSN of the collector; `reader`: of the role that attacks; `admin`: of the server's
    administrator.
    """

    own: str
    reader: str
    admin: str

    def attacker(self):
        """A session that has lifted what it can lift."""
        opened = psycopg.connect(self.reader, autocommit=True)
        for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            opened.execute(f"SET {setting} = 0")
        opened.execute("SET default_transaction_read_only = off")
        return opened

    def watch(self, **limits):
        return ReaderWatch(Database(self.own), **limits)


@pytest.fixture(scope="module")
def others(postgres):
    """The name of a migrated database of somebody who may do nothing else on its server; tests copy
    it.
    """
    name = "test_of_others"
    own = make_conninfo(postgres, user=STRANGER, password="x", dbname=name)
    with psycopg.connect(
        make_conninfo(administrator(postgres), dbname="postgres"), autocommit=True
    ) as admin:
        admin.execute(f"CREATE ROLE {STRANGER} LOGIN PASSWORD 'x'")
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 OWNER {STRANGER}")
        migrate.upgrade(own)
        yield name
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        admin.execute(f"DROP ROLE {STRANGER}")


@pytest.fixture(params=["embedded", "of others"])
def server(request, dsn, superuser, command, tmp_path):
    """The database with a dashboards' role of one team; on a server of others after what its
    administrator is told.
    """
    (tmp_path / "password").write_text("a password\n")
    given = (
        "db",
        "grant-reader",
        READER,
        "--owner",
        "team=vision",
        "--password-file",
        tmp_path / "password",
    )
    own = dsn
    with psycopg.connect(superuser, autocommit=True) as admin:
        if request.param == "of others":
            own = make_conninfo(dsn, user=STRANGER, password="x", dbname="test_others")
            template = request.getfixturevalue("others")
            admin.execute(f"CREATE DATABASE test_others TEMPLATE {template} OWNER {STRANGER}")
            admin.execute(f"CREATE ROLE {READER} LOGIN PASSWORD 'a password'")
            given = given[:-2]
        made = command(*given, dsn=own)
        assert made.exit_code == 0, made.exception
        told = [
            line.partition(": ")[2]
            for line in made.output.splitlines()
            if line.startswith("left to")
        ]
        assert bool(told) == (request.param == "of others"), made.output
        with psycopg.connect(
            make_conninfo(superuser, dbname=conninfo_to_dict(own)["dbname"])
        ) as inside:
            for statement in told:
                # An administrator may leave that one: the rest must do.
                if "FUNCTION" not in statement:
                    inside.execute(statement)
        yield Server(own, make_conninfo(own, user=READER, password="a password"), superuser)
        if request.param == "of others":
            admin.execute("DROP DATABASE test_others WITH (FORCE)")
        else:
            with psycopg.connect(
                make_conninfo(superuser, dbname=conninfo_to_dict(dsn)["dbname"])
            ) as inside:
                inside.execute(f"DROP OWNED BY {READER}")
        admin.execute(f"DROP ROLE {READER}")


def take_all(attacker):
    """Hold every lock that this session can get without waiting; what was refused is no matter."""
    attacker.execute("BEGIN")
    for key in OLD_KEYS:
        with contextlib.suppress(psycopg.Error), attacker.transaction():
            attacker.execute("SELECT pg_try_advisory_lock(%s)", (key,))
    tables = attacker.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN"
        " ('r', 'p')"
    ).fetchall()
    for (table,) in tables:
        for mode in ("ACCESS SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "ACCESS EXCLUSIVE"):
            with contextlib.suppress(psycopg.Error), attacker.transaction():
                attacker.execute(f"LOCK TABLE {table} IN {mode} MODE NOWAIT")
        attacker.execute(f"PREPARE held_{table} AS DELETE FROM {table}")
    modes = (
        "SELECT mode FROM pg_locks WHERE relation = 'token'::regclass AND pid = pg_backend_pid()"
    )
    assert attacker.execute(modes).fetchall() == [("RowExclusiveLock",)], "the attack is none"


def test_no_lock_of_the_product_can_be_held_by_a_reader(server):
    """Whatever it holds, without any watch: every lock is free, jobs find a leader, a new day gets
    its partitions.
    """
    with contextlib.closing(server.attacker()) as attacker:
        take_all(attacker)
        with Database(server.own).transaction() as connection:
            connection.execute("SET lock_timeout = '2s'")
            locks.take(connection, *Lock)
        leadership = Leadership(Database(server.own))
        assert leadership.holds()
        leadership.close()
        begun = time.monotonic()
        assert create_partitions(Database(server.own), 30_000 * DAY_MS, 0) == 2
        assert time.monotonic() - begun < 5


def test_a_revocation_works_and_takes_effect_while_a_reader_holds_what_it_can(server, command):
    """Without any watch of a collector: the command succeeds soon, and the token is refused within
    seconds.
    """
    with Database(server.own).transaction() as connection:
        wanted = Token(0, "gpu-07", "agent", None, None, "", int(time.time() * 1000))
        _, secret = tokens.create(connection, wanted)
    header = {**MSGPACK, "Authorization": f"Bearer {secret}"}
    with running(server.own) as collector, contextlib.closing(server.attacker()) as attacker:
        assert collector.post(body_of(batch(seq=1)), header)[0] == 200
        take_all(attacker)
        begun = time.monotonic()
        made = command("token", "revoke", "gpu-07", dsn=server.own)
        assert made.exit_code == 0, made.exception
        assert time.monotonic() - begun < 10
        until(lambda: collector.post(body_of(batch(seq=2)), header)[0] == 401, 5)
        assert attacker.closed or attacker.info.transaction_status


def test_a_batch_of_a_new_day_is_committed_while_a_reader_holds_what_it_can(server):
    """Its partition is made beside the locks."""
    with running(server.own) as collector, contextlib.closing(server.attacker()) as attacker:
        take_all(attacker)
        begun = time.monotonic()
        assert collector.post(body_of(batch(seq=1)))[0] == 200
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("table", ["token", "usage_interval", "lock_audit", "pg_class"])
def test_a_reader_that_queues_up_everybody_behind_itself_is_ended(server, command, table):
    """CREATE RULE waits for an exclusive lock before it looks at rights; a second session of the
    reader keeps it so.
    """
    with Database(server.own).transaction() as connection:
        wanted = Token(0, "gpu-07", "agent", None, None, "", int(time.time() * 1000))
        tokens.create(connection, wanted)
    with (
        server.watch() as watch,
        contextlib.closing(server.attacker()) as holder,
        contextlib.closing(server.attacker()) as queuer,
    ):
        until(lambda: watch._roles, 10)
        holder.execute("BEGIN")
        holder.execute(f"PREPARE p AS SELECT FROM {table}")
        thread = threading.Thread(
            target=suppressed, args=(queuer, f"CREATE RULE r AS ON INSERT TO {table} DO NOTHING")
        )
        thread.start()
        time.sleep(0.5)
        assert thread.is_alive(), "the attack is none"
        begun = time.monotonic()
        made = command("token", "revoke", "gpu-07", dsn=server.own)
        assert made.exit_code == 0, made.exception
        assert time.monotonic() - begun < 15
        assert create_partitions(Database(server.own), 30_000 * DAY_MS, 0) == 2
        thread.join(10)
        assert not thread.is_alive()
        assert queuer.broken


def suppressed(connection, statement):
    with contextlib.suppress(psycopg.Error):
        connection.execute(statement)


LONG = {
    "a statement": lambda one: one.execute("SELECT pg_sleep(60)"),
    "a loop of transactions in one statement": lambda one: one.execute(
        "DO $$ BEGIN LOOP COMMIT; END LOOP; END $$"
    ),
    "a transaction that idles": lambda one: one.execute("BEGIN; SELECT 1"),
    "a transaction of many statements": lambda one: (
        one.execute("BEGIN") and [one.execute("SELECT pg_sleep(0.1)") for _ in range(600)]
    ),
    "a session that idles": lambda one: None,
}


@pytest.mark.parametrize("kind", LONG)
def test_limits_that_were_lifted_hold_all_the_same(server, kind, caplog):
    """The session is ended soon after its time, and the log says why."""
    with contextlib.closing(server.attacker()) as attacker, server.watch(transaction_s=2, idle_s=2):
        begun = time.monotonic()
        with contextlib.suppress(psycopg.OperationalError):
            LONG[kind](attacker)
            until(
                lambda: (
                    attacker.execute("SELECT 1") is None if time.monotonic() - begun > 6 else False
                ),
                12,
            )
        assert attacker.broken
        assert time.monotonic() - begun < 12
    assert f"of the reader {READER}" in caplog.text


def test_a_patient_reader_is_left_alone(server):
    """Short queries, again and again, beside a watch that looks often."""
    with psycopg.connect(server.reader, autocommit=True) as reader, contextlib.ExitStack() as stack:
        watch = server.watch()
        stack.callback(watch.stop)
        for _ in range(3):
            assert reader.execute("SELECT count(*) FROM charge").fetchone() == (0,)
            assert watch.look() == 0
            time.sleep(0.2)


def test_advisory_locks_of_a_reader_end_with_its_session(server):
    """Where it may take them at all, a watch ends it before they fill the memory of all."""
    with contextlib.closing(server.attacker()) as attacker, server.watch():
        try:
            attacker.execute("SELECT pg_advisory_lock(n) FROM generate_series(1, 100) n")
        except psycopg.errors.InsufficientPrivilege:
            assert conninfo_to_dict(server.own)["user"] != STRANGER, (
                "there the administrator has left it to all"
            )
            return
        with contextlib.suppress(psycopg.OperationalError):
            attacker.execute("SELECT pg_sleep(10)")
        assert attacker.broken


def test_a_reader_has_a_share_of_sessions_and_no_tables_of_its_own(server):
    """One session more than its share is refused; temporary tables are, too."""
    with contextlib.ExitStack() as stack:
        for _ in range(readers.CONNECTIONS):
            opened = stack.enter_context(psycopg.connect(server.reader))
        with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
            psycopg.connect(server.reader)
        opened.execute("SET TRANSACTION READ WRITE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            opened.execute("CREATE TEMP TABLE mine (n int)")


SPILLS = """SELECT count(*) FROM (
SELECT repeat(md5(i::text), 60) FROM generate_series(1, 400000) i ORDER BY 1 OFFSET 0) x"""
"""Sorts 750 MB on disk."""


def test_a_reader_cannot_fill_the_disk(server):
    """Threat: temporary files.

    A sort ends at the limit, which the role cannot raise; the collector stays ready.
    """
    with running(server.own) as collector, contextlib.closing(server.attacker()) as attacker:
        attacker.execute("SET work_mem = '64kB'")
        for lift in ("SET temp_file_limit = -1", f"ALTER ROLE {READER} SET temp_file_limit = -1"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                attacker.execute(lift)
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            attacker.execute(f"ALTER ROLE {READER} RESET ALL")
        for _ in range(2):
            with pytest.raises(psycopg.errors.ConfigurationLimitExceeded, match="temp_file_limit"):
                attacker.execute(SPILLS)
            assert collector.request("GET", "/readyz")[0] == 200
        with contextlib.closing(server.attacker()) as again:
            assert again.execute("SHOW temp_file_limit").fetchone() == (readers.TEMP_FILE_LIMIT,)


def test_a_role_that_may_no_longer_log_in_stops_reading(server):
    """NOLOGIN alone leaves open sessions as they are: the watch ends them."""
    with contextlib.closing(server.attacker()) as attacker, contextlib.ExitStack() as stack:
        watch = server.watch()
        stack.callback(watch.stop)
        assert watch.look() == 0
        with psycopg.connect(server.admin, autocommit=True) as admin:
            admin.execute(f"ALTER ROLE {READER} NOLOGIN")
        watch._asked = 0.0
        assert watch.look() == 1
        until(lambda: is_ended(attacker))
        assert attacker.closed


def is_ended(session):
    try:
        session.execute("SELECT count(*) FROM charge")
    except psycopg.OperationalError:
        return True
    return False


def test_a_reader_is_revoked_at_once(server, command, tmp_path):
    """Its session ends, its rights and login are gone, the log says so; grant-reader with a
    password undoes it.
    """
    with contextlib.closing(server.attacker()) as attacker:
        shown = command("db", "revoke-reader", READER, "--dry-run", dsn=server.own)
        assert f'ALTER ROLE "{READER}" NOLOGIN;' in shown.output
        assert not is_ended(attacker)
        done = command("db", "revoke-reader", READER, dsn=server.own)
        assert done.exit_code == 0, done.exception
        assert f"{READER} may read nothing; 1 session ended" in done.output
        assert is_ended(attacker)
    told = [
        line.partition(": ")[2] for line in done.output.splitlines() if line.startswith("left to")
    ]
    assert bool(told) == ("test_others" in server.own), done.output
    with psycopg.connect(
        make_conninfo(server.admin, dbname=conninfo_to_dict(server.own)["dbname"])
    ) as admin:
        for statement in told:
            assert statement == f'ALTER ROLE "{READER}" NOLOGIN;'
            admin.execute(statement)
        assert admin.execute(
            "SELECT count(*) FROM pg_class c, aclexplode(c.relacl) a WHERE a.grantee = %s::regrole",
            (READER,),
        ).fetchone() == (0,)
        assert admin.execute(
            "SELECT count(*) FROM pg_policies WHERE %s = ANY (roles)", (READER,)
        ).fetchone() == (0,)
    with pytest.raises(psycopg.OperationalError, match="not permitted to log in"):
        psycopg.connect(server.reader)
    assert READER in command("audit", "list", dsn=server.own).output
    if not told:
        given = ("--owner", "team=vision", "--password-file", tmp_path / "password")
        assert command("db", "grant-reader", READER, *given, dsn=server.own).exit_code == 0
        with contextlib.closing(server.attacker()) as attacker:
            assert attacker.execute("SELECT count(*) FROM charge").fetchone() == (0,)


def test_a_reader_that_was_dropped_is_forgotten(dsn, superuser, command):
    """Its row is all that is left of it."""
    with psycopg.connect(superuser, autocommit=True) as admin:
        assert command("db", "grant-reader", READER, dsn=dsn).exit_code == 0
        with psycopg.connect(
            make_conninfo(superuser, dbname=conninfo_to_dict(dsn)["dbname"])
        ) as inside:
            inside.execute(f"DROP OWNED BY {READER}")
        admin.execute(f"DROP ROLE {READER}")
    done = command("db", "revoke-reader", READER, dsn=dsn)
    assert done.exit_code == 0, done.exception
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM database_reader").fetchone() == (0,)


def test_only_a_reader_is_revoked(server, command):
    """The owner of the ledger, or a name that was misspelled, is not."""
    own = conninfo_to_dict(server.own)["user"]
    for name in (own, "hostile_raeder"):
        done = command("db", "revoke-reader", name, dsn=server.own)
        assert isinstance(done.exception, readers.RoleRefused)
        assert str(done.exception) == f"{name} is no reader; there are {READER}"


def test_doctor_names_a_role_that_is_not_held(server, command):
    """None is named after grant-reader and what it left to an administrator; a role with a grant by
    hand is.
    """
    assert "not held" not in command("doctor", dsn=server.own).output
    with psycopg.connect(
        make_conninfo(server.admin, dbname=conninfo_to_dict(server.own)["dbname"])
    ) as admin:
        admin.execute("CREATE ROLE granted_by_hand LOGIN")
        admin.execute("GRANT SELECT ON charge TO granted_by_hand")
    assert "the role granted_by_hand is not held" in command("doctor", dsn=server.own).output
    with psycopg.connect(
        make_conninfo(server.admin, dbname=conninfo_to_dict(server.own)["dbname"])
    ) as admin:
        admin.execute("DROP OWNED BY granted_by_hand")
        admin.execute("DROP ROLE granted_by_hand")


def test_a_collector_watches(server):
    """Its wiring looks over a connection of its own."""
    watch = wiring.reader_watch(Database(server.own))
    assert watch.look() == 0
    watch.stop()
