"""Who holds an accelerator: rules, jobs, pods, containers, processes, what a source itself knows (dcgm, replay)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gpuledger_agent.owners.described import DescribedOwners
from gpuledger_agent.owners.places import Places
from gpuledger_common.readings import OwnerSource, Source, Workload


def open_owners(
    names: Sequence[str], rules_file: Path | None, node: str, source: Source, places: Places | None = None
) -> list[OwnerSource]:
    """The owner sources in the order of their names, first word wins; what a source itself knows comes after them, and
    processes, which see use and no allocation, come last wherever they stand.

    Raises AgentError naming file and place for a rules file that cannot be used.
    """
    where = places or Places()
    found: list[OwnerSource] = []
    describe: list[Callable[[Workload], Workload]] = []
    local = source.name == "nvml"  # jobs, pods and processes are of this machine; those of any other source are not
    for name in names:
        if name == "static" and rules_file is not None:
            from gpuledger_agent.owners.static import StaticOwners

            found.append(StaticOwners.from_file(rules_file, node))
        elif name == "slurm" and local:
            from gpuledger_agent.owners.slurm import slurm_owners

            jobs = slurm_owners(where)
            if jobs is not None:
                found.append(jobs)
        elif name in {"kubernetes", "containers"} and local:
            from gpuledger_agent.owners import opened

            scheduler = opened.BY_NAME[name](where, node)
            if scheduler is not None:
                found.append(scheduler)
                describe.append(scheduler.describe)
    if isinstance(source, OwnerSource):
        found.append(source)
    if "processes" in names and local:
        from gpuledger_agent.owners.processes import ProcessOwners

        found.append(DescribedOwners(ProcessOwners(), describe) if describe else ProcessOwners())
    return found
