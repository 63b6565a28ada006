"""The first report of a workload is looked up by the workload, also before Postgres knows its tables."""

from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger.workloads import first_report

MANY_WORKLOADS = """
INSERT INTO workload (id, key, kind, external_id, first_seen_at) OVERRIDING SYSTEM VALUE
    SELECT g, g, 'slurm', g, now() FROM generate_series(1, 20000) g;
INSERT INTO workload_attributes (id, workload_id, digest) OVERRIDING SYSTEM VALUE
    SELECT 100000 + g, g, int8send(g) FROM generate_series(1, 20000) g;
INSERT INTO workload_attributes (id, workload_id, digest) OVERRIDING SYSTEM VALUE
    VALUES (200000, 7, 'second');
"""
QUERY = f"SELECT {first_report('u')} FROM (VALUES (7::bigint), (8), (99999)) AS u (workload_id)"


def test_without_statistics_no_report_of_others_is_read(dsn):
    """As in the first minute of a ledger: a fold of six million usage intervals looked for hours."""
    with Database(dsn).transaction() as connection:
        # Nobody analyzes rows that are not committed.
        for statement in MANY_WORKLOADS.split(";")[:-1]:
            connection.execute(statement)
        plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {QUERY}"))
        numbers = [number for (number,) in connection.execute(QUERY)]
        connection.execute("ROLLBACK")
    assert "Index Cond: (workload_id = " in plan
    assert "Filter: (workload_id = " not in plan
    assert numbers == [100007, 100008, None]
