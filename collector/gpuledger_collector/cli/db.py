"""gpuledger db: the schema of the database, its partitions, its backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gpuledger_collector.accounting.period import format_date
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, declared_owner, new_app, refuse, require_folder
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.progress import bar, busy
from gpuledger_collector.cli.session import clock_ms, load_settings, open_database, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.services import database_upkeep as upkeep
from gpuledger_collector.services.database_upkeep import Partition, SchemaStatus
from gpuledger_collector.services.upkeep import (
    days_to_pack,
    pack_samples,
    pack_slow_metrics,
    pack_usage_intervals,
)
from gpuledger_collector.settings import read_secret
from gpuledger_collector.wiring import archive_retention, embedded_server, latest_evidence_days
from gpuledger_common.plurals import plural

app = new_app(
    name="db", help="The database: schema, partitions, backup and restore.", no_args_is_help=True
)
VERSIONS = Report[SchemaStatus](
    "versions",
    (
        Column("server", lambda item: item.server_text),
        Column("supported", lambda item: item.is_supported),
        Column("schema", lambda item: item.current or ""),
        Column("newest", lambda item: item.head),
        Column("pending", lambda item: len(item.pending), Kind.COUNT),
    ),
)
PARTITIONS = Report[Partition](
    "partitions",
    (
        Column("table", lambda item: item.table),
        Column("name", lambda item: item.name),
        Column("bytes", lambda item: item.bytes, Kind.COUNT),
    ),
)
DryRunOfStatements = Annotated[bool, Option("--dry-run", help="Print the statements and run none.")]


@app.command(
    epilog="Example: gpuledger db upgrade --dsn postgresql://gpuledger@db.example/gpuledger"
)
def upgrade(
    post: Annotated[
        bool,
        Option(
            "--post", help="Also remove what only older collectors use, once none of them is alive."
        ),
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would be migrated, and migrate nothing.")
    ] = (False),
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Migrate the schema to this version while older collectors keep working; data is kept.

    Migrations that would break them are left, and named: run `--post` when every collector is of
    this version. That ends with 1, and migrates nothing more, while one of them is alive.
    """
    with open_database(dsn, config, migrated=False) as database:
        if dry_run:
            status = upkeep.schema_status(database)
            for migration in status.pending:
                print(f"would migrate to {migration} ({migration.phase})")
            print(f"{len(status.pending)} migrations pending; newest {status.head}")
            return
        result = upkeep.upgrade_schema(database, post=post)
    for migration in result.done:
        print(f"migrated to {migration}")
    for migration in result.left:
        print(f"left        {migration}")
    if result.older:
        print(
            f"older collectors are alive: {', '.join(result.older)}; run it again when they have"
            " ended"
        )
    elif result.left:
        print("run `gpuledger db upgrade --post` when every collector is of this version")
    elif not result.done:
        print(f"up to date at {result.head}")
    if post and result.left:
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger db check && gpuledger serve")
def check(
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Say which versions server and schema have; ends with 1 when migrations are pending."""
    with open_database(dsn, config, migrated=False) as database:
        status = upkeep.schema_status(database)
    if form is not options.Format.table:
        emit_report(form, VERSIONS, [status], is_exact=True)
    else:
        verdict = (
            "supported"
            if status.is_supported
            else f"not supported: {upkeep.SUPPORTED[0]} to {upkeep.SUPPORTED[-1]} are"
        )
        print(f"server    PostgreSQL {status.server_text} ({verdict})")
        print(f"schema    {status.current or 'empty'} (newest {status.head})")
        for migration in status.pending:
            note = " (post: when no older collector is alive)" if migration.phase == "post" else ""
            print(f"pending   {migration}{note}")
        for name in status.ahead:
            print(f"ahead     {name} (of a newer version, which this one can work with)")
    if status.pending or not status.is_supported:
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger db partitions")
def partitions(
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List the partitions of the big tables, days and months, with their sizes."""
    with open_session(dsn, config) as session:
        sizes = upkeep.list_partitions(session.database)
    total = sum(partition.bytes for partition in sizes)
    footer = [f"{len(sizes)} partitions, {total} bytes"]
    emit_report(form, PARTITIONS, sizes, footer, is_exact=True)


@app.command(epilog="Example: gpuledger db distribute --dry-run")
def distribute(
    shards: Annotated[
        int,
        Option(
            "--shards", min=1, max=4096, help="Number of parts; at most as many workers are used."
        ),
    ] = 32,
    dry_run: DryRunOfStatements = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Spread samples and usage over the workers of a Citus cluster, by accelerator.

    Stop the collectors before.

    docs/scale.md says from which size on, and what was tried.
    """
    work = upkeep.statements_to_distribute if dry_run else upkeep.distribute_tables
    with open_session(dsn, config) as session:
        statements = work(session.database, shards)
    for statement in statements:
        print(f"{statement};")
    if not statements:
        print("-- everything is distributed already")


@app.command(epilog="Example: gpuledger db pack --dry-run")
def pack(
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say which days would be packed, and pack none.")
    ] = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Pack old samples, slow metrics and usage intervals, and remove what is older than the settings
    keep, as the jobs do.

    Ends with 1 when a day could not be locked: the next run takes it.
    """
    settings = load_settings(config, dsn)
    retention = archive_retention(settings)
    with open_session(dsn, config) as session:
        if dry_run:
            days = days_to_pack(session.database, retention, session.now_ms)
            for day_ms in days:
                print(f"would pack {format_date(day_ms)}")
            print(f"{plural(len(days), 'day')} of samples to pack")
            return
        with bar("packing") as on_day:
            result = pack_samples(session.database, retention, session.now_ms, on_day)
        changes = pack_slow_metrics(session.database, session.now_ms)
        evidence = pack_usage_intervals(
            session.database, latest_evidence_days(settings), session.now_ms
        )
    for day in result.packed:
        print(
            f"packed {format_date(day.day_ms)}: {plural(day.rows, 'sample')} of"
            f" {plural(day.accelerators, 'accelerator')}, {day.hot_bytes} bytes to"
            f" {day.archive_bytes}"
        )
    print(result)
    print(f"{plural(changes, 'change')} of slow metrics packed")
    print(evidence)
    if result.busy:
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger db backup /backup/gpuledger-$(date +%F).dump")
def backup(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE",
            help="Where to write it, with --incremental a folder; readable by you alone.",
        ),
    ],
    force: Annotated[bool, Option("--force", help="Replace an existing file.")] = False,
    incremental: Annotated[
        bool,
        Option(
            "--incremental",
            help="Add what changed since the last backup in this folder, of the embedded database.",
        ),
    ] = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Write everything that the ledger holds to one file, while it keeps working.

    With `--incremental`: a full backup into a folder, and at each later run what changed since the
    one before.
    """
    require_folder(file)
    if incremental:
        if force:
            refuse("--force replaces a file: --incremental adds to a folder and replaces nothing")
        _back_up_changes(file, dsn, config)
        return
    if file.is_dir():
        refuse(f"{file} is a folder: --incremental adds a backup to it")
    if file.exists() and not force:
        refuse(f"{file} exists already; --force replaces it")
    with open_database(dsn, config) as database:
        size = upkeep.back_up(database, file)
    print(f"{file}: {size} bytes")


def _back_up_changes(folder: Path, dsn: str | None, config: Path | None) -> None:
    """Add a member to a folder of backups."""
    if folder.exists() and not folder.is_dir():
        refuse(f"{folder} is a file: --incremental needs a folder")
    with open_database(dsn, config) as database, busy("backing up"):
        try:
            member = upkeep.back_up_changes(database, folder, clock_ms())
        except (upkeep.NotABackup, upkeep.NotContinued, upkeep.NotEmbedded) as error:
            refuse(str(error))
    if member.since is not None:
        content = f"what changed since {member.since}"
    elif member.forgotten is not None:
        content = f"everything: what changed since {member.forgotten} is no longer known"
    else:
        content = "everything"
    print(f"{member.path}: {member.bytes} bytes, {content}")


@app.command(
    epilog=(
        "Example: gpuledger db restore gpuledger.dump --dsn"
        " postgresql://gpuledger@new.example/gpuledger"
    )
)
def restore(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE",
            exists=True,
            help="What `gpuledger db backup` wrote: a file or a folder.",
        ),
    ],
    until: Annotated[
        str | None,
        Option(
            "--until",
            metavar="MEMBER",
            help="Restore this member of a folder; default: the last one.",
        ),
    ] = None,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Restore a backup into an empty database, migrate its schema to this version, and check every
    closed month's seal.

    Every supported version of Postgres takes a file, newer or older: this is how to upgrade
    Postgres. A folder of `--incremental` restores into a new GPULEDGER_DATA_DIR. All of it is
    restored or nothing. Ends with 1 when a seal does not hold.
    """
    if until is not None and not file.is_dir():
        refuse("--until names a member of a folder that `gpuledger db backup --incremental` wrote")
    try:
        if file.is_dir():
            server = embedded_server(load_settings(config, dsn))
            with busy("restoring"):
                file /= upkeep.restore_folder(server, file, until)
            with open_database(dsn, config, migrated=False) as database:
                restored = upkeep.finish_restore(database)
        else:
            with open_database(dsn, config, migrated=False) as database:
                restored = upkeep.restore(database, file)
    except (upkeep.NotABackup, upkeep.NotEmpty, upkeep.InUse, upkeep.NotEmbedded) as error:
        refuse(str(error))
    migrated = restored.migrated
    print(f"restored from {file}" + (f", and migrated to {migrated[-1]}" if migrated else ""))
    for name in restored.broken_seals:
        say(f"the seal of {name} does not hold")
    if restored.broken_seals:
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger db grant-reader grafana --password-file grafana.password")
def grant_reader(
    role: Annotated[
        str, Argument(help="Role of the dashboards' data source; created when it does not exist.")
    ],
    password_file: Annotated[
        Path | None,
        Option(
            "--password-file",
            metavar="FILE",
            help="Set the role's password to the content of this file.",
        ),
    ] = None,
    owner: Annotated[
        list[str] | None,
        Option(
            "--owner",
            metavar="LEVEL=VALUE",
            help="Only this part of the owner tree, by row-level security.",
        ),
    ] = None,
    dry_run: DryRunOfStatements = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Let a role read rollups and ledgers, and nothing else; repeat it after an upgrade, for its
    new tables.
    """
    levels = declared_owner(owner or []) or None
    password = None if password_file is None else read_secret(password_file, "--password-file")
    with open_session(dsn, config) as session:
        if dry_run:
            for statement in upkeep.statements_to_grant(session.database, role, password, levels):
                print(f"{statement};" if not statement.startswith("--") else statement)
            return
        left = upkeep.grant_reader(session.database, role, password, levels)
    say(
        f"{role} may read "
        + ("rollups and ledgers" if levels is None else "the ledger of " + " ".join(owner or []))
    )
    for statement in left:
        print(f"left to an administrator: {statement};")


@app.command(epilog="Example: gpuledger db revoke-reader grafana")
def revoke_reader(
    role: Annotated[str, Argument(help="A role that `gpuledger db grant-reader` let read.")],
    dry_run: DryRunOfStatements = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Take a role's rights and its login away, and end its sessions at once; grant-reader with a
    password undoes it.
    """
    with open_session(dsn, config) as session:
        if dry_run:
            for statement in upkeep.statements_to_revoke(session.database, role):
                print(f"{statement};")
            return
        revoked = upkeep.revoke_reader(session.database, role, clock_ms())
    say(f"{role} may read nothing; {plural(revoked.ended, 'session')} ended")
    for statement in revoked.left:
        print(f"left to an administrator: {statement};")
