"""Demand series straight from the ledger, for the commands that forecast and advise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuledger_collector.cli.common import database, refuse

if TYPE_CHECKING:
    from gpuledger_collector.cli.series_files import Read
    from gpuledger_collector.insight.series import Ints

HOUR_MS = 3_600_000
DAYS = 56
"""How far back the ledger is read: as much as the estimators use."""


def from_ledger(dsn: str | None, config: Path | None, group: Literal["pool", "model"], only: str | None) -> Read:
    """Hourly GPUs held per pool or model over the last weeks, up to the last full hour; `only` picks one by name."""
    from gpuledger_collector.accounting.period import Period
    from gpuledger_collector.cli.series_files import Read
    from gpuledger_collector.insight.demand import hourly
    from gpuledger_collector.jobs.bring_up_to_date import bring_up_to_date
    from gpuledger_collector.storage.demand import evidence
    from gpuledger_collector.storage.ledgers import Ledger
    from gpuledger_collector.wiring import now

    now_ms = round(now().timestamp() * 1000)
    end_ms = now_ms // HOUR_MS * HOUR_MS
    start_ms = end_ms - DAYS * 24 * HOUR_MS
    with database(dsn, config) as opened:
        bring_up_to_date(Ledger(opened.dsn), Period(start_ms, end_ms), now_ms)
        with opened.engine.connect() as connection:
            found = hourly(start_ms, end_ms, *evidence(connection, start_ms, end_ms, group))
    names = [one.name for one in found]
    if only is not None and only not in names:
        refuse(f"--pool: no pool {only!r} held GPUs in the last {DAYS} days; there are {', '.join(names) or 'none'}")
    if not found:
        refuse(f"the ledger has no usage in the last {DAYS} days: nothing to look ahead from", 1)
    return Read([one for one in found if only in {None, one.name}], written)


def written(at_ms: Ints) -> list[str]:
    """Instants as RFC 3339."""
    from gpuledger_collector.accounting.period import format_instant

    return [format_instant(int(at)) for at in at_ms]
