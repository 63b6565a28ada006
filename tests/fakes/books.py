"""A ledger with a closed month, corrections and imports, and what must be equal wherever it is
kept: its bills, proofs and seals.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import psycopg
from typer.testing import CliRunner

from fakes.batches import workload
from fakes.collector import running
from fakes.facts import AUGUST_MS, DAY, HOUR, SEPTEMBER_MS, World, mig
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.services.upkeep import pack_usage_intervals
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import usage_evidence

CLOSED, OPEN = ("--period", "2026-08"), ("--period", "2026-09")
ANSWERS = {
    "bill of August": ("chargeback", *CLOSED, "--by", "team,pool,model", "--format", "csv"),
    "bill of September": ("chargeback", *OPEN, "--by", "workload", "--format", "csv"),
    "FOCUS of August": ("chargeback", *CLOSED, "--format", "focus"),
    "proof of August": ("reconcile", *CLOSED, "--format", "json"),
    "proof of September": ("reconcile", *OPEN, "--format", "json"),
    "corrections": ("corrections", *CLOSED, "--format", "csv"),
    "seal": ("periods", "--verify", "2026-08", "--format", "csv"),
    "statement": ("statement", *CLOSED, "--owner", "alpha"),
}
"""Commands of which the output says what people pay, and why it is right."""


class Command:
    """`gpuledger ...` on a database, in this process: exit code, standard output, standard error."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(build(), [*map(str, arguments), "--dsn", self.dsn])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            sentence, code = explain(result.exception)
            return code, result.stdout, result.stderr + sentence
        return result.exit_code, result.stdout, result.stderr


@contextlib.contextmanager
def world_of(dsn: str) -> Iterator[World]:
    """A collector in this process and the command line on a database."""
    with running(dsn) as collector:
        yield World(collector, Command(dsn))


def furnish(world: World, folder: Path) -> None:
    """Two nodes, two teams, a divided board and an imported pool; August closed, then corrected by
    late evidence.
    """
    world.price()
    for day in range(0, 31, 10):
        world.hold(AUGUST_MS + day * DAY, 6, job="1", team="alpha", pool="train")
        world.hold(AUGUST_MS + day * DAY, 6, job="2", team="bravo", node="n2")
        job = workload("3", user=None, tags={"team": "bravo"})
        for hour in range(6):
            world.send(
                "n3",
                [mig(1, 500_000, "n3"), mig(2, 250_000, "n3")],
                AUGUST_MS + day * DAY + hour * HOUR,
                job,
            )
    usage = folder / "usage.csv"
    usage.write_text(
        "workload_id,start,end,gpus,pool,tag:team\nbig,2026-08-01T00:00Z,2026-08-11T00:00Z,10,cloud,bravo\n"
    )
    world.run("import", "usage", usage)
    world.run("close", *CLOSED, "--by", "finance")
    world.hold(SEPTEMBER_MS + 2 * DAY, 5, job="4", team="alpha", pool="train")
    world.hold(AUGUST_MS + 5 * DAY, 3, job="5", team="bravo", node="n2")
    world.run("chargeback", *OPEN)


def pack_august(dsn: str) -> None:
    """Pack the evidence of August of such a ledger; that of September stays in rows."""
    assert pack_usage_intervals(Database(dsn), 37, SEPTEMBER_MS + 37 * DAY).intervals


def answers(run: Command) -> dict[str, str]:
    """What each command prints, as a short hash; an assertion error for one that fails."""
    hashes = {}
    for name, arguments in ANSWERS.items():
        code, out, err = run(*arguments)
        assert code == 0, (arguments, code, out, err)
        assert out.strip(), arguments
        hashes[name] = hashlib.sha256(out.encode()).hexdigest()[:12]
    return hashes


EVIDENCE = "usage intervals, packed or not"
ASKED = ("month_proof",)
"""Written by whoever asks a question, `answers` among them: when it was asked, and of which
transactions.
"""


def tables(dsn: str) -> dict[str, tuple[int, str]]:
    """Rows and a hash of the content of every table of the product, but for ASKED, and of EVIDENCE."""
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        names = connection.execute(
            "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND"
            " c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> ALL (%s) ORDER"
            " BY 1",
            (list(ASKED),),
        ).fetchall()
        contents = {name: f'SELECT t::text AS line FROM "{name}" t' for (name,) in names}
        if contents:
            contents[EVIDENCE] = f"SELECT s::text AS line FROM {usage_evidence.intervals(0)} AS s"
        return {
            name: connection.execute(_HASH.format(lines)).fetchone()
            for name, lines in contents.items()
        }


_HASH = (
    "SELECT count(*), coalesce(md5(string_agg(line, E'\\n' ORDER BY line COLLATE \"C\")), '') "
    "FROM ({}) AS lines"
)


def printed(title: str, columns: list[str], rows: list[list[object]]) -> str:
    """A table for people who run a test with `-s`."""
    cells = [columns, *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join(["", title, lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
