"""gpuledger adjustments: markups, discounts, tiers, credits, debits, and true-ups to a provider's
bill.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated

from typer import Argument, Option

from gpuledger_collector import wiring
from gpuledger_collector.accounting.adjustments import (
    Adjustment,
    BookedShare,
    EntryRefused,
)
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.accounting.provider_bill import Difference
from gpuledger_collector.accounting.true_up import BOOKED
from gpuledger_collector.cli import options
from gpuledger_collector.cli.apply import warn_of_owners
from gpuledger_collector.cli.common import dry_run_note, new_app, refuse, time_range
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.config.adjustments import DeclaredAdjustment
from gpuledger_collector.config.model import Record
from gpuledger_collector.export.adjustments import ADJUSTMENTS, TRUE_UP_SHARES, entry_text
from gpuledger_collector.export.disputes import owner_text
from gpuledger_collector.services import adjustments
from gpuledger_collector.services.provider_bill import NoBill
from gpuledger_collector.services.true_up import ProposedTrueUp, book_true_up, propose_true_up

app = new_app(
    name="adjustments", help="What owners pay beside the rate of their time.", no_args_is_help=True
)
Reason = Annotated[str, Option("--reason", help="Why; it is kept with the entry.")]
Approver = Annotated[
    str, Option("--approver", metavar="NAME", help="Who approved it; it is kept with the entry.")
]


class Key(enum.StrEnum):
    """What a true-up is split by."""

    sku = "sku"
    cost = "cost"
    gpu_hours = "gpu_hours"


class Amount(enum.StrEnum):
    """Costs of a bill: as invoiced, or with commitments amortized."""

    billed = "billed"
    effective = "effective"


@app.command("list", epilog="Example: gpuledger adjustments list --format csv")
def list_adjustments(
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List the markups, discounts and tiers in force, and every credit, debit and true-up that was
    booked.
    """
    with open_session(dsn, config) as session:
        listed = adjustments.list_adjustments(session.database)
    emit_report(form, ADJUSTMENTS, listed)


def _entry(kind: str) -> None:
    @app.command(
        kind,
        help=(
            f"Book a {kind}: an amount that an owner {'gets back' if kind == 'credit' else 'pays'},"
            " once."
        ),
        epilog=(
            f'Example: gpuledger adjustments {kind} "outage of 7 October" --owner team=vision'
            ' --amount 250 --currency USD --from 2026-10-07 --to 2026-10-08 --reason "no'
            ' InfiniBand" --approver m.keller'
        ),
    )
    def book(
        name: Annotated[
            str, Argument(metavar="NAME", help="Names the entry; no other adjustment has it.")
        ],
        owner: Annotated[
            str, Option("--owner", metavar="LEVEL=NAME", help="Who, such as team=vision.")
        ],
        amount: Annotated[str, Option("--amount", help="Money, more than 0.")],
        currency: Annotated[str, Option("--currency", help="ISO 4217 code.")],
        start: Annotated[
            str,
            Option(
                "--from", metavar="DATE", help="First day that it is about; it is booked on it."
            ),
        ],
        end: Annotated[
            str, Option("--to", metavar="DATE", help="Last day, not included; of the same month.")
        ],
        reason: Reason,
        approver: Approver,
        pool: Annotated[str, Option("--pool", help="The pool that it is shown under.")] = "",
        model: Annotated[str, Option("--model", help="The GPU model that it is shown under.")] = "",
        dry_run: options.DryRun = False,
        dsn: options.Dsn = None,
        config: options.Config = None,
    ) -> None:
        given = {
            "name": name,
            "kind": kind,
            "owner": dict(_pair(part) for part in owner.split(",")),
            "amount": amount,
            "currency": currency,
            "effective_from": start,
            "effective_to": end,
            "reason": reason,
            "approver": approver,
            "pool": pool,
            "gpu_model": model,
        }
        problems: list[Problem] = []
        declared: list[Adjustment] = DeclaredAdjustment.collect(
            [Record(f"adjustments {kind}", 1, given)], problems
        )
        if problems:
            refuse(
                "; ".join(
                    f"{problem.source.split(':', 2)[-1]} {problem.message}" for problem in problems
                )
            )
        with open_session(dsn, config) as session:
            try:
                entry, unknown = adjustments.book_entry(
                    session.database, declared[0], wiring.read_clock(), dry_run=dry_run
                )
            except EntryRefused as error:
                refuse(str(error))
        warn_of_owners(unknown)
        (share,) = entry.entry_shares()
        said = (
            f"{entry_text(share.micro, entry.currency or '')} {entry.currency} for"
            f" {owner_text(entry.owner)}"
        )
        print(f"booked {kind} {entry.name!r}: {said} on {entry.from_on}{dry_run_note(dry_run)}")


def _pair(text: str) -> tuple[str, str]:
    level, _, name = text.partition("=")
    return level.strip(), name.strip()


for _kind in ("credit", "debit"):
    _entry(_kind)


@app.command(
    epilog=(
        'Example: gpuledger adjustments reverse "outage of 7 October" --reason "booked twice"'
        " --approver kim"
    )
)
def reverse(
    name: Annotated[str, Argument(metavar="NAME", help="The credit, debit or true-up.")],
    reason: Reason,
    approver: Approver,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Take a booked entry back by an entry of the opposite amounts; both stay.

    Of a closed month it is a correction.
    """
    _require_words(reason, approver)
    with open_session(dsn, config) as session:
        try:
            entry = adjustments.reverse_entry(
                session.database,
                name,
                reason.strip(),
                approver.strip(),
                wiring.read_clock(),
                dry_run=dry_run,
            )
        except EntryRefused as error:
            refuse(str(error))
    print(f"booked {entry.name!r} on {entry.from_on}{dry_run_note(dry_run)}")


def _require_words(reason: str, approver: str) -> None:
    for option, text in (("--reason", reason), ("--approver", approver)):
        if not text.strip():
            refuse(f"{option}: say it in words")


@app.command(
    "true-up",
    epilog=(
        'Example: gpuledger adjustments true-up --period 2026-10 --bill "Big Cloud" --by sku '
        '--reason "October as invoiced" --approver m.keller'
    ),
)
def true_up(
    provider: Annotated[
        str, Option("--bill", metavar="PROVIDER", help="The bill, as `import bill` brought it.")
    ],
    reason: Reason,
    approver: Approver,
    period: options.Month = None,
    key: Annotated[Key, Option("--by", help="What each owner's part follows from.")] = Key.sku,
    kinds: Annotated[
        str,
        Option(
            "--kinds",
            metavar="KIND,...",
            help="Kinds of differences to book, as `reconcile --bill` has them.",
        ),
    ] = ",".join(BOOKED),
    amount: Annotated[
        Amount, Option("--cost", help="Which cost of the bill counts.")
    ] = Amount.billed,
    form: options.Form = options.Format.table,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Book the difference between a provider's bill of a month and the ledger to owners, once.

    `reconcile --bill` explains the difference, kind by kind; a true-up books the kinds that are
    explained, exactly, with the bill's lines as evidence. The same command again changes nothing;
    `adjustments reverse` takes it back.
    """
    _require_words(reason, approver)
    asked = time_range(period, None, None, None)
    chosen = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    with open_session(dsn, config) as session:
        span = session.rate_range(asked)
        try:
            with session.database.transaction(dry_run=dry_run) as connection:
                effective = amount is Amount.effective
                proposed = propose_true_up(
                    connection, provider, span, key.value, chosen, effective=effective
                )
                entries = book_true_up(
                    connection,
                    proposed,
                    reason.strip(),
                    approver.strip(),
                    wiring.read_clock(),
                )
        except (NoBill, ValueError) as error:
            refuse(str(error))
        if not dry_run:
            session.rate(span)
    shares = [
        BookedShare(entry, share) for entry in entries or proposed.booked for share in entry.shares
    ]
    emit_report(form, TRUE_UP_SHARES, shares)
    for line in _sentences(proposed, entries, dry_run):
        say(f"gpuledger: {line}", error=True)


def _sentences(proposed: ProposedTrueUp, entries: Sequence[Adjustment], dry_run: bool) -> list[str]:
    lines = []
    for entry in entries:
        micro = sum(share.micro for share in entry.shares)
        lines.append(
            f"booked {entry.name!r}: {entry_text(micro, entry.currency or '')}"
            f" {entry.currency}{dry_run_note(dry_run)}"
        )
    if proposed.booked:
        names = ", ".join(repr(entry.name) for entry in proposed.booked)
        due = ", ".join(
            f"{entry_text(micro, currency)} {currency}"
            for currency, micro in proposed.due().items()
        )
        more = f"; the bill now asks {due} more: reverse it and book it anew" if due else ""
        lines.append(f"booked already as {names}: nothing was changed{more}")
    elif not entries:
        lines.append(
            "nothing is to be booked: no difference of these kinds, or nobody held anything"
        )
    return lines + [
        _left_line(kind, currency, rows) for (kind, currency), rows in _group_left(proposed).items()
    ]


def _group_left(proposed: ProposedTrueUp) -> dict[tuple[str, str], list[Difference]]:
    left: dict[tuple[str, str], list[Difference]] = {}
    for difference in proposed.split.left:
        left.setdefault((difference.kind, difference.currency), []).append(difference)
    return left


def _left_line(kind: str, currency: str, differences: Sequence[Difference]) -> str:
    micro = sum(int(difference.amount * 1_000_000) for difference in differences)
    return (
        f"not booked: {kind} {Money(micro, currency).plain()} {currency} (--kinds {kind} books it)"
    )
