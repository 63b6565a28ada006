"""What FOCUS 1.3 and later want of split cost allocation: the Allocated columns of a row, and whole
origin charges.

Source: the columns AllocatedMethodId, AllocatedMethodDetails, AllocatedResourceId,
AllocatedResourceName and AllocatedTags, and the attribute of data generator-calculated split cost
allocation (FinOps Foundation).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

Row = Mapping[str, str]
Told = tuple[str, str, str]
"""Rule, column, sentence."""
_CUSTOM = re.compile(r"x_[A-Z][A-Za-z0-9]*")
_KEYS = {"AllocatedRatio", "UsageUnit", "UsageQuantity"}
ORIGIN = (
    "ResourceId",
    "SkuPriceId",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "BillingPeriodStart",
    "AllocatedMethodId",
)
"""What allocated charges of one origin have in common."""
SAME = (
    "ListUnitPrice",
    "ContractedUnitPrice",
    "PricingUnit",
    "ConsumedUnit",
    "BillingCurrency",
    "Tags",
    "RegionId",
)
"""Dimensions and prices that an allocated charge has from its origin."""


def row_rules(row: Row) -> Iterator[Told]:
    """What one row breaks by itself."""
    method = row.get("AllocatedMethodId", "")
    for name in ("AllocatedMethodDetails", "AllocatedResourceId", "AllocatedTags"):
        if row.get(name, "") and not method:
            yield (
                "null",
                name,
                f"{name} has a value, and without AllocatedMethodId the charge is not a split one",
            )
    if method and "AllocatedMethodDetails" in row and not row["AllocatedMethodDetails"]:
        yield "null", "AllocatedMethodDetails", "a split charge does not say how it was split"
    if bool(row.get("AllocatedResourceId", "")) != bool(row.get("AllocatedResourceName", "")):
        empty = (
            "AllocatedResourceName" if row.get("AllocatedResourceId", "") else "AllocatedResourceId"
        )
        yield (
            "null",
            empty,
            "AllocatedResourceId and AllocatedResourceName have a value together or not at all",
        )
    yield from _details(row.get("AllocatedMethodDetails", ""))
    yield from _tags(row)


def ratio_of(row: Row) -> Decimal | None:
    """The part of its origin that a row has: its elements' ratios added up; None where that cannot
    be read.
    """
    try:
        elements = _load_json(row.get("AllocatedMethodDetails", ""))["Elements"]
        ratio = sum((element["AllocatedRatio"] for element in elements), Decimal(0))
    except (ValueError, KeyError, TypeError, ArithmeticError):
        return None
    # What is no ratio at all is said of its row, and would overflow a sum.
    return ratio if abs(ratio) <= len(elements) else None


def units_of(row: Row) -> list[str]:
    """The units of a row's elements, as far as they can be read."""
    try:
        elements = _load_json(row.get("AllocatedMethodDetails", ""))["Elements"]
        return [
            element["UsageUnit"]
            for element in elements
            if isinstance(element.get("UsageUnit"), str)
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _load_json(text: str) -> Any:
    # Decimals: ratios read as floats would not add up to 1.
    return load_object(text, parse_float=Decimal, parse_int=Decimal)


def load_object(text: str, **options: Any) -> Any:
    """The value of a JSON text. Raises ValueError, also for what nests too deep."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("nests too deep") from None
    except ArithmeticError:
        raise ValueError("holds a number that is too long") from None


def _details(text: str) -> Iterator[Told]:
    column = "AllocatedMethodDetails"
    if not text:
        return
    try:
        content = _load_json(text)
    except ValueError:
        yield "json", column, f"{column} is no JSON object"
        return
    elements = content.get("Elements") if isinstance(content, dict) else None
    if (
        not isinstance(elements, list)
        or not elements
        or not all(isinstance(element, dict) for element in elements)
    ):
        yield "json", column, f"{column} has no list of Elements"
        return
    yield from _own(content, {"Elements"}, column)
    for element in elements:
        yield from _own(element, _KEYS, column)
        yield from _element(element, column)


def _own(content: Mapping[str, Any], known: set[str], column: str) -> Iterator[Told]:
    for name in content:
        if name not in known and not _CUSTOM.fullmatch(name):
            yield "json", column, f"{column} has the key {name!r}; one's own begin with x_"


def _element(element: Mapping[str, Any], column: str) -> Iterator[Told]:
    ratio = element.get("AllocatedRatio")
    if not isinstance(ratio, Decimal) or not 0 <= ratio <= 1:
        yield "ratio", column, "AllocatedRatio is no number from 0 to 1"
    quantity = element.get("UsageQuantity")
    if quantity is not None and not isinstance(quantity, Decimal):
        yield "ratio", column, "UsageQuantity is no number"
    if quantity is not None and not element.get("UsageUnit"):
        yield "ratio", column, "UsageQuantity has no UsageUnit"


def _tags(row: Row) -> Iterator[Told]:
    column = "AllocatedTags"
    text = row.get(column, "")
    if not text:
        return
    try:
        allocated, tags = load_object(text), load_object(row.get("Tags", "") or "{}")
    except ValueError:
        allocated, tags = None, {}
    if not isinstance(allocated, dict):
        yield "json", column, f"{column} is no JSON object"
        return
    if any(isinstance(value, dict | list) for value in allocated.values()):
        yield "json", column, f"{column} is nested: FOCUS wants one level of keys and values"
    # FOCUS: AllocatedTags must not repeat keys of Tags.
    both = sorted(set(allocated) & set(tags)) if isinstance(tags, dict) else []
    if both:
        yield "twice", column, f"the tag {both[0]!r} stands in Tags already"


class Origins:
    """The allocated charges of a file by the origin that they are parts of."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], tuple[int, Decimal, Row]] = {}

    @property
    def count(self) -> int:
        """How many origins are known."""
        return len(self._sums)

    def add(self, line: int, row: Row) -> Iterator[Told]:
        """Add a row and report each price or dimension that differs from its origin's."""
        ratio = ratio_of(row) if row.get("AllocatedMethodId", "") else None
        if ratio is None:
            return
        key = tuple(row.get(name, "") for name in ORIGIN)
        known = self._sums.get(key)
        if known is None:
            self._sums[key] = (line, ratio, {name: row.get(name, "") for name in SAME})
            return
        self._sums[key] = (line, known[1] + ratio, known[2])
        for name in SAME:
            if row.get(name, "") != known[2][name]:
                yield (
                    "differs",
                    name,
                    f"{name} {row.get(name, '')!r} is not its origin charge's, {known[2][name]!r}",
                )

    def end(self) -> Iterator[tuple[int, Told]]:
        """Origins whose parts are not the whole, with the line of the last part."""
        for key, (line, total, _) in self._sums.items():
            if total != 1:
                sentence = (
                    f"the parts of {key[0]} from {key[2]} on add up to {total} of their origin"
                    " charge, not to 1"
                )
                yield line, ("split", "AllocatedMethodDetails", sentence)
