"""The pools of the ledger for `gpuledger scale`: their decisions, and the back-test of their last weeks in money."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger_collector.cli.common import FINDINGS, database, refuse
from gpuledger_collector.cli.terminal import print_table, say
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from gpuledger_collector.insight.pool_backtest import PoolBacktest
    from gpuledger_collector.insight.rates import GpuHourRate
    from gpuledger_collector.insight.scaling.pools import PoolDemand, ScalingDecision, ScalingTerms
    from gpuledger_collector.storage.database import Database


@contextlib.contextmanager
def pools(dsn: str | None, config: Path | None, only: str | None) -> Iterator[Pools]:
    """The pools of the ledger, brought up to date; refuses a pool that it does not know."""
    from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
    from gpuledger_collector.services.refresh import refresh
    from gpuledger_collector.storage.capacity import scaling
    from gpuledger_collector.wiring import now

    now_ms = round(now().timestamp() * 1000)
    end_ms = now_ms // HOUR_MS * HOUR_MS
    with database(dsn, config) as opened:
        refresh(opened, Period(end_ms - scaling.DEMAND_DAYS * DAY_MS, end_ms), now_ms)
        with opened.engine.connect() as connection:
            demand = {one.pool: one for one in scaling.demand(connection, now_ms)}
            terms = scaling.terms(connection)
        if only is not None and only not in demand:
            there = ", ".join(demand) or "none"
            refuse(f"--pool: no pool {only!r} held GPUs in the last {scaling.DEMAND_DAYS} days; there are {there}")
        if not demand:
            refuse(
                f"the ledger has no usage in the last {scaling.DEMAND_DAYS} days: nothing to look ahead from", FINDINGS
            )
        yield Pools(opened, now_ms, demand, terms)


@dataclass(frozen=True)
class Pools:
    """Demand and terms of the pools, over an open database."""

    opened: Database
    now_ms: int
    demand: Mapping[str, PoolDemand]
    declared: Mapping[str, ScalingTerms]

    def terms(self, pool: str, lead_ms: int | None, changes: Mapping[str, Any]) -> ScalingTerms:
        """What a pool allows, with what was asked for otherwise."""
        from gpuledger_collector.insight.scaling.pools import ScalingTerms

        own = self.declared.get(pool, ScalingTerms(pool))
        return replace(own, limits=replace(own.limits, **changes), lead_ms=lead_ms or own.lead_ms)

    def rate(self, pool: str) -> GpuHourRate | None:
        """The pool's rate now."""
        from gpuledger_collector.storage.capacity import scaling

        with self.opened.engine.connect() as connection:
            return scaling.rate(connection, pool, self.now_ms)

    def recorded(self, only: str | None) -> dict[str, ScalingDecision | None]:
        """The decisions of now, made and recorded as the collector's job does."""
        from gpuledger_collector.jobs.advise_scaling import advise_scaling
        from gpuledger_collector.storage.capacity.scaling import ScalingStore

        return advise_scaling(ScalingStore(lambda: self.opened.engine), self.now_ms, only)

    def tried(
        self, only: str | None, lead_ms: int | None, changes: Mapping[str, Any]
    ) -> dict[str, ScalingDecision | None]:
        """What would be decided under other limits; nothing is recorded, and nobody is told."""
        from gpuledger_collector.insight.scaling.pools import decide

        return {
            name: decide(demand, self.terms(name, lead_ms, changes), self.now_ms, self.rate(name))
            for name, demand in self.demand.items()
            if only in {None, name}
        }

    def month(self, pool: str, lead_ms: int | None, changes: Mapping[str, Any]) -> PoolBacktest:
        """The back-test of a pool's last 28 days."""
        from gpuledger_collector.insight import pool_backtest

        return pool_backtest.backtest_pool(
            self.demand[pool].series, self.terms(pool, lead_ms, changes), self.rate(pool)
        )


def emit(month: PoolBacktest, shape: str) -> None:
    """Print a back-test."""
    from gpuledger_collector.insight.pool_backtest import COLUMNS

    if shape == "json":
        print(json.dumps(month.facts(), indent=2))
    elif shape == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row[name] for name in COLUMNS] for row in month.rows())
    else:
        show(month)


def show(month: PoolBacktest) -> None:
    """As a table, and the setting beside it."""
    from gpuledger_collector.export.tables import Table

    limits = month.terms.limits
    setting = f"[[pool]] name = {json.dumps(month.terms.pool)}: predict = {str(limits.predict).lower()}"
    if month.backtest is None:
        say(f"back-test: {month.note}")
        say(f"setting: {setting}")
        return
    rate = month.rate
    table = Table(
        "policy",
        "capacity",
        "demand",
        "wait",
        "wait p95",
        "actions",
        f"cost {rate.currency if rate else ''}",
        "above demand",
        box=None,
        header_style="bold",
        padding=(0, 2, 0, 0),
    )
    for row in month.rows():
        money = ["unpriced" if row[name] is None else f"{row[name]:,.2f}" for name in ("cost", "over_demand")]
        table.add_row(
            str(row["policy"]),
            *(f"{row[name]:,.1f}" for name in ("capacity", "demand")),
            f"{row['wait']:,.2f}",
            f"{row['wait_p95_s']:.0f} s",
            str(row["actions"]),
            *money,
        )
    lead = f"{month.terms.lead_ms / 60_000:g} min from order to GPU"
    say(
        f"{month.terms.pool}: the last {plural(month.backtest.judged_days, 'day')}, {lead}, capacity at most "
        f"{limits.cost_cap:g} x demand; GPU-hours"
    )
    print_table(table, 160)
    print(
        f"gpuledger looked ahead on {month.backtest.predictive_days} of {plural(month.backtest.judged_days, 'day')}, "
        "else it ran plain headroom"
    )
    print(f"setting: {setting}, mode = {json.dumps(month.terms.mode)}")
