"""Who holds an accelerator: static rules, processes, and what a source itself knows (dcgm, replay, simulated)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuledger_agent.readings import OwnerSource, Source


def open_owners(names: Sequence[str], rules_file: Path | None, node: str, source: Source) -> list[OwnerSource]:
    """The owner sources by name, first word wins; a source that knows holders itself comes before the processes.

    Raises AgentError naming file and place for a rules file that cannot be used.
    """
    found: list[OwnerSource] = []
    if "static" in names and rules_file is not None:
        from gpuledger_agent.owners.static import StaticOwners

        found.append(StaticOwners.from_file(rules_file, node))
    if isinstance(source, OwnerSource):
        found.append(source)
    if "processes" in names and source.name == "nvml":  # the pids of any other source are not of this machine
        from gpuledger_agent.owners.processes import ProcessOwners

        found.append(ProcessOwners())
    return found
