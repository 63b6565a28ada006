"""Spend by hour: each hour has the cost of its own capacity."""

import itertools
from dataclasses import astuple

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.spend_series import read_spend


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_each_hour_costs_what_its_capacity_costs(fleet, run, ledger, written, zone):
    """Whoever held it: a job of two hours that comes again six hours later charges none between."""
    assert run("apply", written("zone.toml", f'billing_zone = "{zone}"\n'))[0] == 0
    run("prices", "set", "--rate", "3", "--currency", "USD", "--from", "2025-09-01")
    for number in (1, 2):
        fleet.capacity(number, -DAY, 3 * DAY)
    held = [Held(2, 2, -DAY, 3 * DAY)]
    spans = [(-DAY, 2 * HOUR), (8 * HOUR, 11 * HOUR), (14 * HOUR, 3 * DAY)]
    held += [Held(1, 1, start, end) for start, end in spans]
    held += [
        Held(1, None, start, end, state="unallocated")
        for (_, start), (end, _) in itertools.pairwise(spans)
    ]
    fleet.evidence(held)
    refresh(ledger, ALWAYS, NOW_MS)
    with ledger.transaction(read_only=True) as connection:
        day = calendar_of(connection).date_range("2025-10-01", "2025-10-02")
        spend = read_spend(connection, day, "team", NOW_MS)
    (found,) = spend.currencies
    assert [step.billed.micro + step.nobody.micro for step in found.steps] == [6_000_000] * 24
    nobody = {
        start - OCTOBER: step.nobody.micro
        for (start, _), step in zip(map(astuple, spend.buckets), found.steps, strict=True)
    }
    assert {micro for at, micro in nobody.items() if 2 * HOUR <= at <= 7 * HOUR} == {3_000_000}
    assert {micro for at, micro in nobody.items() if 8 * HOUR <= at <= 10 * HOUR} == {0}
