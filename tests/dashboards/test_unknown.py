"""What nobody has measured yet is not zero: numbers of boards before the first evidence."""

import json
import shutil
import subprocess

import psycopg
import pytest

from fakes.boards import BOARDS, SPAN, asked, chosen, options, panels, reads_postgres
from fakes.postgres import fresh_database

RECORDS = {
    ("fleet", "Accelerators"),
    ("pipeline", "Batches lost"),
    ("pipeline", "Batches waiting"),
    ("pipeline", "Conflicts"),
    ("pipeline", "Failed job runs"),
    ("pipeline", "To recompute"),
    ("research", "Projects, experiments and people"),
    ("team", "Idle or underused now"),
    ("workload", "GPUs"),
}
"""Numbers of records, of which a new ledger has none."""


def test_a_new_ledger_knows_no_state_of_a_gpu(postgres):
    """Failed, idle, held, unpriced: none of these is 0 before a GPU was heard of."""
    zeros = set()
    with fresh_database(postgres) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        for name, board in BOARDS.items():
            if reads_postgres(board):
                values = chosen(board, options(connection, board, SPAN), "all")
                for query in asked(name, values, SPAN):
                    if query.kind == "stat":
                        rows = connection.execute(query.sql.encode()).fetchall()
                        if any(value == 0 for row in rows for value in row):
                            zeros.add((name, query.title))
    assert zeros == RECORDS


def samples(query, expected):
    """What a query of the live board is to give; nothing where `expected` is None."""
    given = [] if expected is None else [{"labels": "{}", "value": expected}]
    asked_for = query.replace("$node", ".+").replace("$uuid", ".+")
    return {"expr": asked_for, "eval_time": "0m", "exp_samples": given}


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no prometheus (apt-get install prometheus)"
)
@pytest.mark.parametrize(
    ("title", "health", "number"),
    [
        ("Degraded or failed", [], None),
        ("Degraded or failed", [3, 3], None),
        ("Degraded or failed", [0, 3], 0),
        ("Degraded or failed", [0, 1, 2, 3], 2),
        ("Held", [], None),
        ("Held", [0, 0], 0),
    ],
)
def test_the_live_board_counts_what_was_scraped(tmp_path, title, health, number):
    """Health of 3 is unknown; a GPU that nobody holds has no series of what is held."""
    (panel,) = [panel for panel in panels(BOARDS["live"]) if panel["title"] == title]
    series = [
        {"series": f'gpu_health_status{{node="n1", uuid="{at}"}}', "values": str(value)}
        for at, value in enumerate(health)
    ]
    test = {
        "input_series": series,
        "promql_expr_test": [samples(panel["targets"][0]["expr"], number)],
    }
    path = tmp_path / "live.json"
    path.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))
    checked = subprocess.run(
        ["promtool", "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
