"""What owners and pools held over time, as a viewer may see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.insight.owner_series import SeriesOverTime
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer
from gpuledger_collector.storage.telemetry import series


def read_series(
    connection: Connection,
    period: Period,
    step_ms: int,
    by: Sequence[str],
    viewer: Mapping[str, str] | None,
    state: str,
) -> SeriesOverTime:
    """Time in a state by whole steps and names of GROUPS; of a viewer's subtree, whose levels are
    those of OWNER_LEVELS.
    """
    with as_viewer(connection, viewer):
        items = series.read(connection, period, step_ms, by, viewer, (state,))
        known = series.known_steps(connection, period, step_ms)
    return SeriesOverTime(items, known.tolist())
