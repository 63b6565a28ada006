"""What one owner sees is cut out of everybody's report, to the cent, although the lines of others
are not read.

Worlds are drawn: small amounts in currencies of 0, 2 and 3 decimals, so that remainders and shares
often tie; closed months with corrections, adjustments, node costs, time of nobody, usage without a
price, an owner or energy.
"""

import datetime as dt
import random

import psycopg
import pytest

from fakes.fleet import DAY, NOW_MS, OCTOBER
from gpuledger_collector.accounting.adjustments import KINDS
from gpuledger_collector.accounting.carbon import Intensity
from gpuledger_collector.accounting.chargeback import UNATTRIBUTED, totals
from gpuledger_collector.accounting.chargeback import report as report_of
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.shared_costs import KEYS, SOURCES, SharedCost
from gpuledger_collector.services import chargeback, statement
from gpuledger_collector.storage import row_level_security
from gpuledger_collector.storage.billing import allocation, declarations, reports

NOVEMBER = OCTOBER + 31 * DAY
MONTHS = {"2025-10": Period(OCTOBER, NOVEMBER), "2025-11": Period(NOVEMBER, NOVEMBER + 30 * DAY)}
BOTH = Period(OCTOBER, NOVEMBER + 30 * DAY)
WORLDS = (0, 1, *(pytest.param(number, marks=pytest.mark.slow) for number in range(2, 8)))
TEAMS = ("vision", "Zebra", "a b", "a-b", "ä", "A", "nlp", "zebra", "speech", "")
"""Names that a dictionary orders otherwise than their code points."""
PROJECTS = ("p", "q", "")
POOLS = ("train", "eu", "slices")
CURRENCIES = ("USD", "USD", "JPY", "BHD")
NOBODY = ("unallocated", "unavailable", "unobserved", "stranded", "commitment_unused")
COLUMNS = (
    *(
        "day_ms",
        "start_ms",
        "end_ms",
        "workload_id",
        "owner_id",
        "state",
        "pool",
        "gpu_model",
        "node",
        "gpu_ns",
    ),
    *(
        "busy_ns",
        "idle_ns",
        "unknown_ns",
        "currency",
        "cost_micro",
        "idle_cost_micro",
        "list_cost_micro",
    ),
    *("contracted_cost_micro", "energy_mj"),
)
KEYS_OF_DAYS = "day_ms, owner_id, state, pool, gpu_model, currency"
SUMS_OF_DAYS = (
    *(
        "gpu_ns",
        "busy_ns",
        "idle_ns",
        "unknown_ns",
        "cost_micro",
        "idle_cost_micro",
        "energy_mj",
        "list_cost_micro",
    ),
    "contracted_cost_micro",
)


def amount(draw):
    """Micro-units, often half a cent, so that remainders tie; sometimes nothing."""
    return draw.choice([0, 2_500, 5_000, 5_000, 15_000, 1_005_000, draw.randrange(10_000_000)])


def charge(draw, owners, day, *, is_correction=False):
    """One line of a day."""
    sign = draw.choice([1, -1]) if is_correction else 1
    state = draw.choice(["held"] * 8 + [*NOBODY, "node_cost", *KINDS])
    is_paid = state not in NOBODY
    time = 0 if state in {"node_cost", *KINDS} else draw.choice([1, 2, 3, 3_600]) * 10**9 * sign
    currency = draw.choice(CURRENCIES)
    is_priced = not (state == "held" and draw.random() < 0.1)
    # A correction of a price alone takes money back, and no time.
    cost = amount(draw) * (draw.choice([1, -1]) if is_correction or state in KINDS else 1)
    idle = time // 3 if state == "held" and draw.random() < 0.7 else 0
    is_listed, is_contracted = (is_priced and draw.random() < 0.8 for _ in range(2))
    return (
        *(day, day, day + 1000, draw.randrange(1, 20) if state == "held" else None),
        *(
            draw.choice(owners) if is_paid and draw.random() < 0.95 else None,
            state,
            draw.choice(POOLS),
            "H100",
            "n1",
        ),
        *(time, 0, idle, 0 if idle else time if state == "held" else 0),
        *(
            currency if is_priced else None,
            cost if is_priced else None,
            cost // 3 if idle and is_priced else None,
        ),
        *(cost + 2_500 if is_listed else None, cost if is_contracted else None),
        draw.choice([None, 1_800_000, draw.randrange(10**8)]) if state == "held" else None,
    )


def shared_costs(draw):
    """A cost of every source and key in turn, shared by a drawn level, within a scope or not."""
    keys = draw.sample(KEYS, len(KEYS))
    for number, source in enumerate([*SOURCES, "amount", "amount", "amount"]):
        yield SharedCost(
            name=f"cost {number}",
            source=source,
            amount_micro=draw.choice([1, 7, 1_000_003, 10**12 + 1]) if source == "amount" else None,
            currency=draw.choice(CURRENCIES) if source == "amount" else None,
            pool=draw.choice(["", "train"]) if source != "amount" else "",
            key=keys[number % len(keys)],
            level=draw.choice(["team", "team", "project", "user"]),
            weights={name: draw.randrange(4) for name in (*TEAMS, *PROJECTS) if name},
            scope=draw.choice([{}, {}, {"project": "p"}, {"team": "nobody there"}]),
            from_on=draw.choice([None, dt.date(2025, 10, 3)]),
            to_on=draw.choice([None, dt.date(2025, 11, 3)]),
        )


def furnish(connection, seed):
    """Draw a world: October is closed and corrected, November is open."""
    draw = random.Random(seed)
    owners = [
        connection.execute(
            "INSERT INTO owner (team, project) VALUES (%s, %s) RETURNING id", (team, project)
        ).fetchone()[0]
        for team in TEAMS
        for project in PROJECTS
    ]
    connection.execute(
        "INSERT INTO workload (key, kind, external_id, first_seen_at) "
        "SELECT 'slurm::' || n, 'slurm', n::text, now() FROM generate_series(1, 20) n"
    )
    columns = ", ".join(COLUMNS)
    for start in (OCTOBER, NOVEMBER):
        lines = [charge(draw, owners, start + draw.randrange(5) * DAY) for _ in range(250)]
        with connection.cursor().copy(f"COPY charge ({columns}) FROM STDIN") as copy:
            for line in lines:
                copy.write_row(line)
    with connection.cursor().copy(
        f"COPY correction (booked_day_ms, recorded_ms, {columns}) FROM STDIN"
    ) as copy:
        for _ in range(80):
            day = OCTOBER + draw.randrange(5) * DAY
            copy.write_row((NOVEMBER + DAY, 0, *charge(draw, owners, day, is_correction=True)))
    connection.execute(
        f"INSERT INTO ledger_day ({KEYS_OF_DAYS}, {', '.join(SUMS_OF_DAYS)}) SELECT {KEYS_OF_DAYS},"
        f" {', '.join(f'sum({name})' for name in SUMS_OF_DAYS)} FROM charge GROUP BY {KEYS_OF_DAYS}"
    )
    declarations.SHARED_COSTS.replace(connection, list(shared_costs(draw)), NOW_MS)
    intensities = [
        Intensity("r", "", 380, 1),
        Intensity("s", "eu", 41, 2, dt.date(2025, 10, 2), dt.date(2025, 11, 3)),
    ]
    declarations.CARBON.replace(connection, intensities[draw.randrange(2) :], NOW_MS)
    connection.execute(
        "INSERT INTO billing_period (start_ms, end_ms, name, closed_ms, closed_by, level, lines,"
        " seal, receipt) VALUES (%s, %s, '2025-10', %s, 'me', 'team', 1, 'seal', '{}')",
        (OCTOBER, NOVEMBER, NOW_MS + 1000 if draw.random() < 0.7 else 1),
    )


@pytest.fixture(params=WORLDS)
def world(request, dsn):
    """A session of a drawn world."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        with connection.transaction():
            furnish(connection, request.param)
        assert row_level_security.enable(connection) == ""
        yield connection


def of(report, cell):
    return [row for row in report.rows if row.keys[0] == cell]


@pytest.mark.parametrize("month", MONTHS)
@pytest.mark.parametrize("level", ["team", "project"])
def test_an_owner_has_the_cents_of_the_full_report(world, level, month):
    """Every amount of every row, as printed and exact: of a report, of a statement with its shares,
    of the overview.
    """
    period = MONTHS[month]
    whole = chargeback.read_chargeback(world, period, (level,), NOW_MS).report
    monthly = statement.monthly_chargeback(world, level, month, NOW_MS)
    everyone = report_of(reports.charged_lines(world, period, (level,), apart=True), (level,))
    assert len(whole.rows) > len(PROJECTS)
    for name in TEAMS if level == "team" else PROJECTS:
        cell = name or UNATTRIBUTED
        expected = of(whole, cell)
        if name:  # no token is of nobody
            seen = chargeback.read_chargeback(world, period, (level,), NOW_MS, {level: name}).report
            assert of(seen, cell) == expected
            assert seen.totals == totals(seen.rows)
        own = statement.monthly_chargeback(world, level, month, NOW_MS, cell)
        assert list(own.report.rows) == of(monthly.report, cell)
        parts = [part for part in monthly.shares if part.keys == (cell,)]
        assert sorted(own.shares, key=repr) == sorted(parts, key=repr)
        if level == "team":
            direct = chargeback.direct_costs_by_team(world, period, {"team": name})
            assert list(direct.rows) == of(everyone, cell)


@pytest.mark.parametrize(
    ("owner", "by"),
    [
        ({"team": "vision"}, ("project", "pool")),
        ({"team": "vision", "project": "p"}, ("team",)),
        ({"project": "p"}, ("workload", "team")),
        ({"team": "a b"}, ("region", "user")),
    ],
)
def test_shares_of_an_owner_are_those_of_everybody(world, owner, by):
    """By whatever it is asked, shares and grams are those of its own lines among everybody's, to
    the micro-unit.
    """
    by_owner = (*owner, *by)
    seen = allocation.allocate(world, BOTH, by, NOW_MS, owner)
    whole = allocation.allocate(world, BOTH, by_owner, NOW_MS)
    values = tuple(owner.values())
    for mine, everyones in ((seen.shared, whole.shared), (seen.emitted, whole.emitted)):
        expected = {
            (currency, cells[len(values) :]): number
            for (currency, cells), number in everyones.items()
            if cells[: len(values)] == values
        }
        assert {key: number for key, number in mine.items() if key[0] is not None} == expected
    assert seen.shared


def test_lines_of_others_are_not_read(world, monkeypatch):
    """Lines that come into memory for an owner are its own, whatever it asks for."""
    read = reports.charged_lines
    owners = []

    def watched(*arguments, **more):
        owners.append(more.get("owner"))
        return read(*arguments, **more)

    monkeypatch.setattr(reports, "charged_lines", watched)
    own = {"team": "vision"}
    chargeback.read_chargeback(world, BOTH, ("team",), NOW_MS, own)
    chargeback.read_chargeback(world, BOTH, ("workload", "region"), NOW_MS, own)
    chargeback.direct_costs_by_team(world, BOTH, own)
    statement.monthly_chargeback(world, "team", "2025-11", NOW_MS, "vision")
    assert owners
    assert all(owner == own for owner in owners)
