"""A collector over HTTP, the command line on the same database, and a bill to the micro-unit."""

import csv
import io
from collections.abc import Callable, Iterator

import msgspec
import psycopg
import pytest

from fakes.batches import accelerator, batch, held, workload
from fakes.collector import Running, running
from gpuledger_common.wire import Samples

AUGUST_MS = 1_785_542_400_000
"""2026-08-01T00:00:00Z."""
HOUR, DAY = 3_600_000, 86_400_000
SEPTEMBER_MS = AUGUST_MS + 31 * DAY


class World:
    """Messages as agents send them, commands as people give them, and what the ledger makes of it."""

    def __init__(self, collector: Running, run: Callable) -> None:
        self.collector, self._run = collector, run
        self._seq = 0

    def run(self, *arguments: object, code: int = 0) -> str:
        """A command that must end with this code; what it printed."""
        ended, out, err = self._run(*arguments)
        assert ended == code, (arguments, out, err)
        return out

    def hold(
        self,
        start_ms: int,
        hours: int,
        *,
        job: str = "1",
        node: str = "n1",
        number: int = 0,
        team: str = "alpha",
        owner_node: str | None = None,
        kind: str = "slurm",
        tags: dict | None = None,
        **changes: object,
    ) -> dict:
        """One accelerator held by one job for whole hours, a batch an hour; the last answer."""
        for hour in range(hours):
            answer = self.send(
                node,
                [accelerator(number, owner_node or node, **changes)],
                start_ms + hour * HOUR,
                workload(job, kind=kind, user=None, tags=tags or {"team": team}),
            )
        return answer

    def send(self, node: str, accelerators: list, start_ms: int, job: object) -> dict:
        """All of these accelerators held by a job for an hour."""
        self._seq += 1
        made = msgspec.structs.replace(
            batch(self._seq, node, 0, start_ms, samples=Samples()),
            accelerators=accelerators,
            workloads=[job],
            usage_intervals=[
                held(at, start_ms, start_ms + HOUR) for at in range(len(accelerators))
            ],
        )
        status, answer = self.collector.send(made)
        assert status in (200, 422), answer
        return answer

    def price(self, rate: str = "10") -> None:
        self.run("prices", "set", "--rate", rate, "--currency", "USD", "--from", "2026-01-01")

    def bill(self, month: str, by: str = "team") -> dict[str, tuple[str, str]]:
        """Hours and cost of each row of a month's chargeback."""
        out = self.run("chargeback", "--period", month, "--by", by, "--format", "csv")
        return {
            row[by]: (row["gpu_hours"], row["cost"]) for row in csv.DictReader(io.StringIO(out))
        }

    def change(self, statement: str) -> None:
        """Change the database past the product."""
        with psycopg.connect(self.collector.dsn) as connection:
            connection.execute(statement)

    def rows(self, query: str) -> list[tuple]:
        with psycopg.connect(self.collector.dsn) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture
def world(dsn: str, run: Callable) -> Iterator[World]:
    with running(dsn) as collector:
        yield World(collector, run)


def mig(number: int, share: int, node: str = "n1", device: int = 0, **changes: object):
    """A MIG instance of a device of a node."""
    one = accelerator(device, node, mig_instance=f"{number}", gpu_micro=share, **changes)
    return msgspec.structs.replace(one, uuid=f"MIG-{node}-{device}-{number}")
