"""What capacity is decided on: five minutes where they are known, the newest queue on top, silence
said aloud.
"""

import json

import numpy as np
import pytest

from fakes.fleet import HOUR, NOW_MS, OCTOBER, Held
from gpuledger_collector.api.context import as_http_error
from gpuledger_collector.insight.scaling.pools import ScalingTerms, decide, explain_no_decision
from gpuledger_collector.services import scaling_advice
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.scaling_advice import NoAdvice, UnknownPool
from gpuledger_collector.services.upkeep import roll_up_series
from gpuledger_collector.storage.capacity import scaling
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow

MINUTE = HOUR // 60
END = 9 * HOUR


@pytest.fixture
def held(fleet, ledger):
    """Nine hours of four GPUs: two always held, one in the second half of each hour, one free."""
    for number in (1, 2, 3, 4):
        fleet.capacity(number, 0)
    hours = range(END // HOUR)
    fleet.evidence(
        [Held(number, number, at * HOUR, (at + 1) * HOUR) for at in hours for number in (1, 2)]
    )
    fleet.evidence(
        [Held(3, None, at * HOUR, at * HOUR + 30 * MINUTE, "unallocated") for at in hours]
    )
    fleet.evidence([Held(3, 3, at * HOUR + 30 * MINUTE, (at + 1) * HOUR) for at in hours])
    fleet.evidence([Held(4, None, at * HOUR, (at + 1) * HOUR, "unallocated") for at in hours])
    refresh(ledger, ALWAYS, NOW_MS)
    return fleet


def at(database, now_ms, pool="train"):
    """Demand of a pool as it was to be known at an instant after OCTOBER (ms)."""
    with database.connect() as connection:
        (one,) = scaling.demand(connection, OCTOBER + now_ms, pool)
    return one


def queue(run, tmp_path, *rows, source="slurm"):
    """Readings (minutes after OCTOBER, GPUs that wait for `train`)."""
    lines = [
        f"{(OCTOBER + minute * MINUTE) // 1000},job-{minute},{gpus},train,{source}"
        for minute, gpus in rows
    ]
    file = tmp_path / "queue.csv"
    file.write_text("at,workload_id,gpus,pool,source\n" + "\n".join(lines) + "\n")
    assert run("import", "queue", file)[0] == 0


def test_five_minutes_are_decided_on_where_they_are_known(held, database, dsn):
    """Drawn days and the usage intervals since are one series of five minutes; without the drawing
    hours are what is left.
    """
    hours = at(database, END + 2 * MINUTE)
    assert hours.series.step_ms == HOUR
    np.testing.assert_allclose(hours.series.values[-3:], 2.5)
    assert roll_up_series(Database(dsn), 0, NOW_MS) >= 1
    fine = at(database, END + 2 * MINUTE)
    assert (fine.series.step_ms, fine.series.end_ms) == (5 * MINUTE, OCTOBER + END - 5 * MINUTE)
    np.testing.assert_allclose(
        fine.series.values, [2.0] * 6 + [3.0] * 6 + ([2.0] * 6 + [3.0] * 6) * (END // HOUR - 1)
    )
    assert fine.now_gpus == 3.0


def test_the_newest_reading_of_the_queue_counts_at_once(held, database, run, tmp_path):
    """What was read a minute ago is wanted now, though no step that holds it is over; two sources
    add up.
    """
    now = END + 2 * MINUTE
    queue(run, tmp_path, (END // MINUTE - 10, 1), (END // MINUTE + 1, 20))
    queue(run, tmp_path, (END // MINUTE, 5), source="kubernetes")
    one = at(database, now)
    assert one.now_gpus == 3.0 + 25
    decision = decide(one, ScalingTerms("train"), OCTOBER + now)
    assert decision is not None
    assert decision.advice.demand_now == 28.0
    assert decision.advice.desired_gpus >= 28.0


def test_a_queue_that_nobody_reads_any_more_is_named_and_gives_no_number(
    held, database, run, tmp_path
):
    """Within the hour it stands; after it there is no number and a sentence; after a day the reader
    was taken away.
    """
    read = END // MINUTE - 60
    queue(run, tmp_path, (read, 4))
    for minutes, said in ((59, False), (61, True), (75, True), (25 * 60, False)):
        now = (read + minutes) * MINUTE
        one = at(database, now)
        assert (
            "the queue of 'slurm' was last read at 2025-10-01T08:00:00" in explain_no_decision(one)
        ) == said, minutes
        stale = minutes > 24 * 60  # by then the evidence is old as well
        assert (decide(one, ScalingTerms("train"), OCTOBER + now) is None) == (said or stale), (
            minutes
        )


def test_every_way_out_says_the_same_of_a_silent_queue(held, run, dsn, tmp_path, monkeypatch):
    """503 with the sentence for HTTP and KEDA, no series in the gauge, exit code 1 with the
    sentence at the command.
    """
    now_ms = OCTOBER + END + 2 * MINUTE
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: now_ms)
    opened = Database(dsn)

    def ask(pool):
        with opened.connect() as connection:
            return scaling_advice.decide_pool(connection, now_ms, pool)

    def gauge():
        with opened.connect() as connection:
            return scaling_advice.desired_gpus(connection, now_ms, 600)

    assert ask("train").advice.desired_gpus >= gauge()["train"] >= 2.5
    queue(run, tmp_path, (END // MINUTE - 90, 4))
    with pytest.raises(NoAdvice) as refused:
        ask("train")
    answer = as_http_error(refused.value)
    assert answer.status_code == 503
    assert answer.detail.startswith("the queue of 'slurm' was last read at 2025-10-01T07:30:00")
    assert gauge() == {}
    code, out, _ = run("scale", "advise", "--format", "json", "--exit-code")
    (row,) = json.loads(out)
    assert (code, row["desired_gpus"], row["reason"]) == (1, None, answer.detail)
    with pytest.raises(UnknownPool):
        ask("nowhere")
