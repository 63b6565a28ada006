"""From readings of counters and evidence of holding to what a token cost, by command and over HTTP."""

import csv
import io
import json
import random
from decimal import Decimal

import psycopg
import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from fakes.pages import Page
from gpuledger_collector.accounting.counters import CounterReading
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.export.runs import as_html
from gpuledger_collector.ingest.batches import counters
from gpuledger_collector.services.gpu_receipt import read_gpu_receipt
from gpuledger_collector.services.runs import read_job
from gpuledger_collector.services.upkeep import pack_usage_intervals
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow

MINUTE = 60_000
RATE = Decimal("3.60")
PERIOD = ("--from", "2025-10-01", "--to", "2025-10-03")


@pytest.fixture
def priced(fleet):
    """One GPU in pool train at 3.60 USD an hour, with a card beside it."""
    for number in (1, 2):
        fleet.capacity(number, 0, 3 * DAY)
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('train', '', 'on_demand', %s, 'USD', 0, now())",
        (RATE,),
    )
    return fleet


def keep(
    fleet, workload, counter, readings, source="http://127.0.0.1:8000/metrics", via="agent", part=""
):
    """Readings (minute after October's begin, value), written as a batch writes them."""
    rows = [
        (
            counters.Series(workload, via, source, part, counter, "vllm"),
            CounterReading(OCTOBER + round(minute * MINUTE), value),
        )
        for minute, value in readings
    ]
    with fleet.connection.transaction():
        counters.store_readings(fleet.connection, rows)


def shown(run, name="1", *more):
    code, out, err = run("runs", "show", name, "--format", "json", *more)
    assert code == 0, err
    return json.loads(out)


def unit(told, counter):
    (found,) = [one for one in told["unit_costs"] if one["counter"] == counter]
    return found


def touched_hours(fleet):
    return fleet.rows(
        "SELECT series_id, hour_ms, units, covered_ms, restarts FROM counter_hour ORDER BY 1, 2"
    )


def test_a_million_tokens_cost_what_an_independent_sum_says(priced, run):
    """Three hours at 3.60, counted all the time: 10.80 over the tokens; half of the time worked, so
    half is used.
    """
    priced.evidence(
        [
            Held(1, 1, hour * HOUR, (hour + 1) * HOUR, busy=HOUR // 2, idle=HOUR // 2)
            for hour in range(3)
        ]
    )
    workload = priced.workload(1)
    keep(priced, workload, "prompt_tokens", [(minute, minute * 10_000) for minute in range(181)])
    keep(
        priced,
        workload,
        "generated_tokens",
        [(minute, 7 + minute * 2_000) for minute in range(181)],
    )
    keep(
        priced, workload, "inferences", [(minute, minute * 5) for minute in range(181)], part="stop"
    )
    keep(priced, workload, "inferences", [(minute, minute) for minute in range(181)], part="length")
    told = shown(run, "1", "--by", "hour")
    total = unit(told, "total_tokens")
    assert total["units"] == 180 * 12_000
    assert total["coverage"] == "1.000000"
    assert Decimal(total["cost"]) == (3 * RATE / (180 * 12_000) * 1_000_000).quantize(
        Decimal("0.000001")
    )
    assert Decimal(total["used_cost"]) == Decimal(total["cost"]) / 2
    assert Decimal(unit(told, "inferences")["cost"]) == 3 * RATE * 1_000 / (180 * 6)
    by_hour = [one for one in told["by"] if one["counter"] == "total_tokens"]
    assert [one["units"] for one in by_hour] == [720_000] * 3
    assert sum(one["charged_micro"] for one in by_hour) == total["charged_micro"] == 10_800_000


def test_what_is_not_counted_is_left_out_and_said(priced, run):
    """Counters over one hour of three: the cost of that hour over its tokens, and a coverage of a
    third.
    """
    priced.evidence([Held(1, 1, 0, 3 * HOUR, busy=3 * HOUR)])
    keep(
        priced,
        priced.workload(1),
        "generated_tokens",
        [(minute, minute * 1_000) for minute in range(61)],
    )
    told = shown(run)
    found = unit(told, "generated_tokens")
    assert found["coverage"] == "0.333333"
    assert Decimal(found["cost"]) == RATE / 60_000 * 1_000_000
    assert (found["charged_micro"], found["cost_micro"]) == (10_800_000, 3_600_000)
    assert any("left out, not estimated" in note for note in told["notes"])


def test_a_restart_and_a_gap_cost_their_interval_and_nothing_else(priced, run):
    """The counter falls once and is silent for twenty minutes: neither makes tokens, and neither is
    zero.
    """
    priced.evidence([Held(1, 1, 0, HOUR, busy=HOUR)])
    readings = [(minute, minute * 100) for minute in range(21)]
    readings += [(minute, (minute - 21) * 100) for minute in range(21, 31)]
    readings += [(minute, (minute - 21) * 100) for minute in range(50, 61)]
    keep(priced, priced.workload(1), "generated_tokens", readings)
    found = unit(shown(run), "generated_tokens")
    assert found["units"] == 20 * 100 + 9 * 100 + 10 * 100
    assert found["covered_ms"] == (20 + 9 + 10) * MINUTE
    assert found["restarts"] == 1
    assert Decimal(found["cost"]) == (RATE * 39 / 60 / 3_900 * 1_000_000).quantize(
        Decimal("0.000001")
    )


def test_order_and_repetition_of_readings_do_not_matter(priced):
    """Shuffled, in pieces, doubled: the same hours as at once."""
    workload = priced.workload(1)
    readings = [
        (minute, minute * 37 % 5_000 if minute > 90 else minute * 37) for minute in range(0, 300, 3)
    ]
    keep(priced, workload, "generated_tokens", readings)
    at_once = touched_hours(priced)
    priced.connection.execute(
        "TRUNCATE counter_series, counter_reading, counter_hour RESTART IDENTITY CASCADE"
    )
    shuffled = [*readings, *readings[::4]]
    random.Random(7).shuffle(shuffled)
    for at in range(0, len(shuffled), 7):
        keep(priced, workload, "generated_tokens", shuffled[at : at + 7])
    assert touched_hours(priced) == at_once
    assert at_once


def test_two_ways_to_one_counter_are_not_added(priced, run):
    """The agent and remote write both bring it: an hour takes the one that covers more of it."""
    priced.evidence([Held(1, 1, 0, HOUR, busy=HOUR)])
    workload = priced.workload(1)
    keep(priced, workload, "inferences", [(minute, minute) for minute in range(61)])
    keep(
        priced,
        workload,
        "inferences",
        [(minute, minute) for minute in range(31)],
        "10.0.0.1:8000",
        "remote_write",
    )
    assert unit(shown(run), "inferences")["units"] == 60


def test_an_endpoint_that_was_not_read_leaves_its_part_uncovered(priced, run):
    """Two replicas count; of one the second hour is missing: an equal part of that hour's cost is
    left out.
    """
    priced.evidence([Held(1, 1, 0, 3 * HOUR, busy=3 * HOUR)])
    workload = priced.workload(1)
    keep(priced, workload, "inferences", [(minute, minute * 10) for minute in range(181)], "a")
    keep(
        priced,
        workload,
        "inferences",
        [(minute, minute * 10) for minute in [*range(61), *range(120, 181)]],
        "b",
    )
    found = unit(shown(run), "inferences")
    assert found["units"] == 3_000
    assert found["cost_micro"] == 9_000_000
    assert found["coverage"] == "0.833333"


def test_a_time_without_price_has_no_unit_cost(fleet, run):
    """Unpriced is not free: tokens are counted, and no amount is made of them."""
    fleet.capacity(1, 0, DAY)
    fleet.evidence([Held(1, 1, 0, HOUR, busy=HOUR)])
    keep(fleet, fleet.workload(1), "inferences", [(minute, minute) for minute in range(61)])
    told = shown(run)
    assert told["unit_costs"] == []
    assert "no price" in told["notes"][0]


def test_the_list_is_sorted_and_has_unit_costs_beside_waste(priced, run):
    """A dear run that worked, a cheaper one that was idle; each once, with its own counters."""
    priced.evidence(
        [Held(1, 1, 0, 4 * HOUR, busy=4 * HOUR), Held(2, 2, 0, 2 * HOUR, idle=2 * HOUR)]
    )
    keep(priced, priced.workload(1), "steps", [(0, 0), (240, 400)], "run", "reported")
    code, out, _ = run("runs", *PERIOD, "--format", "csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["run"] for row in rows] == ["slurm::1", "slurm::2"]
    assert (rows[0]["cost"], rows[0]["unit"], rows[0]["unit_cost"], rows[0]["coverage"]) == (
        "14.40",
        "step",
        "0.036",
        "100.0%",
    )
    assert (rows[1]["cost_held_idle"], rows[1]["unit"]) == ("7.20", "")
    assert [
        row["key"]
        for row in json.loads(run("runs", *PERIOD, "--sort", "waste", "--format", "json")[1])
    ] == [
        "slurm::2",
        "slurm::1",
    ]
    assert [
        row["key"]
        for row in json.loads(run("runs", *PERIOD, "--owner", "team=team-2", "--format", "json")[1])
    ] == ["slurm::2"]


def test_the_list_says_what_an_hour_cost_and_sorts_by_it(priced, run):
    """Over a change of the price it is what was paid on average."""
    dearer = ("--pool", "train", "--rate", "7.2", "--currency", "USD")
    assert run("prices", "set", *dearer, "--from", "2025-10-01T02:00:00Z")[0] == 0
    priced.evidence(
        [
            Held(1, 1, 0, 2 * HOUR, busy=2 * HOUR),
            Held(2, 2, HOUR, 3 * HOUR, busy=2 * HOUR),
        ]
    )
    for by, name in (("workload", "run"), ("job", "workloads")):
        code, out, err = run("runs", *PERIOD, "--sort", "price", "--by", by, "--format", "csv")
        assert code == 0, err
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [(row[name], row["cost"], row["cost_per_gpu_hour"]) for row in rows] == [
            ("slurm::2", "10.80", "5.40"),
            ("slurm::1", "7.20", "3.60"),
        ]
    assert [
        row["cost_per_gpu_hour"]
        for row in json.loads(run("runs", *PERIOD, "--sort", "price", "--format", "json")[1])
    ] == ["5.40", "3.60"]


def test_parts_peers_and_scaling_stand_in_the_report(priced, run):
    """A run with a pause has two parts; an older run of its name on fewer GPUs says how it scales."""
    for number in (3, 4, 5):
        priced.capacity(number, 0, 3 * DAY)
    priced.evidence([Held(1, 1, 0, HOUR, busy=HOUR)])
    both = [
        Held(card, 2, hour * HOUR, (hour + 1) * HOUR, busy=HOUR // 2, idle=HOUR // 2)
        for card in (2, 3, 4, 5)
        for hour in (10, 14)
    ]
    priced.evidence(both)
    priced.connection.execute("UPDATE workload SET name = 'train', tags = '{\"team\": \"vision\"}'")
    told = shown(run, "2")
    assert [(part["start_ms"], part["accelerators"]) for part in told["parts"]] == [
        ("2025-10-01T10:00:00Z", 4),
        ("2025-10-01T14:00:00Z", 4),
    ]
    assert sum(part["cost_micro"]["USD"] for part in told["parts"]) == 8 * 3_600_000
    assert [one["key"] for one in told["peers"]] == ["slurm::2", "slurm::1"]
    assert [(one["accelerators"], one["efficiency"]) for one in told["scaling"]] == [
        (1, "1.000000"),
        (4, "0.500000"),
    ]
    code, out, _ = run("runs", "show", "2")
    assert code == 0
    assert "4 GPUs: 0.500, efficiency 50 % (runs: 1)" in out
    assert "cannot be said" in out


def test_runs_of_one_name_are_compared_by_their_number_of_gpus(priced, run):
    """Time and cost of a step for each number of GPUs, with the spread; a run that counted nothing
    is left out.
    """
    for number in range(3, 9):
        priced.capacity(number, 0, 3 * DAY)
    sizes = {1: [1], 2: [2], 3: [3, 4], 4: [5, 6, 7, 8]}  # workload: cards
    priced.evidence(
        [
            Held(card, owner, 0, 2 * HOUR, busy=2 * HOUR)
            for owner, cards in sizes.items()
            for card in cards
        ]
    )
    priced.evidence(
        [Held(1, 5, 5 * HOUR, 6 * HOUR, busy=HOUR), Held(2, 6, 5 * HOUR, 6 * HOUR, busy=HOUR)]
    )
    priced.connection.execute("UPDATE workload SET name = 'train', tags = '{\"team\": \"vision\"}'")
    priced.connection.execute("UPDATE workload SET name = 'alone' WHERE external_id = '6'")
    for owner, steps in {1: 100, 2: 140, 3: 180, 4: 240}.items():  # steps an hour
        keep(
            priced,
            priced.workload(owner),
            "steps",
            [(0, 0), (60, steps), (120, 2 * steps)],
            "run",
            "reported",
        )
    code, out, err = run("runs", *PERIOD, "--scaling", "--format", "csv")
    assert code == 0, err
    rows = list(csv.DictReader(io.StringIO(out)))
    chosen = [
        [
            row[name]
            for name in (
                "gpus",
                "runs",
                "seconds_per_unit",
                "unit_cost",
                "efficiency",
                "lowest",
                "highest",
            )
        ]
        for row in rows
    ]
    # One GPU: 100 and 140 steps an hour, median 120. Two: 180 an hour are 90 a GPU, four: 60. 3.60
    # USD a GPU-hour.
    assert chosen == [
        ["1", "2", "30.857", "0.030857", "100.0%", "83.3%", "116.7%"],
        ["2", "1", "20.000", "0.04", "75.0%", "", ""],
        ["4", "1", "15.000", "0.06", "50.0%", "", ""],
    ]
    assert {(row["name"], row["team"], row["unit"], row["measure"]) for row in rows} == {
        ("train", "vision", "step", "steps per GPU-hour")
    }
    (told,) = json.loads(run("runs", *PERIOD, "--scaling", "--format", "json")[1])
    assert [point["efficiency_lowest"] for point in told["points"]] == [
        "0.833333",
        "0.750000",
        "0.500000",
    ]
    assert "no name ran" in run("runs", *PERIOD, "--scaling", "--owner", "team=other")[1]


def test_the_page_needs_nothing_else_and_escapes_names(priced, run, tmp_path):
    """No script, no address to fetch from; a name is text."""
    priced.evidence([Held(1, 1, 0, 30 * HOUR, busy=20 * HOUR, idle=10 * HOUR)])
    priced.connection.execute("UPDATE workload SET name = '<script>alert(1)</script>'")
    keep(
        priced,
        priced.workload(1),
        "generated_tokens",
        [(minute, minute * 1_000) for minute in range(0, 1_801, 5)],
    )
    code, _, err = run("runs", "show", "slurm::1", "--format", "html", "-o", tmp_path / "run.html")
    assert code == 0, err
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert page.count("<svg") >= 2
    assert "Cost of a unit" in page
    (table,) = [table for table in Page(page).tables if table.rows[0][-2] == "price an hour"]
    assert table.rows[1:] == [["NVIDIA H100 80GB HBM3", "train", "30.00", "3.60 USD", "108.00 USD"]]


def test_runs_of_one_name_are_counted_and_added_up(priced, run, ledger):
    """How many of its team there are and what they cost together, also beyond those shown."""
    priced.evidence(
        [Held(1, number, number * HOUR, number * HOUR + HOUR, idle=HOUR) for number in range(1, 37)]
    )
    priced.connection.execute("UPDATE workload SET name = 'shell'")
    assert run("chargeback", *PERIOD)[0] == 0
    with ledger.transaction(read_only=True) as connection:
        report = read_job(connection, "slurm::1", None, OCTOBER + 3 * DAY)
    assert (report.namesake_count, [str(cost) for cost in report.namesake_costs]) == (
        12,
        ["USD 43.20"],
    )
    assert not report.is_running
    text = Page(as_html(report)).text
    assert "12 runs of this name cost 43.20 USD together. The newest of them:" in text


def test_progress_by_command_is_idempotent_and_bad_input_is_said(priced, run, monkeypatch):
    """The training script's own totals; a wrong instant, a wrong name and nothing said are refused."""
    from fakes.fleet import NOW_MS
    from gpuledger_collector import wiring

    monkeypatch.setattr(wiring, "read_clock", lambda: NOW_MS)
    start = NOW_MS - 4 * HOUR - OCTOBER
    priced.capacity(3, start, start + 2 * HOUR)
    priced.evidence([Held(3, 1, start, start + 2 * HOUR, busy=2 * HOUR)])
    for hours, steps in ((4, 0), (3, 50), (2, 100), (3, 50)):
        at = f"2025-11-20T{12 - hours:02d}:00:00Z"
        assert run("runs", "report", "1", "--steps", steps, "--at", at)[0] == 0
    found = unit(shown(run), "steps")
    assert (found["units"], Decimal(found["cost"])) == (100, Decimal("0.072000"))
    assert run("runs", "report", "1", "--steps", "1", "--at", "2024-01-01T00:00:00Z")[0] == 2
    assert run("runs", "report", "1")[0] == 2
    assert run("runs", "report", "nobody", "--steps", "1")[0] == 2
    assert run("runs", "show", "nobody")[0] == 2


def test_a_purge_keeps_what_was_counted(priced):
    """Readings go after some weeks; the hours stay."""
    keep(priced, priced.workload(1), "inferences", [(minute, minute) for minute in range(61)])
    before = touched_hours(priced)
    counters.delete_old(priced.connection, OCTOBER + 40 * DAY)
    assert priced.rows("SELECT count(*) FROM counter_reading") == [(0,)]
    assert touched_hours(priced) == before


def test_writers_that_meet_count_once(priced, dsn):
    """Two connections write readings of one series one after the other's lock; the hours are of all
    readings.
    """
    workload = priced.workload(1)
    keep(priced, workload, "inferences", [(0, 0)])
    series = counters.Series(
        workload, "agent", "http://127.0.0.1:8000/metrics", "", "inferences", "vllm"
    )
    with psycopg.connect(dsn) as other:
        counters.store_readings(other, [(series, CounterReading(OCTOBER + MINUTE, 10))])
        priced.connection.execute("SET lock_timeout = 200")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            keep(priced, workload, "inferences", [(2, 25)])
        other.commit()
    keep(priced, workload, "inferences", [(2, 25)])
    assert priced.rows("SELECT sum(units)::int FROM counter_hour") == [(25,)]


def test_an_imported_run_has_an_outcome_and_no_activity(priced, run):
    """A scheduler's record: cost and how it ended are known; which GPUs and what they did are not,
    and it is said.
    """
    workload = priced.workload(9)
    priced.connection.execute(
        "INSERT INTO imported_usage (workload_id, start_ms, end_ms, gpu_micro, gpu_model, pool,"
        " state) VALUES (%s, %s, %s, 2000000, 'H100', 'slurm', 'FAILED')",
        (workload, OCTOBER, OCTOBER + 2 * HOUR),
    )
    priced.connection.execute("UPDATE price SET pool = ''")
    priced.connection.execute("INSERT INTO day_recompute (day_ms) VALUES (%s)", (OCTOBER,))
    keep(priced, workload, "steps", [(0, 0), (120, 40)], "run", "reported")
    told = shown(run, "9")
    assert told["outcome"] == "FAILED"
    assert (unit(told, "steps")["cost"], unit(told, "steps")["coverage"]) == (
        "0.360000",
        "1.000000",
    )
    code, out, _ = run("runs", "show", "9")
    assert code == 0
    assert "ended FAILED" in out
    assert {one["kind"] for one in told["bottlenecks"]["cannot_say"]} >= {"input", "batch"}


def test_a_run_on_two_models_names_both(priced, run):
    """In one line, with a comma, in every form."""
    workload = priced.workload(9)
    for hour, model in enumerate(("H100", "A100")):
        priced.connection.execute(
            "INSERT INTO imported_usage (workload_id, start_ms, end_ms, gpu_micro, gpu_model, pool,"
            " state) VALUES (%s, %s, %s, 1000000, %s, 'slurm', 'COMPLETED')",
            (workload, OCTOBER + hour * HOUR, OCTOBER + (hour + 1) * HOUR, model),
        )
    priced.connection.execute("UPDATE price SET pool = '', gpu_model = ''")
    priced.connection.execute("INSERT INTO day_recompute (day_ms) VALUES (%s)", (OCTOBER,))
    _, out, _ = run("runs", "--from", "2025-10-01", "--to", "2025-10-02", "--format", "json")
    assert [row["model"] for row in json.loads(out)] == ["A100, H100"]


@pytest.mark.parametrize("is_packed", [False, True], ids=["rows", "packed"])
def test_receipts_say_when_it_really_began_and_ended(priced, run, dsn, is_packed):
    """To the second, as evidence has it, of the run and of each line of the GPU, also of packed days;
    the money is of the same time as before, by the hour.
    """
    began, ended = 17 * MINUTE + 3_000, DAY + 2 * HOUR + 41 * MINUTE
    priced.evidence(
        [
            Held(1, None, 0, began, "unallocated"),
            Held(1, 1, began, HOUR, busy=30 * MINUTE),
            Held(1, 1, HOUR + 30 * MINUTE, 2 * HOUR),
            Held(1, 1, DAY, ended, idle=HOUR),
            Held(1, 2, ended, ended + HOUR),
            Held(2, 1, 30 * MINUTE, HOUR),
        ]
    )
    told = shown(run)
    if is_packed:
        packed = pack_usage_intervals(Database(dsn), 37, OCTOBER + 60 * DAY)
        assert packed.intervals == 6
        told = shown(run)
    assert (told["from"], told["to"]) == ("2025-10-01T00:17:03Z", "2025-10-02T02:41:00Z")
    with Database(dsn).transaction(read_only=True) as connection:
        receipt = read_gpu_receipt(connection, "GPU-0001", Period(OCTOBER, OCTOBER + 2 * DAY))
    assert receipt.holds
    times = {
        (line.state, line.workload): (line.start_ms - OCTOBER, line.end_ms - OCTOBER)
        for line in receipt.lines
    }
    assert times["held", "slurm::1"] == (began, ended)
    assert times["held", "slurm::2"] == (ended, ended + HOUR)
    assert times["unallocated", ""] == (0, began)
    held = next(line for line in receipt.lines if line.workload == "slurm::1")
    assert held.gpu_ns == (HOUR - began + 30 * MINUTE + ended - DAY) * 1_000_000
