"""Generated worlds through the real collector, command line and Postgres: the oracle's bill, to the micro-unit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fakes.postgres import dsn, fresh_database, postgres
from gpuledger_collector.services import rating
from oracle.driver import differences, opened
from oracle.stories import STORIES
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
        found = differences(world, ledger)
    assert not found, f"world {world.seed} ({world.zone}): {len(found)} differences\n" + "\n".join(found[:20])


REGRESSIONS = (351,)
"""Worlds that once found a fault: 351, an accelerator that comes back within a rating interval."""


@pytest.mark.parametrize(
    "seed", seeds(range(4), (*range(4, 12), *REGRESSIONS), sorted({*range(12, 450)} - {*REGRESSIONS}))
)
def test_the_ledger_says_what_the_oracle_says(seed, dsn, tmp_path, monkeypatch):
    """Time and money by day, owner, state, place and currency; closed months and their corrections together."""
    # Half of the worlds are rated as large fleets are.
    monkeypatch.setattr(rating, "TOGETHER_FROM", 0 if seed % 2 == 0 else sys.maxsize)
    check(make(seed), dsn, tmp_path)


@pytest.mark.parametrize("seed", seeds((), range(500, 503), range(503, 550)))
def test_a_twin_is_billed_alike(seed, postgres, tmp_path):
    """Evidence in another order and with other looks: the same bill."""
    world = make(seed)
    for told in (world, twin(world, seed)):
        with fresh_database(postgres) as dsn:
            check(told, dsn, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_story_is_billed_by_its_facts(story, postgres, tmp_path):
    """What once falsified a bill, as it was told and in another order."""
    for told in (story(), twin(story(), 1)):
        with fresh_database(postgres) as dsn:
            check(told, dsn, tmp_path)
