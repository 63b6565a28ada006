"""Who holds an accelerator: rules, jobs, pods, containers, processes, what a source itself knows (dcgm, replay)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gpuledger_agent.owners.described import DescribedOwners
from gpuledger_agent.owners.places import Places
from gpuledger_agent.readings import OwnerSource, Source, Workload


def open_owners(
    names: Sequence[str], rules_file: Path | None, node: str, source: Source, places: Places | None = None
) -> list[OwnerSource]:
    """The owner sources by name, first word wins; a source that knows holders itself comes before the processes.

    Raises AgentError naming file and place for a rules file that cannot be used.
    """
    found: list[OwnerSource] = []
    if "static" in names and rules_file is not None:
        from gpuledger_agent.owners.static import StaticOwners

        found.append(StaticOwners.from_file(rules_file, node))
    if "slurm" in names and source.name == "nvml":  # jobs are of this machine
        from gpuledger_agent.owners.slurm import slurm_owners

        jobs = slurm_owners(places or Places())
        if jobs is not None:
            found.append(jobs)
    if isinstance(source, OwnerSource):
        found.append(source)
    describe: list[Callable[[Workload], Workload]] = []
    if source.name == "nvml":  # and so are pods and containers
        from gpuledger_agent.owners import opened

        for name in ("kubernetes", "containers"):
            scheduler = opened.BY_NAME[name](places or Places(), node) if name in names else None
            if scheduler is not None:
                found.append(scheduler)
                describe.append(scheduler.describe)
    if "processes" in names and source.name == "nvml":  # the pids of any other source are not of this machine
        from gpuledger_agent.owners.processes import ProcessOwners

        found.append(DescribedOwners(ProcessOwners(), describe) if describe else ProcessOwners())
    return found
