"""Demand series straight from the ledger, for the commands that forecast and advise."""

from __future__ import annotations

from pathlib import Path

from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_collector.cli.common import FINDINGS, refuse
from gpuledger_collector.cli.series_file import SeriesFile
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.insight.series import Ints
from gpuledger_collector.services.forecasts import days_of_demand, refresh_demand


def read_demand(
    dsn: str | None, config: Path | None, group: str, only: str | None, step_ms: int = HOUR_MS
) -> SeriesFile:
    """GPUs held and queued per pool, model or owner over the last weeks, up to the last full step.

    `only` picks one series.
    """
    days = days_of_demand(step_ms)
    with open_session(dsn, config) as session:
        series = refresh_demand(session.database, session.now_ms, group, step_ms)
    names = [entry.name for entry in series]
    if only is not None and only not in names:
        known = ", ".join(filter(None, names)) or "none"
        refuse(
            f"--{group}: no {group} {only!r} held GPUs in the last {days} days; there are {known}"
        )
    if not series:
        refuse(
            f"the ledger has no usage in the last {days} days: nothing to look ahead from", FINDINGS
        )
    return SeriesFile([entry for entry in series if only in {None, entry.name}], write_instants)


def write_instants(at_ms: Ints) -> list[str]:
    """Instants as RFC 3339."""
    return [format_instant(int(at)) for at in at_ms]
