"""What teams held of their shares of pools in a period, from the five-minute series of rated days."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.fair_share import (
    STEP_MS,
    PoolShare,
    PoolStep,
    ShareUse,
    share_use,
)
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.billing import declarations, periods
from gpuledger_collector.storage.capacity import queues
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection, Lock

USABLE = ("held", "unallocated")
"""States in which a GPU could be held: their sum is the capacity that is shared."""


def roll_up_period(database: Database, period: Period) -> None:
    """Roll up the days of the period that were rated since, as the collector's job does, if any
    team has a share.

    A read replica has them as its primary rolled them up.
    """
    if database.standby:
        return
    with database.connect() as connection:
        if not shares_of(connection, period)[0]:
            return
        from gpuledger_collector.storage.telemetry import series  # numpy takes a tenth of a second

        days = [
            day
            for day in series.days_to_roll_up(connection, period.start_ms)
            if day < period.end_ms
        ]
    for day_ms in days:
        with database.transaction(Lock.SERIES) as connection:
            series.roll_up_day(connection, zones.calendar(connection).day_of(day_ms))


def shares_of(connection: Connection, period: Period) -> tuple[list[PoolShare], list[str]]:
    """The shares on the days of a period, of a closed month as declared at its close.

    Closed months that had none then have those of today, and are named.
    """
    calendar = zones.calendar(connection)
    shares: list[PoolShare] = []
    today: list[str] = []
    for name, closed_ms in periods.declarations_at(connection, calendar, period).items():
        declared = declarations.POOL_SHARES.in_force(connection, closed_ms)
        if not declared and closed_ms is not None:
            declared = declarations.POOL_SHARES.in_force(connection)
            today += [name] if declared else []
        month = calendar.month(name)
        shares += _clip_shares(
            declared, calendar.date_of(month.start_ms), calendar.date_of(month.end_ms)
        )
    return shares, today


def _clip_shares(
    shares: Sequence[PoolShare], from_on: dt.date, to_on: dt.date
) -> Iterator[PoolShare]:
    """Shares on days between two dates only."""
    for share in shares:
        first, end = max(share.from_on or from_on, from_on), min(share.to_on or to_on, to_on)
        if first < end:
            yield replace(share, from_on=first, to_on=end)


@dataclass(frozen=True, slots=True)
class SharesAnswer:
    """What teams had of their shares of pools, and what the comparison leaves out, in sentences."""

    uses: Sequence[ShareUse]
    notes: Sequence[str]


def compare_shares(database: Database, period: Period) -> SharesAnswer:
    """Bring the series of a rated period up to date, and compare what teams held in it with their
    shares.
    """
    roll_up_period(database, period)
    with database.transaction(read_only=True) as connection:
        uses, notes = read_share_use(connection, period), _share_notes(connection, period)
    if not uses:
        notes.append(
            "no team has a share of a pool; declare [[share]] tables, or run gpuledger import"
            " shares FILE --pool POOL"
        )
    return SharesAnswer(uses, notes)


def read_share_use(connection: Connection, period: Period) -> list[ShareUse]:
    """What each team held, lent and borrowed in pools of which somebody has a share; empty without
    any share.
    """
    shares, _ = shares_of(connection, period)
    if not shares:
        return []
    return share_use(_steps(connection, period, shares), shares, zones.calendar(connection))


def _share_notes(connection: Connection, period: Period) -> list[str]:
    """Sentences on what the comparison leaves out."""
    shares, today = shares_of(connection, period)
    counted = queues.pools_with_capacity(connection, period)
    unknown = sorted(
        {share.pool for share in shares if share.fraction is not None and share.pool not in counted}
    )
    notes = [
        f"pool {pool} has no GPU in the inventory: a fraction of it is not known, so give its teams"
        " a number of gpus"
        for pool in unknown
    ]
    notes += [
        f"{name} has shares as declared today: none was declared when it was closed"
        for name in today
    ]
    if shares:
        from gpuledger_collector.storage.telemetry import series  # numpy takes a tenth of a second

        known = series.known_steps(connection, period, STEP_MS)
        if missing := int((~known).sum()):
            hours = missing * STEP_MS / 3_600_000
            notes.append(
                f"{hours:,.1f} hours of this period are not rated, or too old for five-minute"
                " series: left out"
            )
    return notes


def _steps(
    connection: Connection, period: Period, shares: Sequence[PoolShare]
) -> Iterator[PoolStep]:
    # numpy takes a tenth of a second
    from gpuledger_collector.insight.owner_series import UNKNOWN
    from gpuledger_collector.storage.telemetry import series

    pools = {share.pool for share in shares}
    counted = queues.pools_with_capacity(connection, period)
    waiting = queues.waiting_by_team(connection, period, STEP_MS)
    time_ns: dict[tuple[str, int], int] = defaultdict(int)
    held: dict[tuple[str, int], dict[str, tuple[int, dict[str, int]]]] = defaultdict(dict)
    for one in series.read(
        connection,
        period,
        STEP_MS,
        ("pool", "state", "team"),
        states=USABLE,
        measures=("gpu_ns", "cost_micro"),
    ):
        pool, state, team = one.key
        if pool not in pools:
            continue
        ns, micro = one.values["gpu_ns"].tolist(), one.values["cost_micro"].tolist()
        for at, spent_ns in enumerate(ns):
            if not spent_ns:
                continue
            time_ns[pool, at] += spent_ns
            if state == "held":
                before_ns, costs = held[pool, at].get(team or UNATTRIBUTED, (0, {}))
                if one.currency is not None and micro[at] != UNKNOWN:
                    costs = {**costs, one.currency: costs.get(one.currency, 0) + micro[at]}
                held[pool, at][team or UNATTRIBUTED] = before_ns + spent_ns, costs
    for pool, at in sorted(time_ns):
        at_ms = period.start_ms + at * STEP_MS
        yield PoolStep(
            at_ms=at_ms,
            pool=pool,
            capacity_ns=time_ns[pool, at] if pool in counted else None,
            held=held[pool, at],
            waiting=_waiting(waiting, at_ms, pool),
        )


def _waiting(
    waiting: Mapping[int, Mapping[tuple[str, str], int]], at_ms: int, pool: str
) -> Mapping[str, int] | None:
    if at_ms not in waiting:
        return None
    return {
        team or UNATTRIBUTED: micro
        for (place, team), micro in waiting[at_ms].items()
        if place == pool
    }
