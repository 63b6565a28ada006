"""gpuledger db: the schema of the database and its partitions."""

from __future__ import annotations

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, Dsn, database

app = typer.Typer(name="db", help="The database's schema and partitions.", no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add `gpuledger db`."""
    root.add_typer(app)


@app.command(epilog="Example: gpuledger db upgrade --dsn postgresql://gpuledger@db.example/gpuledger")
def upgrade(dsn: Dsn = None, config: Config = None) -> None:
    """Bring the schema to this version; what is there is kept."""
    with database(dsn, config, migrated=False) as opened:
        from gpuledger_collector.storage import migrate

        before = migrate.upgrade(opened.dsn)
    for line in before.pending:
        print(f"migrated to {line}")
    if not before.pending:
        print(f"up to date at {before.head}")


@app.command(epilog="Example: gpuledger db check && gpuledger serve")
def check(dsn: Dsn = None, config: Config = None) -> None:
    """Say which versions server and schema have; ends with 1 when migrations are pending."""
    with database(dsn, config, migrated=False) as opened:
        from gpuledger_collector.storage import migrate
        from gpuledger_collector.storage.engine import SUPPORTED

        found = migrate.status(opened.dsn)
    verdict = "supported" if found.supported else f"not supported: {SUPPORTED[0]} to {SUPPORTED[-1]} are"
    print(f"server    PostgreSQL {found.server_major}.{found.server_version % 10_000} ({verdict})")
    print(f"schema    {found.current or 'empty'} (newest {found.head})")
    for line in found.pending:
        print(f"pending   {line}")
    if found.pending or not found.supported:
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger db partitions")
def partitions(dsn: Dsn = None, config: Config = None) -> None:
    """List the day partitions of the big tables with their sizes."""
    with database(dsn, config) as opened:
        from gpuledger_collector.storage import partitions as days
        from gpuledger_collector.storage.engine import open_connection

        with open_connection(opened.dsn) as connection:
            found = days.listing(connection)
    for day in found:
        print(f"{day.table:<12} {day.name:<22} {day.bytes:>14} bytes")
    print(f"{len(found)} partitions, {sum(day.bytes for day in found)} bytes")
