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
from gpuledger_collector.cli.output import emit_report, print_json
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.scaling import PRICED_POLICIES, SHOWN_POLICIES
from gpuledger_collector.insight.demand import DEMAND_DAYS
from gpuledger_collector.insight.pool_backtest import PoolBacktest
from gpuledger_collector.services.scaling_advice import Pools, refresh_pools
from gpuledger_common.plurals import plural


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
        emit_report(form, PRICED_POLICIES, backtest.policies())
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
    emit_report(form, SHOWN_POLICIES, backtest.policies(), footer)
