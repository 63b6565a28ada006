"""What is idle, and what spending stands out: the findings that a reader may see, with what they
amount to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.money import Money, total_by_currency
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.insight.findings import (
    NO_REMEDY,
    FindingGroup,
    FreeGroup,
    IdleRemedies,
    IdleRemedy,
    NamedFinding,
)
from gpuledger_collector.insight.notifications.finding_rules import (
    KEPT_STATES,
    RECLAIMABLE_STATES,
    AnomalyAcknowledgment,
    AnomalyKind,
    reclaim_command,
)
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.findings.idle_workloads import idle_workloads
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.notifications.finding_notifications import (
    anomaly_acknowledgments,
)
from gpuledger_collector.storage.row_level_security import as_viewer

NOBODY = "(nobody)"
MOSTLY = 2
"""Places of a group that are named: where most of its cost was."""
Kind = Literal["idle", "anomaly"]


class Viewer(Protocol):
    """Who asks: the subtree of owners that may be seen; None: the whole fleet."""

    @property
    def owner(self) -> Mapping[str, str] | None:
        """Level -> value."""

    def sees(self, owner: Mapping[str, str], team: str = "") -> bool:
        """Whether something of this owner may be seen."""


@dataclass(frozen=True, slots=True)
class WholeFleet:
    """Who may see everything."""

    owner: Mapping[str, str] | None = None

    def sees(self, owner: Mapping[str, str], team: str = "") -> bool:  # noqa: ARG002 - every owner
        """Always."""
        return True


WHOLE_FLEET = WholeFleet()


@dataclass(frozen=True, slots=True)
class CurrencyTotal:
    """How many findings are priced in one currency (None: in none), and what each further day of
    them costs.
    """

    currency: str | None
    count: int
    per_day: Money | None


@dataclass(frozen=True, slots=True)
class IdleHolder:
    """A workload that could give accelerators back now, and what each further day of them costs.

    `command` ends it; empty where that would end work that still runs (`is_partly_busy`), or where no
    command can.
    """

    name: str
    key: str | None
    team: str
    user: str
    states: tuple[str, ...]
    gpus: int
    slices: int
    since_ms: int
    per_day: Money
    command: str
    is_partly_busy: bool


@dataclass(frozen=True, slots=True)
class DearestHolders:
    """The dearest holders of idle accelerators in one currency, and what a further day of them
    costs; `others` counts those beyond.
    """

    items: Sequence[IdleHolder]
    others: int
    per_day: Money


def dearest_holders(
    holders: Sequence[IdleHolder], currency: str, most: int
) -> DearestHolders | None:
    """The `most` dearest holders of a currency; None where nobody holds anything idle in it."""
    own = [item for item in holders if item.per_day.currency == currency]
    shown = own[:most]
    if not shown:
        return None
    total = Money(sum(item.per_day.micro for item in shown), currency)
    return DearestHolders(shown, len(own) - len(shown), total)


@dataclass(frozen=True, slots=True)
class FindingList:
    """Findings, ongoing ones first, then by falling cost.

    `looked_ms`: up to when was searched; None: never. `acknowledgments` are what people said of
    unusual spending.
    """

    items: Sequence[NamedFinding]
    looked_ms: int | None
    acknowledgments: Sequence[AnomalyAcknowledgment] = ()

    def count_acknowledged(self, item: NamedFinding) -> int:
        """How often people said of episodes like this one that they are intended."""
        kind = AnomalyKind.of(item)
        return sum(each.kind == kind for each in self.acknowledgments)

    def only(self, condition: Callable[[NamedFinding], bool]) -> FindingList:
        """Those that meet a condition."""
        return replace(self, items=[item for item in self.items if condition(item)])

    @property
    def ongoing(self) -> FindingList:
        """Those that have not ended."""
        return self.only(lambda item: item.is_ongoing)

    def to_act_on(self, remedies: IdleRemedies) -> FindingList:
        """What somebody should act on now, each by what a further day of it costs: held by who
        should not hold it, or broken; not what its job is to keep.
        """
        return self.only(lambda item: _is_to_act_on(item, remedies)).to_act_on_first(remedies)

    def to_act_on_first(self, remedies: IdleRemedies) -> FindingList:
        """What somebody should act on now before the rest, each by what a further day of it costs;
        what has ended stays in its order.
        """

        def order(item: NamedFinding) -> tuple[bool, int]:
            per_day = item.per_day
            return not _is_to_act_on(item, remedies), -(0 if per_day is None else per_day.micro)

        return replace(self, items=sorted(self.items, key=order))

    def by_key(self) -> FindingList:
        """In the order of their keys."""
        return replace(self, items=sorted(self.items, key=lambda item: item.key))

    @property
    def costs(self) -> list[Money]:
        """What they cost so far, by currency; what has no price is in none."""
        return total_by_currency(item.cost for item in self.items)

    @property
    def per_day(self) -> list[Money]:
        """What each further day of the ongoing ones costs, by currency."""
        return total_by_currency(item.per_day for item in self.items)

    @property
    def by_currency(self) -> list[CurrencyTotal]:
        """A total for each currency, in the order of the list."""
        totals = []
        for currency in dict.fromkeys(item.currency for item in self.items):
            own = replace(self, items=[item for item in self.items if item.currency == currency])
            totals.append(CurrencyTotal(currency, len(own.items), next(iter(own.per_day), None)))
        return totals

    @property
    def unpriced_count(self) -> int:
        """How many have no price."""
        return sum(item.currency is None for item in self.items)

    @property
    def held(self) -> FindingList:
        """Those that somebody holds, or has held."""
        return self.only(lambda item: not item.is_free)

    @property
    def free(self) -> FindingList:
        """Those that nobody holds."""
        return self.only(lambda item: item.is_free)

    def free_by(self, by: Literal["model", "node"]) -> list[FreeGroup]:
        """Those that nobody holds, in a group for each model or node and currency, dearest first."""
        groups: dict[tuple[str, str], list[NamedFinding]] = defaultdict(list)
        for item in self.items:
            if item.is_free:
                name = item.node if by == "node" else item.model or ""
                groups[name, item.currency or ""].append(item)
        listed = [
            FreeGroup(
                name, items, next(iter(total_by_currency(item.per_day for item in items)), None)
            )
            for (name, _), items in groups.items()
        ]
        return sorted(
            listed, key=lambda group: (-(group.per_day.micro if group.per_day else 0), group.name)
        )

    def choices(self) -> dict[str, list[str]]:
        """What the list may be narrowed to: the nodes, pools, models and states in it."""
        cells = {"node": "node", "pool": "pool_choice", "model": "model", "state": "state"}
        return {
            name: sorted({value for item in self.items if (value := getattr(item, cell))})
            for name, cell in cells.items()
        }

    def groups(self, by: Literal["state", "team"]) -> list[FindingGroup]:
        """A group for each state or team and currency, dearest first."""
        named = (lambda item: item.state) if by == "state" else holder
        return sorted(
            self._grouped(named),
            key=lambda group: (-(group.cost.micro if group.cost else 0), group.name),
        )

    def by_day(self, calendar: Calendar) -> list[FindingGroup]:
        """A group for each day on which one began and each currency, the latest first."""
        groups = self._grouped(lambda item: calendar.date_of(item.since_ms).isoformat())
        return sorted(groups, key=lambda group: (group.name, group.currency), reverse=True)

    def _grouped(self, name_of: Callable[[NamedFinding], str]) -> list[FindingGroup]:
        groups: dict[tuple[str, str], list[NamedFinding]] = defaultdict(list)
        for item in self.items:
            groups[name_of(item), item.currency or ""].append(item)
        return [_group(name, currency, items) for (name, currency), items in groups.items()]


def list_findings(
    connection: Connection, kind: Kind, period: Period, viewer: Viewer, shown: Viewer | None = None
) -> FindingList:
    """What was seen in a period or is ongoing, read with the rights of a viewer; `shown` narrows it
    further.

    What nobody holds is in no owner's part.
    """
    scope = viewer if shown is None else shown
    with as_viewer(connection, viewer.owner):
        items = findings.list_named(connection, kind, period.start_ms, period.end_ms)
    if scope.owner is not None:
        items = [item for item in items if not item.is_free and scope.sees(item.owner, item.team)]
    acknowledgments = anomaly_acknowledgments(connection) if kind == "anomaly" and items else []
    return FindingList(items, findings.progress(connection, kind), acknowledgments)


def _is_to_act_on(item: NamedFinding, remedies: IdleRemedies) -> bool:
    """Whether somebody holds it who should not, or it is broken."""
    if not item.is_ongoing or item.is_free or item.state in KEPT_STATES:
        return False
    return not remedies.get(item.key, NO_REMEDY).is_partly_busy


def list_idle_remedies(connection: Connection, found: FindingList, now_ms: int) -> IdleRemedies:
    """What gives back those of a list that their holders could give back now."""
    held = [
        item
        for item in found.ongoing.items
        if item.workload_id is not None and item.state in RECLAIMABLE_STATES
    ]
    # Beyond the rights of a viewer: whether all that a workload holds is idle, for what it sees.
    workloads = (
        {workload.workload_id: workload for workload in idle_workloads(connection, now_ms)}
        if held
        else {}
    )
    return {
        item.key: IdleRemedy(reclaim_command(workload), not workload.is_entirely_idle)
        for item in held
        if (workload := workloads.get(item.workload_id or 0)) is not None
    }


def list_idle_holders(found: FindingList, remedies: IdleRemedies) -> list[IdleHolder]:
    """Who of a list holds accelerators that it could give back now, dearest first.

    A workload whose accelerators are priced in two currencies stands in the list for each.
    """
    held: dict[tuple[int, str], list[NamedFinding]] = defaultdict(list)
    for item in found.ongoing.items:
        if item.workload_id is not None and item.state in RECLAIMABLE_STATES and item.currency:
            held[item.workload_id, item.currency].append(item)
    holders = [_idle_holder(items, remedies) for items in held.values()]
    return sorted(holders, key=lambda item: (-item.per_day.micro, item.name, item.key or ""))


def _idle_holder(items: Sequence[NamedFinding], remedies: IdleRemedies) -> IdleHolder:
    first, slices = items[0], sum(item.is_slice for item in items)
    remedy = remedies.get(first.key, NO_REMEDY)
    return IdleHolder(
        name=first.job,
        key=first.workload_key,
        team=holder(first),
        user=first.user_name or "",
        states=tuple(dict.fromkeys(item.state for item in items)),
        gpus=len(items) - slices,
        slices=slices,
        since_ms=min(item.since_ms for item in items),
        per_day=Money(sum(item.per_day_micro or 0 for item in items), first.currency or ""),
        command=remedy.command,
        is_partly_busy=remedy.is_partly_busy,
    )


def holder(finding: NamedFinding) -> str:
    """The team that holds it; in parentheses nobody, or somebody whose team is not known."""
    return finding.team or (NOBODY if finding.is_free else UNATTRIBUTED)


def _group(name: str, currency: str, items: Sequence[NamedFinding]) -> FindingGroup:
    cost_by_place: Counter[str] = Counter()
    for item in items:
        cost_by_place[item.workload_name or item.node] += item.cost_micro or 0
    return FindingGroup(
        name=name,
        currency=currency,
        findings=len(items),
        ongoing=sum(item.is_ongoing for item in items),
        total_ms=sum(item.until_ms - item.since_ms for item in items),
        cost=next(iter(total_by_currency(item.cost for item in items)), None),
        places=tuple(place for place, _ in cost_by_place.most_common(MOSTLY) if place),
    )
