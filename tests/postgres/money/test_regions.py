"""Regions of pools: which rate and commitment they find, what FOCUS says of them, and that months
stay closed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from fakes.fleet import DAY, Fleet, Held
from gpuledger_collector.export.focus_check import check

Run = Callable[..., tuple[int, str, str]]
TWO_DAYS = ("--from", "2025-10-01", "--to", "2025-10-03")
BOOK = """pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from,region
,,on_demand,3,USD,2025-01-01,
,,on_demand,5,USD,2025-01-01,eu
train-us,,on_demand,2,USD,2025-01-01,
,,on_demand,9,USD,2025-01-01,us
"""
PLACES = """
[[location]]
pool = "train-eu"
region = "eu"
region_name = "Frankfurt"
availability_zone = "eu-a"
effective_to = 2025-10-02

[[location]]
pool = "train-eu"
region = "north"
effective_from = 2025-10-02

[[location]]
pool = "train-us"
region = "us"
"""


@pytest.fixture
def everywhere(fleet: Fleet, run: Run, written: Callable[[str, str], Path]) -> Fleet:
    """A GPU in each of three pools for two days, usage known as counts in one of them, and rates by
    region.
    """
    for number, pool in ((1, "train-eu"), (2, "train-us"), (3, "lab")):
        fleet.capacity(number, 0, 2 * DAY, pool=pool)
        fleet.evidence([Held(number, 1, 0, DAY), Held(number, 1, DAY, 2 * DAY)])
    usage = (
        "workload_id,start,end,gpus,pool,tag:team\n"
        "job,2025-10-01T01:00:00Z,2025-10-01T03:00:00Z,2,count-eu,team-9\n"
    )
    assert run("import", "usage", written("usage.csv", usage))[0] == 0
    code, _, err = run("import", "prices", written("book.csv", BOOK))
    assert code == 0
    assert [line.split("'")[1] for line in err.splitlines()] == [
        "eu",
        "us",
    ], "regions in which no pool stands yet"
    return fleet


def cents(run: Run, *more: str) -> dict[tuple[str, str], Decimal]:
    code, out, err = run("chargeback", *TWO_DAYS, "--by", "team,pool", "--format", "csv", *more)
    assert code == 0, err
    return {
        (row["team"], row["pool"]): Decimal(row["cost"]) for row in csv.DictReader(io.StringIO(out))
    }


def focus(
    run: Run, path: Path, version: str = "1.2", period: tuple[str, ...] = TWO_DAYS
) -> list[dict[str, str]]:
    """The rows of usage, after our own checks of the file."""
    code, _, err = run(
        "chargeback", *period, "--format", "focus", "--focus-version", version, "-o", path
    )
    assert code == 0, err
    with path.open(encoding="utf-8", newline="") as file:
        assert list(check(file, version)) == []
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    return [row for row in rows if row["ChargeCategory"] == "Usage"]


def test_a_rate_of_a_region_holds_where_a_pool_stands(
    everywhere: Fleet, run: Run, written: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Without locations such rates match nothing; with them days are rated again; a rate of the
    pool goes before.
    """
    before = {
        ("team-1", "lab"): 144,
        ("team-1", "train-eu"): 144,
        ("team-1", "train-us"): 96,
        ("team-9", "count-eu"): 12,
    }
    assert cents(run) == before
    places = written("places.toml", PLACES + '[[location]]\nregion = "eu"\n')
    out = run("apply", places)[1]
    assert "locations: 4 added" in out
    assert "to rate again" in out
    # lab and count-eu stand in eu, as every pool that no other table names; train-eu moved to north
    # on the second day
    after = {
        ("team-1", "lab"): 240,
        ("team-1", "train-eu"): 192,
        ("team-1", "train-us"): 96,
        ("team-9", "count-eu"): 20,
    }
    assert cents(run) == after
    assert run("reconcile", *TWO_DAYS)[0] == 0
    assert (
        run("apply", places)[1]
        == "locations: 0 added, 0 superseded, 4 unchanged; no bill changes\n"
    )
    other = written("other.csv", BOOK.replace(",5,", ",7,"))
    out = run("what-if", *TWO_DAYS, "--by", "pool", "--prices", other, "--format", "csv")[1]
    then = {row["pool"]: Decimal(row["cost_then"]) for row in csv.DictReader(io.StringIO(out))}
    assert (then["lab"], then["train-eu"], then["train-us"], then["count-eu"]) == (336, 240, 96, 28)
    found = {
        (
            row["x_Pool"],
            row["ChargePeriodStart"][:10],
            row["RegionId"],
            row["RegionName"],
            row["AvailabilityZone"],
        )
        for row in focus(run, tmp_path / "focus.csv")
    }
    assert found == {
        ("train-eu", "2025-10-01", "eu", "Frankfurt", "eu-a"),
        ("train-eu", "2025-10-02", "north", "north", ""),
        ("train-us", "2025-10-01", "us", "us", ""),
        ("train-us", "2025-10-02", "us", "us", ""),
        ("lab", "2025-10-01", "eu", "eu", ""),
        ("lab", "2025-10-02", "eu", "eu", ""),
        ("count-eu", "2025-10-01", "eu", "eu", ""),
    }
    assert {row["RegionId"] for row in focus(run, tmp_path / "focus14.csv", "1.4")} == {
        "eu",
        "north",
        "us",
    }


def test_a_commitment_of_a_region_covers_its_pools(
    everywhere: Fleet, run: Run, written: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Half of it is used on the first day and nothing on the second; what it left unused stands in
    its region.
    """
    term = (
        'gpus = 2\nrate_per_gpu_hour = 1\ncurrency = "USD"\nstarts = 2025-10-01\nends ='
        ' 2025-10-03\nregion = "eu"\n'
    )
    assert (
        run("apply", written("c.toml", f'{PLACES}[[commitment]]\nname = "of eu"\n{term}'))[0] == 0
    )
    # A GPU for a day, and what was left of it the other day; the second of the region's GPUs does
    # not exist.
    assert cents(run)["team-1", "train-eu"] == 24 + 72
    assert cents(run)["(commitment_unused)", ""] == 24 + 48
    assert run("reconcile", *TWO_DAYS)[0] == 0
    rows = focus(run, tmp_path / "focus.csv")
    unused = {
        (row["RegionId"], row["RegionName"])
        for row in rows
        if row["CommitmentDiscountStatus"] == "Unused"
    }
    assert unused == {("eu", "Frankfurt")}


def test_a_closed_month_keeps_its_regions(
    everywhere: Fleet, run: Run, written: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """A location declared later changes no line of a closed month; what it changes is a correction."""
    assert run("apply", written("places.toml", PLACES))[0] == 0
    code, _, err = run("close", "--period", "2025-10")
    assert code == 0, err
    closed = focus(run, tmp_path / "before.csv")
    moved = PLACES.replace('region = "us"', 'region = "eu"').replace(
        'region = "north"', 'region = "eu"'
    )
    assert run("apply", written("moved.toml", moved))[0] == 0
    assert focus(run, tmp_path / "after.csv") == closed
    corrected = everywhere.rows("SELECT pool, sum(cost_micro)::bigint FROM correction GROUP BY 1")
    assert corrected == [("train-eu", 48_000_000)], (
        "24 hours at 5 instead of 3; train-us has a rate of its own"
    )
    booked = focus(run, tmp_path / "booked.csv", period=())
    assert {(row["ChargeClass"], row["RegionId"]) for row in booked} == {("Correction", "eu")}


def test_regions_of_any_file_go_round(run: Run, written: Callable[[str, str], Path]) -> None:
    """`prices list`, `prices set` and `export config` write what `import` and `apply` take back
    unchanged.
    """
    assert run("apply", written("places.toml", PLACES))[0] == 0
    set_price = (
        "prices",
        "set",
        "--rate",
        "4",
        "--currency",
        "USD",
        "--from",
        "2025-01-01",
        "--region",
    )
    assert run(*set_price, "eu")[2] == ""
    assert "no pool stands in region 'eu-nroth'" in run(*set_price, "eu-nroth")[2]
    table, listed = run("prices", "list")[1], run("prices", "list", "--format", "csv")[1]
    assert "no pool stands in region 'eu-nroth'" in table
    assert [row["region"] for row in csv.DictReader(io.StringIO(listed))] == ["eu", "eu-nroth"]
    assert (
        "0 added, 0 updated, 2 unchanged"
        in run("import", "prices", written("listed.csv", listed))[1]
    )
    exported = run("export", "config")[1]
    assert 'availability_zone = "eu-a"' in exported
    again = run("apply", written("again.toml", exported), "--dry-run")[1]
    assert "locations: 0 added, 0 superseded, 3 unchanged; no bill changes" in again
    assert (
        "region       rates or commitments name region eu-nroth, and no pool stands there"
        in run("doctor")[1]
    )


def test_a_pool_stands_in_one_place_a_day(run: Run, written: Callable[[str, str], Path]) -> None:
    """Two locations of one pool and day, and a location without a region, are refused with their
    lines.
    """
    text = (
        '[[location]]\npool = "a"\nregion = "eu"\n[[location]]\npool = "a"\nregion ='
        ' "us"\n[[location]]\npool = "b"\n'
    )
    path = written("bad.toml", text)
    code, _, err = run("apply", path)
    assert code == 2
    assert f"{path}:4:pool: line 1 gives this pool a location for some of these days already" in err
    assert f"{path}:7:region: is empty" in err
