"""Fair share: what teams held of their share of a pool, and what they lent and borrowed, step by
step.

A share is a fraction of the pool's capacity or a number of GPUs, dated. In each step of five
minutes the share of a team is compared with what it held. What it held beyond is taken first from
capacity that is nobody's share; the rest is borrowed from teams that held less than theirs, and
lent by them in proportion to what each left unused. So lent and borrowed are equal in every step,
in time and in money, which is the borrowers' own charge for that time.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import Calendar, DatedDays
from gpuledger_common.largest_remainder import split

STEP_MS = 300_000
STEP_NS = STEP_MS * 1_000_000
MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class PoolShare(DatedDays):
    """A team's share of a pool: `fraction` of its capacity, or `gpus`.

    Dates are days of the bill; `to_on` is not included. `read_from` is empty for a declared share,
    else where it was read from.
    """

    team: str
    pool: str
    fraction: Decimal | None = None
    gpus: int | None = None
    from_on: dt.date | None = None
    to_on: dt.date | None = None
    read_from: str = ""


@dataclass(frozen=True, slots=True)
class PoolStep:
    """A pool in five minutes. `capacity_ns`: time that could be held; None: nothing reports it.

    `held`: nanoseconds and micro-units by team. `waiting`: GPUs that they wait for, in millionths;
    None: not read.
    """

    at_ms: int
    pool: str
    capacity_ns: int | None
    held: Mapping[str, tuple[int, Mapping[str, int]]]
    waiting: Mapping[str, int] | None = None


@dataclass(slots=True)
class ShareUse:
    """What a team had of its share of a pool.

    Times are GPU-nanoseconds, costs micro-units by currency.

    `waited_ns`: time that it lent while its own jobs waited; None where no queue was read.
    `lent_micro` is what borrowers were charged for the time that they had from this team.
    """

    team: str
    pool: str
    share_ns: int = 0
    held_ns: int = 0
    within_ns: int = 0
    lent_ns: int = 0
    borrowed_ns: int = 0
    waited_ns: int | None = None
    lent_micro: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    borrowed_micro: dict[str, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(frozen=True, slots=True)
class ShareLine:
    """What a team had of its share of a pool, with the costs of one currency; times are on the
    first line of a team alone.
    """

    use: ShareUse
    lent: Money | None = None
    borrowed: Money | None = None
    has_times: bool = True


def list_lines(uses: Iterable[ShareUse]) -> Iterator[ShareLine]:
    """A line for each pool and team, with a further one for each further currency."""
    for use in uses:
        currencies = sorted(use.lent_micro.keys() | use.borrowed_micro.keys())
        if not currencies:
            yield ShareLine(use)
        for currency in currencies:
            lent, borrowed = (
                Money(micro.get(currency, 0), currency)
                for micro in (use.lent_micro, use.borrowed_micro)
            )
            yield ShareLine(use, lent, borrowed, currency == currencies[0])


def share_use(
    steps: Iterable[PoolStep], shares: Sequence[PoolShare], calendar: Calendar
) -> list[ShareUse]:
    """Sum what teams held, lent and borrowed, by pool and team; only of pools in which somebody has
    a share.

    Where shares of a step exceed the pool's capacity, each counts for its proportion of it.
    """
    uses: dict[tuple[str, str], ShareUse] = {}
    in_force: dict[tuple[int, str], Sequence[PoolShare]] = {}
    for step in steps:
        day = calendar.day_of(step.at_ms).start_ms
        if (day, step.pool) not in in_force:
            date = calendar.date_of(day)
            in_force[day, step.pool] = [
                share for share in shares if share.pool == step.pool and share.holds_on(date)
            ]
        entitled = _entitlements(in_force[day, step.pool], step.capacity_ns)
        if entitled:
            _add_step(uses, step, entitled)
    return [uses[key] for key in sorted(uses)]


def _entitlements(shares: Sequence[PoolShare], capacity_ns: int | None) -> dict[str, int]:
    """Each team's share of a step, in GPU-nanoseconds; together at most the capacity.

    A fraction of an unknown capacity is left out.
    """
    wanted: dict[str, int] = defaultdict(int)
    for share in shares:
        if share.fraction is None:
            wanted[share.team] += (share.gpus or 0) * STEP_NS
        elif capacity_ns is not None:
            wanted[share.team] += int(share.fraction * MICRO) * capacity_ns // MICRO
    if capacity_ns is not None and sum(wanted.values()) > capacity_ns:
        return dict(zip(wanted, split(capacity_ns, list(wanted.values())), strict=True))
    return dict(wanted)


def _add_step(
    uses: dict[tuple[str, str], ShareUse], step: PoolStep, entitled: Mapping[str, int]
) -> None:
    teams = sorted(entitled.keys() | step.held.keys())
    held = {team: step.held.get(team, (0, {}))[0] for team in teams}
    over = [max(held[team] - entitled.get(team, 0), 0) for team in teams]
    under = [max(entitled.get(team, 0) - held[team], 0) for team in teams]
    nobodys_ns = (
        0 if step.capacity_ns is None else max(step.capacity_ns - sum(entitled.values()), 0)
    )
    # More can be held than was there only where evidence overlaps; nobody lends what did not exist.
    moved_ns = min(max(sum(over) - nobodys_ns, 0), sum(under))
    borrowed = split(moved_ns, over) if moved_ns else [0] * len(teams)
    lent = split(moved_ns, under) if moved_ns else [0] * len(teams)
    moved_micro: dict[str, int] = defaultdict(int)
    for team, borrowed_ns in zip(teams, borrowed, strict=True):
        use = uses.setdefault((step.pool, team), ShareUse(team, step.pool))
        use.share_ns += entitled.get(team, 0)
        use.held_ns += held[team]
        use.within_ns += min(held[team], entitled.get(team, 0))
        use.borrowed_ns += borrowed_ns
        if borrowed_ns:
            for currency, micro in step.held[team][1].items():
                part = micro * borrowed_ns // held[team]
                use.borrowed_micro[currency] += part
                moved_micro[currency] += part
    for at, team in enumerate(teams):
        use = uses[step.pool, team]
        use.lent_ns += lent[at]
        if step.waiting is not None:
            waited_ns = step.waiting.get(team, 0) * (STEP_NS // MICRO)
            use.waited_ns = (use.waited_ns or 0) + min(waited_ns, lent[at])
    for currency, micro in moved_micro.items():
        for team, part in zip(teams, split(micro, lent), strict=True):
            if part:
                uses[step.pool, team].lent_micro[currency] += part
