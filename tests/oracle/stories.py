"""Worlds with a name: one for each way in which facts without a date once falsified a bill (issue
14).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from itertools import count

from oracle.model import (
    DAY,
    HOUR,
    WHOLE,
    Asked,
    Asker,
    Dispute,
    Entry,
    Import,
    Job,
    Policy,
    Price,
    Reading,
    Row,
    Rule,
    Server,
    Sighting,
    Tenant,
    midnight,
)
from oracle.worlds import EARLY, MINUTE, Batch, Step, World

AUGUST, SEPTEMBER = (midnight(dt.date(2024, month, 1), "UTC") for month in (8, 9))
CHECKED = "authenticated"
H100 = "NVIDIA H100 80GB HBM3"
TEN = ("prices", (Price("", "", "on_demand", "10", "USD", EARLY),))
DEARER = ("prices", (Price("other", "", "on_demand", "11", "USD", EARLY),))
_numbers = count(1)


def seen(
    start: int,
    hours: float,
    team: str = "alpha",
    *,
    node: str = "n1",
    uuid: str = "GPU-0",
    **changes: object,
) -> Step:
    """A batch that shows one accelerator for some hours, held by job `j` of a team; `tags` and
    others change it.
    """
    tags = changes.pop("tags", (("team", team),))
    end = start + round(hours * HOUR)
    job = Job("slurm", str(changes.pop("job", "j")), "", "", "", tags)  # type: ignore[arg-type]
    device = str(changes.pop("device", uuid))
    one = Sighting(
        start, end, node, uuid, device, "", H100, WHOLE, "", "held", ((job, end - start),)
    )
    return ("batch", Batch(node, next(_numbers), (one._replace(**changes),)))  # type: ignore[arg-type]


def world(name: str, *steps: Step, last: dt.date = dt.date(2024, 9, 1)) -> World:
    """A story of August 2024, billed in UTC."""
    return World(name, "UTC", dt.date(2024, 8, 1), last, list(steps))


def share_of_one_millionth() -> World:
    """August is closed; in September the same GPU says that it is a millionth of a board, under
    another name.
    """
    claim = seen(SEPTEMBER + HOUR, 1, share=1, model="NVIDIA H200")
    return world(
        "share",
        TEN,
        seen(AUGUST + 30 * DAY, 24),
        ("close", "2024-08"),
        claim,
        DEARER,
        last=dt.date(2024, 9, 3),
    )


def one_second_in_a_pool() -> World:
    """A team's bill of a pool is imported; a node then reports one second with that pool's name,
    and so does another before the import.
    """
    job = Job("imported", "cloud-1", "", "", "", (("team", "alpha"),))
    usage = (
        "import",
        (Import("cloud-1", AUGUST, AUGUST + 2 * DAY, 40 * WHOLE, "", "cloud", "", job),),
    )
    early = seen(AUGUST + HOUR, 1, "mallory", pool="cloud")
    late = seen(AUGUST + 9 * HOUR, 1, "mallory", uuid="GPU-1", pool="cloud")
    return world("pool", TEN, early, usage, late, last=dt.date(2024, 8, 4))


def seen_beside_imported() -> World:
    """Two imported GPUs of a pool, one accelerator of it by the inventory: hours that it is seen
    are billed once.
    """
    job = Job("imported", "lab-1", "", "", "", (("team", "alpha"),))
    usage = ("import", (Import("lab-1", AUGUST, AUGUST + DAY, 2 * WHOLE, "", "lab", "", job),))
    row = ("inventory", (Row("GPU-0", "n1", "lab", H100, AUGUST, None),))
    return world(
        "beside", TEN, usage, row, seen(AUGUST + 2 * HOUR, 5, "bravo"), last=dt.date(2024, 8, 4)
    )


def relabeled_at_its_end() -> World:
    """Job `j` holds a day for alpha and, three days later, an hour for beta; nobody looks in
    between.
    """
    return world(
        "relabel",
        TEN,
        seen(AUGUST, 24),
        seen(AUGUST + 3 * DAY, 1, "beta"),
        last=dt.date(2024, 8, 6),
    )


def halves_of_a_whole() -> World:
    """A whole board for half a day, then two halves of it, then three of seven: it is one board all
    the time.
    """
    layouts = ((12, 6, "3g.40gb", 2, WHOLE // 2), (18, 8, "1g.10gb", 3, WHOLE // 7))
    parts = [
        seen(
            AUGUST + at * HOUR,
            hours,
            uuid=f"MIG-{mig}-{index}",
            device="GPU-0",
            mig=mig,
            share=share,
        )
        for at, hours, mig, number, share in layouts
        for index in range(number)
    ]
    return world("board", TEN, seen(AUGUST, 12), *parts, last=dt.date(2024, 8, 4))


def reserved_names() -> World:
    """Jobs tagged with the names of the reports' own rows."""
    names = ("(unallocated)", "(unattributed)", "(unpriced)", "(commitment_unused)", "(stranded)")
    steps = [seen(AUGUST + at * HOUR, 1, name, job=f"j{at}") for at, name in enumerate(names)]
    return world("names", TEN, *steps, last=dt.date(2024, 8, 3))


def dispute_beside_a_third() -> World:
    """A rule gives the second quarter of a job to bravo; alpha contests what alpha pays, and zulu
    is to pay it.
    """
    rule = Rule((("team", "alpha"),), (("team", "bravo"),), AUGUST + 6 * HOUR, AUGUST + 12 * HOUR)
    dispute = ("dispute", Dispute("alpha", dt.date(2024, 8, 1), dt.date(2024, 8, 2), "zulu"))
    return world(
        "dispute", TEN, ("rules", (rule,)), seen(AUGUST, 18), dispute, last=dt.date(2024, 8, 3)
    )


def late_after_the_close() -> World:
    """August is closed; evidence of August comes after it, and nobody asks for August again."""
    late = seen(AUGUST + 29 * DAY, 3, "bravo", uuid="GPU-1")
    return world("late", TEN, seen(AUGUST + 30 * DAY, 24), ("close", "2024-08"), late)


def rule_at_half_past_six() -> World:
    """A rule that holds from 06:30:00.500 on."""
    rule = Rule(
        (("team", "alpha"),), (("team", "bravo"),), AUGUST + 6 * HOUR + HOUR // 2 + 500, None
    )
    return world("rule", TEN, ("rules", (rule,)), seen(AUGUST, 12), last=dt.date(2024, 8, 3))


def slips() -> World:
    """Rows that only a slip makes: refused, or the row that has ended counts."""
    job = Job("imported", "slip", "", "", "", (("team", "alpha"),))
    good = Import("slip", AUGUST, AUGUST + HOUR, WHOLE, "", "cloud", "", job)
    steps: list[Step] = [
        ("slip", good._replace(id=f"s{at}", start=at, end=None)) for at in (0, 1000)
    ]
    steps.append(("slip", good._replace(id="far", end=4_070_908_800_000)))
    steps += [("slip", Price("", "", "on_demand", "5", code, AUGUST)) for code in ("ZZZ", "XXX")]
    steps.append(("slip", Price("", "", "on_demand", "99", "EUR", EARLY)))
    return world("slips", TEN, *steps, ("doubled", (good,)), last=dt.date(2024, 8, 4))


def first_look_after_late_evidence() -> World:
    """A volume price; the third day is looked at, then 20 hours of the first come in; the next look
    is the last one.
    """
    tier = Policy("volume", "tiered", "", (("0", "3"), ("10", "1")), "team", "USD")
    # On a GPU that was there all the time, so that nothing else has the third day rated again.
    there, late = seen(AUGUST, 1, "bravo", job="k"), seen(AUGUST + 2 * HOUR, 20)
    steps = (TEN, ("policies", (tier,)), there, seen(AUGUST + 2 * DAY, 8), ("look", True), late)
    return world("first look", *steps, last=dt.date(2024, 8, 5))


def back_after_days_of_silence() -> World:
    """Two days after its node last saw a GPU, another claims six hours of it; in the third of them
    its node sees it itself.
    """
    claim = seen(AUGUST + 2 * DAY, 6, "mallory", node="n2", job="loot")
    back = seen(AUGUST + 2 * DAY + 2 * HOUR, 1)
    return world("silence", TEN, seen(AUGUST, 1), claim, back, last=dt.date(2024, 8, 5))


def claim_within_an_hour() -> World:
    """Two jobs share an hour by an odd millisecond; in the middle of it an agent claims a pool for
    which usage is imported.
    """
    alpha, bravo = (
        Job("slurm", team, "", "", "", (("team", team),)) for team in ("alpha", "bravo")
    )
    shared = ((alpha, 1_200_001), (bravo, 2_399_999))
    cloud = Job("imported", "c", "", "", "", (("team", "alpha"),))
    usage = ("import", (Import("c", AUGUST, AUGUST + DAY, WHOLE, "", "cloud", "", cloud),))
    claim = seen(AUGUST + HOUR // 2, 1, pool="cloud")
    return world(
        "claim",
        TEN,
        usage,
        seen(AUGUST, 1, pool="train", holders=shared),
        claim,
        last=dt.date(2024, 8, 3),
    )


def back_within_an_hour() -> World:
    """A GPU leaves a pool for ten minutes: before it, a job held it there that comes after the next
    one by its name.
    """
    minutes = [("z", "train"), ("y", "serve"), ("a", "train")]
    held = [
        seen(AUGUST + at * HOUR // 6, 1 / 6, f"team-{job}", job=job, pool=pool)
        for at, (job, pool) in enumerate(minutes)
    ]
    return world("back", TEN, *held, last=dt.date(2024, 8, 3))


def who_asked_a_shared_server() -> World:
    """A server that two tenants and a key without a team ask, and somebody past the gateway; its
    counters say so. On the second day gateways counted more than it did.
    """
    server = Server("qwen", ("qwen*",), (("job", "j"),), weights=("1", "0.1", "4"))
    tenants = (Tenant("", "vision", "vision"), Tenant("litellm", "nlp", "bravo"))
    asked = tuple(
        Asked(
            f"r{day}-{at}",
            Asker("litellm", tenant, "qwen3", "", trust),
            AUGUST + day * DAY + at * HOUR,
            AUGUST + day * DAY + at * HOUR + 90 * MINUTE,
            (1_001 * scale, 300 * scale, 77 * scale, 1),
        )
        for day, scale in ((0, 1), (1, 900))
        for at, (tenant, trust) in enumerate(
            (("vision", CHECKED), ("nlp", CHECKED), ("", CHECKED), ("vision", "claim"))
        )
    )
    job = Job("slurm", "j", "", "", "", (("team", "alpha"),))
    readings = tuple(
        Reading("n1", job, AUGUST + at * 10 * MINUTE, 50 * at, 7 * at) for at in range(289)
    )
    steps = ("servers", ((server,), tenants)), ("post", asked), ("readings", readings)
    held = seen(AUGUST, 24), seen(AUGUST + DAY, 24)
    return world("asked", TEN, *held, *steps, last=dt.date(2024, 8, 4))


def charged_for_a_closed_month() -> World:
    """Two teams pay for a server whose tenants are charged, one of them also for what callers only
    claim. After the close come counters of the server and other owners of tenants, and after a look
    at that come tokens: the month stays, and what they change is a correction.
    """
    server = Server(
        "qwen",
        ("qwen*",),
        (("job", "s*"),),
        weights=("1", "0.1", "4"),
        idle="reservations",
        reserved=(("vision", "0.333333"), ("nobody-yet", "0.25")),
        mode="charged",
    )
    other = Server("llama", ("llama",), (("job", "k"),), mode="charged", claims="charged")
    tenants = (Tenant("", "vision", "vision"), Tenant("litellm", "nlp", "bravo"))
    later = (*tenants, Tenant("", "nobody-yet", "charlie"))

    def asked(name: str, day: int, scale: int) -> Step:
        rows = tuple(
            Asked(
                f"{name}-{at}",
                Asker("litellm", tenant, model, "", trust),
                AUGUST + day * DAY + at * HOUR,
                AUGUST + day * DAY + at * HOUR + 90 * MINUTE,
                (1_001 * scale, 300 * scale, 77 * at, 1),
            )
            for at, (tenant, model, trust) in enumerate(
                (
                    ("vision", "qwen3", CHECKED),
                    ("nlp", "qwen3", CHECKED),
                    ("", "qwen3", CHECKED),
                    ("vision", "qwen3", "claim"),
                    ("vision", "llama", "claim"),
                    ("nlp", "llama", CHECKED),
                )
            )
        )
        return "post", rows

    job = Job("slurm", "s1", "", "", "", (("team", "alpha"),))
    readings = tuple(
        Reading("n1", job, AUGUST + 30 * DAY + at * 10 * MINUTE, 50 * at, 7 * at)
        for at in range(145)
    )
    held = [
        seen(AUGUST + day * DAY, hours, team, uuid=f"GPU-{at}", job=name, pool=pool)
        for day in (30, 31)
        for at, (name, team, pool, hours) in enumerate(
            (("s1", "alpha", "train", 24), ("s2", "charlie", "serve", 7), ("k", "bravo", "", 9))
        )
    ]
    return world(
        "charged",
        TEN,
        *held,
        ("servers", ((server, other), tenants)),
        asked("early", 30, 3),
        ("close", "2024-08"),
        ("readings", readings),
        ("servers", ((server, other), later)),
        asked("next", 31, 2),
        ("look", True),
        asked("late", 30, 1),
        last=dt.date(2024, 9, 2),
    )


def true_up_to_a_bill() -> World:
    """16 hours at 10, of which the provider asks 12 each: the 32 more are split by what was held."""
    owners = [("", team, "", "", "", "") for team in ("alpha", "bravo")]
    shares = tuple(
        (owner, "train", H100, 2 * hours * WHOLE)
        for owner, hours in zip(owners, (10, 6), strict=True)
    )
    held = (
        seen(AUGUST, 10, pool="train"),
        seen(AUGUST + 10 * HOUR, 6, "bravo", pool="train", job="k"),
    )
    entry = Entry("true-up", "true_up", dt.date(2024, 8, 1), "USD", shares)
    return world("true-up", TEN, *held, ("look", True), ("true_up", entry))


def two_sources_of_one_job() -> World:
    """A table brought a job that Slurm's accounting knows by another number: refused, then put in
    its place.
    """
    job = Job("imported", "j1", "eve", "", "", (("team", "alpha"),))
    table = Import("j1", AUGUST, AUGUST + 9 * HOUR, 2 * WHOLE, "", "cloud", "", job)
    other = Job("imported", "hpc/77", "eve", "", "", (("team", "alpha"),))
    exact = Import("77", AUGUST, AUGUST + 8 * HOUR, 2 * WHOLE, "", "cloud", "n9", other)
    steps = ("import", (table,)), ("second", table), ("look", True), ("replaced", (exact,))
    return world("sources", TEN, *steps, last=dt.date(2024, 8, 4))


def weighed_by_gpu_time() -> World:
    """Two servers whose output weighs what their GPU time says of each day, one charged and one
    shown. A month is closed when half of its last day was read; the rest comes afterwards and says
    something else, so that what was charged is corrected and what was shown stays.
    """
    weights = ("1", "0.1", "4")
    servers = (
        Server("qwen", ("qwen*",), (("job", "s"),), weights=weights, mode="charged"),
        Server("llama", ("llama",), (("job", "k"),), weights=weights, idle="platform"),
    )
    servers = tuple(one._replace(weights_from="gpu_seconds") for one in servers)
    tenants = Tenant("", "vision", "vision"), Tenant("litellm", "nlp", "bravo")
    asked = tuple(
        Asked(
            f"{day}-{tenant}-{model}",
            Asker("litellm", tenant, model, "", CHECKED),
            AUGUST + day * DAY + HOUR,
            AUGUST + day * DAY + 2 * HOUR,
            (given, given // 3, output, 1),
        )
        for day in (30, 31)
        for model in ("qwen3", "llama")
        for tenant, given, output in (("vision", 9_001, 11), ("nlp", 700, 2_003))
    )

    def readings(name: str, team: str, first: int, last: int) -> Step:
        """An answer token takes 5 times what a prompt token does, and 9 times from noon on."""
        job = Job("slurm", name, "", "", "", (("team", team),))
        start = AUGUST + 30 * DAY
        rows = []
        for at in range(first, last):
            slow = max(at - 72, 0)
            gpu = (6_000 * at, 15_000 * at + 12_000 * slow, 100 * at, 400 * at, 200 * at)
            rows.append(Reading("n1", job, start + at * 10 * MINUTE, 400 * at, 200 * at, gpu))
        return "readings", tuple(rows)

    held = [
        seen(AUGUST + day * DAY, 24, team, uuid=f"GPU-{at}", job=name, pool="train")
        for day in (30, 31)
        for at, (name, team) in enumerate((("s", "alpha"), ("k", "charlie")))
    ]
    return world(
        "weighed",
        TEN,
        *held,
        ("servers", (servers, tenants)),
        ("post", asked),
        readings("s", "alpha", 0, 73),
        readings("k", "charlie", 0, 73),
        ("close", "2024-08"),
        readings("s", "alpha", 73, 289),
        readings("k", "charlie", 73, 289),
        ("look", True),
        last=dt.date(2024, 9, 2),
    )


STORIES: tuple[Callable[[], World], ...] = (
    share_of_one_millionth,
    one_second_in_a_pool,
    seen_beside_imported,
    relabeled_at_its_end,
    halves_of_a_whole,
    reserved_names,
    dispute_beside_a_third,
    late_after_the_close,
    rule_at_half_past_six,
    slips,
    first_look_after_late_evidence,
    back_after_days_of_silence,
    claim_within_an_hour,
    weighed_by_gpu_time,
    back_within_an_hour,
    who_asked_a_shared_server,
    charged_for_a_closed_month,
)
"""Told in any order they are billed alike."""
IN_ORDER: tuple[Callable[[], World], ...] = (true_up_to_a_bill, two_sources_of_one_job)
"""What is decided after looking: told otherwise, something else would be decided."""
