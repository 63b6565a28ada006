"""The one workload that a user names."""

from __future__ import annotations

from gpuledger_collector.cli.common import refuse
from gpuledger_collector.storage.findings.recommendations import workloads_called
from gpuledger_collector.storage.locks import Connection


def find_workload(
    connection: Connection, name: str, kind: str
) -> tuple[int, str, str | None, str | None]:
    """Id, key, name and user of the workload with this key, id or name.

    Refuses none and several.
    """
    workloads = workloads_called(connection, name)
    if not workloads:
        refuse(f"no {kind} has the key, the id or the name {name!r}")
    if len(workloads) > 1:
        keys = ", ".join(key for _, key, *_ in workloads[:5])
        refuse(f"{name!r} names {len(workloads)} {kind}s; choose one by its key: {keys}")
    return workloads[0]
