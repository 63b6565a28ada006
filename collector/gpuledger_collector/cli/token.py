"""gpuledger token: who may report and who may read."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Annotated

from typer import Argument, Option

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.tokens import Token, TokenRefused
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import declared_owner, dry_run_note, new_app, refuse
from gpuledger_collector.cli.output import emit_report, print_json
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.access import TOKENS
from gpuledger_collector.export.cells import instant_text
from gpuledger_collector.services.tokens import (
    create_token,
    list_tokens,
    revoke_tokens,
    rotate_token,
)
from gpuledger_common.plurals import plural

app = new_app(name="token", help="Tokens of agents and of people who read.", no_args_is_help=True)
ANY_NODE = "*"
TokenName = Annotated[str, Argument(metavar="NAME", help="Name or number of the token.")]


class Role(enum.StrEnum):
    """What a token allows."""

    agent = "agent"
    viewer = "viewer"
    finance = "finance"
    admin = "admin"


@app.command(
    epilog=(
        "Example: (umask 077; gpuledger token create --role agent --node gpu-07 > gpu-07.token)"
    )
)
@ledger_command
def create(
    session: Session,
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
    now_ms = session.now_ms
    draft = Token(
        id=0,
        name=name or node or "/".join(levels.values()) or role.value,
        role=role.value,
        node=None if node in {"", ANY_NODE} else node,
        owner=levels or None,
        hash="",
        made_ms=now_ms,
        expires_ms=now_ms + days * DAY_MS if days else None,
    )
    with _refusing():
        token, secret = create_token(session.database, draft, dry_run=dry_run)
    _hand_over(token, secret, dry_run)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Refuse a change that the tokens do not allow."""
    try:
        yield
    except TokenRefused as error:
        refuse(str(error))


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
        levels = (f"{level}={value}" for level, value in token.owner.items())
        return f"may read {', '.join(levels)}"
    return "may read everything"


@app.command("list", epilog="Example: gpuledger token list --format json")
@ledger_command
def list_all(
    session: Session,
    form: options.Form = options.Format.table,
) -> None:
    """List every token that was ever created, without secrets."""
    listed = list_tokens(session.database, session.now_ms)
    if form is options.Format.json:
        print_json([TOKENS.exact(item) for item in listed])
        return
    if form is options.Format.csv:
        emit_report(form, TOKENS, listed)
        return
    for item in listed:
        token = item.token
        used = (
            "never used"
            if token.last_used_ms is None
            else f"last used {instant_text(token.last_used_ms)}"
        )
        has_end = token.expires_ms is not None and item.is_live
        ends = f", expires {instant_text(token.expires_ms)}" if has_end else ""
        say(
            f"{token.id:>4}  {token.name:<24} {token.role:<8} {item.state:<8} {_scope(token)};"
            f" {used}{ends}"
        )
    print(f"{sum(item.is_live for item in listed)} of {plural(len(listed), 'token')} live")


@app.command(epilog="Example: gpuledger token revoke gpu-07")
@ledger_command
def revoke(
    session: Session,
    name: TokenName,
    dry_run: options.DryRun = False,
) -> None:
    """Revoke a token; a running collector refuses it within seconds."""
    with _refusing():
        revoked = revoke_tokens(session.database, name, session.now_ms, dry_run=dry_run)
    say(
        f"revoked: {', '.join(f'token {token.id} {token.name!r}' for token in revoked)}"
        + dry_run_note(dry_run)
    )


@app.command(
    epilog=("Example: (umask 077; gpuledger token rotate gpu-07 --grace-hours 48 > gpu-07.token)")
)
@ledger_command
def rotate(
    session: Session,
    name: TokenName,
    grace_hours: Annotated[
        int, Option("--grace-hours", min=0, help="How long the old one stays valid.")
    ] = 24,
    dry_run: options.DryRun = False,
) -> None:
    """Create a successor and print its secret; the old token stays valid for the grace period: no
    batch is lost.
    """
    until_ms = session.now_ms + grace_hours * HOUR_MS
    with _refusing():
        token, secret = rotate_token(
            session.database, name, session.now_ms, until_ms, dry_run=dry_run
        )
    _hand_over(token, secret, dry_run)
