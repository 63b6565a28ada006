"""Where samples come from: nvml, dcgm, replay, simulated."""

from __future__ import annotations

from gpuledger_common.readings import Source, SourceUnavailable

NAMES = ("nvml", "dcgm", "simulated", "replay")


def open_source(
    name: str, target: str | None, *, node: str, seed: int = 7, given_back_ms: int = 0, patient: bool = True
) -> Source:
    """A source by name, not yet opened. One that is not `patient` waits a few seconds for a driver that starts, not a
    minute: its `open` is called again soon. Raises SourceUnavailable for an unknown name or a lacking target."""
    if name == "nvml":
        from gpuledger_agent.sources.nvml import IMPATIENT_S, NvmlSource

        return NvmlSource() if patient else NvmlSource(init_deadline_s=IMPATIENT_S)
    if name == "simulated":
        from gpuledger_agent.sources.simulated import Fleet, SimulatedSource

        return SimulatedSource(Fleet(seed, given_back_ms), node)
    if target is None:
        raise SourceUnavailable(f"source {name} needs --target: an address or a file")
    if name == "dcgm":
        from gpuledger_agent.sources.dcgm import DcgmSource

        return DcgmSource(target)
    if name == "replay":
        from gpuledger_agent.sources.replay import ReplaySource

        return ReplaySource(target)
    raise SourceUnavailable(f"there is no source {name!r}; choose from {', '.join(NAMES)}")
