"""gpuledger token: who may report and who may read."""

from __future__ import annotations

import contextlib
import enum
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated

import psycopg
from typer import Argument, Option

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.cli import options
from gpuledger_collector.cli.amounts import instant_text
from gpuledger_collector.cli.common import declared_owner, dry_run_note, new_app, refuse
from gpuledger_collector.cli.output import Column, csv_text, print_json
from gpuledger_collector.cli.session import Session, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.storage.access import tokens
from gpuledger_collector.storage.access.tokens import Token
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.wiring import reader_watch
from gpuledger_common.plurals import plural

app = new_app(name="token", help="Tokens of agents and of people who read.", no_args_is_help=True)
ANY_NODE = "*"
LOCK_SECONDS = 300
"""How long a change of a token waits for others: closing a month writes the audit log for a while.
"""
COLUMNS = tuple(
    Column(name)
    for name in (
        "id",
        "name",
        "role",
        "node",
        "owner",
        "made_ms",
        "expires_ms",
        "revoked_ms",
        "last_used_ms",
        "live",
    )
)
TokenName = Annotated[str, Argument(metavar="NAME", help="Name or number of the token.")]


class Role(enum.StrEnum):
    """What a token allows."""

    agent = "agent"
    viewer = "viewer"
    finance = "finance"
    admin = "admin"


@app.command(epilog="Example: gpuledger token create --role agent --node gpu-07 > gpu-07.token")
def create(
    role: Annotated[Role, Option("--role", help="agent writes; viewer, finance and admin read.")],
    node: Annotated[
        str, Option("--node", help="The node that the agent may report; '*': any.")
    ] = "",
    owner: Annotated[
        list[str] | None,
        Option("--owner", metavar="LEVEL=VALUE", help="The subtree that the viewer may see."),
    ] = None,
    name: Annotated[
        str, Option("--name", help="Name of the token; default: its node, owner or role.")
    ] = "",
    days: Annotated[int, Option("--days", min=0, help="Days until it expires; 0: never.")] = 0,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Create a token and print its secret, this once: only its hash is kept.

    A viewer sees the owner's subtree: --owner team=vision, or --owner org=acme --owner team=vision.
    """
    levels = declared_owner(owner or [])
    if (role is Role.agent) != bool(node):
        refuse("--node: name the node of an agent ('*' for any), and no node for the other roles")
    if (role is Role.viewer) != bool(levels):
        refuse(
            "--owner: name the subtree of a viewer, such as team=vision, and none for the other"
            " roles"
        )
    chosen_name = name or node or "/".join(levels.values()) or role.value
    with open_session(dsn, config) as session:
        expires_ms = session.now_ms + days * DAY_MS if days else None
        only_node = None if node in {"", ANY_NODE} else node
        draft = Token(
            0, chosen_name, role.value, only_node, levels or None, "", session.now_ms, expires_ms
        )
        with _changing(session, dry_run) as connection:
            token, secret = tokens.create(connection, draft)
    _hand_over(token, secret, dry_run)


@contextlib.contextmanager
def _changing(session: Session, dry_run: bool) -> Iterator[Connection]:
    """A transaction that no reader of the database delays: meanwhile the sessions that it waits for
    are ended.

    A change that the tokens do not allow is refused. Raises StorageError when something else delays
    it for too long.
    """
    try:
        with (
            session.database.transaction(dry_run=dry_run) as connection,
            reader_watch(session.database),
        ):
            # Readers are ended meanwhile, so that only a writer can make this wait.
            connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
            yield connection
    except tokens.TokenRefused as error:
        refuse(str(error))
    except psycopg.errors.LockNotAvailable as error:
        raise StorageError(
            f"nothing was changed: for {LOCK_SECONDS} s another session held the tokens or the"
            " audit log; end what pg_blocking_pids shows, and try again"
        ) from error


def _hand_over(token: Token, secret: str, dry_run: bool) -> None:
    """The secret alone on standard output, so that it can be written to a file; what it is, on
    standard error.
    """
    if dry_run:  # number and secret of a token that was not created mean nothing
        say(
            f"a token {token.name!r}, {token.role}: {_scope(token)}{dry_run_note(dry_run)}",
            error=True,
        )
        return
    say(
        f"token {token.id} {token.name!r}, {token.role}: {_scope(token)}; it is shown this once:",
        error=True,
    )
    print(secret)


def _scope(token: Token) -> str:
    if token.role == "agent":
        return "may report any node" if token.node is None else f"may report {token.node}"
    if token.owner is not None:
        return f"may read {_levels(token.owner, ', ')}"
    return "may read everything"


def _levels(owner: Mapping[str, str], separator: str) -> str:
    return separator.join(f"{level}={value}" for level, value in owner.items())


@app.command("list", epilog="Example: gpuledger token list --format json")
def list_tokens(
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List every token that was ever created, without secrets."""
    with open_session(dsn, config) as session, session.database.transaction() as connection:
        listed = tokens.every(connection)
    now_ms = session.now_ms
    rows = [
        {**token.facts(), "last_used_ms": token.last_used_ms, "live": token.live(now_ms)}
        for token in listed
    ]
    if form is options.Format.json:
        print_json(rows)
        return
    if form is options.Format.csv:
        texts = [
            {**row, "owner": None if token.owner is None else _levels(token.owner, " ")}
            for token, row in zip(listed, rows, strict=True)
        ]
        sys.stdout.write(csv_text(COLUMNS, texts))
        return
    for token in listed:
        state = (
            "live"
            if token.live(now_ms)
            else "revoked"
            if token.revoked_ms is not None
            else "expired"
        )
        used = (
            "never used"
            if token.last_used_ms is None
            else f"last used {instant_text(token.last_used_ms)}"
        )
        has_end = token.expires_ms is not None and token.live(now_ms)
        ends = f", expires {instant_text(token.expires_ms)}" if has_end else ""
        say(
            f"{token.id:>4}  {token.name:<24} {token.role:<8} {state:<8} {_scope(token)};"
            f" {used}{ends}"
        )
    print(f"{sum(token.live(now_ms) for token in listed)} of {plural(len(listed), 'token')} live")


@app.command(epilog="Example: gpuledger token revoke gpu-07")
def revoke(
    name: TokenName,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Revoke a token; a running collector refuses it within seconds."""
    with open_session(dsn, config) as session, _changing(session, dry_run) as connection:
        revoked = tokens.revoke(connection, name, session.now_ms)
    say(
        f"revoked: {', '.join(f'token {token.id} {token.name!r}' for token in revoked)}"
        + dry_run_note(dry_run)
    )


@app.command(epilog="Example: gpuledger token rotate gpu-07 --grace-hours 48 > gpu-07.token")
def rotate(
    name: TokenName,
    grace_hours: Annotated[
        int, Option("--grace-hours", min=0, help="How long the old one stays valid.")
    ] = 24,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Create a successor and print its secret; the old token stays valid for the grace period: no
    batch is lost.
    """
    with open_session(dsn, config) as session, _changing(session, dry_run) as connection:
        until_ms = session.now_ms + grace_hours * HOUR_MS
        token, secret = tokens.rotate(connection, name, session.now_ms, until_ms)
    _hand_over(token, secret, dry_run)
