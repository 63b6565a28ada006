"""What jobs ask of the minute rollup, however long it has become."""

import pytest

from fakes.fleet import DAY, OCTOBER
from gpuledger_collector.storage.telemetry import minutes

pytestmark = pytest.mark.slow


def test_first_and_last_minute_are_looked_up_by_key(fleet):
    """Of every accelerator together; of none there is none.

    No scan: a year of minutes is asked every five minutes.
    """
    assert minutes.minute_range(fleet.connection) is None
    for number in range(3):
        fleet.accelerator(number)
    for place, number in enumerate([2, 0, 1]):
        fleet.connection.execute(
            "INSERT INTO gpu_minute (accelerator_id, minute_ms, samples) "
            "SELECT %s, minute, 6 FROM generate_series(%s::bigint, %s, 60000) AS minute",
            (fleet.accelerator(number), OCTOBER + place * DAY, OCTOBER + place * DAY + 3_600_000),
        )
    assert minutes.minute_range(fleet.connection) == (OCTOBER, OCTOBER + 2 * DAY + 3_600_000)
    fleet.connection.execute("SET enable_seqscan = off")
    plan = "".join(row[0] for row in fleet.rows(f"EXPLAIN {minutes._END_BY_KEY.format(end='max')}"))
    assert "Index Only Scan Backward using pk_gpu_minute" in plan
    assert "Limit" in plan
