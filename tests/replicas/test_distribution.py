"""Rules of Citus, kept on plain Postgres: by the catalog of the migrated schema, and by the
product's own SQL.

No Citus runs here; tests/engines runs the product on one. Each rule is one that a statement of the
product broke there, or that Citus documents.
"""

import re
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from fakes.statements import KNOWN, MANAGED, SPREAD, TIED, TIED_USED, USED, own_statements
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.storage import distribution, row_level_security
from gpuledger_collector.storage.distribution import (
    DISTRIBUTED,
    REFERENCE,
    NotDistributable,
    converted_tables,
    plan,
    violations,
)
from gpuledger_collector.storage.schema import metadata

CHANGED = re.compile(
    r"(?<!FOR )\b(?:UPDATE|DELETE\s+FROM)\s+(?:ONLY\s+)?(?!SET\b)([a-z_0-9]+)\b(.*)", re.DOTALL
)
"""The table that a statement changes, and the rest of it."""
CHANGED_BY = re.compile(r"\b(?:FROM|USING)\b(?!\s*\()(.*?)(?:\bWHERE\b|\bRETURNING\b|$)", re.DOTALL)
JOINED = re.compile(r"(?:^|\bJOIN\b|,)\s*(?:ONLY\s+)?([a-z_0-9]+)\b(?!\s*[(.])")
QUALIFIER = re.compile(r"\b([a-z_]\w*)\.[a-z_]")
ALIAS = re.compile(
    r"(?:\bFROM|\bJOIN|,)\s+(?:ONLY\s+)?([a-z_]\w*)\b(?!\.)(?:\([^()]*\))?(?:\s+(?:AS\s+)?([a-z_]\w*))?"
)
TOGETHER = re.compile(
    r"\w+\.accelerator_id\s*=\s*\w+\.accelerator_id|USING\s*\(accelerator_id|accelerator_id IN"
    r" \(SELECT",
    re.IGNORECASE,
)
READ = re.compile(r"\b(?:FROM|JOIN)\s+(?:ONLY\s+)?([a-z_0-9]+)\b(?!\s*\()")
"""What is read: tables and names of WITH, while set-returning functions have a parenthesis after
their name.
"""
NAMED = re.compile(
    r"\b([a-z_0-9]+)(?:\s*\([a-z_, ]*\))?\s+AS\s+(?:(?:NOT )?MATERIALIZED\s+)?\(", re.IGNORECASE
)
SUBQUERY = re.compile(r"(\w*)\s*\(\s*SELECT\b", re.IGNORECASE)
ALONE = {"FROM", "JOIN", "AS", "MATERIALIZED", "IN", "UNION", "ALL", "ANY"}
"""What stands before a subquery that does not depend on the query around it."""
CORRELATED = re.compile(
    rf"\bFROM\s+(?:unnest|generate_series|jsonb_to_recordset)\(.*\bEXISTS\s*\(\s*SELECT\b.*?\bFROM\s+(?:{SPREAD})\b",
    re.IGNORECASE | re.DOTALL,
)
VOLATILE = re.compile(
    rf"INSERT INTO (?:{MANAGED})\b.*?\bDO UPDATE"
    r" SET\b.*?\b(?:now|clock_timestamp|random|nextval)\s*\(",
    re.IGNORECASE | re.DOTALL,
)
EXPANDED = re.compile(
    r"\bINSERT\b.*\bFROM\s*\(\s*SELECT\b.*\)\s*(?:AS\s+)?\w+\s*,\s*generate_series\(", re.DOTALL
)


def faults(statement):
    """What of this statement Citus does not take."""
    if not KNOWN.search(statement):
        return list(faults_of_changes(statement)) if TIED_USED.search(statement) else []
    return [
        *faults_of_upserts(statement),
        *faults_of_changes(statement),
        *faults_of_evidence(statement),
    ]


def faults_of_upserts(statement):
    """Of statements that name a table on every worker."""
    if CORRELATED.search(statement):
        yield "correlated subquery beside a set-returning function"
    if VOLATILE.search(statement):
        yield "DO UPDATE SET calls a function that is not immutable"
    if EXPANDED.search(statement):
        yield "inserts a series that a subquery bounds"


def faults_of_changes(statement):
    """Of an UPDATE or DELETE by other tables.

    Subqueries that do not depend on it and WITH are planned before it.
    """
    own, pairs = without_subqueries(statement)
    change = CHANGED.search(own)
    if change is None:
        return
    target, by = change[1], CHANGED_BY.search(change[2])
    others = {*JOINED.findall(re.sub(r"\([^()]*\)", "()", by[1]))} if by else set()
    if target in REFERENCE and others - {*REFERENCE, *TIED}:
        yield "changes a replicated table by a join to one that is not"
    names = {*NAMED.findall(statement)}
    if (
        target not in (*REFERENCE, *DISTRIBUTED)
        and others & {*REFERENCE}
        and others - {*REFERENCE} - names
    ):
        yield "changes a table by a join of a replicated one to another"
    for inner in (inner for _, inner in pairs if depends(inner)):
        read = {*READ.findall(inner)} - names
        if target in REFERENCE and read - {*REFERENCE, *TIED}:
            yield "changes a replicated table by a correlated subquery on one that is not"
        elif target not in (*REFERENCE, *DISTRIBUTED) and read & {*DISTRIBUTED, *REFERENCE}:
            yield (
                "changes a table of the coordinator by a correlated subquery on one of the workers"
            )


def depends(subquery):
    """Whether it names a table that is not its own."""
    own = {name for names in ALIAS.findall(subquery) for name in names}
    return bool({*QUALIFIER.findall(subquery)} - own)


def faults_of_evidence(statement):
    """Of statements that name a distributed table."""
    if not USED.search(statement):
        return
    if re.search(r"\bFOR (UPDATE|SHARE|NO KEY UPDATE)\b", statement, re.IGNORECASE):
        yield "row locks over several shards"
    if re.search(r"\bRECURSIVE\b", statement):
        yield "is recursive"
    if re.search(r"\b(GROUPING SETS|CUBE|ROLLUP)\b", statement):
        yield "groups by several sets"
    target = re.search(
        rf"INSERT INTO ({SPREAD})\b.*?ON CONFLICT\s*(\([^)]*\))?",
        statement,
        re.IGNORECASE | re.DOTALL,
    )
    if target and target[2] and "accelerator_id" not in target[2]:
        yield "ON CONFLICT without the distribution column"
    if re.search(
        rf"UPDATE ({SPREAD})\b.*?\bSET\b[^=]*\baccelerator_id\s*=",
        statement,
        re.IGNORECASE | re.DOTALL,
    ):
        yield "moves rows between shards"
    for part in re.split(r"\bUNION(?: ALL)?\b", statement, flags=re.IGNORECASE):
        if len(USED.findall(part)) > 1 and not TOGETHER.search(part):
            yield "joins distributed tables, but not on the accelerator"
    names = {*NAMED.findall(statement)}
    for outer, inner in without_subqueries(statement)[1]:
        for one, other in ((outer, inner), (inner, outer)):
            alone = {*READ.findall(other)} - {*DISTRIBUTED, *REFERENCE} - names
            if alone and {*READ.findall(one)} & {*DISTRIBUTED}:
                yield (
                    f"correlated with {', '.join(sorted(alone))}, which is on the coordinator alone"
                )
        if (
            depends(inner)
            and {*READ.findall(outer)} & {*REFERENCE}
            and not {*READ.findall(outer)} & {*DISTRIBUTED}
            and USED.search(inner)
        ):
            yield "correlated with replicated tables alone"


def without_subqueries(statement):
    """A query without its subqueries, and pairs of a query and a subquery that may depend on it."""
    own, below, at = "", [], 0
    while match := SUBQUERY.search(statement, at):
        begin = statement.index("(", match.start(1) + len(match[1]))
        end, depth = begin, 0
        for end in range(begin, len(statement)):
            depth += {"(": 1, ")": -1}.get(statement[end], 0)
            if not depth:
                break
        inner, pairs = without_subqueries(statement[begin + 1 : end])
        own += statement[at:begin]
        below += pairs
        if match[1].upper() not in ALONE:
            below.append((None, inner))
        at = end + 1
    own += statement[at:]
    return own, [(own if outer is None else outer, inner) for outer, inner in below]


def test_the_products_statements_keep_the_rules():
    """Wherever they stand; there are many, so an empty list would be the test's own fault."""
    found = list(own_statements())
    assert len(found) >= 100
    assert {name for one in found for name in USED.findall(one)} == set(DISTRIBUTED)
    assert [(fault, one) for one in found for fault in faults(one)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM usage_interval WHERE seq = 1 FOR UPDATE",
        "INSERT INTO gpu_minute (minute_ms) VALUES (1) ON CONFLICT (minute_ms) DO NOTHING",
        "UPDATE usage_hour SET accelerator_id = 2",
        "SELECT 1 FROM usage_hour u JOIN gpu_minute m ON m.minute_ms = u.hour_ms",
        (
            "SELECT p.a FROM unnest(%s::bigint[]) AS p (a) WHERE EXISTS (SELECT FROM usage_hour u"
            " WHERE u.id = p.a)"
        ),
        "INSERT INTO node (name) VALUES (%s) ON CONFLICT (name) DO UPDATE SET last_seen_at = now()",
        (
            "INSERT INTO day_recompute SELECT d FROM (SELECT min(in_ms) a FROM capacity) x,"
            " generate_series(x.a, 9, 1) d"
        ),
        (
            "SELECT (SELECT min(id) FROM charge c WHERE c.workload_id = u.workload_id) FROM"
            " usage_hour u"
        ),
        (
            "INSERT INTO gpu_sample SELECT * FROM incoming i WHERE NOT EXISTS (SELECT FROM"
            " gpu_sample s WHERE s.accelerator_id = i.accelerator_id)"
        ),
        (
            "UPDATE incoming i SET node = u.node FROM workload w JOIN imported_usage u ON"
            " u.workload_id = w.id WHERE w.key = i.key"
        ),
        (
            "DELETE FROM imported_usage u USING incoming i JOIN workload w USING (key) WHERE w.id ="
            " u.workload_id"
        ),
        "UPDATE workload w SET name = i.name FROM incoming i WHERE i.key = w.key",
        (
            "WITH new AS MATERIALIZED (SELECT key FROM incoming) UPDATE workload w SET name = ''"
            " FROM new WHERE new.key = w.key"
        ),
        "DELETE FROM incoming i WHERE EXISTS (SELECT FROM workload w WHERE w.key = i.key)",
        (
            "UPDATE workload w SET name = '' WHERE NOT EXISTS (SELECT FROM charge c WHERE"
            " c.workload_id = w.id)"
        ),
        "WITH RECURSIVE r AS (SELECT min(hour_ms) FROM usage_hour) SELECT * FROM r",
        "SELECT state, sum(held_ms) FROM usage_hour GROUP BY GROUPING SETS ((state), ())",
        (
            "SELECT * FROM accelerator a LEFT JOIN LATERAL (SELECT max(u.hour_ms) FROM usage_hour u"
            " WHERE u.accelerator_id = a.id) AS h ON true"
        ),
        (
            "SELECT id FROM workload w WHERE NOT EXISTS (SELECT FROM usage_hour u WHERE"
            " u.workload_id = w.id)"
        ),
    ],
)
def test_what_breaks_a_rule_is_found(statement):
    """One statement for each rule, as Citus 13.2 refused it."""
    assert len(faults(statement)) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE incoming i SET name = w.name FROM workload w WHERE w.key = i.key",
        (
            "WITH known AS MATERIALIZED (SELECT i.key FROM incoming i JOIN workload w USING (key)"
            " JOIN imported_usage u ON u.workload_id = w.id) UPDATE incoming i SET name = '' FROM"
            " known k WHERE k.key = i.key"
        ),
        (
            "DELETE FROM imported_usage u USING workload w WHERE w.id = u.workload_id"
            " AND w.key IN (SELECT key FROM incoming)"
        ),
        "UPDATE workload SET name = '' WHERE key IN (SELECT key FROM incoming)",
        "DELETE FROM incoming i USING usage_hour u WHERE u.workload_id = i.id",
        "WITH RECURSIVE r AS (SELECT id FROM workload UNION SELECT id + 1 FROM r) SELECT * FROM r",
        "SELECT id FROM workload w WHERE id IN (SELECT workload_id FROM usage_hour)",
    ],
)
def test_what_citus_takes_is_no_fault(statement):
    """As Citus 13.2 ran it."""
    assert faults(statement) == []


def test_sessions_open_one_connection_a_worker(database):
    """Or Citus refuses to write a node's heartbeat in the transaction that wrote samples."""
    with database.connect() as connection:
        row = connection.execute(
            "SELECT current_setting('citus.multi_shard_modify_mode')"
        ).fetchone()
    assert row == ("sequential",)


def test_sessions_compile_nothing(database):
    """Whatever the server's default: there the proof of a small month took ten seconds instead of
    three.
    """
    with database.connect() as connection:
        row = connection.execute(
            "SELECT setting, source FROM pg_settings WHERE name = 'jit'"
        ).fetchone()
    assert row == ("off", "client")


def test_the_schema_keeps_the_rules(dsn):
    """Each unique key has the accelerator, no trigger, no foreign key between what is spread and
    what is not.
    """
    assert {*DISTRIBUTED, *REFERENCE} <= set(metadata.tables)
    with psycopg.connect(dsn) as connection:
        assert violations(connection) == []
        assert [line for line in plan(connection, 8) if line.startswith("SELECT ")] == [
            *(f"SELECT create_reference_table('{table}')" for table in REFERENCE),
            "SELECT create_distributed_table('gpu_sample', 'accelerator_id', shard_count => 8)",
            *(
                f"SELECT create_distributed_table('{table}', 'accelerator_id', colocate_with =>"
                " 'gpu_sample')"
                for table in DISTRIBUTED[1:]
            ),
        ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "CREATE UNIQUE INDEX odd ON gpu_minute (minute_ms, samples)",
            "gpu_minute: the unique index odd lacks",
        ),
        (
            (
                "ALTER TABLE usage_interval ADD CONSTRAINT odd FOREIGN KEY (node_id) REFERENCES"
                " job_run (id)"
            ),
            "usage_interval: the foreign",
        ),
        (
            (
                "ALTER TABLE finding ADD CONSTRAINT odd FOREIGN KEY (accelerator_id) REFERENCES"
                " gpu_latest"
            ),
            "finding: the for",
        ),
        (
            (
                "CREATE TRIGGER odd BEFORE DELETE ON usage_hour EXECUTE FUNCTION"
                " gpuledger_refuse_rewriting()"
            ),
            "usage_hour: has the trigger odd",
        ),
    ],
)
def test_a_schema_that_breaks_a_rule_is_refused_before_anything_runs(dsn, change, says):
    """With the table and the rule in the sentence."""
    with psycopg.connect(dsn) as connection:
        connection.execute(change)
        with pytest.raises(NotDistributable, match=says):
            plan(connection)
        connection.rollback()


def refused_policies(connection):
    """Policies that Citus does not take, by their text: with a subquery, or reading a table that it
    takes over.
    """
    taken = converted_tables(connection)
    policies = connection.execute(
        "SELECT tablename, policyname, coalesce(qual, '') FROM pg_policies"
    ).fetchall()
    return {
        f"{table}.{name}"
        for table, name, qual in policies
        if (table in taken and "SELECT" in qual)
        or taken.intersection(re.findall(r"FROM \(?(\w+)", qual))
    }


def drop_policies(connection):
    for statement in plan(connection):
        if not statement.startswith("SELECT "):
            connection.execute(statement)


def test_tables_that_foreign_keys_tie_to_replicated_ones_are_known(dsn):
    """Citus converts them, and with them its rules hold."""
    with psycopg.connect(dsn) as connection:
        assert converted_tables(connection) == {*DISTRIBUTED, *REFERENCE, *TIED}


def test_the_page_names_the_tables():
    """docs/scale.md lists what is distributed, replicated and managed."""
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    rows = [
        {*re.findall(r"`(\w+)`", line.rpartition("|")[0].rpartition("|")[0])}
        for line in page.splitlines()
    ]
    assert all({*tables} in rows for tables in (DISTRIBUTED, REFERENCE, TIED))


def test_citus_takes_the_policies_that_are_left(dsn, monkeypatch):
    """The plan drops those that it refuses, an upgrade afterwards makes none again, and money keeps
    its own.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert row_level_security.enable(connection) == ""
        assert refused_policies(connection) >= {
            "workload.gpuledger_viewer",
            "counter_series.gpuledger_viewer",
        }
        drop_policies(connection)
        assert refused_policies(connection) == set()
        monkeypatch.setattr(distribution, "managed_tables", lambda _: {*DISTRIBUTED, *REFERENCE})
        row_level_security.disable(connection)
        assert row_level_security.enable(connection) == ""
        assert refused_policies(connection) == set()
        unfiltered = row_level_security.unfiltered_tables(connection)
        assert unfiltered == {"accelerator", "workload", "counter_series", "counter_hour"}
        rows = connection.execute(
            "SELECT tablename FROM pg_policies WHERE policyname = 'gpuledger_viewer'"
        )
        assert {table for (table,) in rows} == row_level_security.OWNED.keys() - unfiltered


@pytest.mark.parametrize(
    ("table", "condition"),
    [
        ("imported_usage", "workload_id IN (SELECT workload_id FROM charge)"),
        ("node", "id IN (SELECT accelerator_id FROM finding)"),
        ("charge", "workload_id IN (SELECT workload_id FROM imported_usage)"),
        ("finding", "EXISTS (SELECT FROM charge JOIN usage_hour USING (workload_id))"),
    ],
)
def test_a_policy_that_citus_refuses_is_dropped(dsn, table, condition):
    """On a table that it takes over, or reading one; whoever made it."""
    with psycopg.connect(dsn) as connection:
        row_level_security.disable(connection)
        connection.execute(f"CREATE POLICY odd ON {table} USING ({condition})")
        assert f"DROP POLICY odd ON {table}" in plan(connection)
        connection.rollback()


def test_the_command_prints_the_plan_and_refuses_without_citus(dsn):
    """--dry-run needs no Citus; without it, one sentence and exit code 3 where the extension is
    missing.
    """

    def run(*arguments):
        return CliRunner().invoke(build(), ["db", "distribute", *arguments, "--dsn", dsn])

    shown = run("--dry-run", "--shards", "16")
    assert shown.exit_code == 0
    assert len([line for line in shown.stdout.splitlines() if line.startswith("SELECT ")]) == len(
        DISTRIBUTED
    ) + len(REFERENCE)
    assert "shard_count => 16);" in shown.stdout
    refused = run()
    sentence, code = explain(refused.exception)
    assert code == 3
    assert "CREATE EXTENSION citus" in sentence
