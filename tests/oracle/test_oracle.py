"""Generated worlds through the real collector, command line and Postgres: the oracle's bill, to the
micro-unit.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fakes.fleet import HOUR
from fakes.postgres import dsn, fresh_database, postgres
from gpuledger_collector.services import rating
from gpuledger_collector.storage.capacity.demand import demand, models_of_pool
from gpuledger_collector.storage.database import Database
from oracle.charged import bill_of
from oracle.driver import BY, cells_of, differences, opened
from oracle.model import FOREVER, midnight
from oracle.money import exchanged
from oracle.stories import AUGUST, IN_ORDER, STORIES, TEN, seen, world
from oracle.worlds import make, twin

__all__ = ["dsn", "postgres"]


def seeds(quick: Sequence[int], slow: Sequence[int], long: Sequence[int]) -> list[object]:
    """Those of every run, those of a slow one, and those of a long one."""
    marked = ((slow, pytest.mark.slow), (long, pytest.mark.long))
    return [*quick, *(pytest.param(seed, marks=mark) for some, mark in marked for seed in some)]


def check(world, dsn: str, folder: Path) -> None:
    """Play a world and hold the ledger against the oracle."""
    with opened(dsn, folder) as ledger:
        ledger.play(world)
        found = [*differences(world, ledger), *unlike_models(world, dsn)]
    assert not found, f"world {world.seed} ({world.zone}): {len(found)} differences\n" + "\n".join(
        found[:20]
    )


def unlike_models(world, dsn: str) -> Iterator[str]:
    """Pools whose demand is not that of their models, in hours in which one of these is there and
    each that is there is known.
    """
    days = (midnight(day, world.zone) // HOUR * HOUR for day in (world.first, world.last))
    hours = range(*days, HOUR)
    period = hours[0], hours[-1] + HOUR
    with Database(dsn).connect() as connection:
        for pool in demand(connection, *period, "pool"):
            total, is_there = np.zeros(len(hours)), np.zeros(len(hours), bool)
            for model in models_of_pool(connection, *period, pool.name):
                first = (model.start_ms - period[0]) // HOUR
                total[first : first + len(model.values)] += model.values
                is_there[first : first + len(model.values)] = True
            first = (pool.start_ms - period[0]) // HOUR
            total = np.where(is_there, total, np.nan)[first : first + len(pool.values)]
            known = np.isfinite(total)
            if not np.allclose(total[known], pool.values[known]):
                yield f"pool {pool.name}: its models demand {total}, it demands {pool.values}"


FIRST_WORLD = int(os.environ.get("GPULEDGER_TEST_FIRST_WORLD") or 0)
"""The number of the first world: with 1000, a long run plays 500 other worlds."""
REGRESSIONS = (31, 45, 141, 351, 1091, 1139, 1145, 1160, 1190, 2195, 7180)
"""Worlds that once found a fault, always played: 351, an accelerator that comes back within a
rating interval; 141, lines of a sealed month that differ in currency alone; 1091, a claim of a time
in which a node that was silent for days sees its device; 1145 and 1160, a claim of a pool that does
not hold, in the middle of an hour; 1139 and 1190, a start on the hour before the first midnight; 31,
nodes that cost in a currency of their own; 45, counters of a server on a day on which another of
its workloads was charged; 2195, a reservation whose tenant has cached tokens and no input; 7180, a month that
was closed before its servers were declared, with evidence after it.
"""


def worlds(first: int, last: int) -> list[int]:
    """The numbers of some worlds of this run, without those that are always played."""
    return [
        seed for seed in range(FIRST_WORLD + first, FIRST_WORLD + last) if seed not in REGRESSIONS
    ]


@pytest.mark.parametrize(
    "seed", seeds(worlds(0, 4), (*worlds(4, 12), *REGRESSIONS), worlds(12, 450))
)
def test_the_ledger_says_what_the_oracle_says(seed, dsn, tmp_path, monkeypatch):
    """Time and money by day, owner, state, place and currency; closed months and their corrections
    together; and what tenants of shared model servers pay.
    """
    # Half of the worlds are rated as large fleets are.
    monkeypatch.setattr(rating, "TOGETHER_FROM", 0 if seed % 2 == 0 else sys.maxsize)
    check(make(seed), dsn, tmp_path)


def test_a_world_imports_usage_of_its_own_days():
    """Not of the day before, on which its first midnight's hour begins in a zone off the hour."""
    for told in map(make, (*worlds(0, 40), *REGRESSIONS)):
        imported = [one for kind, what in told.steps if kind == "import" for one in what]
        starts = [one.start for one in imported]
        assert min(starts, default=FOREVER) >= midnight(told.first, told.zone), told.seed


@pytest.mark.parametrize("seed", seeds((), worlds(500, 503), worlds(503, 550)))
def test_a_twin_is_billed_alike(seed, postgres, tmp_path):
    """Evidence in another order and with other looks: the same bill."""
    world = make(seed)
    for told in (world, twin(world, world.seed)):
        with fresh_database(postgres) as dsn:
            check(told, dsn, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_story_is_billed_by_its_facts(story, postgres, tmp_path):
    """What once falsified a bill, as it was told and in another order."""
    for told in (story(), twin(story(), 1)):
        with fresh_database(postgres) as dsn:
            check(told, dsn, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("story", IN_ORDER, ids=lambda story: story.__name__)
def test_a_story_of_decisions_is_billed_as_decided(story, dsn, tmp_path):
    """A true-up to a provider's bill; another source in the place of the first."""
    check(story(), dsn, tmp_path)


OPEN_WORLDS = [
    seed for seed in range(30) if not any(kind == "close" for kind, _ in make(seed).steps)
]


@pytest.mark.parametrize("seed", seeds((), OPEN_WORLDS[:2], OPEN_WORLDS[2:]))
def test_another_currency_is_the_oracle_s(seed, dsn, tmp_path):
    """Dollars in euros at the rate of each day, line by line; two rates are two rows."""
    told = make(seed)
    days = told.first, told.first + dt.timedelta(days=1)
    rates = dict(zip(days, ("0.92", "0.913333333"), strict=True))
    text = "".join(
        f'[[exchange]]\nfrom = "USD"\nto = "EUR"\nrate = {rate}\neffective_from = {day}\n'
        for day, rate in rates.items()
    )
    with opened(dsn, tmp_path) as ledger:
        ledger.play(told)
        ledger.apply(text)
        answer = ledger.command(
            *("chargeback", "--from", str(told.first), "--to", str(told.last), "--currency", "EUR"),
            *("--by", BY, "--format", "json"),
            ends=(0, 1),
        )
    bill, _, _ = bill_of(told.facts(), told.first, told.last)
    dated = [(midnight(day, told.zone), Fraction(rate)) for day, rate in rates.items()]
    expected = exchanged(bill, told.zone, dated, lambda key: cells_of(key, has_price=True))
    actual = {}
    for row in json.loads(answer)["rows"]:
        cells = tuple(row[name] or "" for name in BY.split(","))
        # Rows that no rate concerns, as those of hours without a price, name none.
        rate = row.get("exchange", "").split(" from ")[0]
        actual[cells, row["currency"] or "", rate] = row["cost_micro"] or 0
    assert actual == expected


@pytest.mark.slow
def test_shares_of_a_pool_are_the_oracle_s(dsn, tmp_path):
    """Two GPUs at 10; half of them is alpha's, the other one bravo's.

    Alpha holds both for five hours, bravo none.
    """
    held = [seen(AUGUST, 5, uuid=f"GPU-{at}", job=f"j{at}", pool="train") for at in (0, 1)]
    shares = (
        '[[share]]\nteam = "alpha"\npool = "train"\nfraction = 0.5\n\n'
        '[[share]]\nteam = "bravo"\npool = "train"\ngpus = 1\n'
    )
    told = world("shares", TEN, *held, ("declared", shares), last=dt.date(2024, 8, 2))
    with opened(dsn, tmp_path) as ledger:
        ledger.play(told)
        assert not differences(told, ledger)
        days = ("--from", "2024-08-01", "--to", "2024-08-02")
        text = ledger.command("chargeback", *days, "--by", "share", "--format", "csv")
    rows = {row["team"]: row for row in csv.DictReader(io.StringIO(text))}
    hours = {
        team: (Fraction(row["gpu_hours_lent"]), Fraction(row["gpu_hours_borrowed"]))
        for team, row in rows.items()
    }
    assert hours == {"alpha": (0, 5), "bravo": (5, 0)}
    costs = {
        team: (Fraction(row["cost_lent"]), Fraction(row["cost_borrowed"]))
        for team, row in rows.items()
    }
    assert costs == {"alpha": (0, 50), "bravo": (50, 0)}
