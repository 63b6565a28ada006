"""The receipt of a GPU's time: its lines are its capacity and its charges, to the micro-unit."""

import csv
import io
from collections import Counter
from decimal import Decimal

import pytest

from fakes.collector import running
from fakes.fleet import DAY, HOUR, OCTOBER, Held
from fakes.pages import Page
from fakes.rich_ledger import rich
from fakes.two_teams import OWN, token
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.gpu_receipt import UnknownGpu, read_gpu_receipt
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones

__all__ = ["rich"]
UUIDS = ("GPU-0001", "GPU-0002", "GPU-0003", "GPU-board")
DAYS = "from=2025-11-03&to=2025-11-06"


@pytest.fixture
def reading(rich, dsn):
    with Database(dsn).transaction(read_only=True) as connection:
        yield connection


def days_of(connection, start, end):
    return zones.calendar(connection).date_range(start, end)


MONTHS = [("2025-10-01", "2025-10-27"), ("2025-11-03", "2025-11-07")]


@pytest.mark.parametrize("bounds", MONTHS)
@pytest.mark.parametrize("uuid", UUIDS)
def test_it_adds_up(reading, uuid, bounds):
    """On each day the lines, the hours and the inventory have the same time; the cost is capacity x
    rate where no commitment covers it; and corrections of closed days are in it.
    """
    receipt = read_gpu_receipt(reading, uuid, days_of(reading, *bounds))
    assert receipt.is_rated
    assert receipt.holds
    for day in receipt.proofs:
        assert day.capacity_ns == day.hours_ns == day.charged_ns
        covered = any(line.commitment for line in receipt.lines)
        assert day.cost_holds in ({True, None} if covered else {True})
    assert sum(receipt.hour_sums.values()) == receipt.gpu_ns > 0


@pytest.mark.parametrize("bounds", MONTHS)
def test_all_gpus_together_are_the_charges(reading, bounds):
    """Time and cost of every state and currency, as they were charged and corrected."""
    period = days_of(reading, *bounds)
    sums = Counter()
    for uuid in UUIDS:
        for line in read_gpu_receipt(reading, uuid, period).lines:
            sums[line.state, line.currency, "ns"] += line.gpu_ns
            sums[line.state, line.currency, "micro"] += line.cost_micro or 0
    charged = Counter()
    for table in ("charge", "correction"):
        for state, currency, ns, micro in reading.execute(
            f"SELECT state, currency, sum(gpu_ns)::bigint, sum(cost_micro)::bigint FROM {table}"
            " WHERE day_ms >= %s AND day_ms < %s AND accelerator_id IS NOT NULL GROUP BY 1, 2",
            (period.start_ms, period.end_ms),
        ).fetchall():
            charged[state, currency, "ns"] += ns
            charged[state, currency, "micro"] += micro or 0
    assert sums == charged
    assert {state for state, *_ in sums} == {
        *("held", "unallocated", "unavailable", "unobserved", "stranded")
    }


def test_its_amounts_add_up_as_they_are_shown(reading):
    """Minor units of the lines are those of the sum, by currency."""
    receipt = read_gpu_receipt(reading, "GPU-0001", days_of(reading, *MONTHS[1]))
    (sum_,) = receipt.costs
    shown = [Decimal(line.cost.plain()) for line in receipt.lines]
    assert sum(shown) == Decimal(sum_.plain())
    assert sum(line.cost_micro for line in receipt.lines) == sum_.micro


def test_what_is_missing_is_told(rich, dsn):
    """A charge that is gone, or an hour, is found on its day."""
    day = OCTOBER + 34 * DAY
    rich.connection.execute(
        "DELETE FROM charge WHERE accelerator_id = (SELECT id FROM accelerator WHERE uuid ="
        " 'GPU-0003') AND state = 'unobserved' AND start_ms >= %s AND start_ms < %s",
        (day, day + DAY),
    )
    with Database(dsn).transaction(read_only=True) as connection:
        receipt = read_gpu_receipt(connection, "GPU-0003", days_of(connection, *MONTHS[1]))
    assert not receipt.holds
    wrong = [proof.date for proof in receipt.proofs if not proof.holds]
    assert wrong == ["2025-11-05"]


def test_a_price_that_is_wrong_is_told(rich, dsn):
    """A charge of another amount is not capacity x rate."""
    rich.connection.execute(
        "UPDATE charge SET cost_micro = cost_micro + 1 WHERE ctid = (SELECT c.ctid FROM charge c"
        " JOIN accelerator a ON a.id = c.accelerator_id WHERE a.uuid = 'GPU-0003' AND c.day_ms > %s"
        " AND c.currency IS NOT NULL LIMIT 1)",
        (OCTOBER + 33 * DAY,),
    )
    with Database(dsn).transaction(read_only=True) as connection:
        receipt = read_gpu_receipt(connection, "GPU-0003", days_of(connection, *MONTHS[1]))
    assert [proof.cost_holds for proof in receipt.proofs].count(False) == 1


def test_a_slice_has_its_own_receipt(reading):
    """Without what slices leave of the board, which is in that of the board."""
    period = days_of(reading, *MONTHS[1])
    slice_ = read_gpu_receipt(reading, "GPU-0004", period)
    board = read_gpu_receipt(reading, "GPU-board", period)
    assert slice_.holds
    assert "stranded" not in slice_.hour_sums
    assert board.gpu_ns - slice_.gpu_ns == board.hour_sums["stranded"] > 0


def test_what_it_refuses(reading):
    """An unknown GPU and too many days, each in a sentence."""
    period = days_of(reading, *MONTHS[1])
    with pytest.raises(UnknownGpu, match="no GPU has the UUID 'GPU-9'"):
        read_gpu_receipt(reading, "GPU-9", period)
    with pytest.raises(ValueError, match="at most 92 days"):
        read_gpu_receipt(reading, "GPU-0001", Period(OCTOBER, OCTOBER + 93 * DAY))


def test_hours_say_what_the_gpu_did(reading):
    """Of the first hours of a day: held, busy or idle; then free, then unavailable, then nobody
    saw it.
    """
    start = OCTOBER + 33 * DAY
    receipt = read_gpu_receipt(reading, "GPU-0001", days_of(reading, *MONTHS[1]))
    states = {hour.at_ms: hour.states for hour in receipt.hours}
    assert set(states[start]) <= {"busy", "idle", "activity unknown"}
    assert set(states[start + 8 * HOUR]) == {"unallocated"}
    assert set(states[start + 10 * HOUR]) == {"unavailable"}
    assert set(states[start + 12 * HOUR]) == {"unobserved"}


@pytest.fixture
def page(rich, dsn):
    with running(dsn) as collector:

        def ask(path, **headers):
            status, headers, text = collector.request("GET", path, headers=headers)
            return status, text

        yield ask


@pytest.mark.parametrize("uuid", UUIDS)
def test_its_page_and_its_file(page, uuid):
    """The page says that it adds up, leads to jobs, the fleet and the days beside; the file's rows
    are its lines.
    """
    status, text = page(f"/fleet/gpu/{uuid}?{DAYS}")
    assert status == 200, text
    assert "it adds up" in text
    found = Page(text)
    assert found.faults == []
    assert any(link.startswith("/jobs/slurm") for link in found.links)
    assert "/fleet?at=2025-11-03T05%3A00Z" in found.links
    assert f"/fleet/gpu/{uuid}?from=2025-10-31&to=2025-11-03" in found.links
    lines = list(csv.DictReader(io.StringIO(page(f"/fleet/gpu/{uuid}?{DAYS}&format=csv")[1])))
    (table,) = (table for table in found.tables if table.rows[0][0] == "team")
    assert len(lines) == len(table.rows) - 2
    total = sum(Decimal(line["gpu_hours"]) for line in lines)
    said = table.rows[-1][1].removesuffix(" GPU-hours")
    assert abs(total - Decimal(said)) < Decimal("0.01")


def test_its_page_of_what_there_is_not(page):
    """An unknown GPU is a page that says so, a wrong range a sentence, and days before the GPU came
    are empty.
    """
    assert page("/fleet/gpu/GPU-9")[0] == 404
    status, text = page("/fleet/gpu/GPU-0001?from=2025-11-03")
    assert status == 422
    assert "give either period, or from and to" in text
    status, text = page("/fleet/gpu/GPU-0001?from=2025-09-01&to=2025-09-02")
    assert status == 200
    assert "Nothing of these days is known" in text
    assert "Nothing of these days is charged yet" in text


def test_a_viewer_is_refused_in_a_sentence(rich, dsn):
    """Who held a GPU before is no other team's business."""
    secret = token(dsn, "viewer", owner={"team": OWN})
    with running(dsn) as collector:
        for more in ("", "?format=csv"):
            status, _, text = collector.request(
                "GET",
                f"/fleet/gpu/GPU-0001{more}",
                headers={"Authorization": f"Bearer {secret}", "Accept": "text/html"},
            )
            assert status == 403
            assert "this token sees one owner" in text


def test_what_was_folded_since_the_rating_is_not_held_against_it(fleet, database):
    """In the hour that is not over yet; in one that is over it would be time that nobody paid for."""
    until, gpu = HOUR + HOUR // 3, HOUR * 1_000_000
    fleet.capacity(1, 0)
    fleet.workload(1, team="vision")
    fleet.evidence(
        [Held(1, 1, 0, until - HOUR // 6), Held(1, None, until - HOUR // 6, until, "unallocated")]
    )
    refresh(database, Period(OCTOBER, OCTOBER + DAY), OCTOBER + until)
    fleet.evidence([Held(1, 1, until, until + HOUR // 6)])
    fold_usage(database)

    def read():
        with database.transaction(read_only=True) as connection:
            return read_gpu_receipt(connection, "GPU-0001", Period(OCTOBER, OCTOBER + DAY))

    receipt = read()
    (day,) = receipt.proofs
    assert day.capacity_ns == day.hours_ns == day.charged_ns == gpu * 4 // 3
    assert receipt.holds
    assert sum(receipt.hour_sums.values()) == receipt.gpu_ns
    fleet.connection.execute(
        "UPDATE usage_hour SET held_ms = held_ms + 60000 WHERE hour_ms = %s", (OCTOBER,)
    )
    assert not read().holds
