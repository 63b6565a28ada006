"""Checks a file of charges in FOCUS 1.2 or 1.4, row by row and as a whole, harder than the public
validator does.

Sources: the FOCUS 1.2 column definitions, date/time, numeric and unit formats (FinOps Foundation),
and what a bill must satisfy in addition: cost = price x quantity, whole cents per invoice, no
resource used for longer than there was time. Everything is exact (Decimal); a file is read once, in
one pass, line by line.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal, localcontext

from gpuledger_collector.accounting.currencies import was_currency
from gpuledger_collector.accounting.money import minor_digits
from gpuledger_collector.config import files
from gpuledger_collector.config.bounded_csv import BoundedRows
from gpuledger_collector.export import focus_check_split
from gpuledger_collector.export.cells import names

NOT_NULL = names("""
    BilledCost BillingAccountId BillingCurrency BillingPeriodEnd BillingPeriodStart ChargeCategory ChargePeriodEnd
    ChargePeriodStart ContractedCost EffectiveCost InvoiceIssuerName ListCost ProviderName PublisherName
    ServiceCategory ServiceName
    """)
"""Columns of FOCUS 1.2 that must be there and have a value in every row."""
PRESENT = (
    *NOT_NULL,
    "BillingAccountName",
    "ChargeClass",
    "ChargeDescription",
    "PricingQuantity",
    "PricingUnit",
)
"""Columns that must be there."""
KNOWN = frozenset(PRESENT) | {
    *names("""
        AvailabilityZone BillingAccountType CapacityReservationId CapacityReservationStatus ChargeFrequency
        CommitmentDiscountCategory CommitmentDiscountId CommitmentDiscountName CommitmentDiscountQuantity
        CommitmentDiscountStatus CommitmentDiscountType CommitmentDiscountUnit ConsumedQuantity ConsumedUnit
        ContractedUnitPrice InvoiceId ListUnitPrice PricingCategory PricingCurrency
        PricingCurrencyContractedUnitPrice PricingCurrencyEffectiveCost PricingCurrencyListUnitPrice RegionId
        RegionName ResourceId ResourceName ResourceType ServiceSubcategory SkuId SkuMeter SkuPriceDetails SkuPriceId
        SubAccountId SubAccountName SubAccountType Tags
        """)
}
ALLOCATED = names("""
    AllocatedMethodDetails AllocatedMethodId AllocatedResourceId AllocatedResourceName AllocatedTags
    """)
NUMBERS = names("""
    BilledCost CommitmentDiscountQuantity ConsumedQuantity ContractedCost ContractedUnitPrice EffectiveCost ListCost
    ListUnitPrice PricingQuantity PricingCurrencyContractedUnitPrice PricingCurrencyEffectiveCost
    PricingCurrencyListUnitPrice
    """)
PRICES = (
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyListUnitPrice",
)
INSTANTS = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
CURRENCIES = ("BillingCurrency", "PricingCurrency")
UNITS = ("ConsumedUnit", "PricingUnit", "CommitmentDiscountUnit")
OBJECTS = ("Tags", "SkuPriceDetails")
ALLOWED: Mapping[str, frozenset[str]] = {
    "ChargeCategory": frozenset(("Usage", "Purchase", "Tax", "Credit", "Adjustment")),
    "ChargeClass": frozenset(("", "Correction")),
    "ChargeFrequency": frozenset(("One-Time", "Recurring", "Usage-Based")),
    "PricingCategory": frozenset(("", "Standard", "Dynamic", "Committed", "Other")),
    "CommitmentDiscountCategory": frozenset(("", "Spend", "Usage")),
    "CommitmentDiscountStatus": frozenset(("", "Used", "Unused")),
    "CapacityReservationStatus": frozenset(("", "Used", "Unused")),
    "ServiceCategory": frozenset(
        names(
            """
            AI and Machine Learning, Analytics, Business Applications, Compute, Databases, Developer Tools,
            Multicloud, Identity, Integration, Internet of Things, Management and Governance, Media,
            Migration, Mobile, Networking, Security, Storage, Web, Other
            """,
            separator=",",
        )
    ),
}
PAIRS = (
    ("ConsumedQuantity", "ConsumedUnit"),
    ("PricingQuantity", "PricingUnit"),
    ("SubAccountId", "SubAccountName"),
    ("CommitmentDiscountQuantity", "CommitmentDiscountUnit"),
)
"""Columns that are null together."""
LEADERS = (
    ("ResourceName", "ResourceId"),
    ("ResourceType", "ResourceId"),
    ("SkuPriceId", "SkuId"),
    ("SkuMeter", "SkuId"),
    ("RegionName", "RegionId"),
    ("SubAccountType", "SubAccountId"),
    ("CommitmentDiscountStatus", "CommitmentDiscountId"),
    ("CapacityReservationStatus", "CapacityReservationId"),
)
"""A column that is null when the one that it is about is."""
_NUMBER = re.compile(r"-?\d{1,40}(\.\d{1,40})?([eE]-?\d{1,2})?")
"""No bill has numbers that are longer, and arithmetic with those may have no end."""
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_TIME = "Seconds|Minutes|Hours|Days|Months|Years"
_WORD = r"[A-Z][A-Za-z0-9]*(?: [A-Z][A-Za-z0-9]*)*"
_UNIT = re.compile(
    rf"(?:\d+ )?{_WORD}|(?:\d+ )?{_WORD}-(?:{_TIME})|(?:\d+"
    rf" )?{_WORD}/(?:Second|Minute|Hour|Day|Month|Year)"
)
_FORMULA = re.compile(r"[=+@\t\r]|-(?!\d)")
HALF_NANO_HOUR_S = Decimal("0.0000018")
"""GPU-hours written to nine places may differ by half a billionth of an hour from the seconds in
the same row.
"""
MOST_DIGITS = 200
"""Of the longest number, written without an exponent."""
MAX_SENTENCE = 1_000
"""Characters of the sentence about a violation."""
GROUP_BYTES, USE_BYTES = 1_000, 300
"""What remembering one takes beside its texts, and what one use of a resource takes."""
PLACES = 60
"""Digits that products are formed with: no price or quantity of a bill has as many."""

Row = Mapping[str, str]
REMEMBERED = (
    *INSTANTS,
    "BillingCurrency",
    "ContractedUnitPrice",
    "InvoiceId",
    "ListUnitPrice",
    "ResourceId",
    "SkuId",
    "SkuPriceId",
    *focus_check_split.ORIGIN,
    *focus_check_split.SAME,
)
"""Columns whose texts are compared over rows."""


@dataclass(frozen=True, slots=True)
class FocusRules:
    """What a version of FOCUS wants of the columns; `provider` is the one that names who offers the
    service.

    `paid` are those who may send the invoice.
    """

    name: str
    not_null: tuple[str, ...]
    present: tuple[str, ...]
    known: frozenset[str]
    provider: str
    paid: tuple[str, ...]
    splits: bool


_OLD_NAMES = frozenset(("ProviderName", "PublisherName"))
_NEW_NAMES = ("HostProviderName", "ServiceProviderName")


def _rename_columns(names: tuple[str, ...]) -> tuple[str, ...]:
    return (*(name for name in names if name not in _OLD_NAMES), *_NEW_NAMES)


VERSIONS: Mapping[str, FocusRules] = {
    "1.2": FocusRules(
        name="1.2",
        not_null=NOT_NULL,
        present=PRESENT,
        known=KNOWN,
        provider="ProviderName",
        paid=("ProviderName",),
        splits=False,
    ),
    "1.4": FocusRules(
        name="1.4",
        not_null=_rename_columns(NOT_NULL),
        present=_rename_columns(PRESENT),
        known=frozenset(
            (
                *(KNOWN - _OLD_NAMES),
                *_NEW_NAMES,
                *ALLOCATED,
                "CommitmentProgramEligibilityDetails",
                "ContractApplied",
                "InvoiceDetailId",
            )
        ),
        provider="ServiceProviderName",
        paid=_NEW_NAMES,
        splits=True,
    ),
}


def version_of(header: Sequence[str]) -> FocusRules:
    """The version of FOCUS that a header has: 1.3 named the service provider, and only 1.2 needs no
    such column.
    """
    return VERSIONS[
        "1.4" if "ServiceProviderName" in header or set(ALLOCATED) & set(header) else "1.2"
    ]


class NotFocus(Exception):
    """The file is no CSV of FOCUS rows at all; the sentence says where that shows."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What a line breaks: `rule` is a short name, `column` the cell that shows it (empty: the whole
    file).
    """

    line: int
    rule: str
    column: str
    sentence: str


@dataclass(slots=True)
class _Group:
    """What is known of an invoice, a rate or a resource so far."""

    line: int
    total: Decimal = Decimal(0)
    seen: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Resource:
    line: int
    used: list[tuple[int, int, Decimal]] = field(default_factory=list)


def check(lines: Iterable[str], wanted: str | None = None) -> Iterator[Violation]:
    """Every violation of a file's lines (opened with newline=""), those of rows first.

    Raises NotFocus.

    `wanted` is the version to check against (a key of VERSIONS); None: the one of the header.
    """
    for violation in _violations(lines, wanted):
        sentence = violation.sentence
        # A cell that it quotes may be as long as a row.
        yield (
            violation
            if len(sentence) <= MAX_SENTENCE
            else replace(violation, sentence=f"{sentence[:MAX_SENTENCE]}...")
        )


def _violations(lines: Iterable[str], wanted: str | None) -> Iterator[Violation]:
    reader = BoundedRows(lines, strict=True)
    try:
        header = next(reader, None)
        if not header:
            raise NotFocus("the file is empty")
        if len(header) > files.MAX_COLUMNS:
            raise NotFocus(
                f"the header names {len(header)} columns; at most {files.MAX_COLUMNS} are read"
            )
        # Reported and then removed: one mark must not hide every other violation.
        if header[0].startswith("\ufeff"):
            yield Violation(1, "encoding", header[0], "the file begins with a byte order mark")
            header[0] = header[0].removeprefix("\ufeff")
        version = version_of(header) if wanted is None else VERSIONS[wanted]
        yield from _header(header, version)
        whole = _Whole(version)
        for number, cells in enumerate(reader, 1):
            line = reader.line_num
            if number > files.MAX_RECORDS:
                raise NotFocus(f"more than {files.MAX_RECORDS} rows; split it")
            if len(cells) != len(header):
                yield Violation(
                    line, "cells", "", f"the row has {len(cells)} cells, the header {len(header)}"
                )
                continue
            row = dict(zip(header, cells, strict=True))
            violations = list(_row(line, row, version))
            yield from violations
            # What a row breaks by itself is not counted again in the sums over rows.
            broken = {violation.column for violation in violations}
            yield from whole.add(line, row, broken)
        yield from whole.end()
    except csv.Error as error:
        raise NotFocus(f"line {reader.line_num}: {error}") from error
    except UnicodeDecodeError as error:
        raise NotFocus(f"after line {reader.line_num}: not UTF-8 ({error.reason})") from error


def _header(header: Sequence[str], version: FocusRules) -> Iterator[Violation]:
    for name in version.present:
        if name not in header:
            yield Violation(1, "column missing", name, f"FOCUS wants a column {name}")
    for name in sorted(name for name, count in Counter(header).items() if count > 1):
        yield Violation(1, "column twice", name, f"the column {name} is there twice")
    custom = False
    for name in header:
        if name.startswith("x_"):
            custom = True
        elif name not in version.known:
            sentence = f"{name!r} is no column of FOCUS {version.name}; one's own begin with x_"
            yield Violation(1, "column unknown", name, sentence)
        elif custom:
            yield Violation(
                1, "column order", name, f"{name} stands behind columns of one's own (x_)"
            )


def _row(line: int, row: Row, version: FocusRules) -> Iterator[Violation]:
    yield from _nulls(line, row, version)
    yield from _formats(line, row)
    yield from _periods(line, row)
    yield from _costs(line, row, version)
    if version.splits:
        yield from (Violation(line, *sentence) for sentence in focus_check_split.row_rules(row))
        for unit in focus_check_split.units_of(row):
            if not _UNIT.fullmatch(unit):
                sentence = f"UsageUnit {unit!r} has none of FOCUS's forms, such as GPU-Seconds"
                yield Violation(line, "unit", "AllocatedMethodDetails", sentence)


def _nulls(line: int, row: Row, version: FocusRules) -> Iterator[Violation]:
    for name in version.not_null:
        if name in row and not row[name]:
            yield Violation(line, "null", name, f"{name} has no value")
    for name, other in PAIRS:
        if bool(row.get(name, "")) != bool(row.get(other, "")):
            empty = other if row.get(name, "") else name
            yield Violation(
                line, "null", empty, f"{name} and {other} have a value together or not at all"
            )
    for name, leader in LEADERS:
        if row.get(name, "") and leader in row and not row[leader]:
            yield Violation(line, "null", name, f"{name} has a value, {leader} has none")
    usage = row.get("ChargeCategory") == "Usage"
    # A correction may change the cost alone, so FOCUS lets it be without a quantity.
    if (
        usage
        and row.get("ChargeClass", "") == ""
        and row.get("PricingQuantity") == row.get("PricingUnit") == ""
    ):
        yield Violation(line, "null", "PricingQuantity", "a Usage row has no PricingQuantity")
    if not usage and row.get("ConsumedQuantity", ""):
        category = row.get("ChargeCategory", "")
        yield Violation(
            line,
            "null",
            "ConsumedQuantity",
            f"ConsumedQuantity is for Usage, and this is {category!r}",
        )


def _formats(line: int, row: Row) -> Iterator[Violation]:
    for name in NUMBERS:
        text = row.get(name, "")
        if text and not _NUMBER.fullmatch(text):
            yield Violation(line, "number", name, f"{name} {text!r} is no plain decimal number")
        elif text and name in PRICES and Decimal(text) < 0:
            yield Violation(line, "number", name, f"{name} {text} is negative")
    for name in (name for name in INSTANTS if row.get(name) and _instant(row[name]) is None):
        yield Violation(
            line,
            "instant",
            name,
            f"{name} {row[name]!r} is no instant in UTC (YYYY-MM-DDTHH:MM:SSZ)",
        )
    for name in (name for name in CURRENCIES if row.get(name) and not was_currency(row[name])):
        yield Violation(line, "currency", name, f"{name} {row[name]!r} is no currency of ISO 4217")
    for name in (name for name in UNITS if row.get(name) and not _UNIT.fullmatch(row[name])):
        yield Violation(
            line, "unit", name, f"{name} {row[name]!r} has none of FOCUS's forms, such as GPU-Hours"
        )
    yield from _texts(line, row)


def _texts(line: int, row: Row) -> Iterator[Violation]:
    """Check the allowed words, the JSON objects and what a spreadsheet would take for a formula."""
    for name, allowed in ALLOWED.items():
        text = row.get(name, "")
        if name in row and text not in allowed and (text or name in NOT_NULL):
            yield Violation(
                line,
                "allowed",
                name,
                f"{name} {text!r} is none of {', '.join(sorted(allowed - {''}))}",
            )
    for name in OBJECTS:
        yield from _object(line, name, row.get(name, ""))
    for name, text in row.items():
        if name not in NUMBERS and not name.startswith("x_") and _FORMULA.match(text):
            yield Violation(
                line,
                "formula",
                name,
                f"{name} {text[:30]!r} would be run by a spreadsheet as a formula",
            )


def _object(line: int, name: str, text: str) -> Iterator[Violation]:
    if not text:
        return
    try:
        content = focus_check_split.load_object(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        yield Violation(line, "json", name, f"{name} is no JSON object")
    elif any(isinstance(value, dict | list) for value in content.values()):
        yield Violation(
            line, "json", name, f"{name} is nested: FOCUS wants one level of keys and values"
        )


def _instant(text: str) -> int | None:
    """Unix seconds; None for what is no instant in UTC, or one that the calendar does not know."""
    if not _INSTANT.fullmatch(text):
        return None
    try:
        return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def _number(row: Row, name: str) -> Decimal | None:
    text = row.get(name, "")
    return Decimal(text) if text and _NUMBER.fullmatch(text) else None


def _periods(line: int, row: Row) -> Iterator[Violation]:
    start, end, billed_from, billed_to = (
        _instant(row.get(name, ""))
        for name in (
            "ChargePeriodStart",
            "ChargePeriodEnd",
            "BillingPeriodStart",
            "BillingPeriodEnd",
        )
    )
    if start is not None and end is not None and end <= start:
        yield Violation(
            line,
            "period",
            "ChargePeriodEnd",
            "the charge period ends before it begins, or as it does",
        )
    if billed_from is not None and billed_to is not None and billed_to <= billed_from:
        yield Violation(
            line,
            "period",
            "BillingPeriodEnd",
            "the billing period ends before it begins, or as it does",
        )
    # A correction lies outside its billing period by nature.
    if None in (start, end, billed_from, billed_to) or row.get("ChargeClass", "") == "Correction":
        return
    assert start is not None
    assert end is not None
    assert billed_from is not None
    assert billed_to is not None
    if start < billed_from or end > billed_to:
        yield Violation(
            line,
            "period",
            "ChargePeriodStart",
            "the charge period lies outside of its billing period",
        )


def _costs(line: int, row: Row, version: FocusRules) -> Iterator[Violation]:
    quantity = _number(row, "PricingQuantity")
    # The default precision of 28 digits would round products of 18 places, and call exact rows
    # wrong.
    with localcontext(prec=PLACES):
        for cost_name, price_name in (
            ("ListCost", "ListUnitPrice"),
            ("ContractedCost", "ContractedUnitPrice"),
        ):
            cost, price = _number(row, cost_name), _number(row, price_name)
            if (
                quantity is not None
                and cost is not None
                and price is not None
                and cost != price * quantity
            ):
                sentence = (
                    f"{cost_name} {cost} is not {price_name} {price} x PricingQuantity {quantity}"
                )
                yield Violation(line, "cost", cost_name, sentence)
        consumed = _number(row, "ConsumedQuantity")
        seconds = (row.get("ConsumedUnit"), row.get("PricingUnit")) == ("GPU-Seconds", "GPU-Hours")
        if seconds and consumed is not None and quantity is not None:
            if abs(consumed - quantity * 3600) > HALF_NANO_HOUR_S:
                sentence = f"{consumed} GPU-seconds are not {quantity} GPU-hours"
                yield Violation(line, "quantity", "ConsumedQuantity", sentence)
            did = [
                value
                for name in ("x_BusyGpuSeconds", "x_HeldIdleGpuSeconds")
                if (value := _number(row, name)) is not None
            ]
            # Absolute values: the rows of a correction may be negative.
            if abs(sum(did, Decimal(0))) > abs(consumed) + HALF_NANO_HOUR_S:
                sentence = "busy and idle seconds are more than were consumed"
                yield Violation(line, "quantity", "x_BusyGpuSeconds", sentence)
    billed = _number(row, "BilledCost")
    # On a marketplace, 1.3 and later name the seller as service provider and the marketplace as its
    # host.
    if billed and row.get("InvoiceIssuerName") not in {row.get(name) for name in version.paid}:
        sentence = f"InvoiceIssuerName is not {version.provider}, and then BilledCost is 0"
        yield Violation(line, "cost", "BilledCost", sentence)
    if row.get("CommitmentDiscountId", ""):
        yield from _commitment(line, row, billed)


def _commitment(line: int, row: Row, billed: Decimal | None) -> Iterator[Violation]:
    """A commitment is paid for once, by its purchase, and borne once, by what it covers or leaves
    unused.
    """
    if row.get("ChargeCategory") == "Purchase" and _number(row, "EffectiveCost"):
        yield Violation(
            line,
            "commitment",
            "EffectiveCost",
            "what a commitment costs is borne by its usage, not here",
        )
    if row.get("ChargeCategory") == "Usage" and row.get("CommitmentDiscountStatus") and billed:
        yield Violation(
            line, "commitment", "BilledCost", "a commitment's usage was paid for by its purchase"
        )


class _Whole:
    """What only shows when rows are put side by side: invoices, rates, and time that resources were
    used.
    """

    def __init__(self, version: FocusRules) -> None:
        self._version = version
        self._remembered = 0
        self._origins = focus_check_split.Origins()
        self._invoices: dict[str, _Group] = {}
        self._rates: dict[tuple[str, str], _Group] = {}
        self._resources: dict[str, _Resource] = {}

    def add(self, line: int, row: Row, broken: set[str]) -> Iterator[Violation]:
        """One more row; `broken` are the columns of it that cannot be trusted.

        Raises NotFocus where there is too much to remember.
        """
        if self._version.splits:
            known = self._origins.count
            yield from (Violation(line, *sentence) for sentence in self._origins.add(line, row))
            if self._origins.count > known:
                self._remember(row)
        billed = _number(row, "BilledCost")
        if (name := row.get("InvoiceId", "")) and billed is not None:
            if name not in self._invoices:
                self._remember(row)
            invoice = self._invoices.setdefault(name, _Group(line))
            invoice.total += billed
            invoice.line = line
            yield from _same(
                line,
                invoice,
                row,
                ("BillingCurrency", "BillingPeriodStart", "BillingPeriodEnd"),
                name,
            )
        if (price := row.get("SkuPriceId", "")) and row.get("ChargeCategory") == "Usage":
            key = (price, row.get("BillingCurrency", ""))
            if key not in self._rates:
                self._remember(row)
            rate = self._rates.setdefault(key, _Group(line))
            yield from _same(
                line, rate, row, ("ContractedUnitPrice", "ListUnitPrice", "SkuId"), price
            )
        start, end = (
            _instant(row.get("ChargePeriodStart", "")),
            _instant(row.get("ChargePeriodEnd", "")),
        )
        consumed = _number(row, "ConsumedQuantity")
        if (
            row.get("ResourceType") in {"GPU", "MIG"}
            and row.get("ChargeClass", "") == ""
            and not broken & {"ChargePeriodStart", "ChargePeriodEnd", "ConsumedQuantity"}
            and row.get("ConsumedUnit") == "GPU-Seconds"
            and consumed is not None
            and start is not None
            and end is not None
        ):
            is_known = row["ResourceId"] in self._resources
            self._remember(row, USE_BYTES if is_known else GROUP_BYTES)
            self._resources.setdefault(row["ResourceId"], _Resource(line)).used.append(
                (start, end, consumed)
            )

    def _remember(self, row: Row, size: int = GROUP_BYTES) -> None:
        """Count what is kept of a row: one use of a resource, or all that a group is compared by."""
        texts = 0 if size == USE_BYTES else sum(len(row.get(name, "")) for name in REMEMBERED)
        self._remembered += size + 4 * texts
        if self._remembered > files.MAX_REMEMBERED_BYTES:
            raise NotFocus(
                "more invoices, prices and resources than can be compared with each other; split it"
            )

    def end(self) -> Iterator[Violation]:
        """What the sums say."""
        yield from (Violation(line, *sentence) for line, sentence in self._origins.end())
        for name, invoice in self._invoices.items():
            digits = minor_digits(invoice.seen["BillingCurrency"])
            with localcontext(prec=MOST_DIGITS):
                is_whole = invoice.total == round(invoice.total, digits)
            if not is_whole:
                sentence = (
                    f"invoice {name} adds up to {invoice.total}, which is no whole number of minor"
                    " units"
                )
                yield Violation(invoice.line, "invoice", "BilledCost", sentence)
        for uuid, resource in self._resources.items():
            for start, used, there in _clusters(resource.used):
                if used > there:
                    at = datetime.fromtimestamp(start, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                    sentence = f"{uuid} was used for {used} s in the {there} s from {at} on"
                    yield Violation(resource.line, "overlap", "ResourceId", sentence)


def _same(
    line: int, group: _Group, row: Row, names: Iterable[str], key: str
) -> Iterator[Violation]:
    """What must not differ between the rows of a group."""
    for name in names:
        text = row.get(name, "")
        known = group.seen.setdefault(name, text)
        if text != known:
            yield Violation(
                line, "differs", name, f"{name} {text!r} of {key!r} is {known!r} in an earlier row"
            )


def _clusters(used: Sequence[tuple[int, int, Decimal]]) -> Iterator[tuple[int, Decimal, int]]:
    """(start, consumed seconds, length) of each usage interval of charge periods that overlap or
    abut.
    """
    sums: dict[int, Decimal] = defaultdict(Decimal)
    begun: int | None = None
    until = 0
    for start, end, consumed in sorted(used):
        if begun is None or start >= until:
            if begun is not None:
                yield begun, sums[begun], until - begun
            begun, until = start, end
        sums[begun] += consumed
        until = max(until, end)
    if begun is not None:
        yield begun, sums[begun], until - begun
