"""The pools of the ledger for `gpuledger scale`: their decisions, and the back-test of their last
weeks in money.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, refuse
from gpuledger_collector.cli.output import Column, Row, emit, number, print_json
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.insight.demand import DEMAND_DAYS
from gpuledger_collector.insight.pool_backtest import PoolBacktest
from gpuledger_collector.services.scaling_advice import Pools, refresh_pools
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
        pools = refresh_pools(session.database, session.now_ms)
        period = f"in the last {DEMAND_DAYS} days"
        if only is not None and only not in pools.demand:
            refuse(
                f"--pool: no pool {only!r} held GPUs {period}; there are"
                f" {', '.join(pools.demand) or 'none'}"
            )
        if not pools.demand:
            refuse(f"the ledger has no usage {period}: nothing to look ahead from", FINDINGS)
        yield pools


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
