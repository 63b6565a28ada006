"""The oracle's split of shared model servers, computed anew from docs/decisions/0046 and the guide.

Like `oracle.model` it imports nothing of the product. A server's day is what its workloads were
charged; it is divided by what their accelerators did, and split by weighted tokens.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from oracle.model import (
    HOUR,
    WHOLE,
    Asked,
    Asker,
    Facts,
    Job,
    JobKey,
    Page,
    Rating,
    Server,
    midnight,
    shown,
    split,
)
from oracle.money import Held, holds, rated

NOBODY, IDLE = "(nobody)", "(idle)"
AUTHENTICATED = "authenticated"
CHARGED = "charged"
GAP = 600_000
"""A page that was not read for longer says nothing of that time."""
CLOCK = 2_000
"""By how much clocks of a gateway and its reader differ."""
KINDS = ("input", "cached", "output", "requests")

Counts = tuple[int, int, int, int]
"""Tokens of input, the cached part of them, tokens of output, and requests."""
NOTHING: Counts = (0, 0, 0, 0)


class Claimant(NamedTuple):
    """Who asked: sorted as remainders are given."""

    gateway: str
    tenant: str
    model: str
    trust: str = AUTHENTICATED


class LineKey(NamedTuple):
    """What lines are compared by."""

    server: str
    day: int
    gateway: str
    tenant: str
    model: str
    team: str
    currency: str


class Amounts(NamedTuple):
    """Micro-units of a line; borrowed, lent and what its owner is charged are contained in them."""

    used: int
    idle: int
    borrowed: int = 0
    lent: int = 0
    charged: int = 0


class Counted(NamedTuple):
    """What a server's counters counted on a day.

    `is_whole`: they cover it. `gpu`: milliseconds of its GPUs for prompts, answers and other things,
    and the prompt and answer tokens that were computed in them.
    """

    input: int
    output: int
    is_whole: bool
    gpu: tuple[int, ...] = (0, 0, 0, 0, 0)


class ServerDay(NamedTuple):
    """What a declared server's day is split by; its weights are those of the day.

    `rows`: what its workloads cost, with their part of what policies added; `tokens`: as gateways
    counted them.
    """

    server: Server
    rows: Mapping[JobKey, Sequence[int]]
    counted: Counted | None
    tokens: Mapping[Claimant, Counts]


@dataclass
class ServerSum:
    """What a server cost on a day in one currency; counts on the first currency alone."""

    cost: int
    used: int
    counted: tuple[int, int] | None
    is_scaled: bool
    asked: int


@dataclass
class Answer:
    """Lines with their amounts, tokens of each line's first currency, and servers by day."""

    lines: dict[LineKey, Amounts] = field(default_factory=dict)
    tokens: dict[LineKey, Counts] = field(default_factory=dict)
    servers: dict[tuple[str, int, str], ServerSum] = field(default_factory=dict)

    def add(self, key: LineKey, amounts: Amounts, tokens: Counts) -> None:
        """Add to a line; claims and checked tenants of one name are one line."""
        before = self.lines.get(key, Amounts(0, 0))
        self.lines[key] = Amounts(*(a + b for a, b in zip(before, amounts, strict=True)))
        self.tokens[key] = plus(self.tokens.get(key, NOTHING), tokens)


class View(NamedTuple):
    """What a month is split by: the facts of what it was charged, and all others. `held` is what
    its accelerators held, as the counters of servers are held against it.
    """

    charged: Rating
    facts: Facts
    held: Rating


def answer_of(facts: Facts, closes: Mapping[str, Facts], first: dt.date, last: dt.date) -> Answer:
    """The lines of all days; `closes`: what was known when a month was closed, by its name."""
    answer = Answer()
    now, _ = rated(facts, first, last)
    views = {
        name: view_of_closed(facts, now, known, rated(known, first, last)[0])
        for name, known in closes.items()
    }
    day = first
    while day < last:
        view = views.get(f"{day:%Y-%m}", View(now, facts, now))
        for one in servers_of(view.charged, view.facts, day, view.held):
            split_server(answer, view.facts, one, day)
        day += dt.timedelta(days=1)
    return answer


def view_of_closed(facts: Facts, now: Rating, known: Facts, at_close: Rating) -> View:
    """Of a closed month: as it was known at the close; where no server was declared then, what it
    was charged then is split by what is known now, late evidence of what was held included.
    """
    if known.servers:
        return View(at_close, known, at_close)
    late = Facts(
        zone=facts.zone,
        servers=facts.servers,
        tenants=known.tenants or facts.tenants,
        asked=facts.asked,
        pages=facts.pages,
        readings=facts.readings,
        reported=facts.reported,
    )
    return View(at_close, late, now)


def servers_of(rating: Rating, facts: Facts, day: dt.date, held: Rating) -> Iterator[ServerDay]:
    """The servers that are declared for a day; a workload that matches two of them is nobody's."""
    start, end = (midnight(each, facts.zone) for each in (day, day + dt.timedelta(days=1)))
    servers = [server for server in facts.servers if holds(server, day)]
    workloads = [workloads_of(server, rating, facts, start) for server in servers]
    own = [
        {job for job in jobs if sum(job in others for others in workloads) == 1}
        for jobs in workloads
    ]
    costs = costs_of_day(rating, start, set().union(*workloads))
    asked = asked_on(facts, servers, start, end)
    for server, jobs in zip(servers, own, strict=True):
        counted = counted_by(facts, held, jobs, start, end)
        yield ServerDay(
            weighed(server, counted),
            {key: row for key, row in costs.items() if key.job in jobs},
            counted,
            bounded(asked.get(server.name, {})),
        )


def bounded(asked: Mapping[Claimant, Counts]) -> dict[Claimant, Counts]:
    """Tokens of those who asked for any.

    Choice: cached tokens without their input, which counters may be short of, are none.
    """
    rows = {
        claimant: (given, min(cached, given), output, requests)
        for claimant, (given, cached, output, requests) in sorted(asked.items())
    }
    return {claimant: tokens for claimant, tokens in rows.items() if any(tokens)}


def workloads_of(server: Server, rating: Rating, facts: Facts, day: int) -> set[str]:
    """The workloads that were charged on a day and match, as they were reported last."""
    charged = {key.job for key in rating.jobs if key.day == day and key.is_time}
    return {key for key in charged if matches(server, key, facts.reported[key])}


def matches(server: Server, key: str, job: Job) -> bool:
    """Whether tags and facts of a workload match; `job` is its id at the scheduler."""
    values = {name: text.strip() for name, text in job.tags}
    facts = {"kind": job.kind, "user": job.user, "account": job.account, "name": job.name}
    values |= {name: text for name, text in facts.items() if text}
    values["job"] = key.rpartition(":")[2]
    return all(
        values.get(name) and fnmatchcase(values[name], pattern)
        for name, pattern in server.served_by
    )


def costs_of_day(
    rating: Rating, day: int, chosen: set[str]
) -> dict[JobKey, tuple[int, int, int, int]]:
    """What workloads of servers cost on a day, with their part of what policies added.

    Choice: of equal remainders the workload whose key comes first, and the others of the place last.
    """
    rows = {
        key: tuple(values)
        for key, values in rating.jobs.items()
        if key.day == day and key.job in chosen
    }
    for (at, where), micro in rating.adjusted.items():
        if at != day:
            continue
        place = Held(*where)
        own = sorted(
            (key for key in rows if key.is_time and (*key[2:6],) == place), key=lambda key: key.job
        )
        held = sum(
            amounts[1]
            for key, amounts in rating.bill.items()
            if key.day == day
            and key.state == "held"
            and (key.owner, key.pool, key.model, key.currency) == place
        )
        weights = [rows[key][0] for key in own]
        if any(weights):
            parts = signed(micro, [*weights, held - sum(weights)])
            for key, part in zip(own, parts, strict=False):
                cost, *active = rows[key]
                rows[key] = (cost + part, *active)
    return rows


def of_server(costs: Mapping[JobKey, Sequence[int]]) -> dict[str, tuple[int, int, int]]:
    """By currency: what workloads cost, and the time of their accelerators that was not idle, and
    that was.

    Choice: a currency in which no time is charged is divided by all of the time.
    """
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for key, (micro, busy, idle, unknown) in costs.items():
        entry = found[key.currency]
        entry[0] += micro
        entry[1] += busy + unknown
        entry[2] += idle
    whole = [sum(entry[at] for entry in found.values()) for at in (1, 2)]
    # Time without a price costs nothing here.
    found.pop("", None)
    return {
        currency: (cost, *((used, idle) if used or idle else whole))
        for currency, (cost, used, idle) in found.items()
    }


def signed(total: int, weights: Sequence[int]) -> list[int]:
    """Largest remainder of an amount of either sign."""
    parts = split(abs(total), weights)
    return parts if total >= 0 else [-part for part in parts]


# Who asked.


def asked_on(
    facts: Facts, servers: Sequence[Server], start: int, end: int
) -> dict[str, dict[Claimant, Counts]]:
    """Tokens of the hours that begin on a day, by the one server that answers them."""
    found: dict[str, dict[Claimant, Counts]] = defaultdict(dict)
    hours = [(one.asker, *hour) for one in facts.asked.values() for hour in hours_of(one)]
    hours += list(hours_of_pages(facts.pages))
    for asker, hour, tokens in hours:
        if not start <= hour < end:
            continue
        answering = [server for server in servers if answers(server, asker)]
        if len(answering) == 1:
            claimant = Claimant(asker.gateway, shown(asker.tenant), asker.model, asker.trust)
            of_server = found[answering[0].name]
            of_server[claimant] = plus(of_server.get(claimant, NOTHING), tokens)
    return found


def answers(server: Server, asker: Asker) -> bool:
    """Whether a server answers what a gateway calls a model, at a backend."""
    return (
        server.gateway in ("", asker.gateway)
        and any(like(pattern, asker.model) for pattern in server.models)
        and (
            not server.backends or any(like(pattern, asker.backend) for pattern in server.backends)
        )
    )


def like(pattern: str, text: str) -> bool:
    """Whether a text is a pattern's, in which `*` alone stands for others."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


def hours_of(one: Asked) -> Iterator[tuple[int, Counts]]:
    """The tokens of a record by hour, by time; what was computed and what was cached apart."""
    given, cached, output, requests = one.tokens
    parts = {
        name: spread(one.start, one.end, units)
        for name, units in (
            ("computed", given - cached),
            ("cached", cached),
            ("output", output),
            ("requests", requests),
        )
    }
    for hour in parts["cached"]:
        computed, cached, output, requests = (of_hours[hour] for of_hours in parts.values())
        yield hour, (computed + cached, cached, output, requests)


def spread(start: int, end: int, units: int) -> dict[int, int]:
    """Units over the hours of a time; all in one hour where there is no time."""
    if start == end:
        return {start - start % HOUR: units}
    edges = [start, *range(start - start % HOUR + HOUR, end, HOUR), end]
    pieces = list(pairwise(edges))
    parts = split(units, [last - first for first, last in pieces])
    return {first - first % HOUR: part for (first, _), part in zip(pieces, parts, strict=True)}


def hours_of_pages(pages: Iterable[Page]) -> Iterator[tuple[Asker, int, Counts]]:
    """What counters on pages counted: readings that come every few minutes, of one process after
    another.
    """
    by_gateway: dict[str, list[Page]] = defaultdict(list)
    for page in sorted(pages, key=lambda page: page.at):
        by_gateway[page.gateway].append(page)
    for read in by_gateway.values():
        latest: dict[tuple[Asker, str], tuple[int, int]] = {}
        for before, page in pairwise([None, *read]):
            assert page is not None
            for asker, kind, value in page.values:
                since, units = counted_since(before, page, latest.get((asker, kind)), value)
                latest[asker, kind] = page.started, value
                for hour, part in spread(since, page.at, units).items():
                    yield asker, hour, tuple(part if name == kind else 0 for name in KINDS)


def counted_since(
    before: Page | None, page: Page, latest: tuple[int, int] | None, value: int
) -> tuple[int, int]:
    """From when on, and how much, a value counts at a reading of its page."""
    is_near = before is not None and page.at - before.at <= GAP
    if not is_near:
        # Of an unknown time only the begin of the process tells anything.
        is_new = before is None or page.started > before.at
        counts = is_new and page.at - page.started <= GAP
        return page.started, value if counts else 0
    if page.started != before.started:
        # A process that was there when another one answered: two of them have one address.
        is_other = page.started < before.at - CLOCK
        return max(before.at, page.started), 0 if is_other else value
    if latest is None or latest[0] != page.started:
        return before.at, value
    return before.at, value - latest[1] if value >= latest[1] else value


# What servers counted.


def weighed(server: Server, counted: Counted | None) -> Server:
    """A server with the weights of a day: what an answer token took of its GPUs over what a prompt
    token took, where more than a minute went to each and at most a twentieth to anything else.

    Choice: rounded to thousandths of an input token that weighs 1, half to even.
    """
    if server.weights_from != "gpu_seconds" or counted is None:
        return server
    prompts, answers, other, computed, decoded = counted.gpu
    if min(prompts, answers) < 60_000 or not computed or not decoded:
        return server
    if 20 * other > prompts + answers + other:
        return server
    ratio = Fraction(answers, decoded) / Fraction(prompts, computed)
    output = Fraction(round(Fraction(server.weights[0]) * ratio * 1000), 1000)
    if not 0 < output <= WHOLE:
        return server
    return server._replace(weights=(*server.weights[:2], str(output)))


def counted_by(facts: Facts, held: Rating, jobs: set[str], start: int, end: int) -> Counted | None:
    """Input and output that the counters of workloads counted on a day, and whether they cover it:
    all but ten minutes of the time that was held. None: they say nothing.

    Choice: of accelerators that a workload held in one hour, the longest. GPU time and its tokens
    count in hours of which they cover the same.
    """
    counted, is_known, missing = [0] * 7, False, 0
    for key in sorted(jobs):
        readings = sorted(
            (one for one in facts.readings if one.job.key(one.node) == key), key=lambda one: one.at
        )
        covered: dict[tuple[int, int], int] = defaultdict(int)
        units: dict[int, list[int]] = defaultdict(lambda: [0] * 7)
        for before, after in pairwise(readings):
            if after.at - before.at > GAP:
                continue
            values = [(one.input, one.output, *one.gpu) for one in (before, after)]
            for at, (first, last) in enumerate(zip(*values, strict=False)):
                increase = last - first
                if increase < 0:
                    # A restart is known of its hour, and counts nothing.
                    is_known = is_known or (at < 2 and start <= after.at - after.at % HOUR < end)
                    continue
                for hour, part in spread(before.at, after.at, increase).items():
                    if start <= hour < end:
                        is_known = is_known or at < 2
                        units[hour][at] += part
                        covered[hour, at] += min(after.at, hour + HOUR) - max(before.at, hour)
        for hour, parts in units.items():
            is_measured = len({covered[hour, at] for at in (2, 3, 5, 6)}) == 1
            for at, part in enumerate(parts):
                counted[at] += part if at < 2 or is_measured else 0
        hours = {
            hour: max(of_cards.values())
            for (job, hour), of_cards in held.held.items()
            if job == key and start <= hour < end
        }
        if not hours:
            missing += end - start
        for hour, held_ms in hours.items():
            missing += max(held_ms - min(covered[hour, 0], covered[hour, 1]), 0)
    return Counted(*counted[:2], missing <= GAP, tuple(counted[2:])) if is_known else None


# The split.


def plus(first: Counts, second: Counts) -> Counts:
    """Both together."""
    given, cached, output, requests = (a + b for a, b in zip(first, second, strict=True))
    return given, cached, output, requests


def split_server(answer: Answer, facts: Facts, one: ServerDay, day: dt.date) -> None:
    """Add the lines of a server's day, by currency."""
    server, counted, known = one.server, one.counted, one.tokens
    costs = of_server(one.rows)
    weighted, is_scaled = compared(known, counted)
    if not costs and not weighted:
        return
    start = midnight(day, facts.zone)
    for number, currency in enumerate(sorted(costs) or [""]):
        cost, *active = costs.get(currency, (0, 0, 0))
        used, idle = used_and_idle(cost, active)
        answer.servers[server.name, start, currency] = ServerSum(
            cost,
            used,
            counted[:2] if counted and not number else None,
            is_scaled and not number,
            0 if number else sum(given + output for given, _, output, _ in known.values()),
        )
        parts = split_cost(server, weighted, used, idle)
        for claimant in sorted({*parts, *known}):
            tokens = NOTHING if number else known.get(claimant, NOTHING)
            if claimant.tenant == NOBODY and not number:
                tokens = weighted.get(claimant, NOTHING)
            amounts = parts.get(claimant, Amounts(0, 0))
            team = team_of(facts, claimant, day, server)
            if team and server.mode == CHARGED:
                amounts = amounts._replace(charged=amounts.used + amounts.idle)
            if any(amounts) or any(tokens):
                key = LineKey(server.name, start, *claimant[:3], team, currency)
                answer.add(key, amounts, tokens)


def used_and_idle(cost: int, active: Sequence[int]) -> tuple[int, int]:
    """The cost of time that was not idle, and of time that was; all used where nothing is known."""
    if not any(active):
        return cost, 0
    used, idle = signed(cost, active)
    return used, idle


def compared(
    known: Mapping[Claimant, Counts], counted: Counted | None
) -> tuple[dict[Claimant, Counts], bool]:
    """Tokens by which a day is split: scaled down to what the server counted, or with what only the
    server knows.
    """
    weighted = dict(known)
    if counted is None:
        return weighted, False
    given, output = (sum(tokens[at] for tokens in known.values()) for at in (0, 2))
    is_whole = counted[2]
    if is_whole and given > counted[0]:
        pairs = [part for one in known.values() for part in (one[0] - one[1], one[1])]
        scaled = split(counted[0], pairs)
        for at, claimant in enumerate(known):
            computed, cached = scaled[2 * at : 2 * at + 2]
            weighted[claimant] = (computed + cached, cached, *weighted[claimant][2:])
    if is_whole and output > counted[1]:
        scaled = split(counted[1], [one[2] for one in known.values()])
        for claimant, part in zip(known, scaled, strict=True):
            weighted[claimant] = (*weighted[claimant][:2], part, weighted[claimant][3])
    rest = max(counted[0] - given, 0), 0, max(counted[1] - output, 0), 0
    if any(rest):
        weighted[Claimant("", NOBODY, "")] = rest
    return weighted, is_whole and (given > counted[0] or output > counted[1])


def weigh(server: Server, tokens: Counts) -> int:
    """Weighted tokens, in millionths."""
    given, cached, output, _ = tokens
    own = [Fraction(text) * WHOLE for text in server.weights]
    return int((given - cached) * own[0] + cached * own[1] + output * own[2])


def split_cost(
    server: Server, weighted: Mapping[Claimant, Counts], used: int, idle: int
) -> dict[Claimant, Amounts]:
    """What each claimant pays of a day, and what stays with the platform."""
    shares = {claimant: weigh(server, tokens) for claimant, tokens in weighted.items()}
    has_tokens = any(shares.values())
    if used and not has_tokens:
        shares[Claimant("", NOBODY, "")] = 1
    claimants = sorted(shares)
    by = [shares[claimant] for claimant in claimants]
    paid = dict(zip(claimants, signed(used, by) if used else [0] * len(by), strict=True))
    if server.idle == "reservations" and used + idle > 0:
        return by_reservations(server, paid, used + idle)
    of_idle = dict.fromkeys(claimants, 0)
    left = idle
    if server.idle == "tokens" and has_tokens:
        of_idle, left = dict(zip(claimants, signed(idle, by), strict=True)), 0
    found = {claimant: Amounts(paid[claimant], of_idle[claimant]) for claimant in claimants}
    return found | ({Claimant("", IDLE, ""): Amounts(0, left)} if left else {})


def by_reservations(
    server: Server, paid: Mapping[Claimant, int], cost: int
) -> dict[Claimant, Amounts]:
    """Shares of the server that were reserved, borrowed and lent.

    Choice: a share is rounded down to the micro-unit; what a tenant pays beside its use is split
    over its models by their use. Users stand in the order of their names.
    """
    reserved = {booked(name): int(Fraction(share) * WHOLE) for name, share in server.reserved}
    users: dict[tuple[str, str, str], list[Claimant]] = {
        (name, "", AUTHENTICATED): [] for name in reserved
    }
    for claimant in sorted(paid):
        has_share = (
            claimant.tenant in reserved
            and claimant.trust == AUTHENTICATED
            and server.gateway in ("", claimant.gateway)
        )
        user = (
            (claimant.tenant, "", AUTHENTICATED)
            if has_share
            else (claimant.tenant, f"of {claimant.gateway}", claimant.trust)
        )
        users.setdefault(user, []).append(claimant)
    names = sorted(users)
    uses = [sum(paid[claimant] for claimant in users[name]) for name in names]
    wanted = [
        cost * reserved[tenant] // WHOLE if not gateway and tenant in reserved else 0
        for tenant, gateway, _ in names
    ]
    above = [max(use - share, 0) for use, share in zip(uses, wanted, strict=True)]
    below = [max(share - use, 0) for use, share in zip(uses, wanted, strict=True)]
    free = cost - sum(wanted)
    moved = max(sum(above) - free, 0)
    borrowed, lent = split(moved, above), split(moved, below)
    found: dict[Claimant, Amounts] = {}
    for at, name in enumerate(names):
        own = users[name] or [Claimant(server.gateway, name[0], "")]
        by = [paid.get(claimant, 0) for claimant in own]
        by = by if any(by) else [1] + [0] * (len(own) - 1)
        columns = (split(total, by) for total in (below[at] - lent[at], borrowed[at], lent[at]))
        for claimant, idle, more, less in zip(own, *columns, strict=True):
            found[claimant] = Amounts(paid.get(claimant, 0), idle, more, less)
    left = max(free - sum(above), 0)
    return found | ({Claimant("", IDLE, ""): Amounts(0, left)} if left else {})


def booked(name: str) -> str:
    """A declared name as evidence is booked: as it is, or as lists show it."""
    return shown(name[4:] if name.startswith("tag:") and shown(name[4:]) == name else name)


def team_of(facts: Facts, claimant: Claimant, day: dt.date, server: Server) -> str:
    """The team that pays for a tenant; none for nobody or a key without a team, nor for a claim
    unless its server charges claims.
    """
    if not claimant.tenant or claimant.tenant in (NOBODY, IDLE):
        return ""
    if claimant.trust != AUTHENTICATED and server.claims != CHARGED:
        return ""
    holding = [
        one for one in facts.tenants if booked(one.tenant) == claimant.tenant and holds(one, day)
    ]
    fitting = [one for one in holding if one.gateway in ("", claimant.gateway)]
    if not claimant.gateway and not fitting and len(holding) == 1:
        # A share of a server of any gateway, whose tenant asked nothing.
        fitting = holding
    return max(fitting, key=lambda one: one.gateway).team if fitting else ""


__all__ = ["Answer", "answer_of"]
