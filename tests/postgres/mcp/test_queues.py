"""The tool about queues of Kubernetes schedulers: what `gpuledger queues list` says, with its sums."""

import csv
import io

import pytest

from fakes.assistant import over
from fakes.facts import AUGUST_MS, HOUR
from fakes.queue_hours import BORROWER, LENDER, fill_queues

AUGUST = "2026-08"


@pytest.fixture
def filled(dsn):
    fill_queues(dsn, AUGUST_MS)
    return dsn


def test_it_says_what_the_command_says(filled, run):
    """The same rows in the same order; sums of all; what to do about the first; a link to the page."""
    reply = over(filled, AUGUST_MS + 2 * HOUR).ask("list_queues", period=AUGUST)
    assert not reply.is_error, reply.text
    code, out, err = run("queues", "list", "--period", AUGUST, "--format", "csv")
    assert code == 0, err
    told = [
        {name: "" if value is None else str(value) for name, value in row.items()}
        for row in reply.rows
    ]
    assert told == list(csv.DictReader(io.StringIO(out)))
    assert [row["queue"] for row in reply.rows] == [BORROWER, LENDER]
    (total,) = reply.totals
    assert total["waited_beside_unused"] == {"value": "8.000000", "unit": "GPU-hour"}
    assert (total["unused"]["value"], total["borrowed"]["value"]) == ("32.000000", "16.000000")
    assert (total["count"], total["evictions"], total["lost"]["value"]) == (2, 1, "4.000000")
    (notice,) = reply.content["notices"]
    assert f"of {BORROWER} waited while {LENDER} left quota unused" in notice
    assert reply.content["link"].endswith("/queues?from=2026-08-01&to=2026-09-01")
    assert reply.content["proof"]["state"] == "estimated"


def test_it_is_narrowed_by_words_and_says_why_it_is_empty(filled):
    """Names in any case; a time without readings; a token of one owner is refused."""
    asking = over(filled, AUGUST_MS + 2 * HOUR)
    reply = asking.ask("list_queues", period=AUGUST, queue="SPEECH")
    assert [row["queue"] for row in reply.rows] == [BORROWER]
    assert reply.totals[0]["count"] == 1
    reply = asking.ask("list_queues", period=AUGUST, queue="no such")
    assert reply.content["reason"] == "no queue has these words in its names"
    reply = asking.ask("list_queues", period="2026-07")
    assert "kubernetes_queues is set" in reply.content["reason"]
    assert reply.totals == []
    viewer = over(filled, AUGUST_MS + 2 * HOUR, {"team": "vision"})
    assert "sees one owner's part only" in viewer.ask("list_queues", period=AUGUST).text
    assert "NUL" in asking.ask("list_queues", queue="a\0").text
