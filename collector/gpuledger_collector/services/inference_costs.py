"""Who asked pays: what shared model servers cost each tenant in a period, from one reading.

Declared servers ([[inference]]) name the tokens that are theirs, and the workloads that answered.
A workload or tokens that two of them name on one day move nothing, and are said. A closed month is
read as it was kept at its close. No bill changes by any of this.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuledger_collector.accounting.attribution import FACTS, Attribution, WorkloadFacts
from gpuledger_collector.accounting.inference import AUTHENTICATED, Asker, TokenDay, Tokens
from gpuledger_collector.accounting.inference_lines import (
    GroupedLine,
    InferenceLine,
    ServerLine,
    ServerSummary,
    group_lines,
    summarize_servers,
)
from gpuledger_collector.accounting.inference_split import (
    EVEN,
    UNCOVERED_MS,
    Claimant,
    Part,
    ServerCost,
    ServerCount,
    SharedServer,
    TenantOwner,
    Weights,
    compare_tokens,
    split_day,
    spread_part,
    spread_tokens,
)
from gpuledger_collector.accounting.period import HOUR_MS, Calendar, Period
from gpuledger_collector.accounting.reserved_names import booked_name, escape_name
from gpuledger_collector.accounting.unit_cost import count_by_hour
from gpuledger_collector.services.api_prices import add_api_prices
from gpuledger_collector.storage.billing import inference, periods
from gpuledger_collector.storage.billing.inference import (
    UNPRICED,
    PlaceCost,
    WorkloadDay,
    WorkloadHour,
)
from gpuledger_collector.storage.ledger import token_usage, workloads, zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_common.largest_remainder import split_signed
from gpuledger_common.plurals import plural

NAMED = 5
"""Names that a sentence lists."""
TOKEN_COUNTERS = ("prompt_tokens", "generated_tokens")
_CountsByDay = dict[int, dict[str, dict[int, tuple[int, int]]]]
"""Units and covered time by day, counter and hour."""


@dataclass(frozen=True, slots=True)
class InferenceAnswer:
    """What shared servers cost in a period: lines by tenant, their sums by currency, sums of
    servers, and what moves nothing, in sentences.

    A viewer is answered its own owner's lines alone.
    """

    lines: Sequence[GroupedLine]
    servers: Sequence[ServerSummary]
    notes: Sequence[str]
    totals: Sequence[GroupedLine]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Lines of servers and models with these texts in their names, in any case; empty: of all."""

    server: str = ""
    model: str = ""

    def holds(self, line: InferenceLine) -> bool:
        """Whether a line is one of them. What nobody asked for is of no model."""
        return (
            self.server.casefold() in line.server.casefold()
            and self.model.casefold() in line.claimant.model.casefold()
        )


class NoHours(ValueError):
    """Of a closed month days are kept, and no hours; the message says so."""


@dataclass(frozen=True, slots=True)
class _SplitPeriod:
    """A part of a period that was split: the servers that answered, and what they cost."""

    period: Period
    server_of: _ServerOf
    answered: _Answered


@dataclass(slots=True)
class InferenceDays:
    """The lines of a period by day, and what was left out of them.

    `splits`: the parts of the period that were split for this answer; `kept`: the closed months in
    it that were read as they were kept.
    """

    lines: list[InferenceLine] = field(default_factory=list)
    servers: list[ServerLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    splits: list[_SplitPeriod] = field(default_factory=list, compare=False)
    kept: list[str] = field(default_factory=list)


def read_inference(
    connection: Connection,
    period: Period,
    keys: Sequence[str],
    viewer: Mapping[str, str] | None = None,
    chosen: Chosen | None = None,
) -> InferenceAnswer:
    """What tenants of shared servers pay for a period, grouped by keys; for a viewer the lines of
    its owner alone, and narrowed to chosen servers and models.

    All lines are read: what one tenant pays depends on the tokens of all. Raises NoHours for hours
    of a closed month: evidence that came later would change them.
    """
    days = read_days(connection, period)
    if "hour" in keys and days.kept:
        raise NoHours(
            f"{' and '.join(days.kept)}: a closed month keeps how its days were split, and no hours;"
            " ask for days, or for a period that is open"
        )
    lines = days.lines
    if viewer is not None:
        lines = [line for line in lines if line.owner and viewer.items() <= line.owner.items()]
    if chosen is not None:
        lines = [line for line in lines if chosen.holds(line)]
    if "hour" in keys:
        lines = _spread_hours(connection, period, days.splits, lines)
    calendar = zones.calendar(connection)
    servers, notes = (
        ([], [])
        if viewer is not None
        else add_api_prices(connection, summarize_servers(days.servers, days.lines), days.lines)
    )
    return InferenceAnswer(
        group_lines(lines, keys, calendar),
        servers,
        [] if viewer is not None else [*days.notes, *notes],
        group_lines(lines, (), calendar),
    )


def read_days(connection: Connection, period: Period) -> InferenceDays:
    """The lines of a period by day: of closed months as kept at their close."""
    calendar = zones.calendar(connection)
    kept = inference.list_closed_months(connection)
    answer = InferenceDays()
    for name, closed_ms in periods.declarations_at(connection, calendar, period).items():
        month = calendar.month(name)
        part = month.clip(period)
        if part is None:
            continue
        # Of a month whose servers had neither cost nor tokens at its close nothing was written.
        if closed_ms is not None and (
            month.start_ms in kept or inference.SERVERS.in_force(connection, closed_ms)
        ):
            answer.lines += inference.read_closed_lines(connection, part)
            answer.servers += inference.read_closed_servers(connection, part)
            answer.kept.append(name)
            continue
        split = split_period(connection, part, closed_ms)
        if closed_ms is not None and split.servers:
            answer.notes.append(
                f"{name}: its close kept no split of its servers: it is split by what is known now"
            )
        answer.lines += split.lines
        answer.servers += split.servers
        answer.notes += split.notes
        answer.splits += split.splits
    answer.notes = list(dict.fromkeys(answer.notes))
    return answer


def keep_at_close(connection: Connection, month: Period, *, dry: bool = False) -> None:
    """Keep how the days of a month are split, in the transaction of its close. `dry` only splits
    them.
    """
    if not inference.SERVERS.in_force(connection):
        return
    split = split_period(connection, month, None)
    if not dry:
        inference.write_closed(connection, month, split.lines, split.servers)


def split_period(connection: Connection, period: Period, declared_ms: int | None) -> InferenceDays:
    """Split the days of a period as servers and tenants were declared at an instant (None: now)."""
    calendar = zones.calendar(connection)
    days = calendar.days(period)
    dates = {day.start_ms: calendar.date_of(day.start_ms) for day in days}
    servers = [
        server
        for server in (
            inference.SERVERS.in_force(connection, declared_ms)
            or inference.SERVERS.in_force(connection)
        )
        if any(server.holds_on(date) for date in dates.values())
    ]
    if not servers:
        return _undeclared(connection, period)
    tenants = _Owners(
        inference.TENANTS.in_force(connection, declared_ms)
        or inference.TENANTS.in_force(connection),
        dates,
    )
    answered = _Answered(connection, period, servers)
    server_of = _ServerOf(servers, dates)
    asked = _Asked(server_of, token_usage.read_token_days(connection, days))
    answer = InferenceDays(splits=[_SplitPeriod(period, server_of, answered)])
    for day in days:
        date = dates[day.start_ms]
        for number, server in enumerate(servers):
            if server.holds_on(date):
                ids = answered.workloads_on(number, day.start_ms)
                _split_server(
                    answer,
                    server,
                    day,
                    answered.costs_on(day.start_ms, ids),
                    answered.counted_on(number, day, ids),
                    asked.by_server.get((day.start_ms, number), {}),
                    tenants,
                )
    answer.notes += [*asked.notes(), *answered.notes(), *tenants.notes()]
    answer.notes += _server_notes(answer.servers)
    return answer


def _undeclared(connection: Connection, period: Period) -> InferenceDays:
    days = token_usage.read_token_days(connection, [period])
    if not days:
        return InferenceDays()
    gateways = _names(sorted({day.asker.gateway for day in days}))
    return InferenceDays(
        notes=[
            f"tokens of {gateways} came, and no server is declared that answered them: declare"
            " [[inference]] tables (docs/guides/shared-inference.md)"
        ]
    )


def _split_server(
    answer: InferenceDays,
    server: SharedServer,
    day: Period,
    costs: Mapping[str, ServerCost],
    counted: ServerCount | None,
    asked: Mapping[Claimant, Tokens],
    tenants: _Owners,
) -> None:
    """Add the lines of a server's day to an answer."""
    tokens = compare_tokens(asked, counted)
    if not costs and not tokens.weighted:
        return
    weights = server.token_weights
    first = True
    for currency, cost in sorted(costs.items()) or [("", ServerCost(0))]:
        used_micro, _ = cost.used_and_idle
        answer.servers.append(
            ServerLine(
                server.name,
                day.start_ms,
                currency,
                cost.cost_micro,
                used_micro,
                counted.input if first and counted is not None else None,
                counted.output if first and counted is not None else None,
                first and tokens.is_scaled,
                server.weights,
            )
        )
        for part in split_day(
            cost, tokens, weights, server.idle, server.reservations, server.gateway
        ):
            weighted = tokens.weighted.get(part.claimant)
            answer.lines.append(
                InferenceLine(
                    server=server.name,
                    day_ms=day.start_ms,
                    claimant=part.claimant,
                    owner=tenants.owner_of(part.claimant, day.start_ms),
                    tokens=part.tokens if first else Tokens(),
                    weighted=0 if weighted is None else weights.weigh(weighted),
                    currency=currency,
                    used_micro=part.used_micro,
                    idle_micro=part.idle_micro,
                    borrowed_micro=part.borrowed_micro,
                    lent_micro=part.lent_micro,
                )
            )
        first = False


def _server_notes(servers: Sequence[ServerLine]) -> list[str]:
    unknown = sorted(
        {day.server for day in servers}
        - {day.server for day in servers if day.counted_input is not None}
    )
    notes = (
        [
            f"{_names(unknown)}: no counters of the server are known, so tokens past the gateway are"
            " not known either (docs/guides/unit-cost.md)"
        ]
        if unknown
        else []
    )
    scaled = Counter(day.server for day in servers if day.is_scaled)
    notes += [
        f"{name}: on {plural(count, 'day')} gateways counted more tokens than the server; they are"
        " scaled down to it"
        for name, count in sorted(scaled.items())
    ]
    unpriced = sorted({day.server for day in servers if not day.currency})
    if unpriced:
        notes.append(
            f"{_names(unpriced)}: on some days nothing that answered was charged, so tokens of"
            " these days cost nothing here"
        )
    return notes


def _names(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


class _Owners:
    """Who pays for tenants, by day."""

    def __init__(self, declared: Iterable[TenantOwner], dates: Mapping[int, dt.date]) -> None:
        self._dates = dates
        self._declared: dict[str, list[TenantOwner]] = defaultdict(list)
        for tenant in declared:
            self._declared[booked_name(tenant.tenant)].append(tenant)
        self._known: dict[tuple[str, str, dt.date], Mapping[str, str]] = {}
        self._unknown: set[str] = set()
        self._claimed: set[str] = set()

    def owner_of(self, claimant: Claimant, day_ms: int) -> Mapping[str, str]:
        """The owner of a tenant on a day; empty where none is declared, and for what a caller only
        claims to be.
        """
        if not claimant.is_tenant or not claimant.tenant:
            return {}
        if claimant.trust != AUTHENTICATED:
            self._claimed.add(claimant.tenant)
            return {}
        key = claimant.gateway, claimant.tenant, self._dates[day_ms]
        if key not in self._known:
            self._known[key] = self._find(*key)
        if not self._known[key]:
            self._unknown.add(claimant.tenant)
        return self._known[key]

    def _find(self, gateway: str, tenant: str, date: dt.date) -> Mapping[str, str]:
        holding = [
            each
            for each in self._declared.get(tenant, ())
            if each.gateway in ("", gateway) and each.holds_on(date)
        ]
        if not gateway and not holding:
            # A share of a server of every gateway, whose tenant asked nothing on this day.
            every = [each for each in self._declared.get(tenant, ()) if each.holds_on(date)]
            holding = every if len(every) == 1 else []
        # A declaration for this gateway is more specific than one for all.
        return max(holding, key=lambda each: each.gateway).owner if holding else {}

    def notes(self) -> list[str]:
        """Tenants that no owner pays for."""
        notes = []
        if self._unknown:
            notes.append(
                f"no [[tenant]] table names an owner of {_names(sorted(self._unknown))}: no team"
                " sees their lines"
            )
        if self._claimed:
            notes.append(
                f"callers only claim to be {_names(sorted(self._claimed))}: no owner pays for"
                " claims (docs/guides/gateways.md)"
            )
        return notes


class _DayStarts(dict[int, int]):
    """The begin of the day of an hour; a month has hundreds of hours and of each many rows."""

    def __init__(self, calendar: Calendar) -> None:
        super().__init__()
        self._calendar = calendar

    def __missing__(self, hour_ms: int) -> int:
        self[hour_ms] = self._calendar.day_of(hour_ms).start_ms
        return self[hour_ms]


class _ServerOf:
    """The server that answered an asker on a day."""

    def __init__(self, servers: Sequence[SharedServer], dates: Mapping[int, dt.date]) -> None:
        self.servers = servers
        self.twice: dict[str, Sequence[str]] = {}
        """Servers by the place of askers whom more than one of them would answer."""
        self._dates = dates
        self._answering: dict[Asker, list[int]] = {}

    def find(self, asker: Asker, day_ms: int) -> int | None:
        """The number of the server; None where none answers, or two."""
        date = self._dates[day_ms]
        if asker not in self._answering:
            self._answering[asker] = [
                number for number, server in enumerate(self.servers) if server.answers(asker)
            ]
        answering = [
            number for number in self._answering[asker] if self.servers[number].holds_on(date)
        ]
        if len(answering) > 1:
            self.twice[place_of(asker)] = sorted(self.servers[number].name for number in answering)
        return answering[0] if len(answering) == 1 else None


class _Asked:
    """Tokens by day, server and claimant, and those that no server, or two, answered."""

    def __init__(self, server_of: _ServerOf, days: Iterable[TokenDay]) -> None:
        self.by_server: dict[tuple[int, int], dict[Claimant, Tokens]] = defaultdict(dict)
        self._nowhere: Counter[str] = Counter()
        self._twice = server_of.twice
        for day in days:
            number = server_of.find(day.asker, day.day_ms)
            if number is None:
                if place_of(day.asker) not in self._twice:
                    self._nowhere[place_of(day.asker)] += day.tokens.input + day.tokens.output
                continue
            claimant = claimant_of(day.asker)
            of_day = self.by_server[day.day_ms, number]
            of_day[claimant] = of_day.get(claimant, Tokens()) + day.tokens

    def notes(self) -> list[str]:
        """What moves nothing."""
        notes = [
            f"{place}: {tokens:,} tokens match no [[inference]] table and move nothing"
            for place, tokens in self._nowhere.most_common(NAMED)
        ]
        if len(self._nowhere) > NAMED:
            notes.append(f"{len(self._nowhere) - NAMED} more models match no [[inference]] table")
        return notes + [
            f"{place}: matches {' and '.join(names)}, and moves nothing; give one of them backends"
            for place, names in sorted(self._twice.items())[:NAMED]
        ]


def place_of(asker: Asker) -> str:
    """What a gateway calls the model, and the backend where it says one."""
    return f"{asker.gateway}: {asker.model}" + (f" at {asker.backend}" if asker.backend else "")


def claimant_of(asker: Asker) -> Claimant:
    """Who asked, wherever it was answered; a name of a row of the reports is escaped."""
    return Claimant(asker.gateway, escape_name(asker.tenant), asker.model, asker.trust)


class _Answered:
    """The workloads of servers, what they cost by day, and what their counters counted."""

    def __init__(
        self, connection: Connection, period: Period, servers: Sequence[SharedServer]
    ) -> None:
        self._connection, self._servers = connection, servers
        ids = inference.list_charged_workloads(connection, period)
        self._matching = match_workloads(connection, servers, ids)
        chosen = sorted(set().union(*self._matching))
        self._charged_on: dict[int, list[set[int]]] = {}
        self._answered_on: dict[int, list[set[int]]] = {}
        self._twice: set[tuple[int, tuple[str, ...]]] = set()
        self._unpriced_ns = inference.count_unpriced(connection, period, chosen) if chosen else 0
        self._days: dict[int, list[WorkloadDay]] = defaultdict(list)
        for row in inference.read_workload_days(connection, period, chosen) if chosen else ():
            self._days[row.day_ms].append(row)
        self._counts = [
            inference.read_model_counts(connection, period, sorted(own), server.served_model)
            for server, own in zip(servers, self._matching, strict=True)
        ]
        self._calendar = zones.calendar(connection)
        self._day_of = _DayStarts(self._calendar)
        self._held: dict[tuple[int, int], list[WorkloadHour]] = defaultdict(list)
        for hour in inference.read_workload_hours(connection, period, chosen) if chosen else ():
            self._held[hour.workload_id, self._day_of[hour.hour_ms]].append(hour)
        self._by_day: dict[tuple[int, int], _CountsByDay] = {}
        places = inference.read_adjusted_places(connection, period) if chosen else []
        self._adjusted = self._adjustments(places)

    def workloads_on(self, number: int, day_ms: int) -> set[int]:
        """The workloads of a server that were charged on a day; those of two servers are nobody's.

        Only of the day: what is said of it does not depend on the period that is asked for.
        """
        if day_ms not in self._answered_on:
            matching = self._matching_on(day_ms)
            count = Counter(workload_id for own in matching for workload_id in own)
            twice = {workload_id for workload_id, times in count.items() if times > 1}
            for workload_id in twice:
                names = sorted(
                    server.name
                    for server, own in zip(self._servers, matching, strict=True)
                    if workload_id in own
                )
                self._twice.add((workload_id, tuple(names)))
            self._answered_on[day_ms] = [own - twice for own in matching]
        return self._answered_on[day_ms][number]

    def _matching_on(self, day_ms: int) -> list[set[int]]:
        """The workloads that were charged on a day, by server that holds on it."""
        if day_ms not in self._charged_on:
            date = self._calendar.date_of(day_ms)
            charged = {row.workload_id for row in self._days.get(day_ms, ()) if row.is_time}
            self._charged_on[day_ms] = [
                own & charged if server.holds_on(date) else set()
                for server, own in zip(self._servers, self._matching, strict=True)
            ]
        return self._charged_on[day_ms]

    def _adjustments(self, places: Iterable[PlaceCost]) -> dict[WorkloadDay, int]:
        """What policies added to workloads: their part of what was added to their place on that
        day, in proportion to cost, by largest remainder.
        """
        adjusted: dict[WorkloadDay, int] = {}
        for place in places:
            ids = set().union(*self._matching_on(place.day_ms))
            own = [
                row
                for row in self._days.get(place.day_ms, ())
                if row.is_time
                and row.workload_id in ids
                and (row.owner_id, row.pool, row.gpu_model, row.currency)
                == (place.owner_id, place.pool, place.gpu_model, place.currency)
            ]
            weights = [max(row.cost_micro, 0) for row in own]
            rest = max(place.held_micro - sum(weights), 0)
            if any(weights):
                parts = split_signed(place.adjusted_micro, [*weights, rest])
                adjusted |= dict(zip(own, parts, strict=False))
        return adjusted

    def costs_on(self, day_ms: int, ids: set[int]) -> dict[str, ServerCost]:
        """What the workloads of a server cost on a day, by currency.

        A currency in which nodes alone cost is divided by all that the accelerators did.
        """
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for row in self._days.get(day_ms, ()):
            if row.workload_id in ids:
                entry = sums[row.currency]
                entry[0] += row.cost_micro + self._adjusted.get(row, 0)
                entry[1] += row.busy_ns
                entry[2] += row.idle_ns
                entry[3] += row.unknown_ns
        activity = [sum(entry[at] for entry in sums.values()) for at in (1, 2, 3)]
        sums.pop(UNPRICED, None)
        return {
            currency: ServerCost(micro, *(own if any(own) else activity))
            for currency, (micro, *own) in sums.items()
        }

    def hour_costs_on(self, day: Period, ids: set[int]) -> dict[str, dict[int, int]]:
        """What the workloads of a server cost in each hour of a day, by currency: the day of each
        by the time that it held, and evenly where no time is known.
        """
        hours = _hours_of(day)
        costs: dict[str, dict[int, int]] = {}
        for row in self._days.get(day.start_ms, ()):
            if row.workload_id in ids and row.currency != UNPRICED:
                held = {
                    hour.hour_ms: hour.held_ms
                    for hour in self._held.get((row.workload_id, day.start_ms), ())
                    if hour.held_ms
                } or dict.fromkeys(hours, 1)
                of_currency = costs.setdefault(row.currency, dict.fromkeys(hours, 0))
                micro = row.cost_micro + self._adjusted.get(row, 0)
                parts = split_signed(micro, list(held.values()))
                for hour_ms, part in zip(held, parts, strict=True):
                    of_currency[hour_ms] += part
        return costs

    def counted_on(self, number: int, day: Period, ids: set[int]) -> ServerCount | None:
        """What the counters of a server's workloads counted on a day; None: they say nothing."""
        tokens = dict.fromkeys(TOKEN_COUNTERS, 0)
        is_known = False
        uncovered_ms = 0
        for workload_id in sorted(ids):
            counted = self._counts_of(number, workload_id).get(day.start_ms, {})
            for counter, hours in counted.items():
                is_known = True
                tokens[counter] += sum(units for units, _ in hours.values())
            hours_held = self._held.get((workload_id, day.start_ms), ())
            if not hours_held:
                uncovered_ms += day.ms
            for hour in hours_held:
                covered_ms = min(
                    counted.get(counter, {}).get(hour.hour_ms, (0, 0))[1]
                    for counter in TOKEN_COUNTERS
                )
                uncovered_ms += max(hour.longest_ms - covered_ms, 0)
        if not is_known:
            return None
        return ServerCount(
            tokens["prompt_tokens"], tokens["generated_tokens"], uncovered_ms <= UNCOVERED_MS
        )

    def _counts_of(self, number: int, workload_id: int) -> _CountsByDay:
        key = number, workload_id
        if key not in self._by_day:
            by_day: _CountsByDay = defaultdict(lambda: defaultdict(dict))
            counts = self._counts[number].get(workload_id, [])
            for counter in TOKEN_COUNTERS:
                hours = count_by_hour([count for count in counts if count.counter == counter])
                for hour_ms, counted in hours.items():
                    by_day[self._day_of[hour_ms]][counter][hour_ms] = counted
            self._by_day[key] = by_day
        return self._by_day[key]

    def notes(self) -> list[str]:
        """What moves nothing, or has no cost."""
        empty = sorted(
            {
                server.name
                for server, own in zip(self._servers, self._matching, strict=True)
                if not own
            }
        )
        notes = (
            [f"{_names(empty)}: no workload that was charged matches its served_by"]
            if empty
            else []
        )
        if self._twice:
            names = workloads.facts(self._connection, [number for number, _ in self._twice])
            notes += [
                f"{names[number].key}: is a workload of {' and '.join(servers)}, and its cost is"
                " split among nobody"
                for number, servers in sorted(self._twice)[:NAMED]
            ]
        if self._unpriced_ns:
            notes.append("some time of the servers has no price: it is in no line")
        return notes


def match_workloads(
    connection: Connection, servers: Sequence[SharedServer], ids: Sequence[int]
) -> list[set[int]]:
    """The workloads of each server, by what was reported of them last."""
    facts = workloads.facts(connection, ids)
    matching = []
    for server in servers:
        rules = Attribution([server.rule])
        own = {
            workload.id
            for workload in facts.values()
            if _may_match(server, workload) and rules.matching(with_job(workload), 0)
        }
        if server.served_model and own:
            own &= inference.list_serving(connection, sorted(own), server.served_model)
        matching.append(own)
    return matching


def _may_match(server: SharedServer, workload: WorkloadFacts) -> bool:
    """Whether a workload has all the tags that a server asks for: most have not, and patterns cost
    more.
    """
    return all(name in workload.tags or name in FACTS for name in server.served_by)


def with_job(workload: WorkloadFacts) -> WorkloadFacts:
    """A workload with its id at the scheduler as the tag `job`, whatever its user wrote there; one
    that was imported has its cluster before it, and when it was submitted after it.
    """
    _, _, number = workload.key.rpartition(":")
    number = number.rpartition("/")[2].partition("@")[0]
    return replace(workload, tags={**workload.tags, "job": number})


def _hours_of(day: Period) -> list[int]:
    """The begins of the hours of a day."""
    return [piece.start_ms - piece.start_ms % HOUR_MS for piece in day.hours()]


@dataclass(slots=True)
class _SplitHours:
    """What the hours of days are split by: tokens by claimant, and costs by currency."""

    asked: dict[tuple[str, int, Claimant], dict[int, Tokens]]
    weights: dict[tuple[str, int], Weights]
    costs: dict[tuple[str, int, str], dict[int, int]]


def _read_hours(connection: Connection, split: _SplitPeriod, hours: _SplitHours) -> None:
    """Add what is known of the hours of a part of a period."""
    calendar = zones.calendar(connection)
    day_of = _DayStarts(calendar)
    servers = split.server_of.servers
    for hour in token_usage.read_token_hours(connection, split.period):
        day_ms = day_of[hour.hour_ms]
        number = split.server_of.find(hour.asker, day_ms)
        if number is None:
            continue
        of_claimant = hours.asked[servers[number].name, day_ms, claimant_of(hour.asker)]
        of_claimant[hour.hour_ms] = of_claimant.get(hour.hour_ms, Tokens()) + hour.tokens
    for day in calendar.days(split.period):
        date = calendar.date_of(day.start_ms)
        for number, server in enumerate(servers):
            if server.holds_on(date):
                hours.weights[server.name, day.start_ms] = server.token_weights
                ids = split.answered.workloads_on(number, day.start_ms)
                for currency, costs in split.answered.hour_costs_on(day, ids).items():
                    hours.costs[server.name, day.start_ms, currency] = costs


def _spread_hours(
    connection: Connection,
    period: Period,
    splits: Sequence[_SplitPeriod],
    lines: Sequence[InferenceLine],
) -> list[InferenceLine]:
    """Spread lines of days over their hours; the hours of a line add up to it."""
    calendar = zones.calendar(connection)
    hours = _SplitHours(defaultdict(dict), {}, {})
    for split in splits:
        _read_hours(connection, split, hours)
    spread = []
    for line in lines:
        day = calendar.day_of(line.day_ms).clip(period) or period
        key = line.server, line.day_ms
        costs = hours.costs.get((*key, line.currency)) or dict.fromkeys(_hours_of(day), 0)
        by_hour = hours.asked.get((*key, line.claimant), {})
        own = hours.weights.get(key, EVEN)
        by_tokens = {hour_ms: own.weigh(each.bounded()) for hour_ms, each in by_hour.items()}
        part = Part(line.claimant, line.tokens, line.used_micro, line.idle_micro)
        tokens_of = spread_tokens(line.tokens, by_hour, costs, own)
        for hour_ms, (used, idle) in spread_part(part, by_tokens, costs).items():
            if used or idle or tokens_of[hour_ms]:
                spread.append(
                    replace(
                        line,
                        hour_ms=hour_ms,
                        tokens=tokens_of[hour_ms],
                        used_micro=used,
                        idle_micro=idle,
                        borrowed_micro=0,
                        lent_micro=0,
                    )
                )
    return spread
