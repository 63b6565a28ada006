"""Rules of Citus, kept on plain Postgres: by the catalog of the migrated schema, and by the product's own SQL.

No Citus runs here; tests/engines runs the product on one. Each rule is one that a statement of the product broke
there, or that Citus documents.
"""

import ast
import re
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

import gpuledger_collector
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.server.distribution import DISTRIBUTED, REFERENCE, NotDistributable, plan, violations

pytestmark = pytest.mark.slow

PACKAGE = Path(gpuledger_collector.__file__).parent
SPREAD = "|".join(DISTRIBUTED)
MANAGED = "|".join([*DISTRIBUTED, *REFERENCE])
USED = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE|USING)\s+(?:ONLY\s+)?({SPREAD})\b", re.IGNORECASE)
KNOWN = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE|USING)\s+(?:ONLY\s+)?({MANAGED})\b", re.IGNORECASE)
TOGETHER = re.compile(
    r"\w+\.accelerator_id\s*=\s*\w+\.accelerator_id|USING\s*\(accelerator_id|accelerator_id IN \(SELECT", re.IGNORECASE
)
READ = re.compile(r"\b(?:FROM|JOIN)\s+(?:ONLY\s+)?([a-z_0-9]+)\b(?!\s*\()")
"""What is read: tables and names of WITH, while set-returning functions have a parenthesis after their name."""
NAMED = re.compile(r"\b([a-z_0-9]+)(?:\s*\([a-z_, ]*\))?\s+AS\s+(?:(?:NOT )?MATERIALIZED\s+)?\(", re.IGNORECASE)
SUBQUERY = re.compile(r"(\w*)\s*\(\s*SELECT\b", re.IGNORECASE)
ALONE = {"FROM", "JOIN", "AS", "MATERIALIZED", "IN", "UNION", "ALL", "ANY"}
"""What stands before a subquery that does not depend on the query around it."""
CORRELATED = re.compile(
    rf"\bFROM\s+(?:unnest|generate_series|jsonb_to_recordset)\(.*\bEXISTS\s*\(\s*SELECT\b.*?\bFROM\s+(?:{SPREAD})\b",
    re.IGNORECASE | re.DOTALL,
)
VOLATILE = re.compile(
    rf"INSERT INTO (?:{MANAGED})\b.*?\bDO UPDATE SET\b.*?\b(?:now|clock_timestamp|random|nextval)\s*\(",
    re.IGNORECASE | re.DOTALL,
)
EXPANDED = re.compile(r"\bINSERT\b.*\bFROM\s*\(\s*SELECT\b.*\)\s*(?:AS\s+)?\w+\s*,\s*generate_series\(", re.DOTALL)


def texts(source):
    """String literals of a module, with `{}` for what an f-string fills in."""

    def text(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.JoinedStr):
            return "".join(text(part) or "{}" for part in node.values)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return (text(node.left) or "{}") + (text(node.right) or "{}")
        return None

    def walk(node):
        found = text(node)
        if found is not None and not (isinstance(node, ast.BinOp) and found == "{}{}"):
            yield found
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    yield from walk(ast.parse(source))


def faults(statement):
    """What of this statement Citus does not take."""
    found = []
    if KNOWN.search(statement):
        if CORRELATED.search(statement):
            found.append("correlated subquery beside a set-returning function")
        if VOLATILE.search(statement):
            found.append("DO UPDATE SET calls a function that is not immutable")
        if EXPANDED.search(statement):
            found.append("inserts a series that a subquery bounds")
    if not USED.search(statement):
        return found
    if re.search(r"\bFOR (UPDATE|SHARE|NO KEY UPDATE)\b", statement, re.IGNORECASE):
        found.append("row locks over several shards")
    target = re.search(rf"INSERT INTO ({SPREAD})\b.*?ON CONFLICT\s*(\([^)]*\))?", statement, re.IGNORECASE | re.DOTALL)
    if target and target[2] and "accelerator_id" not in target[2]:
        found.append("ON CONFLICT without the distribution column")
    if re.search(rf"UPDATE ({SPREAD})\b.*?\bSET\b[^=]*\baccelerator_id\s*=", statement, re.IGNORECASE | re.DOTALL):
        found.append("moves rows between shards")
    for part in re.split(r"\bUNION(?: ALL)?\b", statement, flags=re.IGNORECASE):
        if len(USED.findall(part)) > 1 and not TOGETHER.search(part):
            found.append("joins distributed tables, but not on the accelerator")
    names = {*NAMED.findall(statement)}
    for outer, inner in correlated(statement):
        for one, other in ((outer, inner), (inner, outer)):
            alone = {*READ.findall(other)} - {*DISTRIBUTED, *REFERENCE} - names
            if alone and {*READ.findall(one)} & {*DISTRIBUTED}:
                found.append(f"correlated with {', '.join(sorted(alone))}, which is on the coordinator alone")
    return found


def correlated(statement):
    """Pairs of a query and a subquery that may depend on it, each without its own subqueries."""

    def walk(text):
        """The text without subqueries, and the pairs below it."""
        own, below, at = "", [], 0
        while match := SUBQUERY.search(text, at):
            begin = text.index("(", match.start(1) + len(match[1]))
            end, depth = begin, 0
            for end in range(begin, len(text)):
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                if not depth:
                    break
            inner, pairs = walk(text[begin + 1 : end])
            own += text[at:begin]
            below += pairs
            if match[1].upper() not in ALONE:
                below.append((None, inner))
            at = end + 1
        own += text[at:]
        return own, [(own if outer is None else outer, inner) for outer, inner in below]

    return walk(statement)[1]


def own_statements():
    """Every SQL text of the product that names a distributed or replicated table, with its module."""
    for folder in ("storage", "ingest"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            for text in texts(path.read_text(encoding="utf-8")):
                if KNOWN.search(text) and re.search(r"\b(SELECT|INSERT|UPDATE|DELETE)\b", text):
                    yield f"{path.relative_to(PACKAGE)}: {' '.join(text.split())}"


def test_the_products_statements_keep_the_rules():
    """Those of storage and ingest; there are dozens, so an empty list would be the test's own fault."""
    found = list(own_statements())
    assert len(found) >= 30
    assert {name for one in found for name in USED.findall(one)} == set(DISTRIBUTED)
    assert [(fault, one) for one in found for fault in faults(one)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM usage_interval WHERE seq = 1 FOR UPDATE",
        "INSERT INTO gpu_minute (minute_ms) VALUES (1) ON CONFLICT (minute_ms) DO NOTHING",
        "UPDATE usage_hour SET accelerator_id = 2",
        "SELECT 1 FROM usage_hour u JOIN gpu_minute m ON m.minute_ms = u.hour_ms",
        "SELECT p.a FROM unnest(%s::bigint[]) AS p (a) WHERE EXISTS (SELECT FROM usage_hour u WHERE u.id = p.a)",
        "INSERT INTO node (name) VALUES (%s) ON CONFLICT (name) DO UPDATE SET last_seen_at = now()",
        "INSERT INTO day_recompute SELECT d FROM (SELECT min(in_ms) a FROM capacity) x, generate_series(x.a, 9, 1) d",
        "SELECT (SELECT min(id) FROM charge c WHERE c.workload_id = u.workload_id) FROM usage_hour u",
        "INSERT INTO gpu_sample SELECT * FROM incoming i WHERE NOT EXISTS (SELECT FROM gpu_sample s"
        " WHERE s.accelerator_id = i.accelerator_id)",
    ],
)
def test_what_breaks_a_rule_is_found(statement):
    """One statement for each rule."""
    assert len(faults(statement)) == 1


def test_sessions_open_one_connection_a_worker(database):
    """Or Citus refuses to write a node's heartbeat in the transaction that wrote samples."""
    with database.connect() as connection:
        row = connection.execute("SELECT current_setting('citus.multi_shard_modify_mode')").fetchone()
    assert row == ("sequential",)


def test_the_schema_keeps_the_rules(dsn):
    """Each unique key has the accelerator, no trigger, no foreign key between what is spread and what is not."""
    assert {*DISTRIBUTED, *REFERENCE} <= set(metadata.tables)
    with psycopg.connect(dsn) as connection:
        assert violations(connection) == []
        assert [line for line in plan(connection, 8) if line.startswith("SELECT ")] == [
            *(f"SELECT create_reference_table('{table}')" for table in REFERENCE),
            "SELECT create_distributed_table('gpu_sample', 'accelerator_id', shard_count => 8)",
            *(
                f"SELECT create_distributed_table('{table}', 'accelerator_id', colocate_with => 'gpu_sample')"
                for table in DISTRIBUTED[1:]
            ),
        ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("CREATE UNIQUE INDEX odd ON gpu_minute (minute_ms, samples)", "gpu_minute: the unique index odd lacks"),
        (
            "ALTER TABLE usage_interval ADD CONSTRAINT odd FOREIGN KEY (node_id) REFERENCES job_run (id)",
            "usage_interval: the foreign",
        ),
        (
            "ALTER TABLE finding ADD CONSTRAINT odd FOREIGN KEY (accelerator_id) REFERENCES gpu_latest",
            "finding: the for",
        ),
        (
            "CREATE TRIGGER odd BEFORE DELETE ON usage_hour EXECUTE FUNCTION gpuledger_refuse_rewriting()",
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


def test_the_command_prints_the_plan_and_refuses_without_citus(dsn):
    """--dry-run needs no Citus; without it, one sentence and exit code 3 where the extension is missing."""

    def run(*arguments):
        return CliRunner().invoke(build(), ["db", "distribute", *arguments, "--dsn", dsn])

    shown = run("--dry-run", "--shards", "16")
    assert shown.exit_code == 0
    assert len([line for line in shown.stdout.splitlines() if line.startswith("SELECT ")]) == len(DISTRIBUTED) + len(
        REFERENCE
    )
    assert "shard_count => 16);" in shown.stdout
    refused = run()
    sentence, code = explain(refused.exception)
    assert code == 3
    assert "CREATE EXTENSION citus" in sentence
