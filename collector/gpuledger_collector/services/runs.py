"""Runs that were charged in a period: which a reader sees, in which order, and what those that are
not shown cost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from gpuledger_collector.accounting.charged_runs import (
    ENDED,
    EVERY_RUN,
    RUNNING,
    ChargedJob,
    ChargedRun,
    ListedRun,
    NamedWorkload,
    RecordedOutcome,
    RunFilter,
    RunGroup,
    RunSums,
)
from gpuledger_collector.accounting.money import Money, total_by_currency
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period
from gpuledger_collector.insight.notifications.finding_rules import reclaim_command
from gpuledger_collector.insight.run_report import RunReport
from gpuledger_collector.services.rated_period import read_rated_period
from gpuledger_collector.services.run_report import (
    chief_unit_costs,
    record_progress,
    report_run,
)
from gpuledger_collector.storage.billing import jobs, runs
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings.idle_workloads import idle_workloads
from gpuledger_collector.storage.ledger import workloads
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer

COST, WASTE, NEWEST, UNIT, PRICE = "cost", "waste", "newest", "unit", "price"
NOT_KNOWN = "unknown"
ORDERS: Mapping[str, Callable[[RunSums], Any]] = {
    COST: lambda run: (-(run.cost_micro or 0), -run.gpu_ns, run.key),
    WASTE: lambda run: (-(run.idle_cost_micro or 0), -run.idle_ns, run.key),
    NEWEST: lambda run: (-run.start_ms, run.key),
    NOT_KNOWN: lambda run: (-run.unknown_ns, run.key),
    PRICE: lambda run: (-(run.cost_per_gpu_hour or 0), -(run.cost_micro or 0), run.key),
}
"""How a list may be ordered, besides by the cost of a unit."""


JOB_ORDERS: Mapping[str, Callable[[ChargedJob], Any]] = {
    COST: lambda job: (-(job.cost_micro or 0), -job.gpu_ns, job.job, job.uid),
    WASTE: lambda job: (-(job.idle_cost_micro or 0), -job.idle_ns, job.job, job.uid),
    NEWEST: lambda job: (-job.start_ms, job.job, job.uid),
    PRICE: lambda job: (-(job.cost_per_gpu_hour or 0), -(job.cost_micro or 0), job.job, job.uid),
}
"""How a list of jobs may be ordered: units are counted by workload."""


class NotOneWorkload(LookupError):
    """No workload has a name, or several have it: how many, and the keys of the first ones."""

    def __init__(self, called: Sequence[NamedWorkload]) -> None:
        super().__init__(len(called))
        self.count = len(called)
        self.keys = [workload.key for workload in called[:5]]


class ChargedToOthers(Exception):
    """A part of a job is charged to others than the viewer's owner."""


class NothingCharged(LookupError):
    """Nothing is charged for the job with this key."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Totals by counter that a run reports of itself; when, and when its process began (None: now,
    not known).
    """

    totals: Mapping[str, int]
    at_ms: int | None
    started_ms: int | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class RunGroupList:
    """The first groups of a list of runs, and the others."""

    items: Sequence[RunGroup]
    others: Sequence[RunGroup]

    @property
    def others_gpu_ns(self) -> int:
        """What the runs of the others held."""
        return sum(group.gpu_ns for group in self.others)

    @property
    def others_cost(self) -> list[Money]:
        """What they cost, by currency."""
        return total_by_currency(group.cost for group in self.others)


@dataclass(frozen=True, slots=True)
class RunList:
    """The first runs of an order with their unit costs, and the others.

    `states`: by workload, how it ended as its scheduler says, else `running` or `ended`; of those
    that another filter leaves out for their state, too. Empty where nobody asked.
    """

    items: Sequence[ListedRun]
    others: Sequence[RunSums]
    states: Mapping[int, str] = field(default_factory=dict)

    @property
    def runs(self) -> Sequence[RunSums]:
        """All of them, in their order."""
        return [*(item.run for item in self.items), *self.others]

    @property
    def workloads(self) -> int:
        """How many runs there are in all: one in two currencies is two rows."""
        return len({run.workload_id for run in self.runs})

    def groups(self, by: str, calendar: Calendar, top: int | None = None) -> RunGroupList:
        """A group for each `team`, `user`, `model`, `state` or `day` (on which it began to be
        charged in this period) and currency, dearest first; days in their order, the latest first.
        By team and by model only of a list that is split by them.
        The first `top` of them, None: all.
        """
        groups: dict[tuple[str, str | None], list[RunSums]] = defaultdict(list)
        for run in self.runs:
            groups[self._group_of(run, by, calendar), run.currency].append(run)
        listed = [_group(name, currency, runs) for (name, currency), runs in groups.items()]
        listed.sort(key=lambda group: (-(group.cost.micro if group.cost else 0), group.name))
        if by == "day":
            listed.sort(key=lambda group: group.name, reverse=True)
        return RunGroupList(listed[:top], listed[len(listed[:top]) :])

    def _group_of(self, run: RunSums, by: str, calendar: Calendar) -> str:
        if by == "day":
            return calendar.date_of(run.start_ms).isoformat()
        if by == "state":
            return self.states[run.workload_id]
        return (run.user or "") if by == "user" else run.part

    @property
    def others_gpu_ns(self) -> int:
        """What the others held."""
        return sum(run.gpu_ns for run in self.others)

    @property
    def others_cost(self) -> list[Money]:
        """What the others cost, by currency."""
        return total_by_currency(run.cost for run in self.others)


def list_runs(
    connection: Connection,
    period: Period,
    owner: Mapping[str, str],
    viewer: Mapping[str, str] | None = None,
    *,
    name: str | None = None,
    order: str = COST,
    top: int | None = None,
    wanted: RunFilter = EVERY_RUN,
    with_states: bool = False,
    split_by: str = "",
) -> RunList:
    """List the runs that an owner was charged for, read with the rights of a viewer; the first
    `top`, None: all. The connection reads one snapshot.

    Only those are read whole and asked for their unit costs, unless the order is by them.
    `with_states`: the states are read, also where none is wanted. `split_by`, `team` or `model`:
    a run of several of them is one of the others for each, as groups by them need it, and none is
    listed by itself.
    """
    with as_viewer(connection, viewer):
        charged: Sequence[RunSums] = (
            runs.list_charged(connection, period, owner, name, wanted=wanted)
            if (top is None or order == UNIT) and not split_by
            else runs.sum_charged(connection, period, owner, name, wanted, split_by=split_by)
        )
    states: Mapping[int, str] = {}
    if with_states or wanted.state:
        states = _states_of(connection, charged, period)
    if wanted.state:
        charged = [run for run in charged if states[run.workload_id] == wanted.state]
    if split_by:
        return RunList((), sorted(charged, key=ORDERS[COST]), states)
    if order == UNIT:
        whole = [run for run in charged if isinstance(run, ChargedRun)]
        items = sorted(_with_units(connection, whole, period), key=lambda item: -_unit_cost(item))
        shown = items[:top]
        return RunList(shown, [item.run for item in items[len(shown) :]], states)
    charged = sorted(charged, key=ORDERS[order])
    first, others = charged[:top], charged[len(charged[:top]) :]
    with as_viewer(connection, viewer):
        whole = _read_whole(connection, period, owner, name, first, wanted)
    return RunList(_with_units(connection, whole, period), others, states)


def _read_whole(
    connection: Connection,
    period: Period,
    owner: Mapping[str, str],
    name: str | None,
    first: Sequence[RunSums],
    wanted: RunFilter,
) -> list[ChargedRun]:
    """The runs of these sums, in their order."""
    read = [run for run in first if isinstance(run, ChargedRun)]
    if len(read) == len(first):
        return read
    ids = sorted({run.workload_id for run in first})
    whole = {
        (run.workload_id, run.currency): run
        for run in runs.list_charged(connection, period, owner, name, ids, wanted)
    }
    return [whole[run.workload_id, run.currency] for run in first]


def _states_of(
    connection: Connection, charged: Sequence[RunSums], period: Period
) -> Mapping[int, str]:
    """The state of each run at the end of the period, or of what is rated of it.

    A record of its scheduler says it; without one, a run that was held in the last hour is running.
    """
    rated_ms = read_rated_period(connection, period).rated_ms
    last_ms = period.end_ms if rated_ms is None else min(rated_ms, period.end_ms)
    until = Counter[int]()
    for run in charged:
        until[run.workload_id] = max(until[run.workload_id], run.end_ms)
    recorded = runs.outcomes_before(connection, list(until), last_ms)
    return {
        workload_id: state_at(last_ms, end_ms, recorded.get(workload_id))
        for workload_id, end_ms in until.items()
    }


def state_at(last_ms: int, charged_until_ms: int, recorded: RecordedOutcome | None) -> str:
    """The state of a run that was charged until then, at an instant."""
    is_held = charged_until_ms > last_ms - HOUR_MS
    if recorded is None:
        return RUNNING if is_held else ENDED
    if recorded.end_ms is None:
        return RUNNING if is_held else recorded.state.casefold()
    # A run that was started again is held long after the end that is recorded of it.
    goes_on = is_held and charged_until_ms >= recorded.end_ms + HOUR_MS
    return RUNNING if recorded.end_ms > last_ms or goes_on else recorded.state.casefold()


def _group(name: str, currency: str | None, runs: Sequence[RunSums]) -> RunGroup:
    return RunGroup(
        name,
        currency,
        len({run.workload_id for run in runs}),
        sum(run.gpu_ns for run in runs),
        sum(run.idle_ns for run in runs) if any(run.has_known_activity for run in runs) else None,
        next(iter(total_by_currency(run.cost for run in runs)), None),
    )


def list_jobs(
    connection: Connection,
    period: Period,
    owner: Mapping[str, str],
    *,
    order: str = COST,
    top: int | None = None,
) -> list[ChargedJob]:
    """List the jobs that an owner was charged for, each with its workloads; the first `top`, None:
    all.
    """
    return sorted(jobs.list_charged(connection, period, owner), key=JOB_ORDERS[order])[:top]


def list_run_places(
    connection: Connection,
    period: Period,
    owner: Mapping[str, str],
    viewer: Mapping[str, str] | None,
) -> dict[str, list[str]]:
    """The pools, models and nodes that an owner's list of runs may be narrowed to, as a viewer sees
    them.
    """
    with as_viewer(connection, viewer):
        return runs.list_places(connection, period, owner)


def require_workload(connection: Connection, name: str, node: str | None = None) -> NamedWorkload:
    """The workload with this key, id or name; `node` restricts them to those that held an
    accelerator of it when they were last seen.

    Raises NotOneWorkload.
    """
    called = workloads.list_called(connection, name, node)
    if len(called) != 1:
        raise NotOneWorkload(called)
    return called[0]


def read_job(
    connection: Connection, name: str, viewer: Mapping[str, str] | None, now_ms: int
) -> RunReport:
    """Report a job as a viewer may see it: one that is charged to its owner alone, beside those
    like it that are, too.

    Raises NotOneWorkload, ChargedToOthers, NothingCharged.
    """
    with as_viewer(connection, viewer):
        workload = require_workload(connection, name)
    key = workload.key
    if viewer is not None and key not in keys_of_owner(connection, viewer, [key], now_ms):
        raise ChargedToOthers(key)
    report = report_run(connection, workload.id, "day", now_ms)
    if report is None:
        raise NothingCharged(key)
    idle = next(
        (item for item in idle_workloads(connection, now_ms) if item.workload_id == workload.id),
        None,
    )
    report = replace(
        report,
        is_running=_is_running(connection, workload.id, report, now_ms),
        give_back="" if idle is None else reclaim_command(idle),
    )
    if viewer is None:
        return report
    asked = {peer.key for peer in report.peers} | {run.key for run in report.namesakes}
    own = keys_of_owner(connection, viewer, sorted(asked), now_ms)
    namesakes = [run for run in report.namesakes if run.key in own]
    peers = [peer for peer in report.peers if peer.key in own]
    scaling = report.scaling if len(peers) == len(report.peers) else ()
    return replace(report, peers=peers, scaling=scaling, namesakes=namesakes)


def _is_running(connection: Connection, workload_id: int, report: RunReport, now_ms: int) -> bool:
    """Whether a run goes on at the end of what is rated today, as the list of jobs says it."""
    today = Period(report.calendar.day_of(now_ms).start_ms, now_ms + 1)
    last_ms = min(read_rated_period(connection, today).rated_ms or now_ms, now_ms)
    recorded = runs.outcomes_before(connection, [workload_id], last_ms).get(workload_id)
    until_ms = max(peer.end_ms for peer in report.peers if peer.key == report.key)
    return state_at(last_ms, until_ms, recorded) == RUNNING


def name_workloads(
    connection: Connection, keys: Sequence[str], viewer: Mapping[str, str] | None
) -> Mapping[str, tuple[str, str]]:
    """The name and the user of workloads that a viewer may see, as reported last, by key."""
    with as_viewer(connection, viewer):
        return workloads.names(connection, keys)


def report_progress(
    database: Database, name: str, progress: Progress, node: str | None = None, *, dry_run: bool
) -> str:
    """Store the totals that a run reports of itself; return its key.

    A sender that is bound to a node learns nothing of other nodes: their runs are as if they did
    not exist. Raises NotOneWorkload, and ValueError with a sentence.
    """
    with database.transaction(dry_run=dry_run) as connection:
        workload = require_workload(connection, name, node)
        record_progress(
            connection,
            workload.id,
            progress.totals,
            progress.at_ms,
            progress.started_ms,
            progress.now_ms,
        )
    return workload.key


def keys_of_owner(
    connection: Connection, owner: Mapping[str, str], keys: Sequence[str], now_ms: int
) -> set[str]:
    """Those of these runs that are charged to this owner alone."""
    ever = Period(0, now_ms + DAY_MS)
    ids = runs.ids_of(connection, keys)
    with as_viewer(connection, owner):
        own = _gpu_ns_by_key(runs.list_charged(connection, ever, owner, ids=ids))
    whole = _gpu_ns_by_key(runs.list_charged(connection, ever, {}, ids=ids))
    return {key for key, gpu_ns in own.items() if gpu_ns == whole[key]}


def _gpu_ns_by_key(charged: Sequence[ChargedRun]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for run in charged:
        sums[run.key] += run.gpu_ns
    return sums


def _with_units(
    connection: Connection, charged: Sequence[ChargedRun], period: Period
) -> list[ListedRun]:
    units = chief_unit_costs(connection, charged, period)
    return [ListedRun(run, units.get((run.workload_id, run.currency))) for run in charged]


def _unit_cost(item: ListedRun) -> Decimal:
    return Decimal(0) if item.unit is None or item.unit.cost is None else item.unit.cost
