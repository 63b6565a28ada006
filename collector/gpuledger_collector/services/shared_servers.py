"""Which tokens and which workloads are a shared server's, and what its counters say: what the
reports of who asked and the rating of a day have in common.

A workload is a server's on a day by what was reported of it for that day, as its owner is: what is
reported later changes nothing of days before.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuledger_collector.accounting.attribution import FACTS, Attribution, WorkloadFacts
from gpuledger_collector.accounting.inference import (
    GPU_COUNTERS,
    TOKEN_COUNTERS,
    Asker,
    TokenDay,
    Tokens,
)
from gpuledger_collector.accounting.inference_charges import (
    PlaceCost,
    SharedDay,
    SharedServers,
    WorkloadCount,
    WorkloadDay,
    move_costs,
)
from gpuledger_collector.accounting.inference_split import (
    NO_GPU_TIME,
    Claimant,
    GpuTime,
    SharedServer,
    gpu_time_of_hour,
)
from gpuledger_collector.accounting.inference_tenants import TenantOwners
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.reserved_names import escape_name
from gpuledger_collector.accounting.unit_cost import CountedHour, count_by_hour
from gpuledger_collector.storage.billing import inference
from gpuledger_collector.storage.billing.inference import WorkloadHour
from gpuledger_collector.storage.ledger import token_usage, workloads, zones
from gpuledger_collector.storage.locks import Connection

NAMED = 5
"""Names that a sentence lists."""
_CountsByDay = dict[int, dict[str, dict[int, tuple[int, int]]]]
"""Units and covered time by day, counter and hour."""


def read_shared_servers(
    connection: Connection, day: Period, reported: Mapping[int, Sequence[WorkloadFacts]]
) -> SharedServers | None:
    """Read what the charges of shared servers on a day follow from; None where none is charged.

    `reported`: what was reported for the day of the workloads that hold time on it, by id.
    """
    dates = {day.start_ms: zones.calendar(connection).date_of(day.start_ms)}
    servers = _servers_on(connection, dates)
    if not servers:
        return None
    matching = match_workloads(connection, servers, reported)
    evidence = _DayEvidence(connection, [day], dates, servers, matching)
    keys = {number: reported[number][0].key for number in sorted(set().union(*matching))}
    return evidence.shared_on(day, matching, keys)


def move_again(connection: Connection, days: Sequence[Period]) -> dict[int, list[Charge]]:
    """Split shared servers on days that adjoin again, by what was billed for these with all its
    corrections: the charges that this makes, by day.
    """
    calendar = zones.calendar(connection)
    dates = {day.start_ms: calendar.date_of(day.start_ms) for day in days}
    servers = _servers_on(connection, dates)
    if not servers:
        return {}
    of_days = WorkloadsByDay(connection, days, servers, corrected=True)
    evidence = _DayEvidence(connection, days, dates, servers, of_days.matching)
    period = Period(days[0].start_ms, days[-1].end_ms)
    rows: dict[int, list[WorkloadDay]] = defaultdict(list)
    ids = sorted(of_days.keys)
    for row in inference.read_workload_days(connection, period, ids, corrected=True):
        rows[row.day_ms].append(row)
    places: dict[int, list[PlaceCost]] = defaultdict(list)
    for place in inference.read_adjusted_places(connection, period, corrected=True):
        places[place.day_ms].append(place)
    owners = inference.read_owners(
        connection,
        (row.payer for own in rows.values() for row in own if isinstance(row.payer, int)),
    )

    def owner_of(row: WorkloadDay | PlaceCost) -> OwnerPath | None:
        return owners.get(row.payer) if isinstance(row.payer, int) else None

    moved = {}
    for day in days:
        matching = [
            of_days.of_server(number, day.start_ms)
            if server.holds_on(dates[day.start_ms])
            else set()
            for number, server in enumerate(servers)
        ]
        charged = set().union(*matching)
        moved[day.start_ms] = move_costs(
            day,
            evidence.shared_on(day, matching, of_days.keys),
            charged,
            [
                replace(row, payer=owner_of(row))
                for row in rows[day.start_ms]
                if row.workload_id in charged
            ],
            [replace(place, payer=owner_of(place)) for place in places[day.start_ms]],
        )
    return moved


def _servers_on(connection: Connection, dates: Mapping[int, dt.date]) -> list[SharedServer]:
    """The servers of some days; none where none of them charges its tenants."""
    servers = [
        server
        for server in inference.SERVERS.in_force(connection)
        if any(map(server.holds_on, dates.values()))
    ]
    return servers if any(server.is_charged for server in servers) else []


class _DayEvidence:
    """What tenants asked of servers and what these counted, by day."""

    def __init__(
        self,
        connection: Connection,
        days: Sequence[Period],
        dates: Mapping[int, dt.date],
        servers: Sequence[SharedServer],
        matching: Sequence[set[int]],
    ) -> None:
        self._servers, self._dates = servers, dates
        self._counts = WorkloadCounts(
            connection, Period(days[0].start_ms, days[-1].end_ms), servers, matching
        )
        self._asked = AskedTokens(
            ServerOf(servers, dates), token_usage.read_token_days(connection, days)
        ).by_server
        self._tenants = TenantOwners(inference.TENANTS.in_force(connection), dates)

    def shared_on(
        self, day: Period, matching: Sequence[set[int]], keys: Mapping[int, str]
    ) -> SharedServers:
        """The servers of a day; `matching` are their workloads on it. Those of two servers are
        nobody's.
        """
        times = Counter(workload_id for own in matching for workload_id in own)
        return SharedServers(
            [
                SharedDay(
                    server,
                    {
                        workload_id: self._counts.count(number, workload_id, day)
                        for workload_id in sorted(own)
                        if times[workload_id] == 1
                    },
                    self._asked.get((day.start_ms, number), {}),
                )
                for number, (server, own) in enumerate(zip(self._servers, matching, strict=True))
                if server.holds_on(self._dates[day.start_ms])
            ],
            self._tenants,
            keys,
        )


def name_some(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def place_of(asker: Asker) -> str:
    """What a gateway calls the model, and the backend where it says one."""
    return f"{asker.gateway}: {asker.model}" + (f" at {asker.backend}" if asker.backend else "")


def claimant_of(asker: Asker) -> Claimant:
    """Who asked, wherever it was answered; a name of a row of the reports is escaped."""
    return Claimant(asker.gateway, escape_name(asker.tenant), asker.model, asker.trust)


class DayStarts(dict[int, int]):
    """The begin of the day of an hour; a month has hundreds of hours and of each many rows."""

    def __init__(self, calendar: Calendar) -> None:
        super().__init__()
        self._calendar = calendar

    def __missing__(self, hour_ms: int) -> int:
        self[hour_ms] = self._calendar.day_of(hour_ms).start_ms
        return self[hour_ms]


class ServerOf:
    """The server that answered an asker on a day."""

    def __init__(self, servers: Sequence[SharedServer], dates: Mapping[int, dt.date]) -> None:
        self.servers = servers
        self.twice: dict[str, Sequence[str]] = {}
        """Servers by the place of askers whom more than one of them would answer."""
        self._dates = dates
        self._answering: dict[tuple[str, str, str], list[int]] = {}
        self._found: dict[tuple[str, str, str, int], int | None] = {}

    def find(self, asker: Asker, day_ms: int) -> int | None:
        """The number of the server; None where none answers, or two."""
        # Whoever asks: there are many tenants and few models.
        key = asker.gateway, asker.model, asker.backend, day_ms
        if key not in self._found:
            self._found[key] = self._find(asker, self._dates[day_ms])
        return self._found[key]

    def _find(self, asker: Asker, date: dt.date) -> int | None:
        place = asker.gateway, asker.model, asker.backend
        if place not in self._answering:
            self._answering[place] = [
                number for number, server in enumerate(self.servers) if server.answers(asker)
            ]
        answering = [
            number for number in self._answering[place] if self.servers[number].holds_on(date)
        ]
        if len(answering) > 1:
            self.twice[place_of(asker)] = sorted(self.servers[number].name for number in answering)
        return answering[0] if len(answering) == 1 else None


class AskedTokens:
    """Tokens by day, server and claimant, and those that no server, or two, answered."""

    def __init__(self, server_of: ServerOf, days: Iterable[TokenDay]) -> None:
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
            known = of_day.get(claimant)
            of_day[claimant] = day.tokens if known is None else known + day.tokens

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


def match_workloads(
    connection: Connection,
    servers: Sequence[SharedServer],
    reported: Mapping[int, Sequence[WorkloadFacts]],
) -> list[set[int]]:
    """The workloads of each server, by any of what was reported of them."""
    rules = [ServedBy(server) for server in servers]
    by_names: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, rule in enumerate(rules):
        by_names[rule.names].append(number)
    matching: list[set[int]] = [set() for _ in servers]
    for workload_id, facts in reported.items():
        for workload in facts:
            for names, numbers in by_names.items():
                # Most workloads have not the tags that a server asks for, and patterns cost more.
                if has_names(workload, names):
                    named = with_job(workload)
                    for number in numbers:
                        if rules[number].matches_named(named):
                            matching[number].add(workload_id)
    for number, server in enumerate(servers):
        if server.served_model and matching[number]:
            matching[number] &= inference.list_serving(
                connection, sorted(matching[number]), server.served_model
            )
    return matching


def has_names(workload: WorkloadFacts, names: Sequence[str]) -> bool:
    """Whether a workload has tags of these names, as far as they are not facts."""
    return all(name in workload.tags or name in FACTS for name in names)


class ServedBy:
    """Which workloads answer for a server, by tags and facts."""

    def __init__(self, server: SharedServer) -> None:
        self.names = tuple(sorted(server.served_by))
        self._rules = Attribution([server.rule])

    def matches(self, workload: WorkloadFacts) -> bool:
        """Whether a workload is the server's."""
        return has_names(workload, self.names) and self.matches_named(with_job(workload))

    def matches_named(self, workload: WorkloadFacts) -> bool:
        """Whether a workload that has its job as a tag is the server's."""
        return bool(self._rules.matching(workload, 0))


def with_job(workload: WorkloadFacts) -> WorkloadFacts:
    """A workload with its id at the scheduler as the tag `job`, whatever its user wrote there; one
    that was imported has its cluster before it, and when it was submitted after it.
    """
    _, _, number = workload.key.rpartition(":")
    number = number.rpartition("/")[2].partition("@")[0]
    return replace(workload, tags={**workload.tags, "job": number})


def _list_candidates(
    connection: Connection, servers: Sequence[SharedServer], ids: Sequence[int]
) -> Sequence[int]:
    """Those of the workloads that have a tag which a server asks for: of a month's tens of thousands
    a few.
    """
    names: set[str] = set()
    for server in servers:
        own = server.served_by.keys() - FACTS
        if not own:
            return ids
        names.add(min(own))
    return workloads.list_tagged(connection, ids, sorted(names))


class WorkloadsByDay:
    """The workloads of servers on the days of a period, by what was reported for each day."""

    def __init__(
        self,
        connection: Connection,
        days: Sequence[Period],
        servers: Sequence[SharedServer],
        *,
        corrected: bool = False,
    ) -> None:
        self._charged = inference.list_charged_workloads(connection, days, corrected=corrected)
        ids = _list_candidates(connection, servers, sorted(set().union(*self._charged.values())))
        self._reports = workloads.reports(connection, ids)
        for workload in workloads.facts(
            connection, [each for each in ids if each not in self._reports]
        ).values():
            self._reports[workload.id] = {0: workload}
        self.matching = match_workloads(
            connection,
            servers,
            {number: list(reports.values()) for number, reports in self._reports.items()},
        )
        """By server: the workloads that are its on some day."""
        chosen = set().union(*self.matching)
        self.keys = {
            number: next(iter(self._reports[number].values())).key for number in sorted(chosen)
        }
        # Where all that was ever reported of a workload is one, there is no need to ask when.
        varied = sorted(number for number in chosen if len(self._reports[number]) > 1)
        self._varied = set(varied)
        self._on_day = workloads.reports_by_day(connection, days, varied) if varied else {}
        self._rules = [ServedBy(server) for server in servers]

    def of_server(self, number: int, day_ms: int) -> set[int]:
        """The workloads of a server that were charged on a day."""
        own = self.matching[number] & self._charged.get(day_ms, set())
        return {
            workload_id
            for workload_id in own
            if workload_id not in self._varied or self._matches(number, workload_id, day_ms)
        }

    def _matches(self, number: int, workload_id: int, day_ms: int) -> bool:
        reports = self._reports[workload_id]
        return any(
            self._rules[number].matches(reports[report])
            for report in self._on_day.get((workload_id, day_ms), ())
        )


def _sum_gpu_time(
    counted: Mapping[str, Mapping[int, tuple[int, int]]],
) -> tuple[GpuTime, dict[int, int]]:
    """What the counters of a workload's GPUs say of a day, by counter and hour, and the milliseconds
    of each hour that they say it of.
    """
    gpu, measured_ms = NO_GPU_TIME, {}
    for hour_ms in sorted(set().union(*(counted.get(counter, {}) for counter in GPU_COUNTERS))):
        of_hour, measured_ms[hour_ms] = gpu_time_of_hour(
            {
                counter: counted[counter][hour_ms]
                for counter in GPU_COUNTERS
                if hour_ms in counted.get(counter, {})
            }
        )
        gpu += of_hour
    return gpu, measured_ms


class WorkloadCounts:
    """What counters of the workloads of servers counted, and when these held time."""

    def __init__(
        self,
        connection: Connection,
        period: Period,
        servers: Sequence[SharedServer],
        matching: Sequence[set[int]],
    ) -> None:
        # One reading for all servers of the same counters: most have the same.
        of_alike: dict[tuple[str, Sequence[str]], set[int]] = defaultdict(set)
        for server, own in zip(servers, matching, strict=True):
            of_alike[server.served_model, server.split_counters] |= own
        counts = {
            alike: inference.read_model_counts(connection, period, sorted(ids), *alike)
            for alike, ids in of_alike.items()
            if ids
        }
        self._counts = [
            counts.get((server.served_model, server.split_counters), {}) for server in servers
        ]
        self._day_of = DayStarts(zones.calendar(connection))
        self._held: dict[tuple[int, int], list[WorkloadHour]] = defaultdict(list)
        chosen = sorted(set().union(*matching))
        for hour in inference.read_workload_hours(connection, period, chosen) if chosen else ():
            self._held[hour.workload_id, self._day_of[hour.hour_ms]].append(hour)
        self._by_day: dict[tuple[int, int], _CountsByDay] = {}

    def held(self, workload_id: int, day_ms: int) -> Sequence[WorkloadHour]:
        """What a workload held in the hours of a day; of usage that was imported as counts nothing
        is known.
        """
        return self._held.get((workload_id, day_ms), ())

    def count(self, number: int, workload_id: int, day: Period) -> WorkloadCount:
        """What the counters of a server's workload counted on a day."""
        counted = self._counts_of(number, workload_id).get(day.start_ms, {})
        prompt, generated = (
            sum(units for units, _ in counted[counter].values()) if counter in counted else 0
            for counter in TOKEN_COUNTERS
        )
        held = self.held(workload_id, day.start_ms)
        gpu, measured_ms = _sum_gpu_time(counted)
        uncovered_ms = 0 if held else day.ms
        unmeasured_ms = 0
        for hour in held:
            covered_ms = min(
                counted.get(counter, {}).get(hour.hour_ms, (0, 0))[1] for counter in TOKEN_COUNTERS
            )
            uncovered_ms += max(hour.longest_ms - covered_ms, 0)
            unmeasured_ms += max(hour.longest_ms - measured_ms.get(hour.hour_ms, 0), 0)
        is_known = not counted.keys().isdisjoint(TOKEN_COUNTERS)
        return WorkloadCount(
            prompt if is_known else None,
            generated if is_known else None,
            uncovered_ms,
            gpu if is_known else NO_GPU_TIME,
            sum(hour.longest_ms for hour in held),
            unmeasured_ms,
        )

    def _counts_of(self, number: int, workload_id: int) -> _CountsByDay:
        key = number, workload_id
        if key not in self._by_day:
            by_day: _CountsByDay = defaultdict(lambda: defaultdict(dict))
            of_counter: dict[str, list[CountedHour]] = defaultdict(list)
            for count in self._counts[number].get(workload_id, []):
                of_counter[count.counter].append(count)
            for counter, counts in of_counter.items():
                for hour_ms, counted in count_by_hour(counts).items():
                    by_day[self._day_of[hour_ms]][counter][hour_ms] = counted
            self._by_day[key] = by_day
        return self._by_day[key]
