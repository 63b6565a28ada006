"""A period under another price book: with the same prices it is the ledger, and the ledger is never
touched.
"""

import csv
import io
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Fleet, Held
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.what_if import rate_again
from gpuledger_collector.storage.billing import prices, reports
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Lock

pytestmark = pytest.mark.slow

CHANGE = 10 * HOUR + 30 * 60_000 + 789
TWO_DAYS = Period(OCTOBER, OCTOBER + 2 * DAY)
HEADER = "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from\n"


@pytest.fixture
def furnished(fleet: Fleet, ledger) -> Fleet:
    """Two accelerators and an odd minute of everything; a rate that changes inside an hour."""
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', 'H100', 'on_demand', 2.49, 'USD', 0, now()),"
        " ('', 'H100', 'on_demand', 1.999999999, 'USD', %s, now())",
        (OCTOBER + CHANGE,),
    )
    for number in (1, 2):
        fleet.capacity(number, 0)
    for hour in range(48):
        at = hour * HOUR
        fleet.evidence(
            [
                Held(1, hour % 3, at, at + HOUR - 7, busy=HOUR // 3),
                Held(2, 4, at + 11, at + HOUR, idle=999),
            ]
        )
    refresh(ledger, TWO_DAYS, NOW_MS)
    return fleet


def lines(found) -> dict[tuple[object, ...], tuple[object, ...]]:
    return {
        (one.keys, one.state, one.currency): (
            one.gpu_ns,
            one.busy_ns,
            one.idle_ns,
            one.cost_micro,
            one.idle_cost_micro,
        )
        for one in found
    }


@pytest.mark.parametrize("by", [("team",), ("pool", "model", "node"), ("project", "team")])
def test_the_same_prices_give_the_ledger_to_the_micro_unit(furnished, ledger, by):
    """Quantities and amounts of every line, on days with and without a change of the rate."""
    before = furnished.dump()
    with ledger.transaction(Lock.LEDGER) as connection:
        book = PriceBook(prices.current(connection))
        made = lines(rate_again(connection, TWO_DAYS, book, NOW_MS, by))
        assert made == lines(reports.charged_lines(connection, TWO_DAYS, by))
    assert furnished.dump() == before
    assert len(made) > 1


def test_ties_fall_as_in_the_ledger(fleet, ledger):
    """The odd micro-unit of two jobs with equal time: numbers of arrival do not decide it, in an
    hour that is folded again either.
    """
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', 'H100', 'on_demand', 10.000002, 'USD', 0,"
        " now()), ('', 'H100', 'on_demand', 20, 'USD', %s, now())",
        (OCTOBER + HOUR // 2,),
    )
    fleet.capacity(1, 0)
    # Job 1 comes first by its key, and last by its number.
    fleet.workload(2)
    fleet.workload(1)
    fleet.evidence([Held(1, 2, 0, HOUR // 4)])
    fleet.evidence([Held(1, 1, HOUR // 4, HOUR // 2)])
    refresh(ledger, TWO_DAYS, NOW_MS)
    with ledger.transaction(Lock.LEDGER) as connection:
        book = PriceBook(prices.current(connection))
        answer = lines(rate_again(connection, TWO_DAYS, book, NOW_MS, ("team",)))
        assert answer == lines(reports.charged_lines(connection, TWO_DAYS, ("team",)))


def test_what_is_stranded_cuts_no_hour(fleet, ledger):
    """Half a board, which two jobs share; the other half comes in an hour in which the rate changes."""
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', 'H100', 'on_demand', 10, 'USD', 0, now()),"
        " ('', 'H100', 'on_demand', 20, 'USD', %s, now())",
        (OCTOBER + HOUR * 3 // 4,),
    )
    for number, start in ((1, 0), (2, HOUR // 2 + 1)):
        fleet.accelerator(number, gpu_micro=500_000)
        fleet.capacity(number, start)
    fleet.connection.execute("UPDATE accelerator SET device_uuid = 'GPU-board'")
    fleet.evidence([Held(1, 1, 0, HOUR), Held(1, 2, 0, HOUR)])
    refresh(ledger, TWO_DAYS, NOW_MS)
    with ledger.transaction(Lock.LEDGER) as connection:
        book = PriceBook(prices.current(connection))
        answer = lines(rate_again(connection, TWO_DAYS, book, NOW_MS, ("team",)))
        assert answer == lines(reports.charged_lines(connection, TWO_DAYS, ("team",)))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata"])
def test_each_day_of_the_billing_zone_is_priced_once(furnished, ledger, zone):
    """Days that begin at another hour, or inside one in which the rate changes as well: again the
    ledger.
    """
    at = OCTOBER + 18 * HOUR + 2_718_281
    with ledger.transaction() as connection:
        zones.replace_zone(connection, zone, NOW_MS)
        prices.add(
            connection, [Price(None, "", "H100", "on_demand", Decimal("3.3"), "USD", at)], NOW_MS
        )
        days = zones.calendar(connection).days_named(TWO_DAYS)
    refresh(ledger, days, NOW_MS)
    with ledger.transaction(Lock.LEDGER) as connection:
        made = lines(
            rate_again(connection, days, PriceBook(prices.current(connection)), NOW_MS, ("team",))
        )
        assert made == lines(reports.charged_lines(connection, days, ("team",)))


def test_the_own_prices_as_a_file_make_no_difference(furnished, run, tmp_path):
    """What was chosen to be bought as spot is so under the other book, too."""
    (tmp_path / "ledger.toml").write_text(
        '[[price]]\npool = ""\ngpu_model = "H100"\npurchase = "spot"\nrate_per_gpu_hour ='
        ' 1.11\ncurrency = "USD"\neffective_from = 2025-01-01\n[[purchase]]\npool ='
        ' "train"\npurchase = "spot"\n'
    )
    assert run("apply", tmp_path / "ledger.toml")[0] == 0
    book = run("prices", "list", "--format", "csv")[1].replace(
        "1970-01-01T00:00:00Z", "2000-01-01T00:00:00Z"
    )
    (tmp_path / "own.csv").write_text(book)
    span = ("--from", "2025-10-01", "--to", "2025-10-03", "--format", "csv")
    code, out, err = run("what-if", "--prices", tmp_path / "own.csv", *span)
    assert code == 0, err
    total = next(row for row in csv.DictReader(io.StringIO(out)) if row["team"] == "total")
    assert (total["cost_now"], total["difference"]) == ("106.56", "0.00")


def test_a_rate_that_changes_elsewhere_is_cut_where_it_changes(furnished, ledger):
    """The other book's own change inside an hour: what it charges is what a ledger under it would."""
    at = OCTOBER + 20 * HOUR + 1_234_567
    other = [
        Price(None, "", "H100", "on_demand", Decimal("3.3"), "USD", 0, at),
        Price(None, "", "H100", "on_demand", Decimal("4.4"), "USD", at),
    ]
    with ledger.transaction(Lock.LEDGER) as connection:
        told = lines(rate_again(connection, TWO_DAYS, PriceBook(other), NOW_MS, ("team",)))
    furnished.connection.execute("UPDATE price SET superseded_at = now()")
    with ledger.transaction() as connection:
        prices.add(connection, other, NOW_MS)
        furnished.connection.execute(
            "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT DISTINCT accelerator_id, "
            "hour_ms - hour_ms %% %s FROM usage_hour",
            (HOUR,),
        )
    refresh(ledger, TWO_DAYS, NOW_MS)
    with ledger.transaction(Lock.LEDGER) as connection:
        assert told == lines(reports.charged_lines(connection, TWO_DAYS, ("team",)))


def test_the_command_shows_both_sides(furnished, run, tmp_path):
    """Twice the rate is twice the cost; a bad file is refused with its line."""
    book = tmp_path / "new.csv"
    book.write_text(HEADER + ",H100,on_demand,4.98,USD,2025-01-01\n")
    span = ("--from", "2025-10-02", "--to", "2025-10-03", "--format", "csv")
    code, out, _ = run("what-if", "--prices", str(book), *span)
    assert code == 0
    total = next(row for row in csv.DictReader(io.StringIO(out)) if row["team"] == "total")
    assert (total["cost_now"], total["cost_then"]) == ("96.00", "239.04")
    assert total["difference"] == "143.04"
    book.write_text(HEADER + ",H100,on_demand,cheap,USD,2025-01-01\n")
    code, _, err = run("what-if", "--prices", str(book), *span)
    assert code == 2
    assert "new.csv:2" in err
