"""A small ledger with every feature: what changes an amount, an owner or an hour of a bill is in it
at least once.

October 2025 is closed and was corrected afterwards, November is open. Days are those of Berlin; the
last Sunday of October has 25 hours. Accelerators are there on four days of October and three of
November, so that it is soon made.

    from fakes.rich_ledger import rich

    def test_of_mine(rich, run): ... # a copy of its own; the time of commands is `fakes.fleet.NOW_MS`
"""

from __future__ import annotations

import datetime as dt

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, Fleet, Held
from fakes.furnishing import Files, Runner, furnishing
from fakes.worlds import world

CLOSED, OPEN = "2025-10", "2025-11"
DECLARED = """
billing_zone = "Europe/Berlin"
fiscal_year_begins = "July"

[[rule]]
name = "detectors"
match = { project = "detector" }
assign = { org = "acme" }

[[price]]
gpu_model = "H100"
purchase = "on_demand"
rate_per_gpu_hour = 2.5
list_rate = 3.0
currency = "USD"
effective_from = 2025-01-01

[[price]]
gpu_model = "H100"
purchase = "on_demand"
region = "eu-central-1"
rate_per_gpu_hour = 2.123456789
currency = "EUR"
effective_from = 2025-01-01

[[price]]
pool = "counted"
gpu_model = "H100"
purchase = "spot"
rate_per_gpu_hour = 1.1
list_rate = 2.0
currency = "USD"
effective_from = 2025-01-01

[[purchase]]
pool = "counted"
purchase = "spot"

[[exchange]]
from = "USD"
to = "EUR"
rate = 0.92
effective_from = 2025-01-01

[[commitment]]
name = "one of two"
pool = "train"
gpus = 1
upfront = 8760
rate_per_gpu_hour = 0.85
currency = "USD"
starts = 2025-01-01
ends = 2026-01-01

[[location]]
pool = "eu"
region = "eu-central-1"
region_name = "Frankfurt"

[[provider]]
pool = "eu"
name = "Big Cloud"

[[node_cost]]
name = "CPU and memory"
pool = "train"
price_per_node_hour = 0.35
price_per_core_hour = 0.011
cores = 64
currency = "USD"

[[shared_cost]]
name = "support"
amount_per_month = 1200
currency = "USD"
key = "cost"

[[shared_cost]]
name = "idle capacity"
source = "unallocated"
pool = "train"
key = "weights"
level = "team"
weights = { vision = 60, nlp = 40 }

[[share]]
team = "vision"
pool = "train"
fraction = 0.5

[[share]]
team = "nlp"
pool = "train"
gpus = 1

[[cost_center]]
owner = { team = "vision" }
cost_center = "4711"
gl_code = "642000"

[[carbon]]
region = "eu-central-1"
grams_per_kwh = 380.5
pue = 1.15

[[adjustment]]
name = "volume"
kind = "tiered"
pool = "train"
per = "team"
currency = "USD"
steps = { "0" = 2.5, "10" = 2.0 }

[[adjustment]]
name = "platform fee"
kind = "markup"
percent = 7.5
pool = "eu"

[[adjustment]]
name = "research"
kind = "discount"
percent = 25
owner = { team = "nlp" }

[[bill_match]]
provider = "big cloud"
sku = "gpu.*"
pool = "eu"
"""
ENTRIES = """
[[adjustment]]
name = "outage of {month}"
kind = "credit"
owner = {{ team = "vision" }}
amount = 12.5
currency = "USD"
effective_from = {day}
effective_to = {next}
reason = "no network"
approver = "m.keller"

[[adjustment]]
name = "seats of {month}"
kind = "debit"
owner = {{ team = "speech" }}
amount = 30
currency = "EUR"
effective_from = {day}
effective_to = {next}
reason = "three seats"
approver = "m.keller"
"""
JOBS = """workload_id,start,end,gpus,gpu_model,pool,tag:team
77,2025-10-03T00:00:00Z,2025-10-03T08:00:00Z,4,H100,counted,speech
78,2025-10-03T12:00:00Z,2025-10-04T12:00:00Z,0.5,H100,counted,vision
79,2025-11-04T00:00:00Z,2025-11-04T06:30:00Z,2,H100,counted,speech
"""
BILL = """ProviderName,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargeCategory,ChargePeriodStart,\
ChargePeriodEnd,SkuId,PricingQuantity,PricingUnit,BilledCost
Big Cloud,EUR,{start}T00:00:00Z,{end}T00:00:00Z,Usage,{day}T00:00:00Z,{next}T00:00:00Z,gpu.1x,20,Hours,44.44
Big Cloud,EUR,{start}T00:00:00Z,{end}T00:00:00Z,Tax,{start}T00:00:00Z,{end}T00:00:00Z,,,,0.05
"""
H100 = "NVIDIA H100 80GB HBM3"
WHOLE, EUROPEAN, SLICE = (1, 2), 3, 4
"""Numbers of the accelerators: two of pool train, one of pool eu, and a MIG instance of a board of
its own.
"""
DAYS = (0, 1, 2, 25), (33, 34, 35)
"""Days on which accelerators were there, of October and November, counted from 1 October."""
TEAMS = {1: ("vision", "detector"), 2: ("nlp", "translate"), 3: ("speech", "dictate")}
LATE = [Held(2, 2, 8 * HOUR, 12 * HOUR, idle=HOUR, energy=3_600_000)]
"""Evidence of the first day that comes after its rating: volume prices of the days after it change.
"""
CORRECTING = [Held(2, 1, 13 * HOUR, 15 * HOUR, busy=HOUR, energy=1_800_000)]
"""Evidence of the first day that comes after the close of its month."""


def furnish(dsn: str) -> None:
    """Fill an empty ledger."""
    with furnishing(dsn) as (fleet, run, files):
        run("apply", files.write("declared.toml", DECLARED))
        run("import", "usage", files.write("jobs.csv", JOBS))
        _install(fleet)
        for days in DAYS:
            _use(fleet, days)
        for month, day in ((CLOSED, "2025-10-02"), (OPEN, "2025-11-04")):
            _book(run, files, month, dt.date.fromisoformat(day))
            run("reconcile", "--period", month)
        fleet.evidence(LATE)
        run("close", "--period", CLOSED)
        fleet.evidence(CORRECTING)
        run("chargeback", "--period", OPEN)


@pytest.fixture
@world(furnish)
def rich(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The ledger of `furnish`, at its time."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    return fleet


def _install(fleet: Fleet) -> None:
    """Make accelerators with where they are, and workloads with what they report of themselves."""
    for number in WHOLE:
        fleet.accelerator(number)
    fleet.accelerator(EUROPEAN)
    fleet.accelerator(SLICE, gpu_micro=428_571)
    fleet.connection.execute(
        "UPDATE accelerator SET device_uuid = 'GPU-board', mig_instance = '3g.40gb' WHERE uuid ="
        " 'GPU-0004'"
    )
    for days in DAYS:
        for day in days:
            start, end = day * DAY, (day + 1) * DAY
            for number in WHOLE:
                fleet.capacity(number, start, end)
            fleet.capacity(EUROPEAN, start, end, pool="eu", node="n2")
            fleet.capacity(SLICE, start, end, pool="slices", node="n3")
    for number, (team, project) in TEAMS.items():
        fleet.workload(number, team=team, project=project)
    fleet.connection.execute(
        "UPDATE workload SET name = 'job-' || external_id, user_name = 'ada' WHERE kind = 'slurm'"
    )


def _use(fleet: Fleet, days: tuple[int, ...]) -> None:
    """Have teams hold accelerators on these days; a part of each day is free, unavailable and not
    observed.
    """
    for day in days:
        at = day * DAY
        fleet.evidence(
            [
                Held(1, 1, at, at + 7 * HOUR, busy=5 * HOUR, idle=HOUR, energy=9_000_000),
                Held(1, None, at + 7 * HOUR, at + 10 * HOUR, "unallocated"),
                Held(1, None, at + 10 * HOUR, at + 11 * HOUR, "unavailable"),
                Held(2, 2, at, at + 5 * HOUR, busy=5 * HOUR, energy=7_000_000),
            ]
        )
        fleet.evidence(
            [Held(3, 3, at + HOUR, at + 21 * HOUR, busy=18 * HOUR, idle=2 * HOUR)], node="n2"
        )
        fleet.evidence([Held(4, 3, at + 2 * HOUR, at + 6 * HOUR, idle=HOUR)], node="n3")


def _book(run: Runner, files: Files, month: str, day: dt.date) -> None:
    """Book a credit, a debit and the truth of a provider's bill of a month."""
    dates = {"day": day, "next": day + dt.timedelta(days=1)}
    run(
        "apply",
        files.write(
            f"entries-{month}.toml", DECLARED_ADJUSTMENTS + ENTRIES.format(month=month, **dates)
        ),
    )
    start = day.replace(day=1)
    bounds = {"start": start, "end": (start + dt.timedelta(days=31)).replace(day=1)}
    run("import", "bill", files.write(f"bill-{month}.csv", BILL.format(**bounds, **dates)))
    who = ("--reason", f"{month} as invoiced", "--approver", "m.keller")
    run("adjustments", "true-up", "--period", month, "--bill", "big cloud", "--by", "cost", *who)


DECLARED_ADJUSTMENTS = DECLARED[DECLARED.index("[[adjustment]]") : DECLARED.index("[[bill_match]]")]
"""Policies, which a file of entries repeats: a file has exactly the policies that are in force
afterwards.
"""
