"""The pools of the ledger for `gpuledger scale`: their decisions, and the back-test of their last
weeks in money.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, refuse
from gpuledger_collector.cli.output import Column, Row, emit, number, print_json
from gpuledger_collector.cli.session import Session, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.insight.pool_backtest import PoolBacktest, backtest_pool
from gpuledger_collector.insight.rates import GpuHourRate
from gpuledger_collector.insight.scaling.pools import (
    PoolDemand,
    ScalingDecision,
    ScalingTerms,
    decide,
)
from gpuledger_collector.jobs.advise_scaling import advise_scaling
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.capacity import scaling
from gpuledger_common.plurals import plural

COLUMNS = (
    Column("policy"),
    number("capacity"),
    number("demand", is_optional=True),
    number("wait"),
    number("wait_p95_s", "wait p95, s", is_optional=True),
    number("actions", is_optional=True),
    number("cost"),
    number("over_demand", "above demand", is_optional=True),
    Column("currency"),
)
PLACES = {"capacity": 1, "demand": 1, "wait": 2, "wait_p95_s": 0, "cost": 2, "over_demand": 2}
"""Decimal places in the table."""


@contextlib.contextmanager
def open_pools(dsn: str | None, config: Path | None, only: str | None) -> Iterator[Pools]:
    """The pools of the ledger, brought up to date; refuses a pool that it does not know."""
    with open_session(dsn, config) as session:
        end_ms = session.now_ms // HOUR_MS * HOUR_MS  # demand is read by full hours
        refresh(
            session.database, Period(end_ms - scaling.DEMAND_DAYS * DAY_MS, end_ms), session.now_ms
        )
        with session.database.connect() as connection:
            demand = {entry.pool: entry for entry in scaling.demand(connection, session.now_ms)}
            terms = scaling.terms(connection)
        period = f"in the last {scaling.DEMAND_DAYS} days"
        if only is not None and only not in demand:
            refuse(
                f"--pool: no pool {only!r} held GPUs {period}; there are"
                f" {', '.join(demand) or 'none'}"
            )
        if not demand:
            refuse(f"the ledger has no usage {period}: nothing to look ahead from", FINDINGS)
        yield Pools(session, demand, terms)


@dataclass(frozen=True)
class Pools:
    """Demand and declared terms of the pools."""

    session: Session
    demand: Mapping[str, PoolDemand]
    declared: Mapping[str, ScalingTerms]

    def terms(self, pool: str, lead_ms: int | None, limits: Mapping[str, Any]) -> ScalingTerms:
        """The pool's own terms, with other limits or lead time where they are given."""
        own = self.declared.get(pool, ScalingTerms(pool))
        return replace(own, limits=replace(own.limits, **limits), lead_ms=lead_ms or own.lead_ms)

    def rate(self, pool: str) -> GpuHourRate | None:
        """The pool's rate now."""
        with self.session.database.connect() as connection:
            return scaling.rate(connection, pool, self.session.now_ms)

    def record_decisions(self, only: str | None) -> dict[str, ScalingDecision | None]:
        """The decisions of now, made and recorded as the collector's job does."""
        return advise_scaling(self.session.database, self.session.now_ms, only)

    def try_decisions(
        self, only: str | None, lead_ms: int | None, limits: Mapping[str, Any]
    ) -> dict[str, ScalingDecision | None]:
        """The decisions under other limits; nothing is recorded, and nobody is notified."""
        return {
            name: decide(
                demand, self.terms(name, lead_ms, limits), self.session.now_ms, self.rate(name)
            )
            for name, demand in self.demand.items()
            if only in {None, name}
        }

    def backtest(self, pool: str, lead_ms: int | None, limits: Mapping[str, Any]) -> PoolBacktest:
        """The back-test of a pool's last 28 days."""
        return backtest_pool(
            self.demand[pool].series, self.terms(pool, lead_ms, limits), self.rate(pool)
        )


def print_backtest(backtest: PoolBacktest, form: options.Format) -> None:
    """Print a back-test, with the setting that it is about."""
    if form is options.Format.json:
        print_json(backtest.facts())
        return
    if form is options.Format.csv:
        emit(form, COLUMNS, backtest.rows())
        return
    limits = backtest.terms.limits
    setting = (
        f"[[pool]] name = {json.dumps(backtest.terms.pool)}: predict ="
        f" {str(limits.predict).lower()}"
    )
    if backtest.backtest is None:
        say(f"back-test: {backtest.note}")
        say(f"setting: {setting}")
        return
    days = plural(backtest.backtest.judged_days, "day")
    lead = f"{backtest.terms.lead_ms / 60_000:g} min from order to GPU"
    cap = f"capacity at most {limits.cost_cap:g} x demand"
    say(f"{backtest.terms.pool}: the last {days}, {lead}, {cap}; GPU-hours")
    footer = [
        (
            f"gpuledger looked ahead on {backtest.backtest.predictive_days} of {days}, "
            "else it ran the tuned reactive setting"
        ),
        f"setting: {setting}, mode = {json.dumps(backtest.terms.mode)}",
    ]
    emit(form, COLUMNS, [_table_row(row) for row in backtest.rows()], footer)


def _table_row(row: Row) -> Row:
    """A policy with its numbers as text."""
    return {
        name: (
            value
            if name not in PLACES
            else "unpriced"
            if value is None
            else f"{value:,.{PLACES[name]}f}"
        )
        for name, value in row.items()
    }
