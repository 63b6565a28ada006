"""Sources of samples: nvml, exporter (dcgm), simulated, replay."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from gpuledger_common.readings import Source, SourceUnavailable

if TYPE_CHECKING:
    from gpuledger_agent.settings import Settings

SOURCES = ("nvml", "exporter", "dcgm", "simulated", "replay")


def require_fleet() -> None:
    """Raise SourceUnavailable in a package for nodes, which leaves the simulated fleet out."""
    if find_spec("gpuledger_agent.sources.fleet") is None:
        raise SourceUnavailable(
            "the simulated fleet is not part of the packages for nodes: the gpuledger-agent of the"
            " wheel has it (./dev wheel in the repository builds it)"
        )


def open_source(settings: Settings, patient: bool = True) -> Source:
    """Create the source that the settings name; its `open` is not called yet.

    One that is not `patient` waits a few seconds, not a minute, for a driver that starts: its
    `open` is retried soon. Raises SourceUnavailable for an unknown name or a missing target.
    """
    name = settings.source
    if name == "nvml":
        from gpuledger_agent.sources.nvml import IMPATIENT_S, NvmlSource

        return NvmlSource() if patient else NvmlSource(init_deadline_s=IMPATIENT_S)
    if name == "simulated":
        require_fleet()
        from gpuledger_agent.sources.simulated import Fleet, SimulatedSource

        return SimulatedSource(Fleet(settings.seed, settings.given_back_ms), settings.node_name)
    if name not in SOURCES:
        raise SourceUnavailable(f"there is no source {name!r}; choose from {', '.join(SOURCES)}")
    if not settings.target:
        raise SourceUnavailable(f"source {name} needs --target: an address or a file")
    if name in {"exporter", "dcgm"}:
        from gpuledger_agent.sources.exporter import ExporterSource

        # `dcgm` is a way to say which profile is meant.
        profile = "dcgm-exporter" if name == "dcgm" else settings.profile
        return ExporterSource(settings.target, profile, settings.node_name, name)
    from gpuledger_agent.sources.replay import ReplaySource

    return ReplaySource(settings.target)
