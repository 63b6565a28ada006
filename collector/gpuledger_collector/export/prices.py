"""The price book as a list that can be imported again, and in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.money import MICRO_DIGITS, Money
from gpuledger_collector.accounting.owned_hardware import PARTS
from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_collector.accounting.pricing import Price, PurchaseChoice
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_common.plurals import plural


def _bound(at_ms: int | None) -> str | None:
    """To the millisecond, in a table too: what is imported again must not lose a part of it."""
    return None if at_ms is None else format_instant(at_ms)


PRICES: Report[Price] = Report(
    "prices",
    (
        Column("pool", lambda price: price.pool),
        Column("gpu_model", lambda price: price.gpu_model),
        Column("purchase", lambda price: price.purchase, is_optional=True),
        Column("rate_per_gpu_hour", lambda price: trim_zeros(str(price.rate)), Kind.DECIMAL),
        Column("currency", lambda price: price.currency),
        Column("effective_from", lambda price: _bound(price.effective_from_ms)),
        Column("effective_to", lambda price: _bound(price.effective_to_ms), is_optional=True),
        Column(
            "list_rate",
            lambda price: None if price.list_rate is None else trim_zeros(str(price.list_rate)),
            Kind.DECIMAL,
            is_optional=True,
        ),
        Column("region", lambda price: price.region, is_optional=True),
        Column("node", lambda price: price.node, is_optional=True),
    ),
)


def explain_rates(book: Sequence[Price]) -> list[str]:
    """How each derived rate was made: its parts, which add up to it, and the figures that they
    follow from.
    """
    lines = []
    for price in book:
        if price.basis is None:
            continue
        facts: dict[str, str] = price.basis["from"]  # type: ignore[assignment]
        parts: dict[str, str] = price.basis["parts"]  # type: ignore[assignment]
        total = " + ".join(
            f"{name} {trim_zeros(part)}" for name in PARTS if (part := parts.get(name))
        )
        unit = f"{plural(facts['gpus'], 'GPU')} of a node" if facts["per"] == "node" else "a GPU"
        energy = (
            "energy is measured, and not part of it"
            if facts["energy"] == "measured"
            else f"{facts['watts']} W x PUE {facts['pue']} at {facts['price_per_kwh']} per kWh"
        )
        rate, starts = (
            f"{trim_zeros(str(price.rate))} {price.currency}",
            format_instant(price.effective_from_ms),
        )
        lines.append(f"{price.basis['name']}: {rate} per GPU-hour from {starts} = {total}")
        lines.append(
            f"  for {unit}: {facts['capex']} paid, {facts['salvage']} salvage,"
            f" {plural(facts['months'], 'month')} = {facts['hours']} hours from"
            f" {facts['in_service']} to {facts['written_off']}; opex {facts['opex_per_month']} a"
            f" month; {energy}"
        )
    return lines


def commitment_text(commitment: Commitment) -> str:
    """A commitment in a sentence: what it covers, and what it costs in all."""
    hours = (commitment.ends_ms - commitment.starts_ms) // HOUR_MS
    names = (commitment.pool, commitment.gpu_model, commitment.node, commitment.region)
    place = " ".join(filter(None, names)) or "anything"
    starts, ends = format_instant(commitment.starts_ms), format_instant(commitment.ends_ms)
    upfront, total = (
        Money(micro, commitment.currency).exact(MICRO_DIGITS)
        for micro in (commitment.upfront_micro, commitment.cost(commitment.term))
    )
    return (
        f"commitment {commitment.name}: {plural(commitment.gpus, 'GPU')} of {place} from {starts}"
        f" to {ends}, {plural(str(hours), 'hour')}; {upfront} {commitment.currency} upfront +"
        f" {trim_zeros(str(commitment.rate))} per GPU-hour = {total} {commitment.currency} in all"
    )


def choice_text(choice: PurchaseChoice) -> str:
    """A choice between ways of buying in a sentence."""
    tags = " ".join(f"{name}={value}" for name, value in choice.tags.items())
    place = (
        " ".join(filter(None, (choice.pool, choice.gpu_model, choice.node, tags))) or "everything"
    )
    return f"{choice.purchase} for {place}" + (f" ({choice.name})" if choice.name else "")


def trim_zeros(decimal: str) -> str:
    """A decimal without the zeros at its end."""
    return decimal.rstrip("0").rstrip(".") if "." in decimal else decimal
