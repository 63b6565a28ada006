"""Shared model servers of a world: what is declared of them, who asks, and what servers count.

Drawn from a stream of their own, so that the other content of a world is the same without them.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from oracle.inference import matches
from oracle.model import (
    DAY,
    HOUR,
    Asked,
    Asker,
    Job,
    Page,
    Reading,
    Server,
    Tenant,
)

if TYPE_CHECKING:
    from oracle.worlds import Maker, Step

MINUTE = 60_000
TENANTS = ("vision", "nlp", "search", "(other)", "(nobody)", "")
GATEWAYS = ("litellm", "kong")
"""The first posts its records, the second has files of them."""
PAGED = "envoy"
"""A gateway whose page is read."""
WEIGHTS = (
    ("1", "1", "1"),
    ("1", "0.1", "4"),
    ("0", "0", "1"),
    ("1", "0", "0"),
    ("0.333333", "0.000001", "7"),
)
RULES = ("tokens", "reservations", "platform")
ON_THE_HOUR = {"UTC", "Europe/Berlin", "America/Santiago"}
"""Zones whose days begin on an hour of UTC: in others tokens of an hour would lie on two days."""


class Tenants:
    """Draws what tenants ask, among the steps of a world."""

    def __init__(self, maker: Maker, steps: list[Step]) -> None:
        self.maker, self.steps = maker, steps
        self.rng = random.Random(f"tenants of {maker.seed}")
        self.charged = random.Random(f"charged servers of {maker.seed}")
        self.measured = random.Random(f"measured weights of {maker.seed}")
        self.weighed: list[Server] = []
        """Servers that are weighed by their GPU time."""

    def declare(self) -> None:
        """Servers, mostly twice; records, a page and counters of servers."""
        rng = self.rng
        if self.maker.zone not in ON_THE_HOUR:
            if rng.random() < 0.3:
                self.put(("refused", ((Server("s0", ("m0",), (("job", "j0"),)),), ())))
            return
        if rng.random() < 0.15:
            return
        self.put(("servers", (self.servers(), self.tenants())))
        if rng.random() < 0.4:
            at = next(at for at, (kind, _) in enumerate(self.steps) if kind == "servers")
            again = ("servers", (self.servers(), self.tenants()))
            self.steps.insert(rng.randint(at + 1, len(self.steps)), again)
        for number in range(rng.randint(1, 4)):
            self.put(self.records(number))
        if rng.random() < 0.6:
            for page in self.pages():
                self.put(("page", page))
        if rng.random() < 0.7:
            for readings in self.readings():
                self.put(("readings", readings))
        for readings in self.measured_readings():
            # After all others, by a stream of their own: these stay where they were.
            self.steps.insert(self.measured.randint(0, len(self.steps)), ("readings", readings))

    def put(self, step: Step) -> None:
        self.steps.insert(self.rng.randint(0, len(self.steps)), step)

    def days(self) -> tuple[dt.date | None, dt.date | None]:
        """Days on which a declaration holds, mostly all."""
        if self.rng.random() < 0.7:
            return None, None
        first = self.maker.first + dt.timedelta(days=self.rng.randint(0, 2))
        return first, self.rng.choice((None, first + dt.timedelta(days=self.rng.randint(1, 3))))

    def servers(self) -> tuple[Server, ...]:
        """Servers of one or several jobs; two may have one model, or one job.

        Named by what stays the same of a job: workloads match as they were reported last, and
        which report that is a collector does not know of batches that come out of order.
        """
        rng = self.rng
        jobs = rng.sample(sorted(self.maker.jobs), 5)
        found = []
        for number in range(rng.randint(1, 3)):
            served = rng.choice(
                (
                    (("job", jobs[number]),),
                    (("job", jobs[number]),),
                    (("job", "i*"),),
                    (("user", "ada"),),
                    (("kind", "process"),),
                    (("team", "bravo"), ("kind", "imported")),
                    (("account", "ml-*"),),
                    (("job", f"j[{jobs[number][1]}{jobs[4][1]}]"),),
                )
            )
            idle = rng.choice(RULES)
            # All servers together answer the same models whatever is declared: others are refused.
            models = (f"m{number}",) if number else rng.choice((("m0", "m1", "m2"), ("m*",)))
            backends = rng.choice(((), (), ("http://[::1]:80*", "http://a/*"), (f"*/{number}",)))
            if not number:
                backends = ()
            found.append(
                Server(
                    f"s{number}",
                    models,
                    served,
                    rng.choice(("", "", GATEWAYS[0])) if number else "",
                    backends,
                    rng.choice(WEIGHTS),
                    idle,
                    self.reserved() if idle == "reservations" else (),
                    *self.days(),
                    *self.modes(),
                )
            )
        for at, one in enumerate(found):
            if one.weights[0] != "0" and self.measured.random() < 0.6:
                found[at] = one._replace(weights_from="gpu_seconds")
                self.weighed.append(found[at])
        return tuple(found)

    def modes(self) -> tuple[str, str]:
        """Mostly charged; some of them claims as well."""
        mode = "charged" if self.charged.random() < 0.7 else "showback"
        return mode, "charged" if self.charged.random() < 0.3 else "shown"

    def reserved(self) -> tuple[tuple[str, str], ...]:
        """Shares of some tenants, all or a part of a server."""
        shares = self.rng.choice((("0.5", "0.25"), ("0.333333", "0.666667"), ("1",), ("0.1",) * 3))
        names = self.rng.sample(("vision", "nlp", "search", "(other)", "nobody-yet"), len(shares))
        return tuple(zip(names, shares, strict=True))

    def tenants(self) -> tuple[Tenant, ...]:
        """Owners of most tenants, of a gateway or of all; of some two, of some on some days."""
        rng, found = self.rng, []
        for name in (*TENANTS[:-1], "tag:(nobody)", "nobody-yet"):
            for gateway in rng.choice((("",), ("",), GATEWAYS[:1], ("", GATEWAYS[1]), ())):
                if name == "(nobody)" or (name == "tag:(nobody)" and rng.random() < 0.5):
                    continue
                team = rng.choice(("alpha", "bravo", "vision"))
                found.append(Tenant(gateway, name, team, *self.days()))
        return tuple(found)

    def asker(self, gateway: str, *, may_claim: bool) -> Asker:
        """A tenant of a gateway, or a claim; a model, and mostly where it was answered."""
        rng = self.rng
        trust = "claim" if may_claim and rng.random() < 0.2 else "authenticated"
        backend = rng.choice(("", "", "http://[::1]:8000/v1", "http://a/1", "http://b/2"))
        return Asker(gateway, rng.choice(TENANTS), f"m{rng.randint(0, 2)}", backend, trust)

    def instant(self) -> int:
        """An instant of the world, often on the hour."""
        at = self.rng.randint(self.maker.start, self.maker.end - 1)
        return max(self.maker.start, at - at % self.rng.choice((1, 1000, MINUTE, HOUR)))

    def records(self, number: int) -> Step:
        """Records of one gateway by one way; some come again, greater or smaller, some end much
        later.
        """
        rng = self.rng
        gateway = rng.choice(GATEWAYS)
        kind = "post" if gateway == GATEWAYS[0] else "csv"
        # A file has tenants of one trust.
        trust = rng.choice(("authenticated", "authenticated", "claim"))
        found = []
        for place in range(rng.randint(1, 25)):
            asker = self.asker(gateway, may_claim=kind == "post")
            if kind == "csv":
                asker = asker._replace(trust=trust)
            start = self.instant()
            length = rng.choice((0, 1, rng.randint(1, MINUTE), rng.randint(1, HOUR), 30 * HOUR))
            given = rng.choice((0, 1, 7, rng.randint(1, 100_000)))
            tokens = (
                given,
                rng.randint(0, given),
                rng.choice((0, 3, rng.randint(1, 30_000))),
                rng.choice((0, 1, 12)),
            )
            same = rng.random() < 0.1
            identity = f"r{place}" if same else f"r{number}-{place}"
            found.append(Asked(identity, asker, start, start + length, tokens))
        return kind, tuple(found)

    def pages(self) -> list[tuple[Page, ...]]:
        """A page that is read every few minutes: series come, fall back, and begin anew with their
        process.
        """
        rng = self.rng
        at = self.instant()
        started = at - rng.choice((0, MINUTE, 30 * MINUTE, DAY))
        values: dict[tuple[Asker, str], int] = {}
        read: list[Page] = []
        for _ in range(rng.randint(2, 60)):
            chance = rng.random()
            if chance < 0.05:
                started, values = at - rng.randint(0, 2 * MINUTE), {}
            elif chance < 0.08:
                at += rng.choice((DAY // 2, 11 * MINUTE))
            elif chance < 0.12:
                values = {key: value for key, value in values.items() if rng.random() < 0.5}
            if rng.random() < 0.3:
                asker = self.asker(PAGED, may_claim=True)
                values |= {(asker, kind): 0 for kind in ("input", "cached", "output")}
            for key in values:
                values[key] += rng.choice((0, 0, 1, rng.randint(1, 20_000)))
            series = tuple((*key, value) for key, value in sorted(values.items()))
            read.append(Page(PAGED, at, started, series))
            at += rng.choice((MINUTE, 5 * MINUTE, 10 * MINUTE))
        cuts = sorted({0, rng.randint(0, len(read)), len(read)})
        return [tuple(read[a:b]) for a, b in pairwise(cuts)]

    def readings(self) -> list[tuple[Reading, ...]]:
        """Counters of servers, of whole days or with gaps and restarts, more or less than gateways
        count.
        """
        rng = self.rng
        seen = sorted(
            {
                (job.key(one.node), one.node, job.id)
                for one in self.maker.sightings
                for job, _ in one.holders
                if job.id in self.maker.jobs
            }
        )
        nodes = {key: (node, job) for key, node, job in seen}
        found = []
        for key in rng.sample(sorted(nodes), min(len(nodes), rng.randint(1, 4))):
            node, name = nodes[key]
            first = self.maker.start - 5 * MINUTE
            last = self.maker.end if rng.random() < 0.7 else first + rng.randint(HOUR, 3 * DAY)
            most = rng.choice((20, 600, 5_000))
            is_even = rng.random() < 0.5
            counts, at, read = [rng.randint(0, 500), 0], first, []
            while at < min(last + 10 * MINUTE, self.maker.end + 10 * MINUTE):
                if not is_even and rng.random() < 0.005:
                    counts = [0, 0]
                if not is_even and rng.random() < 0.005:
                    at += rng.choice((10 * MINUTE + 1, 5 * HOUR))
                counts = [counts[0] + rng.randint(0, most), counts[1] + rng.randint(0, most // 4)]
                read.append((at, *counts))
                at += 10 * MINUTE
            job = self.maker.job(name, node, max(first, self.maker.start))
            found += list(self.told(node, job, read))
        return found

    def measured_readings(self) -> list[tuple[Reading, ...]]:
        """Counters of some workloads of servers that are weighed by their GPU time, of which no
        others were read: the whole time, with restarts.
        """
        rng, found = self.measured, []
        read = {
            one.job.key(one.node) for kind, what in self.steps if kind == "readings" for one in what
        }
        jobs = {
            job.key(one.node): (one.node, job)
            for one in sorted(self.maker.sightings, key=str)
            for job, _ in one.holders
            if job.id in self.maker.jobs
        }
        fitting = [
            key
            for key, (_, job) in sorted(jobs.items())
            if key not in read and any(matches(server, key, job) for server in self.weighed)
        ]
        for key in rng.sample(fitting, min(len(fitting), 3)):
            node, job = jobs[key]
            job = self.maker.job(job.id, node, self.maker.start)
            counts, rows = [0, 0], []
            for at in range(self.maker.start, self.maker.end, 10 * MINUTE):
                if rng.random() < 0.01:
                    counts = [0, 0]
                counts = [counts[0] + rng.randint(0, 600), counts[1] + rng.randint(0, 150)]
                rows.append((at, *counts))
            found += self.told(node, job, rows)
        return found

    def gpu_times(self, read: Sequence[tuple[int, int, int]]) -> list[tuple[int, ...]]:
        """What the same readings say of GPU time and of the tokens computed in it, mostly; it begins
        anew with the other counters, and some of it is too little or too mixed to say what a token
        takes.
        """
        rng = self.measured
        if rng.random() < 0.3:
            return [() for _ in read]
        most_ms = rng.choice((200, 3_000, 60_000))
        most = (most_ms, most_ms, rng.choice((0, 0, most_ms // 15, most_ms // 2)))
        most_tokens = (rng.choice((0, 40, 9_000)), rng.choice((3, 700)))
        total, found, before = [0] * 5, [], 0
        for _, given, _ in read:
            if given < before:
                total = [0] * 5
            before = given
            total = [
                at + rng.randint(0, limit)
                for at, limit in zip(total, (*most, *most_tokens), strict=True)
            ]
            found.append(tuple(total))
        return found

    def told(
        self, node: str, job: Job, read: Sequence[tuple[int, int, int]]
    ) -> list[tuple[Reading, ...]]:
        """Readings in one or two parts."""
        cut = self.rng.choice((0, len(read) // 2))
        rows = [
            Reading(node, job, *values, gpu)
            for values, gpu in zip(read, self.gpu_times(read), strict=True)
        ]
        return [tuple(part) for part in (rows[:cut], rows[cut:]) if part]


__all__ = ["Tenants"]
