"""Sources of owners: rules, jobs, pods, containers, processes, and what a source itself knows
(dcgm, replay).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuledger_common.readings import OwnerSource, Source, Workload

if TYPE_CHECKING:
    from gpuledger_agent.settings import Settings


def open_owners(settings: Settings, source: Source) -> list[OwnerSource]:
    """Open the owner sources in the order of the setting `owners`; the first that knows a holder
    wins.

    Owners that the source itself knows come after them. Processes show use, not allocation, and so
    come last wherever they are listed. Raises SettingsError for a rules file that cannot be used.
    """
    owners: list[OwnerSource] = []
    describers: list[Callable[[Workload], Workload]] = []
    names = settings.owner_sources
    # Jobs, pods and processes are of this machine; those of any other source are not.
    local = source.name == "nvml"
    for name in names:
        if name == "static" and settings.owner_rules_file is not None:
            from gpuledger_agent.owners.static import StaticOwners

            owners.append(StaticOwners.from_file(settings.owner_rules_file, settings.node_name))
        elif name == "slurm" and local:
            from gpuledger_agent.owners.slurm import slurm_owners

            jobs = slurm_owners(settings)
            if jobs is not None:
                owners.append(jobs)
        elif name in {"kubernetes", "containers"} and local:
            from gpuledger_agent.owners import discovery

            scheduler = discovery.BY_NAME[name](settings)
            if scheduler is not None:
                owners.append(scheduler)
                describers.append(scheduler.describe)
    if isinstance(source, OwnerSource):  # dcgm, replay and simulated know the holders themselves
        owners.append(source)
    if "processes" in names and local:
        from gpuledger_agent.owners.processes import ProcessOwners

        owners.append(ProcessOwners(describers=describers))
    return owners
