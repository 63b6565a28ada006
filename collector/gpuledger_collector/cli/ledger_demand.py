"""Demand series straight from the ledger, for the commands that forecast and advise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger_collector.cli.common import database, refuse

if TYPE_CHECKING:
    from gpuledger_collector.cli.series_files import Read
    from gpuledger_collector.insight.forecast import Workloads
    from gpuledger_collector.insight.series import Ints

HOUR_MS = 3_600_000
DAYS = 56
"""How far back the ledger is read by the hour: as much as the estimators use."""
FINE_DAYS = 14
"""How far back usage intervals are read for shorter steps, as far as they are kept."""


def with_lives(
    dsn: str | None, config: Path | None, group: str, only: str | None, step_ms: int = HOUR_MS
) -> tuple[Read, Mapping[str, Workloads]]:
    """GPUs held and queued per pool, model or owner over the last weeks, up to the last full step, and the workloads
    behind it by the name of its series; `only` picks one by name.
    """
    from gpuledger_collector.accounting.period import Period
    from gpuledger_collector.cli.series_files import Read
    from gpuledger_collector.services.refresh import refresh
    from gpuledger_collector.storage.capacity.demand import demand, lives
    from gpuledger_collector.wiring import now

    now_ms = round(now().timestamp() * 1000)
    days = DAYS if step_ms == HOUR_MS else FINE_DAYS
    end_ms = now_ms // step_ms * step_ms
    start_ms = end_ms - days * 24 * HOUR_MS
    with database(dsn, config) as opened:
        refresh(opened, Period(start_ms // HOUR_MS * HOUR_MS, end_ms), now_ms)
        with opened.engine.connect() as connection:
            found = demand(connection, start_ms, end_ms, group, step_ms)
            behind = lives(connection, end_ms - DAYS * 24 * HOUR_MS, end_ms, group)
    names = [one.name for one in found]
    if only is not None and only not in names:
        there = ", ".join(filter(None, names)) or "none"
        refuse(f"--{group}: no {group} {only!r} held GPUs in the last {days} days; there are {there}")
    if not found:
        refuse(f"the ledger has no usage in the last {days} days: nothing to look ahead from", 1)
    return Read([one for one in found if only in {None, one.name}], written), behind


def written(at_ms: Ints) -> list[str]:
    """Instants as RFC 3339."""
    from gpuledger_collector.accounting.period import format_instant

    return [format_instant(int(at)) for at in at_ms]
