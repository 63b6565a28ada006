"""Hourly usage read as columns is hourly usage read row by row."""

import pytest

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.accounting.period import day_of
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.ledger import hour_columns, usage


def test_columns_hold_the_rows(fleet, run, dsn):
    """Every value of every row, also where no workload, energy or report is known, up to the
    instant asked for.
    """
    fleet.workload(4, team="vision")
    fleet.workload(5, team="speech")
    for number in (1, 2):
        fleet.capacity(number, 0, DAY)
    fleet.evidence([Held(1, 4, HOUR, 3 * HOUR, idle=HOUR // 7), Held(2, 5, HOUR // 2, 2 * HOUR)])
    assert run("chargeback", "--from", "2025-10-01", "--to", "2025-11-01")[0] == 0
    with Database(dsn).transaction() as connection:
        # As rows of before reports were kept; the workloads were numbered as they came.
        connection.execute(
            "UPDATE usage_hour SET workload_attributes_id = NULL WHERE workload_id = 2"
        )
        connection.execute("UPDATE usage_hour SET energy_mj = 77 WHERE workload_id = 1")
        ((first_ms,),) = connection.execute("SELECT min(hour_ms) FROM usage_hour").fetchall()
        day = day_of(first_ms)
        rows = usage.hourly_usage(connection, day)
        assert {row.workload_id for row in rows} >= {1, 2}
        assert set(hour_columns.read(connection, day, day.end_ms).pieces()) == set(rows)
        until_ms = first_ms + 1
        early = [row for row in rows if row.start_ms < until_ms]
        assert set(hour_columns.read(connection, day, until_ms).pieces()) == set(early)
        assert hour_columns.read(connection, day, day.start_ms).pieces() == []
        # A newer collector may know more states: that time is not left out in silence.
        connection.execute("UPDATE usage_hour SET state = 'lent' WHERE workload_id = 2")
        with pytest.raises(StorageError, match="whose state this version does not know"):
            hour_columns.read(connection, day, day.end_ms)
