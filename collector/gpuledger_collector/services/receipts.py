"""The waste receipt of one workload: all that it was charged, and what of it was wasted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.charged_runs import NamedWorkload
from gpuledger_collector.insight.waste_receipt import WasteReceipt, make_receipt
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.runs import NotOneWorkload, require_workload
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import findings, recommendations
from gpuledger_collector.storage.ledger import workloads
from gpuledger_collector.storage.locks import Connection
from gpuledger_common.plurals import plural


@dataclass(frozen=True, slots=True)
class WorkloadReceipt:
    """A workload's charges and waste, and the ids of the other runs of a requeued job."""

    workload: NamedWorkload
    charged: WasteReceipt
    other_runs: Sequence[str]
    pods: Sequence[str] = ()
    """Keys of the workloads of a job; empty for a workload."""


def _require_workload_or_job(
    connection: Connection, name: str
) -> tuple[NamedWorkload, list[NamedWorkload]]:
    """The workload of a name; else the job, and its pods."""
    try:
        return require_workload(connection, name), []
    except NotOneWorkload as error:
        pods = [] if error.count else workloads.list_of_job(connection, name)
        if not pods:
            raise
    users = sorted({pod.user for pod in pods if pod.user})
    title = f"job of {plural(len(pods), 'pod')}"
    return NamedWorkload(pods[0].id, name, title, ", ".join(users) or None), pods


def itemize_workload(database: Database, name: str, now_ms: int) -> WorkloadReceipt:
    """Bring the charges and the waste of a workload, or of a job with all its pods, up to date, and
    itemize them.

    Raises NotOneWorkload.
    """
    with database.transaction() as connection:
        workload, pods = _require_workload_or_job(connection, name)
    # A workload's charges may lie in any month, so all of them are brought up to date.
    refresh(database, ALWAYS, now_ms)
    find_idle(database, now_ms)
    with database.transaction() as connection:
        ids = [pod.id for pod in pods] or [workload.id]
        charged = make_receipt(
            [entry for number in ids for entry in recommendations.charged_to(connection, number)],
            [entry for number in ids for entry in findings.of_workload(connection, number)],
            [entry for number in ids for entry in recommendations.advice_for(connection, number)],
        )
        other_runs = [] if pods else workloads.other_runs(connection, workload.id)
        return WorkloadReceipt(workload, charged, other_runs, [pod.key for pod in pods])
