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

if TYPE_CHECKING:
    from gpuledger_collector.insight.backtest import Backtest
    from gpuledger_collector.insight.scaling.pools import Decision, Demand, Rate, Terms
    from gpuledger_collector.wiring import Database

JUDGED_DAYS = 28
HISTORY_DAYS = 10
SHOWN = ("static-peak", "hpa-default", "reactive-plain", "reactive-tuned", "gpuledger", "oracle")
COLUMNS = ("policy", "capacity", "demand", "wait", "wait_p95_s", "actions", "cost", "over_demand", "currency")


@contextlib.contextmanager
def pools(dsn: str | None, config: Path | None, only: str | None) -> Iterator[Pools]:
    """The pools of the ledger, brought up to date; refuses a pool that it does not know."""
    from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
    from gpuledger_collector.jobs.bring_up_to_date import bring_up_to_date
    from gpuledger_collector.storage import scaling
    from gpuledger_collector.storage.ledgers import Ledger
    from gpuledger_collector.wiring import now

    now_ms = round(now().timestamp() * 1000)
    end_ms = now_ms // HOUR_MS * HOUR_MS
    with database(dsn, config) as opened:
        bring_up_to_date(Ledger(opened.dsn), Period(end_ms - scaling.DEMAND_DAYS * DAY_MS, end_ms), now_ms)
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
    demand: Mapping[str, Demand]
    declared: Mapping[str, Terms]

    def terms(self, pool: str, lead_ms: int | None, changes: Mapping[str, Any]) -> Terms:
        """What a pool allows, with what was asked for otherwise."""
        from gpuledger_collector.insight.scaling.pools import Terms

        own = self.declared.get(pool, Terms(pool))
        return replace(own, limits=replace(own.limits, **changes), lead_ms=lead_ms or own.lead_ms)

    def rate(self, pool: str) -> Rate | None:
        """The pool's rate now."""
        from gpuledger_collector.storage import scaling

        with self.opened.engine.connect() as connection:
            return scaling.rate(connection, pool, self.now_ms)

    def recorded(self, only: str | None) -> dict[str, Decision | None]:
        """The decisions of now, made and recorded as the collector's job does."""
        from gpuledger_collector.jobs.advise_scaling import advise_scaling
        from gpuledger_collector.storage.scaling import ScalingStore

        return advise_scaling(ScalingStore(lambda: self.opened.engine), self.now_ms, only)

    def tried(self, only: str | None, lead_ms: int | None, changes: Mapping[str, Any]) -> dict[str, Decision | None]:
        """What would be decided under other limits; nothing is recorded, and nobody is told."""
        from gpuledger_collector.insight.scaling.pools import decide

        return {
            name: decide(demand, self.terms(name, lead_ms, changes), self.now_ms, self.rate(name))
            for name, demand in self.demand.items()
            if only in {None, name}
        }

    def month(self, pool: str, lead_ms: int | None, changes: Mapping[str, Any]) -> Month:
        """The back-test of a pool's last 28 days, or of as many as there are after ten days of history."""
        from gpuledger_collector.insight.backtest import Question, TooShort, backtest_scaling
        from gpuledger_collector.insight.series import Series

        terms, series = self.terms(pool, lead_ms, changes), self.demand[pool].series
        wanted = (JUDGED_DAYS + HISTORY_DAYS) * 86_400_000 // series.step_ms
        skipped = max(0, len(series.values) - wanted)
        last = Series(pool, series.start_ms + skipped * series.step_ms, series.step_ms, series.values[skipped:])
        node = terms.limits.node_gpus
        done, short = None, ""
        try:
            done = backtest_scaling(last, Question(terms.lead_ms, terms.limits.cost_cap, 0.0 if node == 1 else node))
        except TooShort as error:
            short = str(error)
        return Month(terms, done, short, self.rate(pool))


@dataclass(frozen=True)
class Month:
    """A back-test of a pool in money. `done` is None where there is too little to judge, and `short` says so."""

    terms: Terms
    done: Backtest | None
    short: str
    rate: Rate | None

    def rows(self) -> list[dict[str, object]]:
        """One row per policy: GPU-hours, and capacity and what stood by above demand in money, None without a rate."""
        found = []
        for verdict in self.done.verdicts if self.done else ():
            if verdict.policy in SHOWN:
                one = verdict.outcome
                row = {name: value for name, value in verdict.row().items() if name in COLUMNS}
                money = {"cost": self._money(one.capacity), "over_demand": self._money(one.capacity - one.demand)}
                found.append({**row, **money, "currency": self.rate.currency if self.rate else None})
        return found

    def facts(self) -> dict[str, object]:
        """Everything as JSON."""
        ahead, days = (self.done.predictive_days, self.done.judged_days) if self.done else (0, 0)
        return {
            "pool": self.terms.pool, "lead_s": self.terms.lead_ms // 1000, "cost_cap": self.terms.limits.cost_cap,
            "predict": self.terms.limits.predict, "mode": self.terms.mode, "judged_days": days,
            "predictive_days": ahead, "note": self.short, "policies": self.rows(),
        }  # fmt: skip

    def _money(self, gpu_hours: float) -> float | None:
        from gpuledger_collector.insight.scaling.pools import money_micro

        micro = money_micro(gpu_hours * 3600, self.rate)
        return None if micro is None else round(micro / 1_000_000, 2)

    def emit(self, shape: str) -> None:
        """Print it."""
        if shape == "json":
            print(json.dumps(self.facts(), indent=2))
        elif shape == "csv":
            from gpuledger_collector.export.cells import harmless

            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(harmless(row[name] for name in COLUMNS) for row in self.rows())
        else:
            self.show()

    def show(self) -> None:
        """As a table, and the setting beside it."""
        from rich.console import Console
        from rich.table import Table

        limits = self.terms.limits
        setting = f"[[pool]] name = {json.dumps(self.terms.pool)}: predict = {str(limits.predict).lower()}"
        if self.done is None:
            print(f"back-test: {self.short}\nsetting: {setting}")
            return
        rate = self.rate
        table = Table("policy", "capacity", "demand", "wait", "wait p95", "actions",
                      f"cost {rate.currency if rate else ''}", "above demand",
                      box=None, header_style="bold", padding=(0, 2, 0, 0))  # fmt: skip
        for row in self.rows():
            money = ["unpriced" if row[name] is None else f"{row[name]:,.2f}" for name in ("cost", "over_demand")]
            table.add_row(str(row["policy"]), *(f"{row[name]:,.1f}" for name in ("capacity", "demand")),
                          f"{row['wait']:,.2f}", f"{row['wait_p95_s']:.0f} s", str(row["actions"]), *money)  # fmt: skip
        lead = f"{self.terms.lead_ms / 60_000:g} min from order to GPU"
        print(f"{self.terms.pool}: the last {self.done.judged_days} days, {lead}, capacity at most "
              f"{limits.cost_cap:g} x demand; GPU-hours")  # fmt: skip
        Console(width=None if sys.stdout.isatty() else 160).print(table)
        print(f"gpuledger looked ahead on {self.done.predictive_days} of {self.done.judged_days} days, "
              "else it ran plain headroom")  # fmt: skip
        print(f"setting: {setting}, mode = {json.dumps(self.terms.mode)}")
