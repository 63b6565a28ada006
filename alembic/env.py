"""How Alembic reaches the database: through the connection that the caller hands over, else by
GPULEDGER_DSN.

One migration runs at a time, whichever replica starts it: storage/migrate.py holds a lock beside
it. Locks on tables are waited for briefly (a migration must never queue up every reader and writer
behind itself), and no statement runs for ever. Each migration is a transaction, with the record of
its phase; storage/migrate.py tries again when it gets no lock.
"""

import os

from alembic import context
from sqlalchemy import Connection, create_engine, text

from gpuledger_collector.storage.row_level_security import disable
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.server.migrate import own_objects

LOCK_TIMEOUT = "500ms"
"""Shorter than Postgres waits before it looks for deadlocks (1 s): the migration gives way, not the
writer.
"""
STATEMENT_TIMEOUT = "30min"


def run(connection: Connection) -> None:
    """Run what is asked on this connection."""
    try:
        connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
        connection.execute(text(f"SET statement_timeout = '{STATEMENT_TIMEOUT}'"))
        connection.commit()
        context.configure(
            connection=connection,
            target_metadata=metadata,
            include_object=own_objects,
            compare_type=True,
            compare_server_default=True,
            transaction_per_migration=True,
            on_version_apply=record,
        )
        with context.begin_transaction():
            # In the transaction of the first migration: policies stay when there is none to run.
            disable(connection.connection.driver_connection)
            context.run_migrations()
    finally:
        connection.rollback()
        connection.connection.rollback()  # SQLAlchemy does not know of the transaction that `disable` began


def record(ctx, step, **_):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN003, ANN201 - Alembic's own types
    """Keep the phase of what ran, in its transaction; what ran before there was a table for it is
    not kept.
    """
    if not ctx.connection.scalar(text("SELECT to_regclass('applied_migration')")):
        return
    if step.is_upgrade:
        ctx.connection.execute(
            text(
                "INSERT INTO applied_migration (revision, follows, phase, applied_at) "
                "VALUES (:revision, :follows, :phase, now())"
            ),
            {
                "revision": step.up_revision_id,
                "follows": step.up_revision.down_revision or "",
                "phase": getattr(step.up_revision.module, "phase", "pre"),
            },
        )
    else:
        ctx.connection.execute(
            text("DELETE FROM applied_migration WHERE revision = :revision"),
            {"revision": step.up_revision_id},
        )


def offline() -> None:
    """Print the SQL instead of running it."""
    context.configure(dialect_name="postgresql", target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    offline()
elif (given := context.config.attributes.get("connection")) is not None:
    run(given)
else:
    url = os.environ["GPULEDGER_DSN"].replace("postgresql://", "postgresql+psycopg://", 1)
    with create_engine(url).connect() as opened:
        run(opened)
