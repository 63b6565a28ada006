"""The queue CSV: `at,workload_id,gpus`, a row for each workload that waited at an instant.

Optional: pool, gpu_model, team, user, account, submitted, source. All rows of one source and
instant are its complete queue then; a row without a workload says that the queue was read and
nothing waited.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from gpuledger_collector.accounting.import_progress import OnRow, tell_nobody
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.csv_rows import Parsed, read_rows
from gpuledger_collector.config.fields import DECLARED, Instant, Instants, Text, decimal, refusal
from gpuledger_collector.config.model import Row
from gpuledger_collector.insight.queue_rows import QueueRow, WaitingRow

MAX_GPUS = 1_000_000


class _Waiting(Row):
    at_ms: Instant = Field(alias="at")
    gpus: Annotated[Decimal, decimal(6, MAX_GPUS)] = Decimal(0)
    workload_id: Text = Field("", validate_default=True)
    pool: Text = ""
    gpu_model: Text = ""
    team: Text = ""
    user: Text = ""
    account: Text = ""
    submitted_ms: Instant | None = Field(None, alias="submitted")
    source: Text = ""

    blank_columns = ("workload_id", "gpus")

    @field_validator("workload_id")
    @classmethod
    def _wait_for_gpus(cls, workload_id: str, info: ValidationInfo) -> str:
        if info.data.get("gpus") and not workload_id:
            raise refusal("empty", "is empty in a row that waits for GPUs")
        if workload_id and info.data.get("gpus") == 0:
            raise refusal("out_of_range", "waits for no GPUs; gpus must be more than 0")
        return workload_id


def read_queue(
    path: Path,
    source: str = "file",
    pool: str = "",
    instants: Instants = DECLARED,
    on_line: OnRow = tell_nobody,
) -> Parsed[QueueRow]:
    """Every reading of the file, or the problems of all bad rows.

    `source`, `pool`: of rows that name none.
    """
    parsed: Parsed[QueueRow] = Parsed()
    readings: dict[tuple[str, int], dict[str, WaitingRow]] = {}
    for record, row in read_rows(path, _Waiting, parsed, instants, on_line):
        # a row without a workload still makes a reading: an empty queue was seen
        queue = readings.setdefault((row.source or source, row.at_ms), {})
        if not row.workload_id:
            continue
        values = dict(vars(row))
        for name in ("at_ms", "source", "gpus"):
            del values[name]
        waiting = WaitingRow(gpu_micro=int(row.gpus * MICRO), **values | {"pool": row.pool or pool})
        if queue.setdefault(waiting.workload_id, waiting) != waiting:
            message = (
                f"{waiting.workload_id} stands twice in this reading, with other values; leave out"
                " one of them"
            )
            parsed.problems.append(Problem("double", f"{record.source}:workload_id", message))
    parsed.rows = [
        QueueRow(name, at_ms, tuple(queue.values()))
        for (name, at_ms), queue in sorted(readings.items())
    ]
    return parsed
