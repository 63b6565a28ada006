"""Who asked pays: what shared model servers cost each tenant in a period, from one reading.

Declared servers ([[inference]]) name the tokens that are theirs, and the workloads that answered.
A workload or tokens that two of them name on one day move nothing, and are said. A closed month is
read as it was kept at its close. What a server that is declared as charged moves on bills is booked
by rating (accounting.inference_charges), by the same split.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from gpuledger_collector.accounting.inference import Tokens
from gpuledger_collector.accounting.inference_charges import (
    UNPRICED,
    WorkloadDay,
    spread_adjustments,
    sum_costs,
    sum_counts,
)
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
    Weights,
    compare_tokens,
    parse_weights,
    split_server,
    spread_part,
    spread_tokens,
)
from gpuledger_collector.accounting.inference_tenants import TenantOwners
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.services.api_prices import add_api_prices
from gpuledger_collector.services.shared_servers import (
    NAMED,
    AskedTokens,
    DayStarts,
    ServerOf,
    WorkloadCounts,
    WorkloadsByDay,
    claimant_of,
    name_some,
)
from gpuledger_collector.storage.billing import inference, periods
from gpuledger_collector.storage.ledger import token_usage, workloads, zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_common.largest_remainder import split_signed
from gpuledger_common.plurals import plural


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
    server_of: ServerOf
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
    tenants = TenantOwners(
        inference.TENANTS.in_force(connection, declared_ms)
        or inference.TENANTS.in_force(connection),
        dates,
    )
    answered = _Answered(connection, period, servers)
    server_of = ServerOf(servers, dates)
    asked = AskedTokens(server_of, token_usage.read_token_days(connection, days))
    answer = InferenceDays(splits=[_SplitPeriod(period, server_of, answered)])
    for day in days:
        date = dates[day.start_ms]
        for number, server in enumerate(servers):
            if server.holds_on(date):
                ids = answered.workloads_on(number, day.start_ms, date)
                _split_server(
                    answer,
                    server,
                    day,
                    answered.costs_on(day.start_ms, ids),
                    answered.counted_on(number, day, ids),
                    asked.by_server.get((day.start_ms, number), {}),
                    tenants,
                )
    answer.notes += [*asked.notes(), *answered.notes(), *_tenant_notes(tenants)]
    answer.notes += _server_notes(answer.servers)
    return answer


def _undeclared(connection: Connection, period: Period) -> InferenceDays:
    days = token_usage.read_token_days(connection, [period])
    if not days:
        return InferenceDays()
    gateways = name_some(sorted({day.asker.gateway for day in days}))
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
    tenants: TenantOwners,
) -> None:
    """Add the lines of a server's day to an answer."""
    tokens = compare_tokens(asked, counted)
    if not costs and not tokens.weighted:
        return
    of_day = server.weights_of(counted)
    weights = parse_weights(of_day)
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
                of_day,
                _measured_share(server, counted),
            )
        )
        for part in split_server(server, cost, tokens, of_day):
            weighted = tokens.weighted.get(part.claimant)
            owner = tenants.owner_of(part.claimant, day.start_ms, server.charges_claims)
            answer.lines.append(
                InferenceLine(
                    server=server.name,
                    day_ms=day.start_ms,
                    claimant=part.claimant,
                    owner=owner,
                    tokens=part.tokens if first else Tokens(),
                    weighted=0 if weighted is None else weights.weigh(weighted),
                    currency=currency,
                    used_micro=part.used_micro,
                    idle_micro=part.idle_micro,
                    borrowed_micro=part.borrowed_micro,
                    lent_micro=part.lent_micro,
                    is_charged=server.is_charged and bool(owner),
                )
            )
        first = False


def _measured_share(server: SharedServer, counted: ServerCount | None) -> Fraction | None:
    """The part of the held time of a day that its measured weights rest on; None: declared ones, or
    not known.
    """
    if counted is None or not counted.held_ms or not server.measured_weights(counted):
        return None
    # As of tokens: a restart loses a minute.
    missing_ms = counted.unmeasured_ms if counted.unmeasured_ms > UNCOVERED_MS else 0
    return 1 - Fraction(missing_ms, counted.held_ms)


def _server_notes(servers: Sequence[ServerLine]) -> list[str]:
    unknown = sorted(
        {day.server for day in servers}
        - {day.server for day in servers if day.counted_input is not None}
    )
    notes = (
        [
            f"{name_some(unknown)}: no counters of the server are known, so tokens past the gateway are"
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
    measured: dict[str, dict[int, Fraction]] = defaultdict(dict)
    for day in servers:
        if day.measured_share is not None and day.measured_share < 1:
            measured[day.server][day.day_ms] = day.measured_share
    notes += [
        f"{name}: on {plural(len(shares), 'day')} output is weighed by GPU seconds of a part of the"
        f" held time, {int(100 * min(shares.values()))} % at the least: counters of time and of"
        " tokens miss the rest, or cover it differently"
        for name, shares in sorted(measured.items())
    ]
    unpriced = sorted({day.server for day in servers if not day.currency})
    if unpriced:
        notes.append(
            f"{name_some(unpriced)}: on some days nothing that answered was charged, so tokens of"
            " these days cost nothing here"
        )
    return notes


def _tenant_notes(tenants: TenantOwners) -> list[str]:
    """Tenants that no owner pays for."""
    notes = []
    if tenants.unknown:
        notes.append(
            f"no [[tenant]] table names an owner of {name_some(sorted(tenants.unknown))}: no team"
            " sees their lines"
        )
    if tenants.claimed:
        notes.append(
            f"callers only claim to be {name_some(sorted(tenants.claimed))}: no owner pays for"
            " claims (docs/guides/gateways.md)"
        )
    return notes


class _Answered:
    """The workloads of servers, what they cost by day, and what their counters counted."""

    def __init__(
        self, connection: Connection, period: Period, servers: Sequence[SharedServer]
    ) -> None:
        self._connection, self._servers = connection, servers
        calendar = zones.calendar(connection)
        days = calendar.days(period)
        self._workloads = WorkloadsByDay(connection, days, servers)
        self._by_day: dict[int, list[set[int]]] = {}
        self._twice: set[tuple[int, tuple[str, ...]]] = set()
        chosen = sorted(self._workloads.keys)
        self._unpriced_ns = inference.count_unpriced(connection, period, chosen) if chosen else 0
        self._days: dict[int, list[WorkloadDay]] = defaultdict(list)
        answering = {
            day.start_ms: set().union(*self._holding(day.start_ms, calendar.date_of(day.start_ms)))
            for day in days
        }
        for row in inference.read_workload_days(connection, period, chosen) if chosen else ():
            if row.workload_id in answering[row.day_ms]:
                self._days[row.day_ms].append(row)
        places = inference.read_adjusted_places(connection, period) if chosen else ()
        self._adjusted = spread_adjustments(places, self._days, self._workloads.keys)
        self._counts = WorkloadCounts(connection, period, servers, self._workloads.matching)

    def _holding(self, day_ms: int, date: dt.date) -> list[set[int]]:
        """By server the workloads that match it on a day."""
        return [
            self._workloads.of_server(number, day_ms) if server.holds_on(date) else set()
            for number, server in enumerate(self._servers)
        ]

    def workloads_on(self, number: int, day_ms: int, date: dt.date) -> set[int]:
        """The workloads of a server on a day; those of two servers are nobody's."""
        if day_ms not in self._by_day:
            holding = self._holding(day_ms, date)
            count = Counter(workload_id for own in holding for workload_id in own)
            twice = {workload_id for workload_id, times in count.items() if times > 1}
            for workload_id in twice:
                names = sorted(
                    server.name
                    for server, own in zip(self._servers, holding, strict=True)
                    if workload_id in own
                )
                self._twice.add((workload_id, tuple(names)))
            self._by_day[day_ms] = [own - twice for own in holding]
        return self._by_day[day_ms][number]

    def costs_on(self, day_ms: int, ids: set[int]) -> dict[str, ServerCost]:
        """What the workloads of a server cost on a day, by currency."""
        rows = (row for row in self._days.get(day_ms, ()) if row.workload_id in ids)
        return sum_costs(rows, self._adjusted)

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
                    for hour in self._counts.held(row.workload_id, day.start_ms)
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
        return sum_counts(
            self._counts.count(number, workload_id, day) for workload_id in sorted(ids)
        )

    def notes(self) -> list[str]:
        """What moves nothing, or has no cost."""
        empty = sorted(
            {
                server.name
                for server, own in zip(self._servers, self._workloads.matching, strict=True)
                if not own
            }
        )
        notes = (
            [f"{name_some(empty)}: no workload that was charged matches its served_by"]
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
    day_of = DayStarts(calendar)
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
                ids = split.answered.workloads_on(number, day.start_ms, date)
                counted = split.answered.counted_on(number, day, ids)
                hours.weights[server.name, day.start_ms] = parse_weights(server.weights_of(counted))
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
