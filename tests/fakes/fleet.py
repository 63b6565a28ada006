"""Evidence as ingest leaves it: accelerators, capacity, usage intervals and marks, written straight
into the tables.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psycopg

from gpuledger_collector.storage.telemetry import partitions

Key = TypeVar("Key", int, str)
HOUR = 3_600_000
DAY = 86_400_000
OCTOBER = 1_759_276_800_000
"""2025-10-01T00:00:00Z"""
NOW = dt.datetime(2025, 11, 20, 12, tzinfo=dt.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
EPOCH = "00000000-0000-4000-8000-000000000001"


@dataclass(frozen=True)
class Held:
    """A usage interval: accelerator number, holder (None with another state), start and end in ms
    after OCTOBER.
    """

    accelerator: int
    workload: int | None
    start: int
    end: int
    state: str = "held"
    busy: int = 0
    idle: int = 0
    energy: int | None = None


def _day_of(at_ms: int) -> int:
    return at_ms - at_ms % DAY


class Fleet:
    """A database with nodes, accelerators and workloads by number."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self._ids: dict[tuple[str, object], int] = {}
        # A copy of a world has batches already.
        self._seq = self._one(
            "SELECT coalesce(max(seq), 0) FROM usage_interval WHERE epoch = %s", EPOCH
        )

    def node(self, name: str) -> int:
        self.connection.execute(
            "INSERT INTO node (name, first_seen_at, last_seen_at) VALUES (%s, %s, %s) ON CONFLICT"
            " DO NOTHING",
            (name, NOW, NOW),
        )
        return self._one("SELECT id FROM node WHERE name = %s", name)

    def accelerator(
        self, number: int, *, model: str = "NVIDIA H100 80GB HBM3", gpu_micro: int = 1_000_000
    ) -> int:
        uuid = f"GPU-{number:04d}"
        self.connection.execute(
            "INSERT INTO accelerator (uuid, device_uuid, model, gpu_micro) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT DO NOTHING",
            (uuid, uuid, model, gpu_micro),
        )
        return self._one("SELECT id FROM accelerator WHERE uuid = %s", uuid)

    def capacity(
        self,
        number: int,
        start: int,
        end: int | None = None,
        *,
        pool: str = "train",
        node: str = "n1",
        source: str = "agent",
    ) -> None:
        self.connection.execute(
            "INSERT INTO capacity (accelerator_id, gpu_model, gpu_micro, node_id, pool, in_ms,"
            " out_ms, source) SELECT id, model, gpu_micro, %s, %s, %s, %s, %s FROM accelerator"
            " WHERE id = %s",
            (
                self.node(node),
                pool,
                OCTOBER + start,
                end and OCTOBER + end,
                source,
                self.accelerator(number),
            ),
        )

    def workload(self, number: int, **tags: str) -> int:
        self.connection.execute(
            "INSERT INTO workload (key, kind, external_id, tags, first_seen_at) VALUES (%s,"
            " 'slurm', %s, %s, %s) ON CONFLICT DO NOTHING",
            (
                f"slurm::{number}",
                str(number),
                json.dumps(tags or {"team": f"team-{number % 3}"}),
                NOW,
            ),
        )
        return self._one("SELECT id FROM workload WHERE key = %s", f"slurm::{number}")

    def evidence(self, usage_intervals: Iterable[Held], *, node: str = "n1") -> None:
        """One batch: usage intervals of one instant and accelerator are holders that share it."""
        self._seq += 1
        intervals = list(usage_intervals)
        accelerators = {
            each.accelerator: self._id_of(self.accelerator, each.accelerator) for each in intervals
        }
        workloads = {
            each.workload: self._id_of(self.workload, each.workload)
            for each in intervals
            if each.workload is not None
        }
        node_id = self._id_of(self.node, node)
        partitions.ensure(
            self.connection, "usage_interval", {_day_of(OCTOBER + each.start) for each in intervals}
        )
        rows, hours = [], []
        for record, each in enumerate(intervals):
            start, end = OCTOBER + each.start, OCTOBER + each.end
            held = end - start if each.state == "held" else 0
            activity = (held, each.busy, each.idle, held - each.busy - each.idle, each.energy)
            holder = workloads.get(each.workload)
            number = accelerators[each.accelerator]
            rows.append(
                (
                    number,
                    holder,
                    each.state,
                    start,
                    end,
                    *activity,
                    node_id,
                    EPOCH,
                    self._seq,
                    record,
                )
            )
            hours += [(number, hour) for hour in range(start - start % HOUR, end, HOUR)]
        with self.connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO usage_interval VALUES ({', '.join(['%s'] * 14)})", rows
            )
            cursor.executemany(
                "INSERT INTO hour_recompute (accelerator_id, hour_ms) VALUES (%s, %s)", hours
            )

    def _id_of(self, make: Callable[[Key], int], key: Key) -> int:
        """The id of what earlier evidence named too, which asks the database no more, or is made."""
        if (make.__name__, key) not in self._ids:
            self._ids[make.__name__, key] = make(key)
        return self._ids[make.__name__, key]

    def dump(self) -> list[tuple[object, ...]]:
        """The ledger without what differs from run to run."""
        rows: list[tuple[object, ...]] = []
        for query in (
            "SELECT c.*, o.team FROM charge c LEFT JOIN owner o ON o.id = owner_id",
            (
                "SELECT l.day_ms, o.team, l.state, l.pool, l.currency, l.gpu_ns, l.cost_micro,"
                " l.idle_cost_micro, l.energy_mj FROM ledger_day l LEFT JOIN owner o ON o.id ="
                " owner_id"
            ),
            (
                "SELECT day_ms, capacity_ns, held_ns, unobserved_ns, capacity_cost::text,"
                " charged_cost::text, imported_ns, until_ms, holds FROM conservation_check"
            ),
            "SELECT * FROM usage_hour",
        ):
            rows += sorted(self.connection.execute(query).fetchall(), key=repr)
        return rows

    def rows(self, query: str, *values: object) -> Sequence[tuple[object, ...]]:
        return self.connection.execute(query, values).fetchall()

    def _one(self, query: str, *values: object) -> int:
        row = self.connection.execute(query, values).fetchone()
        assert row is not None
        return int(row[0])
