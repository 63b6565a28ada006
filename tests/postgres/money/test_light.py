"""Commands that read a ledger which needs no rating answer without the libraries that take longest
to import.
"""

import json
import os
import subprocess
import sys

import pytest

from fakes.fleet import DAY, HOUR, Held

pytestmark = pytest.mark.slow

MONTH = ("--from", "2025-10-01", "--to", "2025-11-01")
HEAVY = {
    "numpy",
    "pandas",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "alembic",
    "fastapi",
    "uvicorn",
    "pyarrow",
    "pydantic",
}
PAGES = {"jinja2"}
"""Only what writes a page needs it."""
TELL = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr))
from gpuledger_collector.cli import main
main()
"""


@pytest.fixture
def rated(fleet, run):
    """A priced day of one team, rated."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.workload(4, team="vision", project="detector")
    fleet.capacity(1, 0, DAY)
    fleet.evidence([Held(1, 4, HOUR, 2 * HOUR, idle=HOUR // 7)])
    assert run("chargeback", *MONTH)[0] == 0


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (("chargeback", *MONTH), HEAVY | PAGES),
        (("chargeback", *MONTH, "--format", "focus"), HEAVY | PAGES),
        (("reconcile", *MONTH), HEAVY | PAGES),
        (("statement", "--owner", "vision", "--period", "2025-10"), HEAVY),
        (("tags", "check", *MONTH), HEAVY | PAGES),
    ],
    ids=["chargeback", "focus", "reconcile", "statement", "tags"],
)
def test_a_reading_command_imports_nothing_heavy(rated, dsn, tmp_path, words, unneeded):
    """It says what there is to say, and nothing heavy has been imported when it ends."""
    answer = subprocess.run(
        [sys.executable, "-c", TELL, *words],
        env={**os.environ, "GPULEDGER_DSN": dsn},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout
    loaded = set(json.loads(answer.stderr.splitlines()[-1]))
    assert "psycopg" in loaded
    assert loaded & unneeded == set()
