"""The standing oracle: what the ledger must say of a world, computed anew from docs/decisions/0020.

It imports nothing of the product: what two parties worked out apart from each other and agree on to
the micro-unit is not an accident. Money is a Fraction until it is rounded, time is integer
milliseconds. Where the decision leaves a choice, the choice is named beside the code (`Choice:`).
"""

from __future__ import annotations

import datetime as dt
import json
import re
import zoneinfo
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

WHOLE = 1_000_000  # a device, in millionths
HOUR, DAY, FOREVER = 3_600_000, 86_400_000, 10**15
SLIVER = (
    7  # shares are rounded down to millionths: what seven parts lose that way is no stranded slice
)
LEVELS = ("org", "team", "project", "experiment", "run", "user")
NODE_SCOPED = {"process", "container", "static", "dcgm"}
STATES = ("held", "unallocated", "unavailable", "unobserved", "stranded")
BRACES = re.compile(r"\{([^{}]+)\}")
PURCHASES = ("on_demand", "reserved", "owned", "spot")


class Job(NamedTuple):
    """A workload as one node reports it at one time."""

    kind: str
    id: str
    user: str = ""
    account: str = ""
    name: str = ""
    tags: tuple[tuple[str, str], ...] = ()

    def key(self, node: str) -> str:
        return f"{self.kind}:{node if self.kind in NODE_SCOPED else ''}:{self.id}"


class Sighting(NamedTuple):
    """A usage interval: what one node saw of one accelerator, with all that its batch says of it."""

    start: int
    end: int
    node: str
    uuid: str
    device: str
    mig: str
    model: str
    share: int
    pool: str
    state: str
    holders: tuple[tuple[Job, int], ...] = ()


class Price(NamedTuple):
    """A row of the price book; empty names match any."""

    pool: str
    model: str
    purchase: str
    rate: str
    currency: str
    start: int
    end: int | None = None
    node: str = ""


class Rule(NamedTuple):
    """An attribution rule: tags or facts that match, levels that it assigns."""

    match: tuple[tuple[str, str], ...]
    assign: tuple[tuple[str, str], ...]
    start: int | None = None
    end: int | None = None


class Import(NamedTuple):
    """Usage imported as a count of GPUs (in millionths)."""

    id: str
    start: int
    end: int | None
    share: int
    model: str
    pool: str
    node: str
    job: Job


class Dispute(NamedTuple):
    """An accepted dispute: what a team pays of some days is another's."""

    team: str
    first: dt.date
    last: dt.date
    to: str


class NodeCost(NamedTuple):
    """What an hour of a node costs beside its GPUs, on days of the bill; of one name the most
    specific holds.
    """

    name: str
    rate: str
    currency: str
    pool: str = ""
    node: str = ""
    first: dt.date | None = None
    last: dt.date | None = None


class Policy(NamedTuple):
    """A markup, a discount (a percentage) or a tier (steps of the rate over the hours of a month)."""

    name: str
    kind: str
    percent: str = ""
    steps: tuple[tuple[str, str], ...] = ()
    per: str = ""
    currency: str = ""
    team: str = ""
    pool: str = ""
    model: str = ""
    first: dt.date | None = None
    last: dt.date | None = None


class Entry(NamedTuple):
    """What somebody approved that an owner pays or gets back (negative), charged on one day."""

    name: str
    kind: str
    day: dt.date
    currency: str
    shares: tuple[tuple[tuple[str, ...], str, str, int], ...]
    """Owner, pool, model and micro-units."""


class Server(NamedTuple):
    """A declared model server that tenants share, on days of the bill."""

    name: str
    models: tuple[str, ...]
    served_by: tuple[tuple[str, str], ...]
    gateway: str = ""
    backends: tuple[str, ...] = ()
    weights: tuple[str, str, str] = ("1", "1", "1")
    idle: str = "tokens"
    reserved: tuple[tuple[str, str], ...] = ()
    first: dt.date | None = None
    last: dt.date | None = None
    mode: str = "showback"
    claims: str = "shown"
    weights_from: str = "declared"


class Tenant(NamedTuple):
    """The team that pays for a tenant of a gateway (empty: of any), on days of the bill."""

    gateway: str
    tenant: str
    team: str
    first: dt.date | None = None
    last: dt.date | None = None


class Asker(NamedTuple):
    """Who asked for what, as a gateway says it."""

    gateway: str
    tenant: str
    model: str
    backend: str = ""
    trust: str = "authenticated"


class Asked(NamedTuple):
    """Tokens of an asker between two instants: input, cached (a part of it), output, requests."""

    id: str
    asker: Asker
    start: int
    end: int
    tokens: tuple[int, int, int, int]


class Page(NamedTuple):
    """A reading of a gateway's page: the begin of its process, and values by asker and kind."""

    gateway: str
    at: int
    started: int
    values: tuple[tuple[Asker, str, int], ...]


class Reading(NamedTuple):
    """A reading of a server's own counters of input and output, as its node tells it.

    `gpu`: milliseconds of its GPUs for prompts, answers and other things, and the prompt and answer
    tokens that they computed in them; empty: it does not count that.
    """

    node: str
    job: Job
    at: int
    input: int
    output: int
    gpu: tuple[int, ...] = ()


class Row(NamedTuple):
    """A row of the inventory."""

    uuid: str
    node: str
    pool: str
    model: str
    start: int
    end: int | None


@dataclass
class Facts:
    """The set of evidence and what the sequence of declarations left in force."""

    zone: str = "UTC"
    sightings: set[Sighting] = field(default_factory=set)
    imports: dict[str, Import] = field(default_factory=dict)
    inventory: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    prices: dict[tuple[object, ...], Price] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    disputes: list[Dispute] = field(default_factory=list)
    node_costs: tuple[NodeCost, ...] = ()
    policies: tuple[Policy, ...] = ()
    entries: list[Entry] = field(default_factory=list)
    servers: tuple[Server, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    asked: dict[tuple[str, str], Asked] = field(default_factory=dict)
    pages: set[Page] = field(default_factory=set)
    readings: set[Reading] = field(default_factory=set)
    reported: dict[str, Job] = field(default_factory=dict)
    """What was reported last of each workload, by its key."""

    def report(self, key: str, job: Job) -> None:
        """A workload as a report has it; what the report leaves out stays."""
        known = self.reported.get(key, job)
        self.reported[key] = job._replace(
            user=job.user or known.user,
            account=job.account or known.account,
            name=job.name or known.name,
        )


class Place(NamedTuple):
    """An accelerator in one place, with one share of its board, for a time."""

    start: int
    end: int
    uuid: str
    device: str
    mig: str
    node: str
    pool: str
    model: str
    share: int


class Key(NamedTuple):
    """What amounts are compared by: the start of the billing day, who, what and where."""

    day: int
    owner: tuple[str, ...] | None
    state: str
    pool: str
    model: str
    node: str
    currency: str


class JobKey(NamedTuple):
    """What a workload pays is told apart by; `is_time`: for time, and not for its nodes."""

    day: int
    job: str
    owner: tuple[str, ...]
    pool: str
    model: str
    currency: str
    is_time: bool


def activity_of(ms: int) -> tuple[int, int, int]:
    """What worlds say of time that was held: a half of it busy, a third idle, the rest unknown."""
    return ms // 2, ms // 3, ms - ms // 2 - ms // 3


# GPU-nanoseconds and micro-units; 0 of these where there is no rate.
Bill = dict[Key, tuple[int, int]]


class Board:
    """The time line of one device: which of its parts are there, on which node; and which claims
    are refused.
    """

    def __init__(
        self, device: str, sightings: Sequence[Sighting], inventory: dict[str, tuple[Row, ...]]
    ) -> None:
        self.device, self.inventory = device, inventory
        self.sightings = sorted(sightings)
        self.accepted: list[Sighting] = []
        self.refused: list[tuple[str, Sighting]] = []
        self.node = ""
        self.there: dict[str, Sighting] = {}
        self.claims: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.moments: list[tuple[int, str, dict[str, Sighting]]] = []
        self._play()

    def _play(self) -> None:
        """Choice: inventory rows begin before the intervals of the same instant."""
        starts = [(row.start, 0, row) for row in self.inventory.get(self.device, ())]
        for at, _, what in sorted(
            [*starts, *((one.start, 1, one) for one in self.sightings)], key=lambda e: e[:2]
        ):
            if isinstance(what, Row):
                known = [one for one in self.accepted if one.uuid == self.device]
                unseen = Sighting(
                    at, at, what.node, self.device, self.device, "", "", WHOLE, "", "present"
                )
                self.there.setdefault(self.device, known[-1] if known else unseen)
            elif reason := self._refusal(what):
                self.refused.append((reason, what))
                continue
            else:
                self.accepted.append(what)
                self.there[what.uuid] = what
                self.claims[what.uuid].append((at, what.pool or "default"))
            self.moments.append((at, self.node, dict(self.there)))

    def rows(self, uuid: str, mig: str) -> tuple[Row, ...] | None:
        """Rows of the inventory that hold for an accelerator; those of its device for a MIG
        instance.
        """
        return self.inventory.get(uuid) or (self.inventory.get(self.device) if mig else None)

    def _refusal(self, new: Sighting) -> str:
        """Choice: of a board that has moved, those parts are there that the new node has seen
        since.
        """
        rows = self.rows(new.uuid, new.mig)
        if rows is not None:
            row = next((row for row in rows if row.start <= new.start < (row.end or FOREVER)), None)
            if row is not None and row.node != new.node:
                return "node"
        elif self.node and new.node != self.node and self._holds(new):
            return "node"
        elif self.node != new.node:
            self.node, self.there = new.node, {}
        others = {uuid: part for uuid, part in self.there.items() if uuid != new.uuid}
        if sum(part.share for part in others.values()) + new.share > WHOLE:
            others = {uuid: part for uuid, part in others.items() if self._seen(uuid, new.start)}
            if sum(part.share for part in others.values()) + new.share > WHOLE:
                return "board"
            self.there = {
                uuid: part
                for uuid, part in self.there.items()
                if uuid in others or uuid == new.uuid
            }
        return ""

    def _holds(self, new: Sighting) -> bool:
        """Whether the node that has the board sees it at that time, or within a day both before and
        after.
        """
        mine = [one for one in self.sightings if one.node == self.node]
        if any(one.start < new.end and new.start < one.end for one in mine):
            return True
        before = max((one.end for one in mine if one.end <= new.start), default=-FOREVER)
        after = min((one.start for one in mine if one.start >= new.end), default=FOREVER)
        return new.start - before <= DAY and after - new.end <= DAY

    def _seen(self, uuid: str, at: int) -> bool:
        """Choice: an interval that begins at this very instant shows its part, whatever it sorts
        after.
        """
        node = next(
            (row.node for row in self.rows(uuid, self.there[uuid].mig) or () if row.start <= at),
            self.node,
        )
        return any(
            one.uuid == uuid and one.node == node and one.start <= at < one.end
            for one in self.sightings
        )

    def places(self, imported: dict[str, set[int]]) -> Iterator[Place]:
        """Where each part is, from when to when, equal neighbors joined."""
        for uuid in sorted({uuid for _, _, there in self.moments for uuid in there}):
            found: list[Place] = []
            for (at, node, there), (end, _, _) in pairwise([*self.moments, (FOREVER, "", {})]):
                part = there.get(uuid)
                if part is None or at >= end:
                    continue
                rows = self.rows(uuid, part.mig)
                spans = [
                    (
                        max(at, row.start),
                        min(end, row.end or FOREVER),
                        row.node,
                        row.pool,
                        row.model or part.model,
                    )
                    for row in rows or ()
                ]
                if rows is None:
                    pools = self._pools(uuid, at, end, imported)
                    spans = [(first, last, node, pool, part.model) for first, last, pool in pools]
                for first, last, *where in spans:
                    if first < last:
                        joined(
                            found,
                            Place(first, last, uuid, self.device, part.mig, *where, part.share),
                        )
            yield from found

    def _pools(
        self, uuid: str, at: int, end: int, imported: dict[str, set[int]]
    ) -> Iterator[tuple[int, int, str]]:
        """The claimed pool, and on days on which usage is imported for it the last other one that
        held.
        """
        claims = [pool for since, pool in self.claims[uuid] if since <= at]
        claimed = claims[-1]
        days = imported.get(claimed, set())
        fallback = next((pool for pool in reversed(claims) if pool != claimed), "default")
        edges = {day for day in days if at < day < end} | {
            day + DAY for day in days if at < day + DAY < end
        }
        for first, last in pairwise([at, *sorted(edges), end]):
            yield first, last, fallback if first - first % DAY in days else claimed


def boards(facts: Facts) -> list[Board]:
    """The time lines of all devices."""
    by_device: dict[str, list[Sighting]] = {uuid: [] for uuid in facts.inventory}
    for one in facts.sightings:
        by_device.setdefault(one.device, []).append(one)
    return [Board(device, by_device[device], facts.inventory) for device in sorted(by_device)]


def imported_days(facts: Facts) -> dict[str, set[int]]:
    """The UTC days on which usage is imported, by pool; a year of them where it still runs."""
    found: dict[str, set[int]] = defaultdict(set)
    for one in facts.imports.values():
        found[one.pool] |= set(
            range(one.start - one.start % DAY, one.end or one.start + 366 * DAY, DAY)
        )
    return found


def stranded(places: Sequence[Place]) -> list[Place]:
    """What the parts of a board leave of it while one of them is a MIG instance.

    Choice: it is in the place of the instance whose UUID comes first.
    """
    found: list[Place] = []
    edges = sorted({edge for one in places for edge in (one.start, one.end)})
    for start, end in pairwise(edges):
        there = [one for one in places if one.start <= start < one.end]
        left = WHOLE - sum(one.share for one in there)
        first = min((one for one in there if one.mig), key=lambda one: one.uuid, default=None)
        if left > SLIVER and first is not None:
            joined(found, first._replace(start=start, end=end, share=left, mig=""))
    return found


def joined(found: list[Place], new: Place) -> None:
    """Append a place, or extend the last one that differs in nothing but time."""
    if found and found[-1].end == new.start and found[-1][2:] == new[2:]:
        found[-1] = found[-1]._replace(end=new.end)
    else:
        found.append(new)


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Whole parts by largest remainder; of equal remainders the earlier one gets more."""
    whole = sum(weights) or 1
    parts = [total * weight // whole for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda at: -(total * weights[at] % whole))
    for at in by_rest[: total - sum(parts)]:
        parts[at] += 1
    return parts


Window = tuple[int, int, Sighting]


def windows(sightings: Iterable[Sighting]) -> dict[str, list[Window]]:
    """By accelerator: the time that each interval has for itself; the one that sorts first keeps
    what both claim.
    """
    found: dict[str, list[Window]] = defaultdict(list)
    for one in sorted(one for one in sightings if one.state != "present"):
        mine = found[one.uuid]
        start = max(one.start, mine[-1][1]) if mine else one.start
        if start < one.end:
            mine.append((start, one.end, one))
    return found


# state's place in STATES, workload's key, its facts as text, its facts.
Holder = tuple[int, str, str, Job | None]
UNOBSERVED: Holder = (3, "", "", None)
NodeHolder = tuple[str, tuple[str, ...], str, str, str]  # state, owner, workload's key, pool, model


Activity = tuple[int, int, int]  # busy, idle and unknown


def shares_of(
    start: int, end: int, spans: Sequence[Window]
) -> list[tuple[Holder, tuple[int, Activity]]]:
    """Who had how many milliseconds of a rating interval, and what the accelerator did in them, in
    the order in which remainders are given.
    """
    found: dict[Holder, int] = defaultdict(int)
    active: dict[Holder, Activity] = defaultdict(lambda: (0, 0, 0))
    for first, last, seen in spans[bisect_right(spans, start, key=lambda span: span[1]) :]:
        if first >= end:
            break
        length = min(last, end) - max(first, start)
        if not seen.holders:
            found[STATES.index(seen.state), "", "", None] += length
        for (job, ms), part in zip(
            seen.holders, split(length, [ms for _, ms in seen.holders]), strict=True
        ):
            holder = 0, job.key(seen.node), json.dumps([job[:-1], sorted(job.tags)]), job
            found[holder] += part
            active[holder] = added(active[holder], split(part, activity_of(ms)))
    return sorted(
        ((holder, (ms, active[holder])) for holder, ms in found.items()),
        key=lambda item: item[0][:3],
    )


def added(first: Sequence[int], second: Sequence[int]) -> Activity:
    """Both together, kind by kind."""
    busy, idle, unknown = (one + other for one, other in zip(first, second, strict=True))
    return busy, idle, unknown


def owner_of(job: Job, pool: str, node: str, at: int, rules: Sequence[Rule]) -> tuple[str, ...]:
    """The owner that tags name and rules override, level by level; a fact goes before a tag of its
    name.
    """
    values = {name: text.strip() for name, text in job.tags}
    levels = {level: values[level] for level in LEVELS if values.get(level)}
    levels |= {"user": job.user} if job.user else {}
    facts = {
        "kind": job.kind,
        "user": job.user,
        "account": job.account,
        "name": job.name,
        "pool": pool,
        "node": node,
    }
    values |= {name: text for name, text in facts.items() if text}
    for rule in rules:
        if at < (rule.start or 0) or at >= (rule.end or FOREVER):
            continue
        if all(
            values.get(name) and fnmatchcase(values[name], pattern) for name, pattern in rule.match
        ):
            for level, template in rule.assign:
                if all(values.get(name) for name in BRACES.findall(template)):
                    levels[level] = BRACES.sub(lambda found: values[found[1]], template)
    return tuple(shown(levels.get(level, "")) for level in LEVELS)


def shown(name: str) -> str:
    """A name in parentheses is a row of the reports' own: evidence that carries one is shown as a
    tag.
    """
    return f"tag:{name}" if re.fullmatch(r"(tag:)*\s*\(.*\)\s*", name) else name


def midnight(day: dt.date, zone: str) -> int:
    """The instant at which a day of the bill begins."""
    return round(
        dt.datetime(day.year, day.month, day.day, tzinfo=zoneinfo.ZoneInfo(zone)).timestamp() * 1000
    )


class Rating:
    """The rating of a world's facts over some days."""

    def __init__(self, facts: Facts, first: dt.date, last: dt.date) -> None:
        self.facts = facts
        self.days = [
            midnight(first + dt.timedelta(count), facts.zone)
            for count in range((last - first).days + 1)
        ]
        dated = [
            at for one in (*facts.prices.values(), *facts.rules) for at in (one.start, one.end)
        ]
        self.edges = sorted({*self.days, *(at for at in dated if at is not None)})
        self.bill: dict[Key, list[int]] = defaultdict(lambda: [0, 0])
        self.on_nodes: dict[tuple[str, int, int], dict[NodeHolder, int]] = defaultdict(
            lambda: defaultdict(int)
        )
        self.jobs: dict[JobKey, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        """Micro-units and busy, idle and unknown time of workloads."""
        self.held: dict[tuple[str, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        """Milliseconds that a workload held in an hour, by accelerator."""
        self.adjusted: dict[tuple[int, tuple[object, ...]], int] = defaultdict(int)
        """What policies added to an owner's cost of a day in a pool, model and currency."""

    def rating_intervals(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """A time's part of each rating interval, with its beginning: UTC hours, cut by prices,
        rules and days.
        """
        start, end = max(start, self.days[0]), min(end, self.days[-1])
        while start < end:
            at, hour = bisect_right(self.edges, start), start - start % HOUR
            stop = min(end, hour + HOUR, *self.edges[at : at + 1])
            yield max(hour, *self.edges[max(0, at - 1) : at]), start, stop
            start = stop

    def price(self, pool: str, model: str, node: str, at: int) -> Price | None:
        """The most specific rate in force; among equals the preferred purchase, then the latest to
        take effect.
        """
        ranked = []
        for one in self.facts.prices.values():
            fits = model_match(one.model, model)
            if (
                fits >= 0
                and one.pool in ("", pool)
                and one.node in ("", node)
                and one.start <= at < (one.end or FOREVER)
            ):
                rank = (
                    one.node != "",
                    one.pool != "",
                    fits,
                    -PURCHASES.index(one.purchase),
                    one.start,
                )
                ranked.append((rank, one))
        return max(ranked, key=lambda entry: entry[0])[1] if ranked else None

    def rate(
        self, places: Iterable[Place], spans: Mapping[str, list[Window]], rest: Holder = UNOBSERVED
    ) -> None:
        """Rate each interval's capacity x rate once, half to even, and split it; `rest` has what
        spans leave of it.

        Choice: what comes back to the same place within an interval is rated as one.
        """
        found: dict[tuple[int, Place], dict[Holder, tuple[int, Activity]]] = defaultdict(
            lambda: defaultdict(lambda: (0, (0, 0, 0)))
        )
        for one in places:
            for rating_interval, start, end in self.rating_intervals(one.start, one.end):
                parts = shares_of(start, end, spans.get(one.uuid, []))
                left = end - start - sum(ms for _, (ms, _) in parts)
                held = found[rating_interval, one._replace(start=0, end=0)]
                for holder, (ms, active) in [*parts, (rest, (left, (0, 0, left)))]:
                    before = held[holder]
                    held[holder] = before[0] + ms, added(before[1], active)
        for (rating_interval, place), held in found.items():
            self.add(
                rating_interval,
                place,
                sorted(held.items(), key=lambda part: (part[0] == rest, part[0][:3])),
            )

    def add(
        self, start: int, one: Place, parts: Sequence[tuple[Holder, tuple[int, Activity]]]
    ) -> None:
        """Rate one interval; `round` takes a half to the even micro-unit."""
        price = self.price(one.pool, one.model, one.node, start)
        rate = Fraction(price.rate if price else 0)
        cost = round(
            Fraction(one.share * sum(ms for _, (ms, _) in parts), WHOLE * HOUR) * rate * WHOLE
        )
        day = self.days[bisect_right(self.days, start) - 1]
        currency = "" if price is None else price.currency
        for ((state, _, _, job), (ms, active)), micro in zip(
            parts, split(cost, [ms for _, (ms, _) in parts]), strict=True
        ):
            owner = None if job is None else self.payer(job, one, start)
            amounts = self.bill[
                Key(day, owner, STATES[state], one.pool, one.model, one.node, currency)
            ]
            amounts[0] += one.share * ms
            amounts[1] += micro
            if job is not None and owner is not None:
                key = job.key(one.node)
                of_job = self.jobs[
                    JobKey(day, key, owner, one.pool, one.model, currency, is_time=True)
                ]
                for at, more in enumerate((micro, *(one.share * part for part in active))):
                    of_job[at] += more
                if one.device:
                    self.held[key, start - start % HOUR][one.uuid] += ms
            if one.device:
                # Choice: of equal remainders of a node's hour, first the states by name, then
                # owners and workloads.
                name = "node_cost" if owner is not None else STATES[state]
                holder = (
                    name,
                    owner or (),
                    "" if job is None else job.key(one.node),
                    one.pool,
                    one.model,
                )
                self.on_nodes[one.node, day, start - start % HOUR][holder] += one.share * ms

    def payer(self, job: Job, place: Place, at: int) -> tuple[str, ...]:
        """Who pays for a job's time: whom tags and rules name, then whom disputes do, in their
        order.
        """
        owner, zone = owner_of(job, place.pool, place.node, at, self.facts.rules), self.facts.zone
        for one in self.facts.disputes:
            if owner[1] == one.team and midnight(one.first, zone) <= at < midnight(one.last, zone):
                owner = ("", one.to, "", "", "", "")
        return owner

    def imports(self, places: Sequence[Place], seen: dict[str, list[Window]]) -> None:
        """Rate what accelerators that were seen leave of the imported GPUs of each pool, instant by
        instant.

        Choice: samples without a holder say nothing of who held it, and take nobody's place.
        """
        pools: dict[str, list[Import]] = defaultdict(list)
        for one in self.facts.imports.values():
            pools[one.pool].append(one)
        for pool, rows in sorted(pools.items()):
            here = [
                (max(place.start, first), min(place.end, last), place)
                for place in places
                for first, last, _ in seen.get(place.uuid, ())
                if place.pool == pool and first < place.end and place.start < last
            ]
            edges = {edge for first, last, _ in here for edge in (first, last)}
            edges |= {
                edge for one in rows for edge in (one.start, min(one.end or FOREVER, self.days[-1]))
            }
            runs: dict[Import, list[Place]] = defaultdict(list)
            for start, end in pairwise(sorted(edges)):
                running = [one for one in rows if one.start <= start < (one.end or FOREVER)]
                beside = [place for first, last, place in here if first <= start < last]
                for one, left in replaced(running, beside):
                    joined(
                        runs[one],
                        Place(start, end, one.id, "", "", one.node, pool, one.model, left),
                    )
            for one, place in [(one, place) for one, mine in runs.items() for place in mine]:
                self.rate([place], {}, (0, one.id, "", one.job))


def replaced(running: Sequence[Import], seen: Sequence[Place]) -> Iterator[tuple[Import, int]]:
    """What is left of imports of one pool at one instant, those of a node before those of none."""
    taken = 0
    for node in sorted({one.node for one in running}, reverse=True):  # "" last
        rows = sorted((one for one in running if one.node == node), key=lambda one: one.id)
        there = sum(place.share for place in seen if node in ("", place.node)) - (
            0 if node else taken
        )
        count = sum(one.share for one in rows)
        used = min(there, count)
        taken += used
        yield from zip(rows, split(count - used, [one.share for one in rows]), strict=True)


def model_match(wanted: str, model: str) -> int:
    """2 for the same name, 1 where all words of `wanted` are the model's, 0 for any, -1 for
    another.
    """
    words, named = (set(re.findall(r"[a-z0-9]+", text.lower())) for text in (wanted, model))
    if not wanted:
        return 0
    return 2 if wanted.lower() == model.lower() else 1 if words and words <= named else -1


def bill_of_time(
    facts: Facts, first: dt.date, last: dt.date
) -> tuple[Rating, list[Place], list[tuple[str, Sighting]]]:
    """Rate the days from `first` to before `last`; with where accelerators were, and the claims
    that are refused.
    """
    rating = Rating(facts, first, last)
    imported = imported_days(facts)
    lines = boards(facts)
    accepted = [one for board in lines for one in board.accepted]
    spans, places = windows(accepted), []
    for board in lines:
        mine = list(board.places(imported))
        places += mine
        rating.rate(mine, spans)
        rating.rate(stranded(mine), {}, (4, "", "", None))
    rating.imports(places, spans)
    return rating, places, [claim for board in lines for claim in board.refused]
