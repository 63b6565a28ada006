"""Rules of Citus, kept on plain Postgres: by the catalog of the migrated schema, and by the product's own SQL.

No Citus runs here. What it was seen to do and to refuse stands in docs/scale.md.
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
USED = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE|USING)\s+(?:ONLY\s+)?({SPREAD})\b", re.IGNORECASE)
TOGETHER = re.compile(
    r"\w+\.accelerator_id\s*=\s*\w+\.accelerator_id|USING\s*\(accelerator_id|accelerator_id IN \(SELECT", re.IGNORECASE
)


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
    used = USED.findall(statement)
    found = []
    if not used:
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
    return found


def own_statements():
    """Every SQL text of the product that names a distributed table, with its module."""
    for folder in ("storage", "ingest"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            for text in texts(path.read_text(encoding="utf-8")):
                if USED.search(text) and re.search(r"\b(SELECT|INSERT|UPDATE|DELETE)\b", text):
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
    ],
)
def test_what_breaks_a_rule_is_found(statement):
    """One statement for each rule."""
    assert len(faults(statement)) == 1


def test_the_schema_keeps_the_rules(dsn):
    """Each unique key has the accelerator, no trigger, no foreign key between what is spread and what is not."""
    assert {*DISTRIBUTED, *REFERENCE} <= set(metadata.tables)
    with psycopg.connect(dsn) as connection:
        assert violations(connection) == []
        assert plan(connection, 8) == [
            "SELECT create_reference_table('node')",
            "SELECT create_reference_table('accelerator')",
            "SELECT create_reference_table('workload')",
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
    assert len(shown.stdout.splitlines()) == len(DISTRIBUTED) + len(REFERENCE)
    assert "shard_count => 16);" in shown.stdout
    refused = run()
    sentence, code = explain(refused.exception)
    assert code == 3
    assert "CREATE EXTENSION citus" in sentence
