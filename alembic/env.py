"""How Alembic reaches the database: through the connection that the caller hands over, else by GPULEDGER_DSN.

One migration runs at a time, whichever replica starts it: an advisory lock is held on the connection. Locks on tables
are waited for briefly (a migration must never queue up every reader behind itself), and no statement runs for ever.
"""

import os

from alembic import context
from sqlalchemy import Connection, create_engine, text

from gpuledger_collector.storage.migrate import own_objects
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.viewer_wall import lower

MIGRATION_LOCK = 0x67707501
LOCK_TIMEOUT = "10s"
STATEMENT_TIMEOUT = "30min"


def run(connection: Connection) -> None:
    """Run what is asked on this connection, in one transaction."""
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
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
        )
        with context.begin_transaction():
            lower(connection.connection.driver_connection)
            context.run_migrations()
    finally:
        connection.rollback()
        connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": MIGRATION_LOCK})
        connection.commit()


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
