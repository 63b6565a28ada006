"""What is declared in a TOML file and applied: attribution rules, prices, budgets, and letters (`letters`).

    [[rule]]
    name = "slurm accounts"
    match = { kind = "slurm", account = "ml-*" }
    assign = { team = "{account}" }

    [[price]]
    gpu_model = "H100"
    purchase = "on_demand"
    rate_per_gpu_hour = 2.49
    currency = "USD"
    effective_from = 2026-11-01

    [[budget]]
    name = "vision"
    team = "vision"
    period = "month"
    amount = 40000
    currency = "USD"
    recipients = ["lead@example.com"]

Rules hold in the order of the file. Numbers are read as they are written, never as floats.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

from gpuledger_collector.accounting.attribution import Rule
from gpuledger_collector.accounting.bill import BillMatch
from gpuledger_collector.accounting.budgets import Budget
from gpuledger_collector.accounting.carbon import Intensity
from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.exchange import ExchangeRate
from gpuledger_collector.accounting.names import escaped, reserved_message
from gpuledger_collector.accounting.period import parse_date, parse_instant
from gpuledger_collector.accounting.pricing import Price, PurchaseChoice
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.accounting.shared_costs import SharedCost
from gpuledger_collector.accounting.tags import LEVELS
from gpuledger_collector.config import bill_matches, budgets, money, prices, scaling, shared_costs
from gpuledger_collector.config import notification_rules as notifications
from gpuledger_collector.config.table import RowReader
from gpuledger_collector.insight.scaling.pools import ScalingTerms
from gpuledger_collector.storage.notifications.delivery_rules import Rules
from gpuledger_collector.storage.notifications.finding_rules import ActionRule, Contact

RULE_KEYS = ("name", "match", "assign", "effective_from", "effective_to")
PRICE_KEYS = (*prices.REQUIRED, *prices.OPTIONAL)
BILLING_ZONE = "billing_zone"
MONEY = ("commitment", "owned", "purchase", "exchange")
TABLES = (
    *MONEY,
    BILLING_ZONE,
    "shared_cost",
    "carbon",
    "rule",
    "price",
    "budget",
    "recipient",
    "contact",
    "action",
    "bill_match",
    "pool",
)
_LINE = re.compile(r"at line (\d+), column (\d+)")
_DATED = re.compile(r"\s*([\w-]+)\s*=\s*(\d{4}-\d{1,2}-\d{1,2}(?:[Tt ]\d[\d:.]*(?:[Zz]|[+-]\d\d:\d\d)?)?)\s*(?:#.*)?$")


@dataclass
class Declared:
    """What a file declares; `rules` or `budgets` None means that it says nothing about them."""

    rules: list[Rule] | None = None
    prices: list[Price] = field(default_factory=list)
    budgets: list[Budget] | None = None
    billing_zone: str | None = None
    shared_costs: list[SharedCost] | None = None
    carbon: list[Intensity] | None = None
    bill_matches: list[BillMatch] | None = None
    recipients: dict[str, Rules] | None = None
    contacts: list[Contact] | None = None
    actions: list[ActionRule] | None = None
    commitments: list[Commitment] | None = None
    owned: list[Price] | None = None
    """The price-book entries that owned hardware leads to."""
    purchases: list[PurchaseChoice] | None = None
    exchange: list[ExchangeRate] | None = None
    pools: list[ScalingTerms] | None = None
    problems: list[Problem] = field(default_factory=list)


def read_declared(path: Path) -> Declared:
    """Rules, prices and budgets of the file, or every problem in it. Raises OSError when it cannot be opened."""
    declared = Declared()
    parsed = _parsed(path, path.read_bytes())
    if isinstance(parsed, Problem):
        declared.problems.append(parsed)
        return declared
    text, content = parsed
    for name in content:
        if name not in TABLES:
            declared.problems.append(_unknown(str(path), name, TABLES))
    if "rule" in content:
        rows = _rows(path, text, content, "rule", RULE_KEYS, declared.problems)
        made = (_rule(row, given, position) for position, (row, given) in enumerate(rows, 1))
        declared.rules = [rule for rule in made if rule is not None]
    given = _rows(path, text, content, "price", PRICE_KEYS, declared.problems)
    declared.prices = prices.read_once(row for row, _ in given)
    if "budget" in content:
        rows = _rows(path, text, content, "budget", budgets.KEYS, declared.problems)
        declared.budgets = budgets.read_budgets(rows)
    if "pool" in content:
        declared.pools = scaling.read_pools(_rows(path, text, content, "pool", scaling.KEYS, declared.problems))
    _read_notifications(path, text, content, declared)
    _read_money(path, text, content, declared)
    _read_shared(path, text, content, declared)
    return declared


def _parsed(path: Path, raw: bytes) -> tuple[str, dict[str, Any]] | Problem:
    """Text and content of a file, or why it is no TOML."""
    try:
        text = raw.decode("utf-8")
        return text, tomllib.loads(text, parse_float=str)
    except tomllib.TOMLDecodeError as error:
        place = _LINE.search(str(error))
        if place is None:
            return Problem("bad_toml", str(path), f"is not TOML: {error}")
        return _bad_date(path, text, int(place[1])) or Problem(
            "bad_toml", f"{path}:{place[1]}:{place[2]}", f"is not TOML: {error}"
        )
    except UnicodeDecodeError:
        return Problem("bad_encoding", str(path), "is not UTF-8 text")
    except (ValueError, RecursionError):
        return Problem("bad_toml", str(path), "nests too deep, or holds a number that is too long")


def _bad_date(path: Path, text: str, line: int) -> Problem | None:
    """What is wrong with a date on a line that is no TOML; None where the date is not what is wrong."""
    found = _DATED.match(text.split("\n")[line - 1])
    if found is None:
        return None
    try:
        parse_date(found[2]) if len(found[2]) == len("2026-10-31") else parse_instant(found[2])
    except ValueError as error:
        return Problem("bad_instant", f"{path}:{line}:{found[1]}", str(error))
    return None


def _read_shared(path: Path, text: str, content: Mapping[str, Any], declared: Declared) -> None:
    if BILLING_ZONE in content:
        zone = content[BILLING_ZONE]
        if isinstance(zone, str) and zone in {"UTC", *available_timezones()}:
            declared.billing_zone = zone
        else:
            message = f"{zone!r} is not the name of a zone such as Europe/Berlin"
            declared.problems.append(Problem("bad_zone", f"{path}:{BILLING_ZONE}", message))
    if "shared_cost" in content:
        rows = _rows(path, text, content, "shared_cost", shared_costs.SHARED_KEYS, declared.problems)
        declared.shared_costs = shared_costs.read_shared_costs(rows)
    if "bill_match" in content:
        rows = _rows(path, text, content, "bill_match", bill_matches.KEYS, declared.problems)
        declared.bill_matches = bill_matches.read_bill_matches(rows)
    if "carbon" in content:
        rows = _rows(path, text, content, "carbon", shared_costs.CARBON_KEYS, declared.problems)
        declared.carbon = shared_costs.read_carbon(rows)


def _read_money(path: Path, text: str, content: Mapping[str, Any], declared: Declared) -> None:
    def rows(table: str, keys: Sequence[str]) -> list[tuple[RowReader, Mapping[str, Any]]]:
        return _rows(path, text, content, table, keys, declared.problems)

    if "owned" in content:
        declared.owned = money.read_owned(rows("owned", money.OWNED_KEYS))
    if "commitment" in content:
        declared.commitments = money.read_commitments(rows("commitment", money.COMMITMENT_KEYS))
    if "purchase" in content:
        declared.purchases = money.read_purchases(rows("purchase", money.PURCHASE_KEYS))
    if "exchange" in content:
        declared.exchange = money.read_exchange(rows("exchange", money.EXCHANGE_KEYS))


def _read_notifications(path: Path, text: str, content: Mapping[str, Any], declared: Declared) -> None:
    if "recipient" in content:
        rows = _rows(path, text, content, "recipient", notifications.RECIPIENT_KEYS, declared.problems)
        declared.recipients = notifications.read_recipients(rows)
    if "contact" in content:
        rows = _rows(path, text, content, "contact", notifications.CONTACT_KEYS, declared.problems)
        declared.contacts = notifications.read_contacts(rows)
    if "action" in content:
        rows = _rows(path, text, content, "action", notifications.ACTION_KEYS, declared.problems)
        declared.actions = notifications.read_actions(rows)


def _unknown(source: str, name: str, known: Sequence[str]) -> Problem:
    near = get_close_matches(name, known, 1)
    hint = f"is it {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return Problem("unknown_key", f"{source}:{name}", f"is not known here; {hint}")


def _rows(
    path: Path, text: str, content: Mapping[str, Any], table: str, keys: Sequence[str], problems: list[Problem]
) -> list[tuple[RowReader, Mapping[str, Any]]]:
    """The tables of one name with the lines on which they begin."""
    found = content.get(table, [])
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.match(rf"\s*\[\[\s*{table}\s*\]\]", line)]
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        problems.append(Problem("bad_table", f"{path}:{table}", f"is not a list of tables: write [[{table}]]"))
        return []
    rows = []
    for at, given in enumerate(found):
        line = lines[at] if at < len(lines) else 1
        cells = {name: _text(value) for name, value in given.items() if not isinstance(value, dict | list)}
        row = RowReader(str(path), line, cells, problems)
        for name in given:
            if name not in keys:
                row.bad = True
                problems.append(_unknown(f"{path}:{line}", name, keys))
        rows.append((row, given))
    return rows


def _text(value: object) -> str:
    """A TOML scalar as the text of a cell; a datetime without a zone stays without, and is refused as an instant."""
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return str(value)


def _rule(row: RowReader, given: Mapping[str, Any], position: int) -> Rule | None:
    match, assign = _texts(row, given, "match"), _texts(row, given, "assign")
    for level in assign:
        if level not in LEVELS:
            near = get_close_matches(level, LEVELS, 1)
            hint = f"is it {near[0]!r}?" if near else f"levels are {', '.join(LEVELS)}"
            row.refuse("assign", "bad_level", f"{level!r} is no level of the owner tree; {hint}")
    for owner in assign.values():
        if escaped(owner) != owner:
            row.refuse("assign", "reserved_name", reserved_message(owner))
    if not assign and not row.bad:
        row.refuse("assign", "empty", "assigns nothing")
    starts, ends = row.instant("effective_from", dates=True), row.instant("effective_to", dates=True)
    if starts is not None and ends is not None and ends <= starts:
        row.refuse("effective_to", "order", "does not lie after effective_from")
    name = row.text("name")
    return None if row.bad else Rule(None, name, position, match, assign, starts, ends)


def _texts(row: RowReader, given: Mapping[str, Any], name: str) -> dict[str, str]:
    """A table of texts, such as { team = "vision" }."""
    found = given.get(name, {})
    if not isinstance(found, dict) or any(isinstance(value, dict | list) for value in found.values()):
        row.refuse(name, "bad_table", 'is not a table of texts, such as { team = "vision" }')
        return {}
    return {key: _text(value) for key, value in found.items()}
