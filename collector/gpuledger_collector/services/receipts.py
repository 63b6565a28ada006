"""The waste receipt of one workload: all that it was charged, and what of it was wasted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.charged_runs import NamedWorkload
from gpuledger_collector.insight.waste_receipt import WasteReceipt, make_receipt
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.runs import require_workload
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import findings, recommendations
from gpuledger_collector.storage.ledger import workloads


@dataclass(frozen=True, slots=True)
class WorkloadReceipt:
    """A workload's charges and waste, and the ids of the other runs of a requeued job."""

    workload: NamedWorkload
    charged: WasteReceipt
    other_runs: Sequence[str]


def itemize_workload(database: Database, name: str, now_ms: int) -> WorkloadReceipt:
    """Bring the charges and the waste of a workload up to date, and itemize them.

    Raises NotOneWorkload.
    """
    with database.transaction() as connection:
        workload = require_workload(connection, name)
    # A workload's charges may lie in any month, so all of them are brought up to date.
    refresh(database, ALWAYS, now_ms)
    find_idle(database, now_ms)
    with database.transaction() as connection:
        charged = make_receipt(
            recommendations.charged_to(connection, workload.id),
            findings.of_workload(connection, workload.id),
            recommendations.advice_for(connection, workload.id),
        )
        return WorkloadReceipt(workload, charged, workloads.other_runs(connection, workload.id))
