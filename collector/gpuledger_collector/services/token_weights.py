"""What tokens weigh on each shared model server, estimated from its hours, beside what is declared.

Estimates only: they reach a bill where somebody declares them.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuledger_collector.accounting.inference import SPLIT_COUNTERS, TOKEN_COUNTERS
from gpuledger_collector.accounting.inference_split import (
    NO_GPU_TIME,
    SharedServer,
    gpu_time_of_hour,
    parse_weights,
)
from gpuledger_collector.accounting.period import HOUR_MS, Calendar, Period
from gpuledger_collector.accounting.unit_cost import CountedHour, count_by_hour
from gpuledger_collector.insight.token_weights import ServerHour, ServerWeights, estimate_weights
from gpuledger_collector.services.shared_servers import WorkloadsByDay
from gpuledger_collector.storage.billing import inference
from gpuledger_collector.storage.billing.inference import WorkloadActivity
from gpuledger_collector.storage.ledger import token_usage, zones
from gpuledger_collector.storage.locks import Connection

CACHED = "cached_tokens"
KNOWN_SHARE = 9, 10
"""Share of a server's prompt tokens that gateways must know before their cached tokens tell how
many of the server's were cached.
"""


class UnknownServer(ValueError):
    """No such server is declared for the period; the message names those that are."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """All servers as they would be declared, and those whose weights are proposed in it."""

    servers: Sequence[SharedServer]
    measured: Sequence[ServerWeights]


def read_token_weights(
    connection: Connection, period: Period, name: str = ""
) -> list[ServerWeights]:
    """Estimate the weights of the servers that are declared for the last day of a period.

    Raises UnknownServer.
    """
    calendar = zones.calendar(connection)
    servers = inference.SERVERS.in_force(connection)
    last = calendar.date_of(period.end_ms - 1)
    listed = [server for server in servers if server.holds_on(last)]
    if name and name not in {server.name for server in listed}:
        known = ", ".join(server.name for server in listed)
        raise UnknownServer(
            f"no server {name!r} is declared for {last}" + (f"; known are {known}" if known else "")
        )
    hours = _read_hours(connection, period, servers, calendar)
    return [
        ServerWeights(
            server.name,
            server.weights,
            estimate_weights(hours.get(server.name, []), parse_weights(server.weights)),
        )
        for server in listed
        if name in ("", server.name)
    ]


def propose(connection: Connection, weights: Iterable[ServerWeights], date: dt.date) -> Proposal:
    """The declared servers with estimated weights from a date on; those before it stay as they are."""
    measured = {each.server: each for each in weights if each.estimate.weights}
    servers, used = [], []
    for server in inference.SERVERS.in_force(connection):
        own = measured.get(server.name)
        if own is None or not server.holds_on(date) or own.estimate.weights == server.weights:
            servers.append(server)
            continue
        used.append(own)
        if server.from_on is None or server.from_on < date:
            servers.append(replace(server, to_on=date))
        servers.append(replace(server, weights=own.estimate.weights, from_on=date))
    return Proposal(servers, used)


def _read_hours(
    connection: Connection,
    period: Period,
    servers: Sequence[SharedServer],
    calendar: Calendar,
) -> dict[str, list[ServerHour]]:
    """What each server did and counted, by hour."""
    matching = WorkloadsByDay(connection, calendar.days(period), servers).matching
    chosen = sorted(set().union(*matching))
    activity: dict[int, list[WorkloadActivity]] = defaultdict(list)
    for row in inference.read_activity(connection, period, chosen) if chosen else ():
        activity[row.workload_id].append(row)
    cached = _read_cached(connection, period, servers, calendar)
    hours: dict[str, list[ServerHour]] = defaultdict(list)
    for server, own in zip(servers, matching, strict=True):
        counts = inference.read_model_counts(
            connection, period, sorted(own), server.served_model, (*SPLIT_COUNTERS, CACHED)
        )
        counted = {workload_id: _count(rows) for workload_id, rows in counts.items()}
        by_hour: dict[int, list[WorkloadActivity]] = defaultdict(list)
        for workload_id in own:
            for row in activity.get(workload_id, ()):
                if server.holds_on(calendar.date_of(row.hour_ms)):
                    by_hour[row.hour_ms].append(row)
        for hour_ms, rows in sorted(by_hour.items()):
            hour = _sum_hour(hour_ms, rows, counted)
            if hour.cached is None:
                known = cached.get((server.name, hour_ms))
                hour = replace(hour, cached=_cached_of(hour.prompt, known))
            hours[server.name].append(hour)
    return hours


_Counted = Mapping[str, Mapping[int, tuple[int, int]]]
"""Units and covered time by counter and hour."""


def _count(rows: Sequence[CountedHour]) -> _Counted:
    return {
        counter: count_by_hour([row for row in rows if row.counter == counter])
        for counter in (*SPLIT_COUNTERS, CACHED)
    }


def _sum_hour(
    hour_ms: int, rows: Sequence[WorkloadActivity], counted: Mapping[int, _Counted]
) -> ServerHour:
    """An hour of the workloads of a server; a workload without counters is not covered."""
    tokens: Counter[str] = Counter()
    covered, gpu = 1.0, NO_GPU_TIME
    for row in rows:
        for counter in TOKEN_COUNTERS:
            units, covered_ms = (
                counted.get(row.workload_id, {}).get(counter, {}).get(hour_ms, (0, 0))
            )
            tokens[counter] += units
            covered = min(covered, covered_ms / max(min(row.longest_ms, HOUR_MS), 1))
        own = {
            counter: hours[hour_ms]
            for counter, hours in counted.get(row.workload_id, {}).items()
            if hour_ms in hours
        }
        tokens[CACHED] += own.get(CACHED, (0, 0))[0]
        gpu += gpu_time_of_hour(own)[0]
    return ServerHour(
        hour_ms,
        sum(row.held_ms for row in rows),
        sum(row.busy_ms for row in rows),
        sum(row.unknown_ms for row in rows),
        tokens["prompt_tokens"],
        tokens[CACHED] if all(_counts_cached(row, counted, hour_ms) for row in rows) else None,
        tokens["generated_tokens"],
        covered,
        any(row.is_shared for row in rows),
        gpu,
    )


def _counts_cached(row: WorkloadActivity, counted: Mapping[int, _Counted], hour_ms: int) -> bool:
    """Whether a server says itself which of its prompt tokens were cached."""
    counts = counted.get(row.workload_id, {})
    return hour_ms in counts.get(CACHED, {})


def _cached_of(prompt: int, known: tuple[int, int] | None) -> int | None:
    """The cached tokens of a server's hour by what gateways know of them: (input, cached); None
    where they know too few of its tokens.
    """
    if known is None:
        return 0 if not prompt else None
    given, cached = known
    part, whole = KNOWN_SHARE
    return min(cached, prompt) if given * whole >= prompt * part else None


def _read_cached(
    connection: Connection,
    period: Period,
    servers: Sequence[SharedServer],
    calendar: Calendar,
) -> dict[tuple[str, int], tuple[int, int]]:
    """Input and cached tokens that gateways counted, by server and hour; what two servers would
    have answered is neither's.
    """
    known: dict[tuple[str, int], tuple[int, int]] = {}
    for hour in token_usage.read_token_hours(connection, period):
        date = calendar.date_of(hour.hour_ms)
        answering = [
            server.name
            for server in servers
            if server.answers(hour.asker) and server.holds_on(date)
        ]
        if len(answering) == 1:
            given, cached = known.get((answering[0], hour.hour_ms), (0, 0))
            tokens = hour.tokens.bounded()
            known[answering[0], hour.hour_ms] = given + tokens.input, cached + tokens.cached
    return known
