"""A batch that the collector fails to write: a line each time, the traceback once, and nothing of
its content.
"""

import json
import re

import psycopg
import pytest

from fakes.batches import batch, workload
from fakes.postgres import open_folder
from fakes.processes import collector_process
from gpuledger_collector import faults
from gpuledger_collector.logs import FirstTraceback

SECRET = "project-of-ada"
BATCHES = 20
FAULT = f"""
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'not on this day' USING DETAIL = 'tags: {SECRET}'; END $$;
CREATE TRIGGER fail BEFORE INSERT ON {{}} FOR EACH ROW EXECUTE FUNCTION fail();
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["console", "json"])
def test_a_failing_batch_is_a_line_in_the_log(form):
    """Twenty batches fail at two places: 503 each, a line each, two tracebacks, no word of what
    they contain.
    """
    folder = open_folder("gpuledger-log-")
    with collector_process(folder, GPULEDGER_LOG_FORMAT=form) as collector:
        for place, table in enumerate(("ingest_batch", "workload_attributes")):
            with psycopg.connect(collector.dsn(), autocommit=True) as connection:
                connection.execute(FAULT.format(table))
            for number in range(BATCHES // 2):
                seq = place * BATCHES + number + 1
                job = workload(f"job-{seq}", tags={"project": SECRET})
                assert collector.send(batch(seq, workloads=[job])) == 503
            with psycopg.connect(collector.dsn(), autocommit=True) as connection:
                connection.execute(f"DROP TRIGGER fail ON {table}; DROP FUNCTION fail")
        log = (folder / "collector.log").read_text()
    assert SECRET not in log
    assert "tags:" not in log
    records = re.findall(
        r"^.*cannot be written: RaiseException: not on this day \(\w+\.py:\d+\).*$",
        log,
        re.MULTILINE,
    )
    assert len(records) == BATCHES
    assert log.count("Traceback (most recent call last)") == 2
    assert len(log.splitlines()) < BATCHES + 80
    if form == "json":
        assert {"event", "level", "logger", "timestamp"} <= set(json.loads(records[0]))


def nested():
    mine = SECRET
    try:
        raise KeyError("a") from ValueError(f"first line\nDETAIL: {mine}")
    except KeyError as error:
        raise RuntimeError("at last") from error


def caught(call):
    try:
        call()
    except Exception as error:
        return error


def test_a_traceback_has_its_causes_and_no_values():
    """Oldest first, the first line of each message, and no local variable."""
    text = faults.report(caught(nested))
    assert [line for line in text.splitlines() if not line.startswith(" ")] == [
        "Traceback (most recent call last):",
        "ValueError: first line",
        "which led to:",
        "KeyError: 'a'",
        "which led to:",
        "RuntimeError: at last",
    ]
    assert SECRET not in text


def test_the_number_of_tracebacks_is_bounded():
    """The bound holds over all faults; the line of each failure is written all the same."""
    tracebacks = FirstTraceback(max_faults=2)
    events = [
        tracebacks(None, "", {"event": "it failed", "exc_info": (None, caught(call), None)})
        for call in (nested, nested, lambda: 1 / 0, lambda: {}[1], lambda: [][1])
    ]
    assert ["exception" in event for event in events] == [True, False, True, False, False]
    assert all(event["event"].startswith("it failed: ") for event in events)
    assert tracebacks(None, "", {"event": "well"}) == {"event": "well"}
