"""FOCUS 1.2: charges as the FinOps Foundation's billing rows.

A charge becomes one Usage row whose cost is price x quantity, unrounded, as FOCUS wants it.
EffectiveCost is what is borne and BilledCost what is paid (docs/decisions/0023-cash-view.md): time
that a commitment covers has its amortized cost and nothing billed, what it left unused is a row of
status Unused with nothing consumed, and the payments are Purchase rows with no effective cost.
Finance wants cents, so each invoice (month, owner, currency, provider) ends with one Adjustment row
that brings its rows to the cents booked. The cents of a month are split over its invoices by
largest remainder: their EffectiveCost adds up to the chargeback of that month, their BilledCost to
its cash view. What an invoice pays of shared costs is an Adjustment row for each of them, negative
where a cost was moved away (docs/decisions/0013-shared-costs.md): those of a moved cost add up to
zero, and nobody is paid by them. A share of a node (docs/decisions/0028-node-costs.md) is a Usage
row of node-hours. Quantities are written to nine places of a GPU-hour, prices to nine, costs to
eighteen: exact products, no floats.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import TextIO

from gpuledger_collector.accounting.adjustments import CREDIT, TRUE_UP, Adjustment
from gpuledger_collector.accounting.cash import (
    PURCHASE,
    Hardware,
    Purchase,
    depreciation_nano,
    paid_micro,
)
from gpuledger_collector.accounting.chargeback import WASTED_STATES, SharedPart
from gpuledger_collector.accounting.closing import billed_to, is_paid
from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.inference import CLAIM
from gpuledger_collector.accounting.inference_share import InferenceShare
from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.locations import NOWHERE, Locations, PoolLocation
from gpuledger_collector.accounting.money import (
    minor_unit,
    rate_nano,
    round_months,
    to_minor_units,
)
from gpuledger_collector.accounting.node_costs import NODE_COST, NodeCost
from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath
from gpuledger_collector.accounting.period import (
    UTC_DAYS,
    Calendar,
    Period,
    format_date,
    format_instant,
)
from gpuledger_collector.accounting.providers import ProviderNames
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR, round_half_even_div
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.shared_costs import AMOUNT
from gpuledger_collector.accounting.statement import split_minor
from gpuledger_collector.accounting.usage import HELD, STRANDED
from gpuledger_collector.export.cells import names, neutral
from gpuledger_common.escapes import escape_cells

COLUMNS = names("""
    BilledCost BillingAccountId BillingAccountName BillingAccountType BillingCurrency BillingPeriodStart
    BillingPeriodEnd ChargeCategory ChargeClass ChargeDescription ChargeFrequency ChargePeriodStart ChargePeriodEnd
    ConsumedQuantity ConsumedUnit ContractedCost ContractedUnitPrice EffectiveCost InvoiceId InvoiceIssuerName
    ListCost ListUnitPrice PricingCategory PricingQuantity PricingUnit ProviderName PublisherName RegionId
    RegionName AvailabilityZone ResourceId ResourceName ResourceType ServiceCategory ServiceName ServiceSubcategory
    SkuId SkuMeter SkuPriceId SkuPriceDetails SubAccountId SubAccountName SubAccountType Tags PricingCurrency
    PricingCurrencyContractedUnitPrice PricingCurrencyEffectiveCost PricingCurrencyListUnitPrice
    CommitmentDiscountCategory CommitmentDiscountId CommitmentDiscountName CommitmentDiscountQuantity
    CommitmentDiscountStatus CommitmentDiscountType CommitmentDiscountUnit x_BusyGpuSeconds x_HeldIdleGpuSeconds
    x_EnergyWh x_CostBasis x_GpuModel x_Pool x_HeldIdleCost x_WasteCost
    x_BilledToOwner x_Notice
    """)
CATEGORIES = {"on_demand": "Standard", "spot": "Dynamic", "reserved": "Committed", "owned": "Other"}
NANO = 1_000_000_000
Row = dict[str, str]


@dataclass(frozen=True)
class Issuer:
    """Who charges where no provider is declared, and the account that is billed."""

    name: str = "GPU Ledger"
    account_id: str = "gpuledger"
    account_name: str = "GPU Ledger"

    @property
    def names(self) -> ProviderNames:
        """The platform itself in every part."""
        return ProviderNames(self.name, self.name)


@dataclass(slots=True)
class Amount:
    """One of the two costs of an invoice, so far: exact in micro-units, and as its rows say in
    units of 1e-18.
    """

    micros: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The ledger's exact amount, by the month that it corrects (empty: the invoice's own)."""
    shared: int = 0
    """Its shares of common costs, in micro-units."""
    written: int = 0
    """The sum of its rows."""


@dataclass(slots=True)
class FocusInvoice:
    """What one owner is charged for one month in one currency by one provider, so far."""

    period: Period
    borne: Amount = field(default_factory=Amount)
    paid: Amount = field(default_factory=Amount)
    common: Row = field(default_factory=dict)
    """What every row of it says, once one was written."""


Key = tuple[str, str, str, str]
"""Month, currency, owner, provider."""


@dataclass(frozen=True)
class Notices:
    """What changes how the rows are read: sentences about the whole, on each invoice's last row,
    and about pools.
    """

    whole: Sequence[str] = ()
    of_pool: Mapping[str, str] = field(default_factory=dict)

    def notices_of(self, charge: Charge) -> str:
        """What a reader of one charge must know."""
        texts = [self.of_pool.get(charge.pool, "")]
        if charge.state == STRANDED:
            texts.append("capacity outside every MIG slice")
        return "; ".join(filter(None, texts))


@dataclass
class Book:
    """The invoices of an export so far.

    `level` is the level of the owner tree that is invoiced, a sub-account each. `closed` names the
    closed months, `providers` who provides which pool and `locations` where pools stand, by month,
    and `notices` what changes how rows are read.
    """

    level: str
    closed: Collection[str] = ()
    calendar: Calendar = UTC_DAYS
    providers: Mapping[str, Mapping[str, ProviderNames]] = field(default_factory=dict)
    notices: Mapping[str, Notices] = field(default_factory=dict)
    locations: Mapping[str, Locations] = field(default_factory=dict)
    issuer: Issuer = field(default_factory=Issuer)
    invoices: dict[Key, FocusInvoice] = field(default_factory=dict)
    terms: dict[tuple[object, ...], Row] = field(default_factory=dict)
    """What Usage rows of the same kind have in common."""
    _months: dict[int, str] = field(default_factory=dict)
    """The month of each instant that was asked for: the starts of the days of charges."""

    def invoice(
        self, at_ms: int, currency: str, owner: str, names: ProviderNames
    ) -> tuple[Key, FocusInvoice]:
        """The invoice on which something of an instant stands, with its key."""
        month = self._month_of(at_ms)
        key = (month, currency, owner, names.provider)
        invoice = self.invoices.get(key)
        if invoice is None:
            invoice = self.invoices[key] = FocusInvoice(self.calendar.month(month))
        return key, invoice

    def names(self, pool: str, at_ms: int) -> ProviderNames:
        """Who provides a pool in a month: as declared for it, for every pool, or the issuer itself."""
        declared = self.providers.get(self._month_of(at_ms), {})
        return declared.get(pool) or declared.get("") or self.issuer.names

    def locations_of(self, booked_ms: int) -> Locations:
        """Where pools stand, as declared for the month in which something is booked."""
        return self.locations.get(self._month_of(booked_ms), NOWHERE)

    def _month_of(self, at_ms: int) -> str:
        month = self._months.get(at_ms)
        if month is None:
            month = self._months[at_ms] = self.calendar.month_of(at_ms)
        return month


def lines(
    book: Book,
    charges: Iterable[ExportedCharge],
    payments: Iterable[Purchase],
    shares: Iterable[SharedPart],
) -> Iterator[Row]:
    """Usage rows in the order of the charges, payments, shares, then one rounding row per invoice.

    Unpriced charges have no row. `shares` are at the level of the book. Only the invoices of closed
    months have a number. A correction is billed in the month in which it is booked, for the day
    that it amends.
    """
    for _, row in usage_rows(book, charges):
        yield row
    yield from purchase_rows(book, payments)
    yield from adjustments(book, shares)


def usage_rows(
    book: Book, charges: Iterable[ExportedCharge]
) -> Iterator[tuple[ExportedCharge, Row]]:
    """Each priced charge with its Usage row; `book` counts what the rows of each invoice add up to."""
    for exported in charges:
        charge = exported.charge
        if charge.currency is not None and (
            charge.gpu_ns or (charge.commitment is not None and charge.cost_micro)
        ):
            yield exported, _usage(exported, book)
        elif charge.adjustment is not None and charge.cost_micro:
            yield exported, _adjustment(exported, charge.adjustment, book)
        elif charge.node_cost is not None and charge.cost_micro:
            yield exported, _node_share(exported, charge.node_cost, book)
        elif charge.inference is not None and charge.cost_micro:
            yield exported, _moved(exported, charge.inference, book)


def write(rows: Iterable[Row], file: TextIO, columns: Sequence[str] = COLUMNS) -> None:
    """Rows as CSV: LF, quoted where needed, text cells made harmless for spreadsheets."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(escape_cells(list(map(row.get, columns, repeat("")))) for row in rows)


def _usage(exported: ExportedCharge, book: Book) -> Row:
    charge = exported.charge
    # Nano-hours x nano-units are units of 1e-18: quantity, price and cost are written with 9, 9 and
    # 18 places, and FOCUS's ListCost = ListUnitPrice x PricingQuantity holds to the last digit.
    hours = round_half_even_div(charge.gpu_ns * NANO, GPU_NS_PER_HOUR)
    rate, listed = _unit_prices(charge)
    # A commitment's share is an amount, not a price: it is billed as it is.
    cost = hours * rate if charge.commitment is None else (charge.cost_micro or 0) * 10**12
    unused = charge.state == COMMITMENT_UNUSED
    owner = billed_to(charge, book.level)
    billed = 0 if charge.commitment is not None else cost - hours * depreciation_nano(charge.price)
    # A correction is billed in the open month, while its charge period stays the day that it
    # amends.
    booked_ms = charge.day_ms if exported.booked_day_ms is None else exported.booked_day_ms
    names = book.names(charge.pool, booked_ms)
    key, invoice = book.invoice(booked_ms, charge.currency or "", owner, names)
    invoice.borne.micros[exported.correction_of] += charge.cost_micro or 0
    invoice.borne.written += cost
    invoice.paid.micros[exported.correction_of] += paid_micro(charge) or 0
    invoice.paid.written += billed
    # What many charges have in common is written once: all but quantities, costs, instants,
    # resource and tags.
    price = charge.price and (charge.price.id or charge.price)
    of_what = (
        charge.pool,
        charge.gpu_model,
        charge.state,
        price,
        charge.currency,
        charge.commitment,
    )
    kind = (key[0], names, of_what, exported.booked_day_ms is not None)
    terms = book.terms.get(kind)
    if terms is None:
        terms = book.terms[kind] = _usage_terms(
            exported, (rate, listed), names, book.notices.get(key[0], Notices())
        )
    row = {
        **_common(key, invoice, book),
        **terms,
        **_costs(cost, hours * rate, hours * listed, billed),
        "ChargeDescription": neutral(_description(exported)),
        # FOCUS has whole seconds: outwards, so that the period never excludes consumed time.
        "ChargePeriodStart": _instant(charge.start_ms - charge.start_ms % 1000),
        "ChargePeriodEnd": _instant(-(-charge.end_ms // 1000) * 1000),
        "PricingQuantity": fixed_decimal(hours, 9),
        **_place(_location(charge, book, booked_ms)),
        "Tags": flat_json(_tags(exported, book.level, owner)),
        **_own_columns(charge, cost),
    }
    if charge.commitment is not None:
        row["CommitmentDiscountQuantity"] = row["PricingQuantity"]
    # FOCUS: what a commitment left unused was not consumed, and has no resource.
    if not unused:
        row |= _resource(exported)
        row["ConsumedQuantity"] = fixed_decimal(charge.gpu_ns, 9)
    return row


def _usage_terms(
    exported: ExportedCharge, unit_prices: tuple[int, int], names: ProviderNames, notices: Notices
) -> Row:
    """What the Usage rows of a month, provider, pool, model, state, price and commitment have in
    common.
    """
    charge = exported.charge
    rate_text, listed_text = (fixed_decimal(price, 9) for price in unit_prices)
    return {
        "PublisherName": neutral(names.publisher),
        "ChargeCategory": "Usage",
        "ChargeClass": "" if exported.booked_day_ms is None else "Correction",
        "ChargeFrequency": "Usage-Based",
        "ConsumedQuantity": "",
        "ConsumedUnit": "" if charge.state == COMMITMENT_UNUSED else "GPU-Seconds",
        "ContractedUnitPrice": rate_text,
        "ListUnitPrice": listed_text,
        "PricingUnit": "GPU-Hours",
        **_terms(charge),
        "SkuId": neutral(charge.gpu_model or "GPU"),
        "SkuMeter": "GPU time",
        "SkuPriceDetails": _price_details(charge.gpu_model, charge.pool),
        "PricingCurrencyContractedUnitPrice": rate_text,
        "PricingCurrencyListUnitPrice": listed_text,
        "x_CostBasis": charge.state,
        "x_GpuModel": neutral(charge.gpu_model),
        "x_Pool": neutral(charge.pool),
        "x_Notice": neutral(notices.notices_of(charge)),
    }


def _adjustment(exported: ExportedCharge, adjustment: Adjustment, book: Book) -> Row:
    """The row of a markup, discount, tier, credit, debit or true-up: no usage, and of no resource."""
    charge = exported.charge
    booked_ms = charge.day_ms if exported.booked_day_ms is None else exported.booked_day_ms
    # The provider asks for a true-up; everything else is between the platform and its owners.
    names = book.names(charge.pool, booked_ms) if adjustment.kind == TRUE_UP else book.issuer.names
    description = f"{adjustment.kind.replace('_', '-').capitalize()}: {adjustment.name}"
    category = "Credit" if adjustment.kind == CREDIT else "Adjustment"
    return _amount(exported, names, description, category, book)


def _moved(exported: ExportedCharge, share: InferenceShare, book: Book) -> Row:
    """The row of what a tenant of a shared model server pays, or its payers get back."""
    claimed = " (claimed)" if share.trust == CLAIM else ""
    description = f"Shared model server {share.name}{claimed}"
    return _amount(exported, book.issuer.names, description, "Adjustment", book)


def _amount(
    exported: ExportedCharge, names: ProviderNames, description: str, category: str, book: Book
) -> Row:
    """The row of an amount beside time, of no resource."""
    charge = exported.charge
    booked_ms = charge.day_ms if exported.booked_day_ms is None else exported.booked_day_ms
    key, invoice = book.invoice(
        booked_ms, charge.currency or "", billed_to(charge, book.level), names
    )
    cost, paid = ((micro or 0) * 10**12 for micro in (charge.cost_micro, paid_micro(charge)))
    for amount, value in ((invoice.borne, cost), (invoice.paid, paid)):
        amount.micros[exported.correction_of] += value // 10**12
        amount.written += value
    about = Period(charge.start_ms, charge.end_ms)
    return {
        **_common(key, invoice, book),
        **_adjustment_row(neutral(description), about, cost, paid, book.level, key[2]),
        **_costs(
            cost,
            (charge.contracted_cost_micro or 0) * 10**12,
            (charge.list_cost_micro or 0) * 10**12,
            paid,
        ),
        "ChargeCategory": category,
        "ChargeClass": "Correction" if exported.booked_day_ms is not None else "",
        "Tags": flat_json(_tags(exported, book.level, key[2])),
        "x_CostBasis": charge.state,
        "x_GpuModel": neutral(charge.gpu_model),
        "x_Pool": neutral(charge.pool),
    }


def _node_share(exported: ExportedCharge, node_cost: NodeCost, book: Book) -> Row:
    """The row of a share of what a node costs: node-hours at its price, and no GPU-time."""
    charge = exported.charge
    booked_ms = charge.day_ms if exported.booked_day_ms is None else exported.booked_day_ms
    names = book.names(charge.pool, booked_ms)
    key, invoice = book.invoice(
        booked_ms, charge.currency or "", billed_to(charge, book.level), names
    )
    rate = rate_nano(node_cost.rate)
    # The charge is a share of price x time, so its price gives the node-hours that it is.
    hours = round_half_even_div((charge.cost_micro or 0) * 1000 * NANO, rate)
    cost = hours * rate
    for amount in (invoice.borne, invoice.paid):
        amount.micros[exported.correction_of] += charge.cost_micro or 0
        amount.written += cost
    rate_text, quantity = fixed_decimal(rate, 9), fixed_decimal(hours, 9)
    return {
        **_common(key, invoice, book),
        "PublisherName": _name(names.publisher),
        **_costs(cost, cost, cost, cost),
        "ServiceCategory": "Compute",
        "ServiceName": "GPU Node",
        "ServiceSubcategory": "Other (Compute)",
        "ChargeCategory": "Usage",
        "ChargeClass": "Correction" if exported.booked_day_ms is not None else "",
        "ChargeDescription": neutral(_node_description(exported, node_cost)),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": format_instant(charge.start_ms - charge.start_ms % 1000),
        "ChargePeriodEnd": format_instant(-(-charge.end_ms // 1000) * 1000),
        "ConsumedQuantity": quantity,
        "ConsumedUnit": "Node-Hours",
        "ContractedUnitPrice": rate_text,
        "ListUnitPrice": rate_text,
        "PricingCategory": "Standard",
        "PricingQuantity": quantity,
        "PricingUnit": "Node-Hours",
        "PricingCurrencyContractedUnitPrice": rate_text,
        "PricingCurrencyListUnitPrice": rate_text,
        **_place(_location(charge, book, booked_ms)),
        "ResourceId": _name(charge.node),
        "ResourceName": _name(charge.node),
        "ResourceType": "Node",
        "SkuId": _name(node_cost.name),
        "SkuMeter": "Node time",
        "SkuPriceId": neutral(f"{node_cost.name}/{node_cost.from_on or 'always'}/{node_cost.id}"),
        "SkuPriceDetails": _price_details(charge.gpu_model, charge.pool),
        "Tags": flat_json(_tags(exported, book.level, key[2])),
        "x_CostBasis": charge.state,
        "x_GpuModel": _name(charge.gpu_model),
        "x_Pool": _name(charge.pool),
        "x_WasteCost": fixed_decimal(cost, 18) if charge.state in WASTED_STATES else "",
        "x_Notice": neutral(book.notices.get(key[0], Notices()).notices_of(charge)),
    }


def _node_description(exported: ExportedCharge, node_cost: NodeCost) -> str:
    charge = exported.charge
    held_by = exported.workload_name or exported.workload_key or "a workload without a name"
    whose = f"held by {held_by}" if charge.state == NODE_COST else charge.state
    return f"Node cost {node_cost.name} of {charge.node}, {whose}"


def _unit_prices(charge: Charge) -> tuple[int, int]:
    """Contracted and list price of a GPU-hour in billionths; of what nobody used neither asks
    anything.

    Where the price book has no rate for what a commitment covers, it is what the commitment costs
    on the average.
    """
    if charge.state == COMMITMENT_UNUSED:
        return 0, 0
    price, commitment = charge.price, charge.commitment
    if price is None or price.currency != charge.currency:
        assert commitment is not None  # nothing else has a cost without a price
        mean = round_half_even_div(
            commitment.cost(commitment.term) * GPU_NS_PER_HOUR * 1000,
            commitment.committed_ns(commitment.term),
        )
        return mean, mean
    rate = rate_nano(price.rate)
    return rate, rate if price.list_rate is None else rate_nano(price.list_rate)


def _terms(charge: Charge) -> Row:
    """How it is priced: by a rate of the price book, or by a commitment."""
    price, commitment = charge.price, charge.commitment
    terms: Row = {}
    model = charge.gpu_model or "GPU"
    # A rate in another currency is not the price of this row.
    if price is not None and price.currency == charge.currency:
        terms["PricingCategory"] = CATEGORIES[price.purchase]
        terms["SkuPriceId"] = (
            f"{model}/{price.purchase}/{format_date(price.effective_from_ms)}/{price.id}"
        )
    if commitment is not None:
        terms["PricingCategory"] = "Committed"
        terms.setdefault("SkuPriceId", neutral(f"{model}/committed/{commitment.name}"))
        terms |= {
            "CommitmentDiscountCategory": "Usage",
            "CommitmentDiscountId": neutral(commitment.name),
            "CommitmentDiscountName": neutral(commitment.name),
            "CommitmentDiscountStatus": "Unused" if charge.state == COMMITMENT_UNUSED else "Used",
            "CommitmentDiscountType": "Reserved GPUs",
            "CommitmentDiscountUnit": "GPU-Hours",
        }
    return terms


def _location(charge: Charge, book: Book, booked_ms: int) -> PoolLocation | None:
    """Where the time of a charge was; what a commitment left unused was where it is for."""
    locations = book.locations_of(booked_ms)
    if charge.state == COMMITMENT_UNUSED and charge.commitment is not None:
        return locations.of_purchase(
            charge.commitment.pool, charge.commitment.region, charge.day_ms
        )
    return locations.location_at(charge.pool, charge.day_ms)


def _place(location: PoolLocation | None) -> Row:
    if location is None:
        return {}
    return {
        "RegionId": _name(location.region),
        "RegionName": _name(location.region_name or location.region),
        "AvailabilityZone": _name(location.availability_zone),
    }


def purchase_rows(book: Book, payments: Iterable[Purchase]) -> Iterator[Row]:
    """A Purchase row for each payment: billed in full, and borne by the rows that it covers."""
    for payment in payments:
        source = payment.source
        names, locations = (
            book.names(source.pool, payment.booked_ms),
            book.locations_of(payment.booked_ms),
        )
        key, invoice = book.invoice(payment.booked_ms, source.currency, f"({PURCHASE})", names)
        cost = payment.micro * 10**12
        invoice.paid.micros[payment.correction_of] += payment.micro
        invoice.paid.written += cost
        quantity, unit, price, listed = _bought(payment)
        yield {
            **_common(key, invoice, book),
            "PublisherName": neutral(names.publisher),
            **_costs(0, listed, listed, cost),
            "ChargeCategory": "Purchase",
            "ChargeClass": "Correction" if payment.correction_of else "",
            "ChargeDescription": neutral(_purchase_description(payment)),
            "ChargeFrequency": "Recurring" if payment.is_recurring else "One-Time",
            "ChargePeriodStart": format_instant(
                payment.span.start_ms - payment.span.start_ms % 1000
            ),
            "ChargePeriodEnd": format_instant(-(-payment.span.end_ms // 1000) * 1000),
            "PricingQuantity": fixed_decimal(quantity, 9),
            "PricingUnit": unit,
            "ContractedUnitPrice": fixed_decimal(price, 9),
            "ListUnitPrice": fixed_decimal(price, 9),
            "PricingCurrencyContractedUnitPrice": fixed_decimal(price, 9),
            "PricingCurrencyListUnitPrice": fixed_decimal(price, 9),
            **_purchase_terms(payment, quantity, unit),
            **_place(locations.of_purchase(source.pool, source.region, payment.span.start_ms)),
            "Tags": flat_json({book.level: f"({PURCHASE})"}),
            "x_CostBasis": PURCHASE,
            "x_GpuModel": neutral(source.gpu_model),
            "x_Pool": neutral(source.pool),
        }


def _bought(payment: Purchase) -> tuple[int, str, int, int]:
    """Quantity (billionths), its unit, the price of one (billionths) and their product (1e-18)."""
    source, sign = payment.source, -1 if payment.micro < 0 else 1
    if isinstance(source, Hardware):
        quantity, unit, price = (
            source.count * NANO,
            "Nodes" if source.per == "node" else "GPUs",
            source.unit_price,
        )
        return sign * quantity, unit, rate_nano(price), sign * quantity * rate_nano(price)
    if payment.is_recurring:
        hours = round_half_even_div(source.committed_ns(payment.span) * NANO, GPU_NS_PER_HOUR)
        return (
            sign * hours,
            "GPU-Hours",
            rate_nano(source.rate),
            sign * hours * rate_nano(source.rate),
        )
    return (
        sign * NANO,
        "Commitments",
        source.upfront_micro * 1000,
        sign * source.upfront_micro * 1000 * NANO,
    )


def _purchase_description(payment: Purchase) -> str:
    source = payment.source
    if isinstance(source, Hardware):
        what = f"Purchase of {source.count} x {source.name}"
    else:
        what = (
            f"{'Recurring fee' if payment.is_recurring else 'Upfront payment'} of commitment"
            f" {source.name}"
        )
    return f"{what}, correction of {payment.correction_of}" if payment.correction_of else what


def _purchase_terms(payment: Purchase, quantity: int, unit: str) -> Row:
    source = payment.source
    terms = {
        "SkuId": neutral(source.gpu_model or "GPU"),
        "SkuMeter": "Purchase",
        "SkuPriceId": neutral(f"{source.gpu_model or 'GPU'}/purchase/{source.name}"),
        "SkuPriceDetails": flat_json({"x_GpuModel": source.gpu_model, "x_Pool": source.pool}),
        "PricingCategory": "Other" if isinstance(source, Hardware) else "Committed",
    }
    if isinstance(source, Hardware):
        return terms
    return terms | {
        "CommitmentDiscountCategory": "Usage",
        "CommitmentDiscountId": neutral(source.name),
        "CommitmentDiscountName": neutral(source.name),
        "CommitmentDiscountQuantity": fixed_decimal(quantity, 9),
        "CommitmentDiscountType": "Reserved GPUs",
        "CommitmentDiscountUnit": unit,
    }


def _common(key: Key, invoice: FocusInvoice, book: Book) -> Row:
    """What every row of an invoice says; the invoice has a number when its month is closed."""
    if invoice.common:
        return invoice.common
    billing_month, currency, owner, provider = key
    number = f"{billing_month}/{currency}/{owner}" + (
        f"/{provider}" if provider != book.issuer.name else ""
    )
    invoice.common = {
        "BillingAccountId": neutral(book.issuer.account_id),
        "BillingAccountName": neutral(book.issuer.account_name),
        "BillingAccountType": "Organization",
        "BillingCurrency": currency,
        "BillingPeriodStart": format_instant(invoice.period.start_ms),
        "BillingPeriodEnd": format_instant(invoice.period.end_ms),
        # Without an invoice InvoiceId is null; ours are issued when the month is closed.
        "InvoiceId": number if billing_month in book.closed else "",
        # FOCUS: who is paid; a third party that is paid instead would make every BilledCost 0.
        "InvoiceIssuerName": neutral(provider),
        "ProviderName": neutral(provider),
        "PublisherName": neutral(provider),
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "GPU Compute",
        "ServiceSubcategory": "Other (AI and Machine Learning)",
        "SubAccountId": neutral(f"{book.level}/{owner}"),
        "SubAccountName": neutral(owner),
        "SubAccountType": book.level.capitalize(),
        "PricingCurrency": currency,
        "x_BilledToOwner": "yes" if is_paid(owner) else "no",
    }
    return invoice.common


def _costs(cost: int, contracted: int, list_cost: int, billed: int) -> Row:
    """The four costs and their twin, from units of 1e-18."""
    text = fixed_decimal(cost, 18)
    # The four are mostly the same amount.
    return {
        "BilledCost": text if billed == cost else fixed_decimal(billed, 18),
        "EffectiveCost": text,
        "ContractedCost": text if contracted == cost else fixed_decimal(contracted, 18),
        "ListCost": text if list_cost == cost else fixed_decimal(list_cost, 18),
        "PricingCurrencyEffectiveCost": text,
    }


def _description(exported: ExportedCharge) -> str:
    charge = exported.charge
    model = charge.gpu_model or "GPU"
    if charge.state == COMMITMENT_UNUSED and charge.commitment is not None:
        return f"Unused part of commitment {charge.commitment.name}"
    if charge.state != HELD:
        return f"{charge.state.capitalize()} {model} time"
    return (
        f"{model} time of"
        f" {exported.workload_name or exported.workload_key or 'a workload without a name'}"
    )


def _resource(exported: ExportedCharge) -> Row:
    """The accelerator; for usage imported as counts the workload, which is all that is known to
    have held one.
    """
    if exported.accelerator_uuid is not None:
        stranded = exported.charge.state == STRANDED
        uuid = (
            exported.device_uuid or exported.accelerator_uuid
            if stranded
            else exported.accelerator_uuid
        )
        return _accelerator(uuid, exported.charge.node)
    return {
        "ResourceId": neutral(exported.workload_key or ""),
        "ResourceName": neutral(exported.workload_name or exported.workload_key or ""),
        "ResourceType": "GPU allocation",
    }


@lru_cache(maxsize=16384)
def _accelerator(uuid: str, node: str) -> Row:
    kind = "MIG" if uuid.startswith("MIG-") else "GPU"
    return {
        "ResourceId": neutral(uuid),
        "ResourceName": neutral(f"{node}/{uuid}" if node else uuid),
        "ResourceType": kind,
    }


def _tags(exported: ExportedCharge, level: str, owner: str) -> dict[str, str]:
    """Workload tags, then the owner's levels as rated, then who and what; flat text, as FOCUS wants
    them.
    """
    charge = exported.charge
    # The owner as rated overrides a tag of the same name, since that is who pays; user and workload
    # fill in what is missing.
    tags = dict(exported.tags)
    if charge.owner is not None:
        tags |= _levels(charge.owner)
    tags.setdefault(level, owner)
    if exported.user:
        tags.setdefault("user", exported.user)
    if exported.workload_name:
        tags.setdefault("workload", exported.workload_name)
    return tags


def _own_columns(charge: Charge, cost: int) -> Row:
    """Our own columns: what was done with the time and its cost (units of 1e-18).

    Empty where nothing is known.
    """
    known = charge.state == HELD and charge.unknown_ns < charge.gpu_ns
    idle_cost = "" if charge.idle_cost_micro is None else fixed_decimal(charge.idle_cost_micro, 6)
    waste = (
        fixed_decimal(cost, 18)
        if charge.state in WASTED_STATES
        else idle_cost
        if charge.state == HELD
        else ""
    )
    return {
        "x_BusyGpuSeconds": fixed_decimal(charge.busy_ns, 9) if known else "",
        "x_HeldIdleGpuSeconds": fixed_decimal(charge.idle_ns, 9) if known else "",
        # A watt-hour is 3.6e6 millijoules; in millionths of one that is mJ x 10 / 36.
        "x_EnergyWh": (
            ""
            if charge.energy_mj is None
            else fixed_decimal(round_half_even_div(charge.energy_mj * 10, 36), 6)
        ),
        "x_HeldIdleCost": idle_cost,
        "x_WasteCost": waste,
    }


def adjustments(book: Book, shares: Iterable[SharedPart]) -> Iterator[Row]:
    """A row for each share of a common cost, then one per invoice that brings it to the minor units
    booked.
    """
    for part in shares:
        if part.micro:
            yield _share(part, book)
    borne = _rests(book, lambda invoice: invoice.borne)
    paid = _rests(book, lambda invoice: invoice.paid)
    description = "Rounding of the invoice to the currency's minor unit (largest remainder)"
    for key in sorted(borne):
        invoice = book.invoices[key]
        yield (
            _common(key, invoice, book)
            | _adjustment_row(
                description, invoice.period, borne[key], paid[key], book.level, key[2]
            )
            | {"x_Notice": neutral("; ".join(book.notices.get(key[0], Notices()).whole))}
        )


def _rests(book: Book, amount_of: Callable[[FocusInvoice], Amount]) -> dict[Key, int]:
    """What each invoice's rows lack to whole minor units (1e-18), in one of the two costs."""
    groups: dict[tuple[str, str], dict[str, list[tuple[Key, Amount]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for key, invoice in book.invoices.items():
        groups[key[:2]][key[2]].append((key, amount_of(invoice)))
    rests: dict[Key, int] = {}
    for (_, currency), owners in groups.items():
        unit = minor_unit(currency)
        booked = round_months(_by_month(owners), currency)
        # The order in which the chargeback gives out remainders: the same cents for the same owner.
        own_cost = {
            owner: sum(amount.micros.get("", 0) for _, amount in own)
            for owner, own in owners.items()
        }
        ordered = sorted(owners, key=lambda owner: (-own_cost[owner], owner))
        shared = to_minor_units(
            [sum(amount.shared for _, amount in owners[owner]) for owner in ordered], currency
        )
        for owner, more in zip(ordered, shared, strict=True):
            # An owner's cents, split over those who provided what it used; shares are on one
            # invoice, the issuer's.
            own = owners[owner]
            parts = [0] * len(own)
            parts[next((at for at, (_, amount) in enumerate(own) if amount.shared), 0)] += more
            for month, units in booked.items():
                micros = [amount.micros.get(month, 0) for _, amount in own]
                split = split_minor(micros, unit, units.get(owner, 0))
                parts = [part + cents for part, cents in zip(parts, split, strict=True)]
            for (key, amount), part in zip(own, parts, strict=True):
                rests[key] = part * unit * 10**12 - amount.written
    return rests


def _by_month(owners: Mapping[str, Sequence[tuple[Key, Amount]]]) -> dict[str, dict[str, int]]:
    """The amounts of owners by the month that they correct."""
    months: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for owner, own in owners.items():
        for _, amount in own:
            for month, micro in amount.micros.items():
                months[month][owner] += micro
    return months


def _share(part: SharedPart, book: Book) -> Row:
    """The row of what an invoice pays of a shared cost; what is moved between owners is paid to
    nobody.
    """
    key, invoice = book.invoice(
        part.period.start_ms, part.currency, part.keys[0], book.issuer.names
    )
    cost = part.micro * 10**12
    paid = cost if part.cost.source == AMOUNT else 0
    invoice.borne.shared += part.micro
    invoice.borne.written += cost
    invoice.paid.shared += paid // 10**12
    invoice.paid.written += paid
    description = neutral(f"Shared cost {part.cost.name}, by {part.cost.key} per {part.cost.level}")
    row = _common(key, invoice, book)
    return (
        row
        | _adjustment_row(description, part.period, cost, paid, book.level, part.keys[0])
        | {"x_CostBasis": "shared"}
    )


def _adjustment_row(
    description: str, period: Period, cost: int, billed: int, level: str, owner: str
) -> Row:
    """An Adjustment of what is borne and of what is paid, in units of 1e-18."""
    return {
        **_costs(cost, cost, cost, billed),
        "ChargeCategory": "Adjustment",
        "ChargeDescription": description,
        "ChargeFrequency": "One-Time",
        "ChargePeriodStart": format_instant(period.start_ms - period.start_ms % 1000),
        "ChargePeriodEnd": format_instant(-(-period.end_ms // 1000) * 1000),
        "Tags": flat_json({level: owner}),
    }


def fixed_decimal(units: int, digits: int) -> str:
    """An integer count of 10^-digits as plain decimal text with at least one place."""
    if units == 0:
        return "0.0"
    sign, magnitude = ("-", -units) if units < 0 else ("", units)
    text = str(magnitude).zfill(digits + 1)
    fraction = text[-digits:].rstrip("0") or "0"
    return f"{sign}{text[:-digits]}.{fraction}"


def flat_json(tags: Mapping[str, str]) -> str:
    """One level of keys and values as JSON text, by key."""
    return (
        "{"
        + ", ".join([f"{_quoted(name)}: {_quoted(value)}" for name, value in sorted(tags.items())])
        + "}"
    )


_quoted = json.encoder.encode_basestring
# Regions, models, pools, providers and dates of prices are few, and on every row.
_name = lru_cache(maxsize=4096)(neutral)
_instant = lru_cache(maxsize=4096)(format_instant)


@lru_cache(maxsize=4096)
def _levels(owner: OwnerPath) -> Mapping[str, str]:
    """The levels of an owner that have a name."""
    return {name: value for name in LEVELS if (value := getattr(owner, name))}


@lru_cache(maxsize=4096)
def _price_details(gpu_model: str, pool: str) -> str:
    return flat_json({"x_GpuModel": gpu_model, "x_Pool": pool})
