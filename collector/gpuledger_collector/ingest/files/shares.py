"""Shares of pools from what schedulers print: Slurm's associations and Kubernetes' resource quotas.

Slurm: `sacctmgr -P show assoc format=account,parentname,user,fairshare,grptres` (Slurm's manual of sacctmgr). An
account with a limit of `gres/gpu` in GrpTRES has that many GPUs; where no account has one, accounts directly below
`root` share the pool in proportion to their Share. Kubernetes: `kubectl get resourcequota -A -o json`; the share of a
namespace is the least of its quotas of `requests.VENDOR/gpu` (Kubernetes, Resource Quotas).
"""

from __future__ import annotations

import csv
import datetime as dt
import json
import re
from decimal import ROUND_DOWN, Decimal
from pathlib import Path

from gpuledger_collector.accounting.fair_share import PoolShare
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.csv_rows import Parsed

COMMAND = "sacctmgr -P show assoc format=account,parentname,user,fairshare,grptres"
SLURM, KUBERNETES = "slurm", "kubernetes"
_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)(?:,|$)")
_REQUESTED = re.compile(r"requests\.[^/]+/gpu", re.ASCII)
_DIGITS = Decimal("0.000001")


def read_shares(file: Path, pool: str, from_on: dt.date | None) -> tuple[str, Parsed[PoolShare]]:
    """Read shares of a pool, and say from which scheduler."""
    parsed: Parsed[PoolShare] = Parsed()
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        parsed.problems.append(Problem("unreadable", str(file), f"cannot be read: {error}"))
        return "", parsed
    if text.lstrip().startswith("{"):
        _read_quotas(file, text, parsed, pool, from_on)
        return KUBERNETES, parsed
    _read_associations(file, text, parsed, pool, from_on)
    return SLURM, parsed


def _read_quotas(file: Path, text: str, parsed: Parsed[PoolShare], pool: str, from_on: dt.date | None) -> None:
    try:
        items = json.loads(text)["items"]
        quotas = [(item["metadata"]["namespace"], item["spec"].get("hard", {})) for item in items]
    except (ValueError, KeyError, TypeError, AttributeError):
        parsed.problems.append(
            Problem("bad_json", str(file), "is not what kubectl get resourcequota -A -o json prints")
        )
        return
    least: dict[str, int] = {}
    for namespace, hard in quotas:
        for resource, amount in hard.items():
            if not _REQUESTED.fullmatch(resource):
                continue
            if not re.fullmatch(r"\d{1,7}", str(amount), re.ASCII):
                parsed.problems.append(
                    Problem("bad_number", f"{file}:{namespace}:{resource}", f"{amount!r} is no number of GPUs")
                )
                continue
            least[namespace] = min(least.get(namespace, int(amount)), int(amount))
    parsed.rows.extend(PoolShare(namespace, pool, None, gpus, from_on) for namespace, gpus in sorted(least.items()))
    if not least and not parsed.problems:
        parsed.problems.append(Problem("empty", str(file), "has no quota of requests.VENDOR/gpu"))


def _read_associations(file: Path, text: str, parsed: Parsed[PoolShare], pool: str, from_on: dt.date | None) -> None:
    lines = csv.reader(text.splitlines(), delimiter="|", quoting=csv.QUOTE_NONE)
    header = [name.replace(" ", "").lower() for name in next(lines, [])]
    names = {
        "account": "account",
        "parname": "parent",
        "parentname": "parent",
        "user": "user",
        "share": "share",
        "fairshare": "share",
        "grptres": "limits",
    }
    columns = {names[name]: at for at, name in enumerate(header) if name in names}
    if missing := sorted({"account", "user", "limits"} - columns.keys()):
        parsed.problems.append(
            Problem(
                "columns",
                f"{file}:1",
                f"has no {', '.join(missing)}; run {COMMAND}",
            )
        )
        return
    accounts = [
        cells
        for row in lines
        if len(row) >= len(header) and not (cells := {name: row[at].strip() for name, at in columns.items()})["user"]
    ]
    limited = {row["account"]: int(found[1]) for row in accounts if (found := _GPUS.search(row["limits"]))}
    if limited:
        parsed.rows.extend(PoolShare(account, pool, None, gpus, from_on) for account, gpus in sorted(limited.items()))
        return
    _share_by_weight(file, accounts, parsed, pool, from_on)


def _share_by_weight(
    file: Path, accounts: list[dict[str, str]], parsed: Parsed[PoolShare], pool: str, from_on: dt.date | None
) -> None:
    weights = {
        row["account"]: int(row["share"])
        for row in accounts
        if row.get("parent") == "root" and re.fullmatch(r"\d{1,9}", row.get("share", ""), re.ASCII)
    }
    whole = sum(weights.values())
    if not whole:
        parsed.problems.append(
            Problem("empty", str(file), "limits no account's gres/gpu, and none below root has a Share")
        )
        return
    parsed.rows.extend(
        PoolShare(account, pool, (Decimal(weight) / whole).quantize(_DIGITS, ROUND_DOWN), None, from_on)
        for account, weight in sorted(weights.items())
    )
