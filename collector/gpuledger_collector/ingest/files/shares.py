"""Shares of pools from what schedulers print: Slurm's associations and Kubernetes' resource quotas.

Slurm: `sacctmgr -P show assoc format=account,parentname,user,fairshare,grptres` (Slurm's manual of
sacctmgr). An account with a limit of `gres/gpu` in GrpTRES has that many GPUs, and its parents,
whose limits hold for all below them, none. Where no account has a limit, each in which jobs run has
its part of the pool by the Shares from `root` down to it. Kubernetes: `kubectl get resourcequota -A
-o json`; the share of a namespace is the least of its quotas of `requests.VENDOR/gpu` (Kubernetes,
Resource Quotas).
"""

from __future__ import annotations

import csv
import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from gpuledger_collector.accounting.fair_share import PoolShare
from gpuledger_collector.accounting.import_progress import OnRow, tell_each, tell_nobody
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.bounded_csv import BoundedRows
from gpuledger_collector.config.csv_rows import Parsed, decode, line_count
from gpuledger_collector.config.files import (
    MAX_ACCOUNT_DEPTH,
    MAX_ACCOUNTS,
    bounded_rows,
    lines_of,
    read_json,
)
from gpuledger_common.bounded_file import FileTooLarge

COMMAND = "sacctmgr -P show assoc format=account,parentname,user,fairshare,grptres"
SLURM, KUBERNETES = "slurm", "kubernetes"
ROOT = "root"
_COLUMNS = {
    "account": "account",
    "parname": "parent",
    "parentname": "parent",
    "user": "user",
    "share": "share",
    "fairshare": "share",
    "grptres": "limits",
}
_NEEDED = {"account", "parent", "user", "limits"}
_GPUS = re.compile(r"(?<![^,])gres/gpu(?::([^=,]+))?=(\d{1,9})(?![^,])")
"""A limit of GPUs, of one type or of all."""
_REQUESTED = re.compile(r"requests\.[^/]+/gpu", re.ASCII)
_DIGITS = Decimal("0.000001")
_LISTED = 100
"""Accounts that a note lists."""


def read_shares(
    file: Path, pool: str, from_on: dt.date | None, on_line: OnRow = tell_nobody
) -> tuple[str, Parsed[PoolShare]]:
    """Read shares of a pool, and say from which scheduler. Raises OSError.

    `on_line` is told how many of how many lines, or quotas, are read.
    """
    parsed: Parsed[PoolShare] = Parsed()
    text = decode(file, parsed.problems, parsed.notes)
    if text is None:
        return "", parsed
    if text.lstrip().startswith("{"):
        _read_quotas(file, text, parsed, pool, from_on, on_line)
        return KUBERNETES, parsed
    _read_associations(file, text, parsed, pool, from_on, on_line)
    return SLURM, parsed


def _read_quotas(
    file: Path,
    text: str,
    parsed: Parsed[PoolShare],
    pool: str,
    from_on: dt.date | None,
    on_quota: OnRow,
) -> None:
    try:
        items = read_json(text)["items"]
        quotas = [
            (str(item["metadata"]["namespace"]), {**item["spec"].get("hard", {})}) for item in items
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        parsed.problems.append(
            Problem(
                "bad_json", str(file), "is not what kubectl get resourcequota -A -o json prints"
            )
        )
        return
    least: dict[str, int] = {}
    for namespace, hard in tell_each(quotas, len(quotas), on_quota):
        for resource, amount in hard.items():
            if not _REQUESTED.fullmatch(resource):
                continue
            if not re.fullmatch(r"\d{1,7}", str(amount), re.ASCII):
                parsed.problems.append(
                    Problem(
                        "bad_number",
                        f"{file}:{namespace}:{resource}",
                        f"{amount!r} is no number of GPUs",
                    )
                )
                continue
            least[namespace] = min(least.get(namespace, int(amount)), int(amount))
    parsed.rows.extend(
        PoolShare(namespace, pool, None, gpus, from_on) for namespace, gpus in sorted(least.items())
    )
    if not least and not parsed.problems:
        parsed.problems.append(Problem("empty", str(file), "has no quota of requests.VENDOR/gpu"))


def _read_associations(
    file: Path,
    text: str,
    parsed: Parsed[PoolShare],
    pool: str,
    from_on: dt.date | None,
    on_line: OnRow,
) -> None:
    tree = _read_tree(file, text, parsed, on_line)
    if tree is None:
        return
    limited = tree.limits(pool.casefold())
    if limited:
        parsed.rows.extend(
            PoolShare(account, pool, None, gpus, from_on)
            for account, gpus in sorted(limited.items())
        )
        parsed.notes.extend(tree.limit_notes(limited))
        return
    fractions = tree.fractions()
    if not fractions:
        parsed.problems.append(
            Problem(
                "empty", str(file), "limits no account's gres/gpu, and none below root has a Share"
            )
        )
        return
    parsed.rows.extend(
        PoolShare(account, pool, fraction, None, from_on)
        for account, fraction in sorted(fractions.items())
    )
    parsed.notes.extend(
        f"{account} has fairshare=parent, which is no number: it and what is below it have no share"
        for account in tree.without_number()
    )


def _read_tree(file: Path, text: str, parsed: Parsed[PoolShare], on_line: OnRow) -> _Tree | None:
    raw = tell_each(lines_of(text), line_count(text), on_line)
    lines = BoundedRows(raw, delimiter="|", quoting=csv.QUOTE_NONE)
    try:
        return _read_rows(file, lines, parsed)
    except csv.Error as error:
        message = f"is not what sacctmgr prints: {error}"
        parsed.problems.append(Problem("bad_csv", f"{file}:{lines.line_num}", message))
    return None


def _read_rows(file: Path, lines: BoundedRows, parsed: Parsed[PoolShare]) -> _Tree | None:
    header = [name.replace(" ", "").lower() for name in next(lines, [])]
    columns = {_COLUMNS[name]: at for at, name in enumerate(header) if name in _COLUMNS}
    if missing := sorted(_NEEDED - columns.keys()):
        parsed.problems.append(
            Problem("columns", f"{file}:1", f"has no {', '.join(missing)}; run {COMMAND}")
        )
        return None
    users: dict[str, int] = {}
    accounts: dict[str, Mapping[str, str]] = {}
    for cells in bounded_rows(file, lines):
        if len(cells) < len(header):
            continue
        row = {name: cells[at].strip() for name, at in columns.items()}
        if row["user"]:
            users[row["account"]] = users.get(row["account"], 0) + (_weight(row) or 0)
        else:
            accounts[row["account"]] = row
        if len(accounts) > MAX_ACCOUNTS:
            raise FileTooLarge(file, f"more than {MAX_ACCOUNTS} accounts")
    tree = _Tree(accounts, users)
    if tree.depth() > MAX_ACCOUNT_DEPTH:
        message = f"has accounts below each other more than {MAX_ACCOUNT_DEPTH} deep"
        parsed.problems.append(Problem("out_of_range", str(file), message))
        return None
    return tree


def _weight(row: Mapping[str, str]) -> int | None:
    """The Share of an account or user; None where it is no number, such as `parent`."""
    share = row.get("share", "")
    return int(share) if re.fullmatch(r"\d{1,9}", share, re.ASCII) else None


@dataclass(frozen=True)
class _Tree:
    """Slurm's accounts, each with its parent, Share and limits."""

    accounts: Mapping[str, Mapping[str, str]]
    users: Mapping[str, int]
    """Accounts with users of their own -> the Shares of those users together."""

    def children(self, account: str) -> Sequence[str]:
        """The accounts below an account, in the order of the file."""
        return self._children.get(account, ())

    @cached_property
    def _children(self) -> Mapping[str, Sequence[str]]:
        below: dict[str, list[str]] = {}
        for name, row in self.accounts.items():
            if row["parent"] != name:
                below.setdefault(row["parent"], []).append(name)
        return below

    def _parent(self, account: str) -> str:
        return self.accounts[account]["parent"]

    def depth(self) -> int:
        """How many accounts stand above each other at most; of more than `MAX_ACCOUNT_DEPTH`, one more."""
        level = set(self.accounts)
        for depth in range(MAX_ACCOUNT_DEPTH + 1):
            above = {self._parent(name) for name in level if self._parent(name) != name}
            level = {name for name in above if name in self.accounts and name != ROOT}
            if not level:
                return depth
        return MAX_ACCOUNT_DEPTH + 1

    def above(self, account: str) -> Iterator[str]:
        """The account, its parent, and so on up to the root."""
        seen: set[str] = set()
        while account in self.accounts and account not in seen:
            yield account
            seen.add(account)
            account = self.accounts[account]["parent"]

    def limits(self, pool: str) -> dict[str, int]:
        """GPUs of the lowest accounts that have a limit, within those of their parents."""
        own = {
            account: gpus
            for account, row in self.accounts.items()
            if (gpus := _limit(row["limits"], pool)) is not None
        }
        parents = {parent for account in own for parent in list(self.above(account))[1:]}
        return {
            account: min(own[name] for name in self.above(account) if name in own)
            for account in own.keys() - parents - {ROOT}
        }

    def limit_notes(self, limited: Mapping[str, int]) -> Iterator[str]:
        """Accounts whose jobs have no share, or one under the name of an account above them."""
        for account in sorted(limited):
            if below := self.children(account):
                yield (
                    f"the limit of {account} is the share of team {account}; its accounts"
                    f" {_list_names(sorted(below))} have none: name that team in a [[rule]] for"
                    " their jobs"
                )
        without = [
            account
            for account in sorted(self.accounts.keys() - {ROOT})
            if not self.children(account) and not limited.keys() & {*self.above(account)}
        ]
        if without:
            yield f"no limit of gres/gpu, hence no share: {_list_names(without)}"

    def fractions(self) -> dict[str, Decimal]:
        """The part of the whole for each account in which jobs run, divided by Share from the root
        down.
        """
        parts: dict[str, Fraction] = {}
        pending = [(ROOT, Fraction(1))]
        while pending:
            account, part = pending.pop()
            weights = {name: _weight(self.accounts[name]) or 0 for name in self.children(account)}
            whole = sum(weights.values())
            own = self.users.get(account, 0) if account != ROOT else 0
            if account != ROOT and (own or not whole):
                parts[account] = part * own / (own + whole) if whole else part
            pending += [
                (name, part * weight / (own + whole)) for name, weight in weights.items() if weight
            ]
        return {
            account: (Decimal(part.numerator) / part.denominator).quantize(_DIGITS, ROUND_DOWN)
            for account, part in parts.items()
        }

    def without_number(self) -> list[str]:
        return sorted(
            account for account, row in self.accounts.items() if row.get("share") == "parent"
        )


def _list_names(names: Sequence[str]) -> str:
    left = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {left} more" if left > 0 else "")


def _limit(text: str, pool: str) -> int | None:
    """GPUs of a GrpTRES: of the type that the pool is named after, else of all, else of every type
    together.
    """
    types = {kind.casefold(): int(gpus) for kind, gpus in _GPUS.findall(text)}
    return types.get(pool, types.get("", sum(types.values()))) if types else None
