"""gpuledger db: the schema of the database, its partitions, its backup."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, Dsn, database, declared_owner, refuse, settings
from gpuledger_collector.cli.forecast import Shape
from gpuledger_collector.cli.progress import bar
from gpuledger_collector.cli.terminal import say
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from gpuledger_collector.storage.server.migrate import SchemaStatus

app = typer.Typer(name="db", help="The database: schema, partitions, backup and restore.", no_args_is_help=True)


def register(root: typer.Typer) -> None:
    """Add `gpuledger db`."""
    root.add_typer(app)


@app.command(epilog="Example: gpuledger db upgrade --dsn postgresql://gpuledger@db.example/gpuledger")
def upgrade(
    post: bool = typer.Option(
        False, "--post", help="Also take away what older collectors use, once none of them is alive."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be migrated, and migrate nothing."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Bring the schema to this version while older collectors go on; what is there is kept.

    What they could not go on with is left, and named: run `--post` when every collector is of this version. That ends
    with 1, and migrates nothing more, while one of them is alive.
    """
    with database(dsn, config, migrated=False) as opened:
        from gpuledger_collector.storage.server import migrate

        if dry_run:
            found = migrate.status(opened.dsn)
            for line in found.pending:
                print(f"would migrate to {line} ({line.phase})")
            print(f"{len(found.pending)} migrations pending; newest {found.head}")
            return
        made = migrate.upgrade(opened.dsn, post=post)
    for line in made.done:
        print(f"migrated to {line}")
    for line in made.left:
        print(f"left        {line}")
    if made.older:
        print(f"older collectors are alive: {', '.join(made.older)}; run it again when they have ended")
    elif made.left:
        print("run `gpuledger db upgrade --post` when every collector is of this version")
    elif not made.done:
        print(f"up to date at {made.head}")
    if post and made.left:
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger db check && gpuledger serve")
def check(
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say which versions server and schema have; ends with 1 when migrations are pending."""
    with database(dsn, config, migrated=False) as opened:
        from gpuledger_collector.storage.database import SUPPORTED
        from gpuledger_collector.storage.server import migrate

        found = migrate.status(opened.dsn)
    if shape is not Shape.table:
        _emit_versions(found, shape)
        return
    verdict = "supported" if found.supported else f"not supported: {SUPPORTED[0]} to {SUPPORTED[-1]} are"
    print(f"server    PostgreSQL {found.server_major}.{found.server_version % 10_000} ({verdict})")
    print(f"schema    {found.current or 'empty'} (newest {found.head})")
    for line in found.pending:
        print(f"pending   {line}" + (" (post: when no older collector is alive)" if line.phase == "post" else ""))
    for name in found.ahead:
        print(f"ahead     {name} (of a newer version, which lets this one go on)")
    if found.pending or not found.supported:
        raise typer.Exit(FINDINGS)


def _emit_versions(found: SchemaStatus, shape: Shape) -> None:
    """The versions as one row for a program; ends as the text does."""
    from gpuledger_collector.export.cells import rows_as

    server = f"{found.server_major}.{found.server_version % 10_000}"
    row = (server, found.supported, found.current or "", found.head, len(found.pending))
    columns = ("server", "supported", "schema", "newest", "pending")
    sys.stdout.write(rows_as(shape.value, columns, [row]))
    if found.pending or not found.supported:
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger db partitions")
def partitions(
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """List the partitions of the big tables, days and months, with their sizes."""
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.database import open_connection
        from gpuledger_collector.storage.telemetry import partitions as days

        with open_connection(opened.dsn) as connection:
            found = days.listing(connection)
    if shape is not Shape.table:
        from gpuledger_collector.export.cells import rows_as

        rows = [(day.table, day.name, day.bytes) for day in found]
        sys.stdout.write(rows_as(shape.value, ("table", "name", "bytes"), rows))
        return
    for day in found:
        print(f"{day.table:<12} {day.name:<22} {day.bytes:>14} bytes")
    print(f"{len(found)} partitions, {sum(day.bytes for day in found)} bytes")


@app.command(epilog="Example: gpuledger db distribute --dry-run")
def distribute(
    shards: int = typer.Option(32, "--shards", min=1, max=4096, help="Into how many parts; at most as many workers."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the statements and run none."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Spread samples and usage over the workers of a Citus cluster, by accelerator. Stop the collectors before.

    docs/scale.md says from which size on, and what was tried.
    """
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.database import open_connection
        from gpuledger_collector.storage.server import distribution

        with open_connection(opened.dsn, autocommit=True) as connection:
            made = (distribution.plan if dry_run else distribution.distribute)(connection, shards)
    for statement in made:
        print(f"{statement};")
    if not made:
        print("-- everything is distributed already")


@app.command(epilog="Example: gpuledger db pack --dry-run")
def pack(
    dry_run: bool = typer.Option(False, "--dry-run", help="Say which days would be packed, and pack none."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Pack old samples and let go what is older than the settings keep, as the daily job does.

    Ends with 1 when a day could not be locked: the next run takes it.
    """
    with database(dsn, config) as opened:
        from gpuledger_collector.accounting.period import format_date
        from gpuledger_collector.jobs.pack_samples import days_to_pack, pack_samples
        from gpuledger_collector.wiring import archive_retention, now

        retention = archive_retention(settings(config, dsn))
        now_ms = int(now().timestamp() * 1000)
        if dry_run:
            days = days_to_pack(opened, retention, now_ms)
            for day_ms in days:
                print(f"would pack {format_date(day_ms)}")
            print(f"{plural(len(days), 'day')} of samples to pack")
            return
        with bar("packing") as on_day:
            done = pack_samples(opened, retention, now_ms, on_day)
    for day in done.packed:
        print(
            f"packed {format_date(day.day_ms)}: {plural(day.rows, 'sample')} of "
            f"{plural(day.accelerators, 'accelerator')}, {day.hot_bytes} bytes to {day.archive_bytes}"
        )
    print(done)
    if done.busy:
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger db backup /backup/gpuledger-$(date +%F).dump")
def backup(
    file: Path = typer.Argument(metavar="FILE", help="Where to write it; readable by you alone."),
    force: bool = typer.Option(False, "--force", help="Replace a file that is there."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Write everything that the ledger holds to one file, while it goes on working."""
    if file.exists() and not force:
        refuse(f"{file} is there already; --force replaces it")
    if not file.parent.is_dir():
        refuse(f"{file.parent} is no folder")
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.server.backup import backup as write

        size = write(opened.dsn, file)
    print(f"{file}: {size} bytes")


@app.command(epilog="Example: gpuledger db restore gpuledger.dump --dsn postgresql://gpuledger@new.example/gpuledger")
def restore(
    file: Path = typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="What `gpuledger db backup` wrote."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Bring a backup into an empty database, bring its schema to this version, and check every closed month's seal.

    The same or a newer major version of Postgres takes it: this is how to upgrade Postgres. Ends with 1 when a seal
    does not hold.
    """
    with database(dsn, config, migrated=False) as opened:
        from gpuledger_collector.storage.server import migrate
        from gpuledger_collector.storage.server.backup import NotABackup, NotEmpty
        from gpuledger_collector.storage.server.backup import restore as bring

        try:
            bring(opened.dsn, file)
        except (NotABackup, NotEmpty) as error:
            refuse(str(error))
        migrated = migrate.upgrade(opened.dsn).done
        broken = broken_seals(opened.dsn)
    print(f"restored from {file}" + (f", and migrated to {migrated[-1]}" if migrated else ""))
    for name in broken:
        say(f"the seal of {name} does not hold")
    if broken:
        raise typer.Exit(FINDINGS)


def broken_seals(dsn: str) -> list[str]:
    """Closed months of which the lines are not those that were sealed."""
    from gpuledger_collector.services.close import verify
    from gpuledger_collector.storage.billing import periods
    from gpuledger_collector.storage.database import Database
    from gpuledger_collector.storage.locks import Lock

    with Database(dsn).transaction(Lock.LEDGER) as connection:
        return [one.name for one in periods.closed(connection) if not verify(connection, one)]


@app.command(epilog="Example: gpuledger db grant-reader grafana --password-file grafana.password")
def grant_reader(
    role: str = typer.Argument(help="Role of the dashboards' data source; made when it is not there."),
    password_file: Path | None = typer.Option(
        None, "--password-file", metavar="FILE", help="Set the role's password to the content of this file."
    ),
    owner: list[str] | None = typer.Option(
        None,
        "--owner",
        metavar="LEVEL=VALUE",
        help="Only this part of the owner tree, held to it by row-level security.",
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the statements and run none."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Let a role read rollups and ledgers, and nothing else; repeat it after an upgrade, for its new tables."""
    from gpuledger_collector.settings import read_secret

    levels = declared_owner(owner or []) or None
    password = None if password_file is None else read_secret(password_file, "--password-file")
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.access import readers
        from gpuledger_collector.storage.database import open_connection

        with open_connection(opened.dsn) as connection:
            if dry_run:
                for statement in readers.script(connection, role, password, levels):
                    print(f"{statement};" if not statement.startswith("--") else statement)
                return
            left = readers.grant(connection, role, password, levels)
    say(f"{role} may read " + ("rollups and ledgers" if levels is None else "the ledger of " + " ".join(owner or [])))
    for statement in left:
        print(f"left to an administrator: {statement};")
