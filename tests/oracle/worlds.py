"""Worlds from a seed: a fleet with all that happens to it, and the order in which a ledger is told.

A world is a list of steps. Its facts are the set of its evidence and what its declarations leave in
force; `twin` tells the same in another order, with other looks in between.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from oracle.model import (
    DAY,
    HOUR,
    WHOLE,
    Asked,
    Dispute,
    Entry,
    Facts,
    Import,
    Job,
    NodeCost,
    Policy,
    Price,
    Row,
    Rule,
    Sighting,
    midnight,
)
from oracle.tenants import Tenants

MINUTE = 60_000
EARLY = 1_577_836_800_000
"""2020-01-01T00:00:00Z."""
SCENES = (
    ("UTC", dt.date(2024, 2, 29)),
    ("Asia/Kolkata", dt.date(2024, 2, 29)),
    ("Asia/Kathmandu", dt.date(2023, 12, 31)),
    ("Europe/Berlin", dt.date(2024, 3, 31)),
    ("Europe/Berlin", dt.date(2024, 10, 27)),
    ("Australia/Lord_Howe", dt.date(2024, 4, 7)),
    ("Australia/Lord_Howe", dt.date(2024, 10, 6)),
    ("America/St_Johns", dt.date(2024, 11, 3)),
    ("America/Santiago", dt.date(2024, 9, 8)),
    ("Pacific/Chatham", dt.date(2024, 9, 29)),
)
"""Clocks that move, by an hour, by half of one and at midnight; zones off the hour; a leap day; the
ends of months.
"""
SHAPES: dict[str, tuple[tuple[int, str], ...]] = {
    "whole": ((WHOLE, ""),),
    "halves": ((WHOLE // 2, "3g.40gb"),) * 2,
    "sevenths": ((WHOLE // 7, "1g.10gb"),) * 7,
    "uneven": ((WHOLE * 3 // 7, "3g.40gb"), (WHOLE * 2 // 7, "2g.20gb")),
}
MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla T4")
POOLS = ("", "train", "serve")
TAGS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("team", "alpha"),),
    (("team", "bravo"), ("project", "p1")),
    (("team", "bravo"), ("project", "p2"), ("org", "acme")),
    (("team", "charlie"), ("experiment", "x"), ("run", "r7")),
    (("tier", "gold"),),
    (),
    (("team", "(unallocated)"),),
    (("team", " (unpriced)"), ("project", "(stranded)")),
    (("team", "tag:(unattributed)"),),
)


class Batch(NamedTuple):
    """What one node says at once; its number is its own."""

    node: str
    seq: int
    sightings: tuple[Sighting, ...]


Step = tuple[str, object]
"""What is told, with what it brings: batch, import, doubled, second, replaced, slip, inventory,
prices, rules, nodes, policies, entry, true_up, declared, dispute, close or look; servers, refused,
csv, post, page or readings.
"""
FREE = ("batch", "import", "csv", "post", "page", "readings")
"""What may be told in any order."""


@dataclass
class World:
    """Steps in the order in which a ledger is told, and the days that are compared."""

    seed: int | str
    zone: str
    first: dt.date
    last: dt.date
    steps: list[Step] = field(default_factory=list)

    def facts(self, until: int | None = None) -> Facts:
        """All evidence, and the declarations in their order; of the first steps, or of all."""
        found = Facts(self.zone)
        for kind, what in self.steps[:until]:
            if kind == "batch":
                found.sightings |= set(what.sightings)
                for one in what.sightings:
                    for job, _ in one.holders:
                        found.report(job.key(what.node), job)
            elif kind in ("import", "doubled"):
                found.imports |= {one.id: one for one in what}
                for one in what:
                    found.report(one.job.key(""), one.job)
            elif kind == "servers":
                found.servers, found.tenants = what
            elif kind in ("csv", "post"):
                for one in what:
                    key = one.asker.gateway, one.id
                    found.asked[key] = max(one, found.asked.get(key, one), key=rank_of)
            elif kind == "page":
                found.pages |= set(what)
            elif kind == "readings":
                found.readings |= set(what)
                for one in what:
                    found.report(one.job.key(one.node), one.job)
            elif kind == "dispute":
                found.disputes.append(what)
            elif kind == "inventory":
                found.inventory |= {
                    uuid: tuple(row for row in what if row.uuid == uuid) for uuid, *_ in what
                }
            elif kind == "prices":
                found.prices |= {price_key(one): one for one in what}
            elif kind == "rules":
                found.rules = what
            elif kind == "nodes":
                found.node_costs = what
            elif kind == "policies":
                found.policies = what
            elif kind in ("entry", "true_up"):
                found.entries.append(what)
            elif kind == "replaced":
                found.imports = {one.id: one for one in what}
        return found


def price_key(one: Price) -> tuple[object, ...]:
    """What makes two rows versions of one price."""
    return one.pool, one.model, one.purchase, one.node, one.start


def rank_of(one: Asked) -> tuple[object, ...]:
    """Of two contents of one record the greater holds."""
    return one.tokens, one.end, one.start, one.asker


def twin(world: World, seed: int) -> World:
    """The same world told otherwise: evidence in any order, declarations in theirs, other looks."""
    rng = random.Random(seed)
    again = [one.id for kind, what in world.steps if kind in ("import", "doubled") for one in what]
    ordered: list[Step] = []
    free: list[Step] = []
    for kind, what in world.steps:
        is_free = kind in FREE and (kind != "import" or again.count(what[0].id) == 1)
        # What is refused beside an import would be taken before it.
        if kind not in ("look", "second"):
            (free if is_free else ordered).append((kind, what))
    rng.shuffle(free)
    disputed = (
        [kind for kind, _ in ordered].index("dispute") if world.facts().disputes else len(ordered)
    )
    for count, step in enumerate(free):
        ordered.insert(rng.randint(0, disputed + count), step)
    for _ in range(rng.choice((0, 0, 1, 4))):
        ordered.insert(rng.randint(0, len(ordered)), ("look", rng.random() < 0.5))
    return World(world.seed, world.zone, world.first, world.last, ordered)


def make(seed: int) -> World:
    """The world of a seed."""
    return Maker(seed).world()


class Maker:
    """Draws a world: each device lives through phases, and nodes tell of them."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        rng = self.rng
        self.zone, center = rng.choice(SCENES)
        self.first = center - dt.timedelta(days=rng.randint(1, 2))
        self.last = center + dt.timedelta(days=rng.randint(2, 3))
        self.start, self.end = (midnight(day, self.zone) for day in (self.first, self.last))
        self.sightings: list[Sighting] = []
        self.rows: list[Row] = []
        self.jobs = {
            f"j{number}": rng.choice(("slurm", "slurm", "kubernetes", "process"))
            for number in range(5)
        }
        self.tags = {
            job: [(0, rng.choice(TAGS)), (self.instant(), rng.choice(TAGS))] for job in self.jobs
        }

    def chance(self, ratio: float) -> bool:
        return self.rng.random() < ratio

    def instant(self) -> int:
        """An instant of the world, often on the hour, often in mid-second."""
        at = self.rng.randint(self.start, self.end - 1)
        # In a zone off the hour, the hour that holds the first midnight begins on the day before,
        # which is not compared.
        return max(self.start, at - at % self.rng.choice((1, 1, 1000, MINUTE, HOUR)))

    def world(self) -> World:
        """Everything, in the order in which it is told."""
        rng = self.rng
        nodes = [f"n{number}" for number in range(rng.randint(1, 3))]
        for number in range(rng.randint(1, 4)):
            self.live(f"GPU-{number}", nodes)
        if self.chance(0.4):
            self.inventory(nodes)
        if self.chance(0.6):
            self.hostile()
        made = World(self.seed, self.zone, self.first, self.last)
        made.steps = [("batch", batch) for batch in self.delivered()]
        self.declare(made.steps)
        if self.chance(0.3):
            self.close(made)
        if self.chance(0.2):
            team, to = rng.sample(("alpha", "bravo", "charlie", "delta"), 2)
            first = self.first + dt.timedelta(days=rng.randint(0, 1))
            made.steps.append(
                (
                    "dispute",
                    Dispute(team, first, rng.choice((self.last, first + dt.timedelta(1))), to),
                )
            )
        for _ in range(rng.choice((0, 1, 2))):
            made.steps.insert(rng.randint(0, len(made.steps)), ("look", self.chance(0.5)))
        Money(self, made.steps).declare()
        Tenants(self, made.steps).declare()
        return made

    # What happens.

    def live(self, device: str, nodes: Sequence[str]) -> None:
        """The phases of a device: whole or in parts, in a pool, under a model's name, on a node."""
        rng = self.rng
        at = self.start + rng.choice((0, rng.randint(0, 30 * HOUR)))
        node, pool, model, shape = rng.choice(nodes), rng.choice(POOLS), rng.choice(MODELS), "whole"
        if self.chance(0.3):
            shape = rng.choice(list(SHAPES))
        while at < self.end:
            until = at + rng.randint(2 * HOUR, 60 * HOUR)
            for index, (share, mig) in enumerate(SHAPES[shape]):
                uuid = f"MIG-{device}-{shape}-{index}" if mig else device
                late = rng.choice((0, 0, 0, rng.randint(0, HOUR)))
                self.see(
                    (node, uuid, device, mig, model, share, pool), at + late, min(until, self.end)
                )
            at = until + rng.choice((0, 0, rng.randint(1, HOUR), rng.randint(HOUR, 30 * HOUR)))
            change = rng.choice(("shape", "shape", "node", "pool", "model", ""))
            if change == "shape":
                shape = rng.choice(list(SHAPES))
            elif change == "node":
                node = rng.choice(nodes)
            elif change == "pool":
                pool = rng.choice(POOLS)
            elif change == "model":
                model = rng.choice(MODELS)

    def see(self, what: tuple[str, str, str, str, str, int, str], start: int, end: int) -> None:
        """Intervals of an accelerator from end to end, with gaps."""
        rng = self.rng
        at = start
        while at < end:
            length = rng.choice(
                (rng.randint(MINUTE, HOUR), rng.randint(HOUR, 20 * HOUR), 6 * HOUR - at % HOUR)
            )
            until = min(end, at + length)
            state = rng.choices(
                ("held", "unallocated", "unavailable", "present", ""), (62, 16, 7, 7, 8)
            )[0]
            if state:
                self.sight(what, at, until, state)
            at = until

    def sight(
        self, what: tuple[str, str, str, str, str, int, str], start: int, end: int, state: str
    ) -> None:
        """One interval; samples without a holder are of a few minutes."""
        holders: tuple[tuple[Job, int], ...] = ()
        if state == "present":
            end = min(end, start + self.rng.randint(2, 10) * MINUTE)
        elif state == "held":
            count = min(self.rng.choice((1, 1, 1, 2, 3)), end - start)
            jobs = [
                self.job(name, what[0], start) for name in self.rng.sample(sorted(self.jobs), count)
            ]
            bounds = sorted(self.rng.sample(range(1, end - start), count - 1)) if count > 1 else []
            parts = [b - a for a, b in pairwise([0, *bounds, end - start])]
            if count > 1 and self.chance(0.5):
                parts = [(end - start) // count] * count
                parts[0] += end - start - sum(parts)
            holders = tuple(
                sorted(zip(jobs, parts, strict=True), key=lambda part: part[0].key(what[0]))
            )
        self.sightings.append(Sighting(start, end, *what, state, holders))

    def job(self, name: str, node: str, at: int) -> Job:
        """A job as a node reports it: tags change with time, and two nodes need not agree."""
        tags = [tags for since, tags in self.tags[name] if since <= at][-1]
        if name == "j1":
            tags = TAGS[len(node + self.zone) % 4 + int(node[-1])] if node[-1].isdigit() else tags
        user = {"j2": "ada", "j3": f"u-{node}"}.get(name, "")
        return Job(self.jobs[name], name, user, {"j4": "ml-bravo"}.get(name, ""), "", tags)

    def inventory(self, nodes: Sequence[str]) -> None:
        """Accelerators that only the inventory places: one that moves, one that leaves, and one
        that nobody sees.
        """
        rng = self.rng
        for number in range(rng.randint(1, 2)):
            uuid, model = f"INV-{number}", rng.choice(MODELS)
            at, node = self.start + rng.randint(0, 20) * HOUR, rng.choice(nodes)
            for _ in range(rng.randint(1, 3)):
                until = at + rng.randint(5 * HOUR, 50 * HOUR)
                end = until if self.chance(0.7) else None
                self.rows.append(
                    Row(uuid, node, rng.choice(("lab", "lab", "train")), model, at, end)
                )
                seen = until + rng.choice((0, 0, HOUR)) if end is None or len(nodes) == 1 else until
                self.see(
                    (node, uuid, uuid, "", model, WHOLE, rng.choice(POOLS)), at, min(seen, self.end)
                )
                if end is None:
                    break
                at, node = until + rng.choice((0, rng.randint(0, 5 * HOUR))), rng.choice(nodes)
        if self.chance(0.4):
            self.rows.append(
                Row("INV-unseen", nodes[0], "lab", MODELS[1], self.start + 3 * HOUR, None)
            )

    def hostile(self) -> None:
        """Claims that nobody should gain by, made beside honest evidence."""
        rng = self.rng
        honest = [one for one in self.sightings if one.state != "present"]
        for _ in range(rng.randint(1, 4)):
            if not honest:
                return
            one = rng.choice(honest)
            loot = ((Job("slurm", "loot", "", "", "", rng.choice(TAGS)), one.end - one.start),)
            kind = rng.choice(("device", "share", "model", "whole", "pool", "after"))
            if kind == "device":
                self.sightings.append(
                    one._replace(node="mallory", state="held", holders=loot, pool=rng.choice(POOLS))
                )
            elif kind == "after":
                start = one.end + rng.randint(1, 3 * HOUR)
                self.sightings.append(
                    Sighting(
                        start, start + HOUR, "mallory", *one[3:9], "held", ((loot[0][0], HOUR),)
                    )
                )
            elif kind == "whole":
                fake = one._replace(
                    uuid=f"FAKE-{one.device}", mig="", share=WHOLE, state="held", holders=loot
                )
                if not one.uuid.startswith("INV"):
                    self.sightings.append(fake)
            else:
                changed = {
                    "share": {"share": 1},
                    "model": {"model": "NVIDIA H200"},
                    "pool": {"pool": "cloud"},
                }[kind]
                if one in self.sightings:
                    self.sightings[self.sightings.index(one)] = one._replace(**changed)

    # How it is told.

    def delivered(self) -> list[Batch]:
        """Batches of the nodes, mostly in time, some late, some out of order, some twice."""
        rng = self.rng
        made = [
            batch
            for node in sorted({one.node for one in self.sightings})
            for batch in self.batches(node)
        ]
        made.sort(key=lambda batch: max(one.end for one in batch.sightings))
        if self.chance(0.5):
            for _ in range(rng.randint(1, max(1, len(made) // 4))):
                made.insert(rng.randint(0, len(made) - 1), made.pop(rng.randint(0, len(made) - 1)))
        if self.chance(0.2):
            rng.shuffle(made)
        for batch in rng.sample(made, min(len(made), rng.choice((0, 2)))):
            made.insert(rng.randint(0, len(made)), batch)
        return made

    def batches(self, node: str) -> Iterator[Batch]:
        """A node's intervals, some at once: of each accelerator and job a batch says one thing
        only.
        """
        seq, open_, said = 0, [], {}
        mine = sorted(
            {one for one in self.sightings if one.node == node}, key=lambda one: (one.end, one)
        )
        for one in mine:
            says = {one.uuid: (one[3:9], one.start if one.state == "present" else None)}
            says |= {job.key(node): job for job, _ in one.holders}
            clash = any(said.get(name, word) != word for name, word in says.items())
            if open_ and (clash or self.chance(0.12)):
                yield Batch(node, seq := seq + 1, tuple(open_))
                open_, said = [], {}
            open_.append(one)
            said |= says
        if open_:
            yield Batch(node, seq + 1, tuple(open_))

    def declare(self, steps: list[Step]) -> None:
        """Prices, rules, imports and inventory among the steps, some of them more than once."""
        rng = self.rng

        def put(kind: str, what: Sequence[object]) -> None:
            if what:
                steps.insert(rng.randint(0, len(steps)), (kind, tuple(what)))

        put("prices", self.prices())
        if self.chance(0.4):
            book = [one for kind, what in steps if kind == "prices" for one in what]
            place = next(at for at, (kind, _) in enumerate(steps) if kind == "prices")
            dearer = [one._replace(rate="7.123456789") for one in rng.sample(book, 1)]
            steps.insert(rng.randint(place + 1, len(steps)), ("prices", tuple(dearer)))
        for _ in range(rng.choice((0, 1, 2))):
            put("rules", self.rules())
        if self.chance(0.6):
            rows = self.imports()
            for one in rows:
                put("import", [one])
            if self.chance(0.5):
                again = rng.choice(rows)
                place = next(at for at, step in enumerate(steps) if step == ("import", (again,)))
                changed = again._replace(
                    share=rng.randint(1, 40) * 100_000, pool=rng.choice(("cloud", "lab"))
                )
                steps.insert(rng.randint(place + 1, len(steps)), ("import", (changed,)))
        put("inventory", self.rows)
        if self.chance(0.3):
            self.slips(steps)

    def slips(self, steps: list[Step]) -> None:
        """What only a slip makes: instants and currencies that are none, a price in another
        currency, a row twice.
        """
        rng = self.rng
        start = self.instant()
        good = Import("slip", start, start + HOUR, WHOLE, "", "cloud", "", Job("imported", "slip"))
        slips: list[Step] = [("doubled", (good,))]
        slips += [
            ("slip", good._replace(start=at, end=end))
            for at, end in ((1000, None), (start, 4_102_000_000_000))
        ]
        slips += [("slip", Price("", "", "on_demand", "5", code, start)) for code in ("ZZZ", "XXX")]
        for step in rng.sample(slips, 2):
            steps.insert(rng.randint(0, len(steps)), step)
        place = next((at for at, (kind, _) in enumerate(steps) if kind == "prices"), None)
        if place is not None:
            one = steps[place][1][0]
            other = one._replace(currency="EUR" if one.currency == "USD" else "USD", rate="99")
            steps.insert(rng.randint(place + 1, len(steps)), ("slip", other))

    def prices(self) -> list[Price]:
        """A price book: a rate for everything, mostly, and others for places and times."""
        rng = self.rng
        found = [
            Price("", "", "on_demand", rng.choice(("1", "2.49", "0.333333333")), "USD", EARLY)
        ] * self.chance(0.8)
        for _ in range(rng.randint(1, 4)):
            start = self.instant()
            end = rng.choice((None, start + rng.randint(1, 40 * HOUR)))
            model = rng.choice(("", "", MODELS[0], "A100", "T4"))
            pool, node = (
                rng.choice(("", "", "train", "lab", "cloud")),
                rng.choice(("", "", "", "n0")),
            )
            rate = rng.choice(("3", "1.1", "12.000000001", "0"))
            purchase = rng.choice(("on_demand", "on_demand", "spot"))
            found.append(
                Price(
                    pool,
                    model,
                    purchase,
                    rate,
                    rng.choice(("USD", "USD", "EUR", "JPY")),
                    start,
                    end,
                    node,
                )
            )
        return list({price_key(one): one for one in found}.values())

    def rules(self) -> list[Rule]:
        """Attribution rules, some of them dated in mid-second."""
        rng = self.rng
        names = (
            ("team", "bravo"),
            ("account", "ml-*"),
            ("pool", "train"),
            ("node", "n0"),
            ("user", "*"),
        )
        assigns = (
            (("team", "delta"),),
            (("team", "{account}"),),
            (("project", "{user}"), ("team", "ops")),
        )
        found = []
        for _ in range(rng.randint(1, 3)):
            start = rng.choice((None, self.instant()))
            end = rng.choice((None, (start or self.start) + rng.randint(1, 60 * HOUR)))
            found.append(Rule((rng.choice(names),), rng.choice(assigns), start, end))
        return found

    def imports(self) -> list[Import]:
        """Usage of a pool without agents, and of one whose accelerators are seen as well."""
        rng, found = self.rng, []
        for number in range(rng.randint(1, 5)):
            start = self.instant()
            end = rng.choice(
                (start + rng.randint(1, 50 * HOUR), start + rng.randint(1, 5 * HOUR), None)
            )
            pool, node = rng.choice(("cloud", "cloud", "lab")), rng.choice(("", "", "n0"))
            job = Job("imported", f"i{number}", rng.choice(("", "eve")), "", "", rng.choice(TAGS))
            model = rng.choice(("", MODELS[1]))
            found.append(
                Import(job.id, start, end, rng.randint(1, 25) * 100_000, model, pool, node, job)
            )
        return found

    def close(self, world: World) -> None:
        """Months of the world are closed, some before all of it is told."""
        months = [self.first.replace(day=1)]
        after = (months[0] + dt.timedelta(days=32)).replace(day=1)
        if after < self.last and self.chance(0.3):
            months.append(after)
        place = len(world.steps) // 3
        for month in months:
            place = self.rng.randint(place, len(world.steps))
            world.steps.insert(place, ("close", f"{month:%Y-%m}"))
            place += 1
        ends = (months[-1] + dt.timedelta(days=32)).replace(day=1)
        world.last = max(world.last, ends)


TEAMS = ("alpha", "bravo", "charlie", "delta")


class Money:
    """What a bill has beside the rate of time, declared among the steps of a world, from a seed of
    its own.
    """

    def __init__(self, maker: Maker, steps: list[Step]) -> None:
        self.maker, self.steps = maker, steps
        self.rng = random.Random(f"money of {maker.seed}")

    def declare(self) -> None:
        """Node costs and policies, some of them twice; entries; and a second source of what was
        imported.
        """
        for chance, kind, rows in ((0.4, "nodes", self.nodes), (0.55, "policies", self.policies)):
            if self.rng.random() < chance:
                for _ in range(self.rng.choice((1, 1, 2))):
                    self.put((kind, rows()))
        for number in range(self.rng.choice((0, 0, 1, 2))):
            self.put(("entry", self.entry(number)))
        imports = [(at, what[0]) for at, (kind, what) in enumerate(self.steps) if kind == "import"]
        # A row that is imported again may be of another pool by then.
        told = [row.id for _, row in imports]
        imports = [(at, row) for at, row in imports if told.count(row.id) == 1]
        if imports and self.rng.random() < 0.4:
            at, row = self.rng.choice(imports)
            self.steps.insert(self.rng.randint(at + 1, len(self.steps)), ("second", row))

    def put(self, step: Step) -> None:
        self.steps.insert(self.rng.randint(0, len(self.steps)), step)

    def days(self) -> tuple[dt.date | None, dt.date | None]:
        """Days on which a declaration holds, mostly all."""
        if self.rng.random() < 0.6:
            return None, None
        first = self.maker.first + dt.timedelta(days=self.rng.randint(0, 2))
        return first, self.rng.choice((None, first + dt.timedelta(days=self.rng.randint(1, 3))))

    def nodes(self) -> tuple[NodeCost, ...]:
        """Node costs: of every node, of a pool, and of one node under the same name or another."""
        rng = self.rng
        found = [NodeCost("cpu", rng.choice(("0.5", "0.333333333")), "USD", "", "", *self.days())]
        if rng.random() < 0.5:
            found.append(NodeCost("cpu", "1.1", rng.choice(("USD", "EUR")), "", "n0"))
        if rng.random() < 0.5:
            found.append(NodeCost("disk", "0.07", "USD", rng.choice(POOLS[1:]), "", *self.days()))
        return tuple(found)

    def policies(self) -> tuple[Policy, ...]:
        """Volume prices and percentages, of all or of a team, a pool or a model."""
        rng = self.rng
        found = []
        for number in range(rng.choice((0, 1, 1, 2))):
            edge = rng.choice(("5", "12", "31.5"))
            steps = (("0", rng.choice(("2", "3.3"))), (edge, rng.choice(("1", "1.234567891"))))
            pool, team = rng.choice(("", "", "train", "cloud")), rng.choice(("", "", *TEAMS))
            of_whom = rng.choice(("team", "fleet"))
            name, currency = f"volume {number}", rng.choice(("USD", "USD", "EUR"))
            found.append(
                Policy(name, "tiered", "", steps, of_whom, currency, team, pool, "", *self.days())
            )
        for number in range(rng.choice((0, 1, 2)) if found else 1):
            kind, percent = (
                rng.choice(("markup", "discount")),
                rng.choice(("10", "7.5", "33.333333")),
            )
            pool, team, model = (
                rng.choice(("", "", "train")),
                rng.choice(("", *TEAMS)),
                rng.choice(("", "A100")),
            )
            found.append(
                Policy(
                    f"{kind} {number}", kind, percent, (), "", "", team, pool, model, *self.days()
                )
            )
        return tuple(found)

    def entry(self, number: int) -> Entry:
        """A credit or a debit of a team, which may have held nothing."""
        kind, team = self.rng.choice(("credit", "debit")), self.rng.choice(TEAMS)
        micro = self.rng.choice((12_500_000, 3_010_000)) * (-1 if kind == "credit" else 1)
        day = self.maker.first + dt.timedelta(days=self.rng.randint(0, 1))
        share = ("", team, "", "", "", ""), self.rng.choice(("", "", "train")), "", micro
        return Entry(f"{kind} {number}", kind, day, self.rng.choice(("USD", "EUR")), (share,))


__all__ = ["DAY", "Batch", "Maker", "World", "make", "twin"]
