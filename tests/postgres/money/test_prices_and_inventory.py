"""The price book and the inventory: versions, marks, and what they change in the ledger."""

from decimal import Decimal

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.refresh import refresh

BOOK = "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from,effective_to,list_rate,region,node\n"
ONE_DAY = Period(OCTOBER, OCTOBER + DAY)


def test_same_rows_change_nothing_and_changed_rows_supersede(run, written, fleet) -> None:
    """Versions are never edited: the old rate stays on record, superseded."""
    path = written(
        "p.csv", BOOK + ",H100,on_demand,2.49,USD,2025-10-01,,,,\n,A100,spot,1,USD,2025-10-01,,,,\n"
    )
    assert "2 added, 0 updated, 0 unchanged" in run("import", "prices", path)[1]
    assert "0 added, 0 updated, 2 unchanged" in run("import", "prices", path)[1]
    again = written("q.csv", BOOK + ",H100,on_demand,2.59,USD,2025-10-01T00:00:00Z,,,,\n")
    assert "0 added, 1 updated, 0 unchanged" in run("import", "prices", again)[1]
    rows = fleet.rows(
        "SELECT rate_per_gpu_hour, superseded_at IS NULL FROM price WHERE gpu_model = 'H100' ORDER"
        " BY id"
    )
    assert rows == [(Decimal("2.49"), False), (Decimal("2.59"), True)]


def test_listed_prices_can_be_imported_again(run, written) -> None:
    """`prices list --format csv` is a price book that changes nothing when it is imported."""
    run(
        "import",
        "prices",
        written(
            "p.csv", BOOK + "a,H100,reserved,2.490,USD,2025-10-01T01:30:00Z,2026-01-01,3,,n1\n"
        ),
    )
    _, listed, _ = run("prices", "list", "--format", "csv")
    assert (
        listed
        == BOOK + "a,H100,reserved,2.49,USD,2025-10-01T01:30:00Z,2026-01-01T00:00:00Z,3,,n1\n"
    )
    assert "0 added, 0 updated, 1 unchanged" in run("import", "prices", written("l.csv", listed))[1]


def test_bad_prices_are_all_named(run, written, fleet) -> None:
    """Purchase, rate, currency, order and doubles: each bad cell is named, nothing is imported."""
    path = written(
        "p.csv",
        BOOK + ",H100,rented,-1,usd,2025-10-01,2025-09-01,,,\n,H100,spot,1.0000000001,USD,,,,,\n"
        ",A,spot,1,USD,2025-10-01,,,,\n,A,spot,2,USD,2025-10-01,,,,\n",
    )
    code, _, err = run("import", "prices", path)
    assert code == 2
    places = [line.removeprefix(f"{path}:").split(": ")[0] for line in err.splitlines()[:-1]]
    assert places == [
        "2:currency",
        "2:effective_to",
        "2:purchase",
        "2:rate_per_gpu_hour",
        "3:effective_from",
        "3:rate_per_gpu_hour",
        "5:rate_per_gpu_hour",
    ]
    assert fleet.rows("SELECT * FROM price") == []


def test_a_price_in_mid_hour_splits_that_hour(run, written, fleet, ledger) -> None:
    """A rate that begins inside an hour already folded makes that hour be folded again, and each
    part has its rate.
    """
    run("prices", "set", "--rate", "1", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 0, HOUR)
    fleet.evidence([Held(1, 1, 0, HOUR, busy=HOUR)])
    refresh(ledger, ONE_DAY, NOW_MS)
    assert fleet.rows("SELECT cost_micro FROM charge") == [(1_000_000,)]
    _, out, _ = run(
        "prices", "set", "--rate", "3", "--currency", "USD", "--from", "2025-10-01T00:15:00Z"
    )
    assert "the rate added" in out
    refresh(ledger, ONE_DAY, NOW_MS)
    assert fleet.rows("SELECT cost_micro, gpu_ns FROM charge ORDER BY 1") == [
        (250_000, 900_000_000_000),
        (2_250_000, 2_700_000_000_000),
    ]
    assert fleet.rows("SELECT holds FROM conservation_check") == [(True,)]


def test_inventory_is_the_authority_and_idempotent(run, written, fleet, ledger) -> None:
    """Stays in the file replace those first seen by an agent; the same file again changes nothing."""
    fleet.capacity(1, 0)
    fleet.evidence([Held(1, 1, 0, HOUR)])
    refresh(ledger, ONE_DAY, NOW_MS)
    head = "uuid,in_at,out_at,node,pool,gpu_model\n"
    path = written(
        "i.csv",
        head + "GPU-0001,2025-10-01,2025-10-01T00:30:00Z,n1,,\nGPU-0002,2025-10-01,,n2,b,H100\n",
    )
    assert "1 added, 1 updated, 0 unchanged" in run("import", "inventory", path)[1]
    refresh(ledger, ONE_DAY, NOW_MS)
    assert fleet.rows(
        "SELECT capacity_ns::bigint, held_ns::bigint, holds FROM conservation_check"
    ) == [((DAY + HOUR // 2) * 1_000_000, HOUR // 2 * 1_000_000, True)]
    assert "0 added, 0 updated, 2 unchanged; no bill changes" in run("import", "inventory", path)[1]


def test_overlapping_placements_are_refused(run, written, fleet) -> None:
    """An accelerator cannot stand in two places at once: the second row is named with the first."""
    rows = "node,uuid,gpu_model,pool,in_at,out_at\nn1,G,,,2025-10-01,2025-10-03\nn2,G,,,2025-10-02,\n,,,,x,\n"
    path = written("i.csv", rows)
    code, _, err = run("import", "inventory", path)
    assert code == 2
    assert f"{path}:3:in_at: G is also there by line 2 at that time" in err
    assert "i.csv:4:node: is empty" in err
    assert fleet.rows("SELECT * FROM capacity") == []
