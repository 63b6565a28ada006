"""gpuledger token: who may report and who may read."""

from __future__ import annotations

import contextlib
import enum
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli.common import Config, DryRun, Dsn, database, declared_owner, refuse, untouched
from gpuledger_collector.cli.terminal import say
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    import psycopg

    from gpuledger_collector.storage.access.tokens import Token
    from gpuledger_collector.storage.database import Database

app = typer.Typer(name="token", help="Tokens of agents and of people who read.", no_args_is_help=True)
HOUR_MS = 3_600_000
ANY_NODE = "*"
LOCK_SECONDS = 300
"""How long a change of a token waits for others: closing a month writes the audit log for a while."""
COLUMNS = ("id", "name", "role", "node", "owner", "made_ms", "expires_ms", "revoked_ms", "last_used_ms", "live")
Which = Annotated[str, typer.Argument(metavar="NAME", help="Name or number of the token.")]


class Role(enum.StrEnum):
    """What a token opens."""

    agent = "agent"
    viewer = "viewer"
    finance = "finance"
    admin = "admin"


class Shape(enum.StrEnum):
    """Forms of the list."""

    table = "table"
    csv = "csv"
    json = "json"


def register(root: typer.Typer) -> None:
    """Add `gpuledger token`."""
    root.add_typer(app)


@app.command(epilog="Example: gpuledger token create --role agent --node gpu-07 > gpu-07.token")
def create(
    role: Annotated[Role, typer.Option("--role", help="agent writes; viewer, finance and admin read.")],
    node: Annotated[str, typer.Option("--node", help="The node that the agent may report; '*': any.")] = "",
    owner: Annotated[
        list[str] | None, typer.Option("--owner", metavar="LEVEL=VALUE", help="The subtree that the viewer may see.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the token; default: its node, owner or role.")] = "",
    days: Annotated[int, typer.Option("--days", min=0, help="Days until it expires; 0: never.")] = 0,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Make a token and print its secret, this once: only its hash is kept.

    A viewer sees the owner's subtree: --owner team=vision, or --owner org=acme --owner team=vision.
    """
    from gpuledger_collector.storage.access.tokens import Token

    levels = declared_owner(owner or [])
    if (role is Role.agent) != bool(node):
        refuse("--node: name the node of an agent ('*' for any), and no node for the other roles")
    if (role is Role.viewer) != bool(levels):
        refuse("--owner: name the subtree of a viewer, such as team=vision, and none for the other roles")
    called = name or node or "/".join(levels.values()) or role.value
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.access import tokens
        from gpuledger_collector.wiring import now

        at_ms = round(now().timestamp() * 1000)
        ends = at_ms + days * 24 * HOUR_MS if days else None
        wanted = Token(0, called, role.value, None if node in {"", ANY_NODE} else node, levels or None, "", at_ms, ends)
        try:
            with _changing(opened, dry_run=dry_run) as connection:
                made, secret = tokens.create(connection, wanted)
        except tokens.TokenRefused as error:
            refuse(str(error))
    _hand_over(made, secret, dry_run)


@contextlib.contextmanager
def _changing(opened: Database, *, dry_run: bool) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A transaction that no reader of the database holds up: meanwhile the sessions that it waits for are ended.

    Raises StorageError when something else holds it up.
    """
    import psycopg

    from gpuledger_collector.storage.errors import StorageError
    from gpuledger_collector.wiring import reader_watch

    with opened.transaction(dry_run=dry_run) as connection, reader_watch(opened):
        connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
        try:
            yield connection
        except psycopg.errors.LockNotAvailable as error:
            raise StorageError(
                f"nothing was changed: for {LOCK_SECONDS} s another session held the tokens or the audit log; "
                "end what pg_blocking_pids shows, and try again"
            ) from error


def _hand_over(made: Token, secret: str, dry_run: bool) -> None:
    """The secret alone on standard output, so that it can be written to a file; what it is, on standard error."""
    if dry_run:  # its number and its secret are those of no token
        say(f"a token {made.name!r}, {made.role}: {_reach(made)}{untouched(dry_run)}", error=True)
        return
    say(f"token {made.id} {made.name!r}, {made.role}: {_reach(made)}; it is shown this once:", error=True)
    print(secret)


def _reach(token: Token) -> str:
    if token.role == "agent":
        return "may report any node" if token.node is None else f"may report {token.node}"
    if token.owner is not None:
        return "may read " + ", ".join(f"{level}={value}" for level, value in token.owner.items())
    return "may read everything"


@app.command("list", epilog="Example: gpuledger token list --format json")
def list_tokens(
    shape: Annotated[Shape, typer.Option("--format", help="Form.")] = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """List every token that was ever made, without secrets."""
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.access import tokens
        from gpuledger_collector.wiring import now

        with opened.transaction() as connection:
            found = tokens.every(connection)
        at_ms = round(now().timestamp() * 1000)
    rows = [{**one.facts(), "last_used_ms": one.last_used_ms, "live": one.live(at_ms)} for one in found]
    if shape is Shape.json:
        print(json.dumps(rows, indent=2))
        return
    if shape is Shape.csv:
        from gpuledger_collector.export.cells import rows_as

        cells = [[_cell(row[name]) for name in COLUMNS] for row in rows]
        sys.stdout.write(rows_as("csv", COLUMNS, cells))
        return
    for one in found:
        state = "live" if one.live(at_ms) else "revoked" if one.revoked_ms is not None else "expired"
        used = "never used" if one.last_used_ms is None else f"last used {_instant(one.last_used_ms)}"
        ends = "" if one.expires_ms is None or not one.live(at_ms) else f", expires {_instant(one.expires_ms)}"
        say(f"{one.id:>4}  {one.name:<24} {one.role:<8} {state:<8} {_reach(one)}; {used}{ends}")
    print(f"{sum(one.live(at_ms) for one in found)} of {plural(len(found), 'token')} live")


def _cell(value: object) -> object:
    """What of a token goes into one cell of CSV: an owner's levels as `level=value`."""
    return " ".join(f"{level}={name}" for level, name in value.items()) if isinstance(value, dict) else value


def _instant(at_ms: int) -> str:
    from gpuledger_collector.accounting.period import format_instant

    return format_instant(at_ms - at_ms % 1000)


@app.command(epilog="Example: gpuledger token revoke gpu-07")
def revoke(which: Which, dry_run: DryRun = False, dsn: Dsn = None, config: Config = None) -> None:
    """Revoke a token; a running collector refuses it within seconds."""
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.access import tokens
        from gpuledger_collector.wiring import now

        try:
            with _changing(opened, dry_run=dry_run) as connection:
                gone = tokens.revoke(connection, which, round(now().timestamp() * 1000))
        except tokens.TokenRefused as error:
            refuse(str(error))
    say(f"revoked: {', '.join(f'token {one.id} {one.name!r}' for one in gone)}" + untouched(dry_run))


@app.command(epilog="Example: gpuledger token rotate gpu-07 --grace-hours 48 > gpu-07.token")
def rotate(
    which: Which,
    grace_hours: Annotated[int, typer.Option("--grace-hours", min=0, help="How long the old one lives on.")] = 24,
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Make a successor and print its secret; the old token lives on for the grace period, so that nothing is lost."""
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.access import tokens
        from gpuledger_collector.wiring import now

        at_ms = round(now().timestamp() * 1000)
        try:
            with _changing(opened, dry_run=dry_run) as connection:
                made, secret = tokens.rotate(connection, which, at_ms, at_ms + grace_hours * HOUR_MS)
        except tokens.TokenRefused as error:
            refuse(str(error))
    _hand_over(made, secret, dry_run)
