"""Distribution: evidence, and what is folded from it, over the workers of a Citus cluster.

Tables that grow with GPU-hours are distributed by accelerator and colocated, so that a query about
one accelerator involves one worker. The names that they join are on every worker. Money and
everything else stays on the coordinator: Citus has no triggers on distributed tables, and triggers
protect closed months.
"""

from __future__ import annotations

from gpuledger_collector.storage.errors import EnvironmentLacks, StorageError
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_values
from gpuledger_common.plurals import plural

COLUMN = "accelerator_id"
DISTRIBUTED = (
    "gpu_sample",
    "usage_interval",
    "gpu_minute",
    "usage_hour",
    "gpu_state",
    "gpu_state_hour",
    "gpu_latest",
    "sample_archive",
    "usage_interval_day",
)
"""In this order: the first one sets the number of shards, the others are colocated with it."""
REFERENCE = (
    "node",
    "accelerator",
    "workload",
    "accelerator_attributes",
    "workload_attributes",
    "capacity",
)
"""What the distributed tables are joined to, replicated to every worker; tables after those that
they refer to.
"""
SHARDS = 32
"""Citus' own default; a cluster can have as many workers as that."""


WORKER_WAIT = "3s"
"""How long a worker may take to answer before it counts as unreachable."""


class NotDistributable(StorageError):
    """The schema breaks a rule of Citus; the message names table and rule."""

    permanent = True


def plan(connection: Connection, shards: int = SHARDS) -> list[str]:
    """List the statements, in order; none for tables that are already distributed.

    Raises NotDistributable.
    """
    if problems := violations(connection):
        raise NotDistributable(f"the tables cannot be distributed: {'; '.join(problems)}")
    done = managed_tables(connection)
    statements = _policy_drops(connection)
    statements += [
        f"SELECT create_reference_table('{table}')" for table in REFERENCE if table not in done
    ]
    first, *others = DISTRIBUTED
    if first not in done:
        statements.append(
            f"SELECT create_distributed_table('{first}', '{COLUMN}', shard_count => {shards})"
        )
    statements += [
        f"SELECT create_distributed_table('{table}', '{COLUMN}', colocate_with => '{first}')"
        for table in others
        if table not in done
    ]
    return statements


def distribute(connection: Connection, shards: int = SHARDS) -> list[str]:
    """Run the plan on an autocommit connection and return it; an interrupted run is continued by
    the next.

    Raises EnvironmentLacks without the extension, NotDistributable.
    """
    if not has_citus(connection):
        raise EnvironmentLacks(
            "this database has no Citus: add citus to shared_preload_libraries and run CREATE"
            " EXTENSION citus"
        )
    statements = plan(connection, shards)
    for statement in statements:
        # One by one in autocommit, as Citus requires; `plan` skips what an interrupted run has
        # done.
        connection.execute(statement.encode())
    return statements


def has_citus(connection: Connection) -> bool:
    """Whether the extension is installed."""
    return (
        connection.execute("SELECT FROM pg_extension WHERE extname = 'citus'").fetchone()
        is not None
    )


def size_function(connection: Connection) -> str:
    """Name the function that returns the bytes of a table with its indexes, wherever they are."""
    return (
        "citus_total_relation_size"
        if DISTRIBUTED[0] in managed_tables(connection)
        else "pg_total_relation_size"
    )


def worker_problem(connection: Connection) -> str | None:
    """Name the workers that do not answer the coordinator, in a sentence; None when all do, and
    without Citus.
    """
    if not has_citus(connection):
        return None
    connection.execute(f"SET citus.node_connection_timeout = '{WORKER_WAIT}'")
    silent = select_values(
        connection,
        "SELECT nodename || ':' || nodeport FROM pg_dist_node WHERE groupid <> 0 AND noderole ="
        " 'primary' AND NOT citus_check_connection_to_node(nodename, nodeport) ORDER BY 1",
    )
    if not silent:
        return None
    return (
        f"{plural(len(silent), 'Citus worker')} cannot be reached by the coordinator:"
        f" {', '.join(silent)}; batches stay on their nodes meanwhile"
    )


def violations(connection: Connection) -> list[str]:
    """List what Citus would refuse in the schema: keys without the column, triggers, foreign keys."""
    keys = select_values(
        connection,
        """
        SELECT format('%%s: the unique index %%s lacks %%s', t.relname, i.relname, %(column)s::text)
        FROM pg_index x JOIN pg_class t ON t.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
        WHERE x.indisunique AND t.relnamespace = current_schema()::regnamespace AND t.relname = ANY(%(tables)s)
            AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = %(column)s
                AND a.attnum = ANY(x.indkey)) ORDER BY 1
        """,
        {"column": COLUMN, "tables": list(DISTRIBUTED)},
    )
    triggers = select_values(
        connection,
        "SELECT format('%%s: has the trigger %%s', c.relname, tgname) FROM pg_trigger JOIN pg_class"
        " c ON c.oid = tgrelid WHERE NOT tgisinternal AND c.relnamespace ="
        " current_schema()::regnamespace AND c.relname = ANY(%s) ORDER BY 1",
        ([*DISTRIBUTED, *REFERENCE],),
    )
    foreign = select_values(
        connection,
        """
        SELECT format('%%s: the foreign key %%s points to %%s', c.relname, k.conname, o.relname)
        FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_class o ON o.oid = k.confrelid
        WHERE k.contype = 'f' AND k.connamespace = current_schema()::regnamespace
            AND (o.relname = ANY(%(spread)s) OR c.relname = ANY(%(spread)s) AND NOT o.relname = ANY(%(everywhere)s)
                OR c.relname = ANY(%(everywhere)s) AND NOT o.relname = ANY(%(everywhere)s)) ORDER BY 1
        """,
        {"spread": list(DISTRIBUTED), "everywhere": list(REFERENCE)},
    )
    return keys + triggers + foreign


_CONVERTED = """
WITH RECURSIVE converted (oid) AS (
    SELECT oid FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relname = ANY(%(tables)s)
    UNION
    SELECT CASE WHEN k.conrelid = converted.oid THEN k.confrelid ELSE k.conrelid END
    FROM converted JOIN pg_constraint k
        ON k.contype = 'f' AND converted.oid IN (k.conrelid, k.confrelid)
)
"""
"""Tables that are spread or replicated, and those that a chain of foreign keys ties to them."""


def converted_tables(connection: Connection) -> set[str]:
    """Tables that Citus takes over: it converts whatever foreign keys tie to a replicated table."""
    return set(
        select_values(
            connection,
            f"{_CONVERTED} SELECT relname FROM converted JOIN pg_class USING (oid) WHERE NOT"
            " relispartition",
            {"tables": [*DISTRIBUTED, *REFERENCE]},
        )
    )


def _policy_drops(connection: Connection) -> list[str]:
    """Statements, not run here, that drop the policies of tables that Citus takes over and those
    that read such a table, and that switch row-level security off on the former.

    Citus takes no policy with a subquery, nor plans one that reads a table of its own.
    """
    return select_values(
        connection,
        f"""{_CONVERTED}
        SELECT format('DROP POLICY %%I ON %%I', p.polname, c.relname)
        FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid WHERE p.polrelid IN (TABLE converted)
            OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_policy'::regclass AND d.objid = p.oid
                AND d.refclassid = 'pg_class'::regclass AND d.refobjid IN (TABLE converted))
        UNION ALL
        SELECT format('ALTER TABLE %%I DISABLE ROW LEVEL SECURITY', relname)
        FROM pg_class JOIN converted USING (oid) WHERE relrowsecurity
        """,
        {"tables": [*DISTRIBUTED, *REFERENCE]},
    )


def managed_tables(connection: Connection) -> set[str]:
    """Tables that Citus already distributes or replicates."""
    if not has_citus(connection):
        return set()
    # A table with a foreign key to a replicated one is listed as well: it has one shard, on the
    # coordinator.
    return set(
        select_values(
            connection,
            "SELECT logicalrelid::text FROM pg_dist_partition WHERE partmethod <> 'n' OR repmodel ="
            " 't'",
        )
    )
