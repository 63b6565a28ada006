"""Runs of requeued jobs: a scheduler gives all runs of a job one id, and each run held its GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from gpuledger_collector.accounting.ledger_rows import UsageRow
from gpuledger_collector.storage.locks import Connection

ZONE_STEP_MS, ZONES_MS = 900_000, 26 * 3_600_000
"""Zones differ by quarters of an hour, and by no more than this."""


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run that was imported before; its id is that of its job, or the same with `@` and the start
    of the run.
    """

    workload_id: str
    start_ms: int
    end_ms: int | None

    def is_of(self, row: UsageRow) -> bool:
        """Whether a row is about this run: they overlap, or only the zone of its times was another."""
        shift_ms = row.start_ms - self.start_ms
        is_moved = (
            self.end_ms is not None
            and row.end_ms == self.end_ms + shift_ms
            and abs(shift_ms) <= ZONES_MS
            and shift_ms % ZONE_STEP_MS == 0
        )
        starts_before_end = row.end_ms is None or self.start_ms < row.end_ms
        return is_moved or (
            starts_before_end and (self.end_ms is None or row.start_ms < self.end_ms)
        )


def known_runs(connection: Connection, rows: Iterable[UsageRow]) -> dict[str, list[KnownRun]]:
    """The imported runs of the jobs of these rows, by the id of the job."""
    jobs = {row.workload_id for row in rows}
    found: dict[str, list[KnownRun]] = defaultdict(list)
    answer = connection.execute(
        "SELECT w.external_id, u.start_ms, u.end_ms FROM workload w JOIN imported_usage u ON"
        " u.workload_id = w.id WHERE w.external_id = ANY(%(jobs)s) OR regexp_replace(w.external_id,"
        " '@[0-9]+$', '') = ANY(%(jobs)s) ORDER BY u.start_ms",
        {"jobs": sorted(jobs)},
    )
    for name, start_ms, end_ms in answer:
        found[name if name in jobs else name.rpartition("@")[0]].append(
            KnownRun(name, start_ms, end_ms)
        )
    return found


def name_runs(rows: Sequence[UsageRow], known: Mapping[str, Sequence[KnownRun]]) -> list[UsageRow]:
    """Give each run an id of its own: that of the known run that it is, that of its job, or the
    latter with its start.

    A file may show only some runs of a job: what is known decides, so that no run replaces another
    or counts twice.
    """
    jobs: dict[str, list[UsageRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.start_ms):
        jobs[row.workload_id].append(row)
    return [run for job, runs in jobs.items() for run in _name(job, runs, known.get(job, ()))]


def _name(job: str, runs: Sequence[UsageRow], known: Sequence[KnownRun]) -> list[UsageRow]:
    left = {run.workload_id: run for run in known}
    taken = set(left)
    by_start = {run.start_ms: run for run in known}
    # A run that begins when a known one does is that run, whatever else it overlaps.
    named = {
        id(row): left.pop(by_start[row.start_ms].workload_id)
        for row in runs
        if row.start_ms in by_start
    }
    result = []
    for row in runs:
        match = named.get(id(row)) or next((run for run in left.values() if run.is_of(row)), None)
        if match is not None:
            left.pop(match.workload_id, None)
            name = match.workload_id
        else:
            names = (f"{job}@{second}" for second in count(row.start_ms // 1000))
            name = job if job not in taken else next(name for name in names if name not in taken)
        taken.add(name)
        result.append(replace(row, workload_id=name))
    return result
