"""What pools allow their capacity to be, as a TOML file declares it ([[pool]] tables of `declared`).

[[pool]]
name = "train"
min_gpus = 16
max_gpus = 96
node_gpus = 8
lead_time_s = 600              # from an order to the GPU that serves
step_up_gpus = 32
step_down_gpus = 8
cooldown_s = 900               # no less for so long after a change
stabilisation_s = 1800         # no less than the highest of so long
warm_gpus = 8                  # kept free above the demand
headroom = 0.1                 # or utilisation = 0.8: kept above the demand at least
cost_cap = 1.25                # capacity at most, as a multiple of demand, in the back-test
money_per_hour = 240           # capacity at most, by its price
currency = "USD"
predict = true                 # false: react only
mode = "advice"                # or "act": tell the webhook of each change
webhook = "capacity"
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from gpuledger_collector.config.table import RowReader
from gpuledger_collector.insight.scaling.advice import ScalingLimits
from gpuledger_collector.insight.scaling.pools import ACT, ADVICE, MODES, ScalingTerms

KEYS = (
    "name",
    "min_gpus",
    "max_gpus",
    "node_gpus",
    "lead_time_s",
    "step_up_gpus",
    "step_down_gpus",
    "cooldown_s",
    "stabilisation_s",
    "warm_gpus",
    "headroom",
    "utilisation",
    "cost_cap",
    "money_per_hour",
    "currency",
    "predict",
    "mode",
    "webhook",
)
MOST_GPUS = 1_000_000
DAY_S = 86_400
_HOOK = re.compile(r"[A-Za-z0-9_-]{1,60}")


def read_pools(rows: Iterable[tuple[RowReader, Mapping[str, Any]]]) -> list[ScalingTerms]:
    """The terms of the pools that are good; problems are noted at the others. Names are given once."""
    found: dict[str, ScalingTerms] = {}
    for row, given in rows:
        terms = _terms(row, given)
        if terms is None:
            continue
        if terms.pool in found:
            row.refuse("name", "double_name", f"{terms.pool!r} is the name of another [[pool]] of this file")
        found[terms.pool] = terms
    return list(found.values())


def _terms(row: RowReader, given: Mapping[str, Any]) -> ScalingTerms | None:
    limits = ScalingLimits(
        floor_gpus=_gpus(row, "min_gpus") or 0.0,
        ceiling_gpus=_gpus(row, "max_gpus"),
        node_gpus=_gpus(row, "node_gpus", least="0.01") or 1.0,
        cost_cap=float(_number(row, "cost_cap", "1", "10") or Decimal("1.25")),
        step_up_gpus=_gpus(row, "step_up_gpus", least="0.01"),
        step_down_gpus=_gpus(row, "step_down_gpus", least="0.01"),
        cooldown_ms=1000 * _seconds(row, "cooldown_s", 0),
        stabilise_ms=1000 * _seconds(row, "stabilisation_s", 0),
        warm_gpus=_gpus(row, "warm_gpus") or 0.0,
        headroom=_headroom(row),
        predict=_flag(row, given, "predict"),
    )
    name = row.name("name", required=True)
    mode, money = row.text("mode") or ADVICE, _number(row, "money_per_hour", "0.000001", "1e9")
    currency, webhook = row.currency("currency", required=False), row.text("webhook")
    lead_s = _seconds(row, "lead_time_s", 600, least=1)
    if limits.ceiling_gpus is not None and limits.ceiling_gpus < limits.floor_gpus:
        row.refuse("max_gpus", "order", "is less than min_gpus")
    if mode not in MODES:
        row.refuse("mode", "bad_mode", f"{mode!r} is not one of {', '.join(MODES)}")
    if (money is None) == bool(currency):
        row.refuse("currency", "bad_currency", "belongs to money_per_hour, and is an ISO 4217 code such as USD")
    if webhook and not _HOOK.fullmatch(webhook):
        row.refuse("webhook", "bad_hook", f"{webhook!r} is no name of a hook of the hooks_file")
    if mode == ACT:
        _may_act(row)
    return None if row.bad else ScalingTerms(name, limits, 1000 * lead_s, mode, money, currency, webhook)


def _may_act(row: RowReader) -> None:
    """Acting takes a floor, a ceiling and a money limit."""
    for column in ("min_gpus", "max_gpus", "money_per_hour"):
        if not row.text(column):
            row.refuse(column, "empty", 'is asked for where mode = "act": a floor, a ceiling and a money limit')


def _number(row: RowReader, column: str, least: str, most: str) -> Decimal | None:
    number = row.decimal(column, digits=6, most=int(Decimal(most)))
    if number is not None and number < Decimal(least):
        row.refuse(column, "out_of_range", f"{number} is less than {least}")
        return None
    return number


def _gpus(row: RowReader, column: str, least: str = "0") -> float | None:
    number = _number(row, column, least, str(MOST_GPUS))
    return None if number is None else float(number)


def _seconds(row: RowReader, column: str, otherwise: int, least: int = 0) -> int:
    text = row.text(column)
    if not text:
        return otherwise
    if not text.isdecimal() or not least <= int(text) <= DAY_S:
        row.refuse(column, "out_of_range", f"{text!r} is not a whole number of seconds from {least} to {DAY_S}")
        return otherwise
    return int(text)


def _headroom(row: RowReader) -> float:
    """Part of the demand kept above it; a target utilisation u says the same as a headroom of 1/u - 1."""
    headroom = _number(row, "headroom", "0", "10")
    utilisation = _number(row, "utilisation", "0.05", "1")
    if headroom is not None and utilisation is not None:
        row.refuse("utilisation", "twice", "and headroom say the same thing: give one of them")
    if utilisation is not None:
        return float(1 / utilisation - 1)
    return float(headroom or 0)


def _flag(row: RowReader, given: Mapping[str, Any], column: str) -> bool:
    value = given.get(column, True)
    if not isinstance(value, bool):
        row.refuse(column, "bad_flag", "is not true or false")
        return True
    return value
