"""What is in force as a TOML file that `gpuledger apply` takes back unchanged.

Every value is written in the form in which a file declares it: instants in UTC, amounts and rates as decimals that lose
nothing. What is not written is what the reader of the file takes for granted.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal

from gpuledger_collector.accounting.attribution import Rule
from gpuledger_collector.accounting.bill import BillMatch
from gpuledger_collector.accounting.budgets import Budget
from gpuledger_collector.accounting.carbon import Intensity
from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.exchange import ExchangeRate
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import format_date, format_instant
from gpuledger_collector.accounting.pricing import Price, PurchaseChoice
from gpuledger_collector.accounting.shared_costs import SharedCost
from gpuledger_collector.insight.scaling.pools import ScalingTerms
from gpuledger_collector.storage.notifications.delivery_rules import WEEKDAYS, Rules
from gpuledger_collector.storage.notifications.finding_rules import ActionRule, Contact
from gpuledger_common.escapes import escape_text

Table = Mapping[str, object]
_PLACES = 6


@dataclass(frozen=True, slots=True)
class Applied:
    """What is in force, as storage reads it."""

    billing_zone: str = "UTC"
    rules: Sequence[Rule] = ()
    prices: Sequence[Price] = ()
    commitments: Sequence[Commitment] = ()
    purchases: Sequence[PurchaseChoice] = ()
    exchange: Sequence[ExchangeRate] = ()
    budgets: Sequence[Budget] = ()
    shared_costs: Sequence[SharedCost] = ()
    carbon: Sequence[Intensity] = ()
    recipients: Mapping[str, Rules] = field(default_factory=dict)
    contacts: Sequence[Contact] = ()
    actions: Sequence[ActionRule] = ()
    pools: Sequence[ScalingTerms] = ()
    bill_matches: Sequence[BillMatch] = ()


def as_toml(applied: Applied) -> str:
    """The file. A list that is empty is written as such: applied to another ledger, it empties it there."""
    lists: tuple[tuple[str, Iterable[Table]], ...] = (
        ("rule", map(_rule, applied.rules)),
        ("price", map(_price, applied.prices)),
        ("commitment", map(_commitment, applied.commitments)),
        ("purchase", map(_purchase, applied.purchases)),
        ("exchange", map(_exchange, applied.exchange)),
        ("budget", map(_budget, applied.budgets)),
        ("shared_cost", map(_shared_cost, applied.shared_costs)),
        ("carbon", map(_carbon, applied.carbon)),
        ("recipient", (_recipient(address, rules) for address, rules in applied.recipients.items())),
        ("contact", map(_contact, applied.contacts)),
        ("action", map(_action, applied.actions)),
        ("pool", map(_pool, applied.pools)),
        ("bill_match", map(_bill_match, applied.bill_matches)),
    )
    made = [(name, list(tables)) for name, tables in lists]
    lines = [f"billing_zone = {_value(applied.billing_zone)}"]
    lines += [f"{name} = []" for name, tables in made if not tables]
    for name, tables in made:
        for table in tables:
            lines += ["", f"[[{name}]]"]
            lines += [f"{key} = {_value(value)}" for key, value in table.items() if _says_something(value)]
    return "\n".join(lines) + "\n"


def _says_something(value: object) -> bool:
    return value is not None and value not in ("", {})


def _rule(rule: Rule) -> Table:
    return {
        "name": rule.name,
        "match": dict(rule.match),
        "assign": dict(rule.assign),
        **_dates(rule.effective_from_ms, rule.effective_to_ms),
    }


def _price(price: Price) -> Table:
    return {
        "pool": price.pool,
        "gpu_model": price.gpu_model,
        "purchase": price.purchase,
        "rate_per_gpu_hour": price.rate,
        "currency": price.currency,
        **_dates(price.effective_from_ms, price.effective_to_ms),
        "list_rate": price.list_rate,
        "region": price.region,
        "node": price.node,
    }


def _commitment(one: Commitment) -> Table:
    return {
        "name": one.name,
        "gpus": one.gpus,
        "upfront": _major(one.upfront_micro),
        "rate_per_gpu_hour": one.rate,
        "currency": one.currency,
        "starts": _instant(one.starts_ms),
        "ends": _instant(one.ends_ms),
        "pool": one.pool,
        "gpu_model": one.gpu_model,
        "node": one.node,
        "region": one.region,
    }


def _purchase(one: PurchaseChoice) -> Table:
    return {
        "name": one.name,
        "purchase": one.purchase,
        "tags": dict(one.tags),
        **_dates(one.effective_from_ms, one.effective_to_ms),
        "pool": one.pool,
        "gpu_model": one.gpu_model,
        "node": one.node,
    }


def _exchange(one: ExchangeRate) -> Table:
    return {
        "from": one.from_currency,
        "to": one.to_currency,
        "rate": one.rate,
        "effective_from": _instant(one.effective_from_ms),
    }


def _budget(budget: Budget) -> Table:
    terms, span = budget.terms, budget.span
    return {
        "name": budget.name,
        **budget.owner,
        "period": budget.kind,
        "from": None if span is None else _Bare(format_date(span.start_ms)),
        "to": None if span is None else _Bare(format_date(span.end_ms)),
        "amount": _major(budget.amount_micro),
        "currency": budget.currency,
        "actual": list(terms.actual),
        "forecast": list(terms.forecast),
        "pace": terms.pace,
        "recipients": list(terms.recipients),
        "escalate_to": list(terms.escalate_to),
        "escalate_after_hours": terms.escalate_hours,
        "quiet": _hours(terms.quiet),
    }


def _shared_cost(cost: SharedCost) -> Table:
    return {
        "name": cost.name,
        "source": cost.source,
        "amount_per_month": None if cost.amount_micro is None else _major(cost.amount_micro),
        "currency": cost.currency,
        "pool": cost.pool,
        "key": cost.key,
        "level": cost.level,
        "weights": dict(cost.weights),
        "scope": dict(cost.scope),
        "effective_from": cost.from_on,
        "effective_to": cost.to_on,
    }


def _carbon(one: Intensity) -> Table:
    return {
        "region": one.region,
        "pool": one.pool,
        "grams_per_kwh": one.grams_per_kwh,
        "pue": one.pue,
        "effective_from": one.from_on,
        "effective_to": one.to_on,
    }


def _recipient(address: str, rules: Rules) -> Table:
    return {
        "address": address,
        "digest": rules.digest,
        "digest_at": _clock(rules.digest_at),
        "digest_on": WEEKDAYS[rules.digest_on],
        "quiet": _hours(rules.quiet),
        "zone": rules.zone,
        "most_per_day": rules.most_per_day,
        "pass": list(rules.pass_kinds),
    }


def _contact(contact: Contact) -> Table:
    told = {one.name: getattr(contact, one.name) for one in fields(contact) if one.name != "name"}
    mine = (
        ("user", "address", "tag", "domains")
        if contact.user
        else (
            "team",
            "recipients",
            "leads",
            "after_minutes",
            "confidence",
            "escalate_days",
            "summary",
            "zone",
        )
    )
    return {key: told[key] for key in mine if told[key] != ()}


def _action(rule: ActionRule) -> Table:
    return {one.name: getattr(rule, one.name) for one in fields(rule)}


def _bill_match(one: BillMatch) -> Table:
    told = {field.name: getattr(one, field.name) for field in fields(one)}
    return {**told, "leave_out": True if one.leave_out else None}


def _pool(terms: ScalingTerms) -> Table:
    limits = terms.limits
    return {
        "name": terms.pool,
        "min_gpus": _plain(limits.floor_gpus),
        "max_gpus": _plain(limits.ceiling_gpus),
        "node_gpus": _plain(limits.node_gpus),
        "lead_time_s": terms.lead_ms // 1000,
        "step_up_gpus": _plain(limits.step_up_gpus),
        "step_down_gpus": _plain(limits.step_down_gpus),
        "cooldown_s": limits.cooldown_ms // 1000,
        "stabilisation_s": limits.stabilise_ms // 1000,
        "warm_gpus": _plain(limits.warm_gpus),
        **_headroom(limits.headroom),
        "cost_cap": _plain(limits.cost_cap),
        "money_per_hour": terms.money_per_hour,
        "currency": terms.currency,
        "predict": limits.predict,
        "mode": terms.mode,
        "webhook": terms.webhook,
    }


def _headroom(part: float) -> Table:
    """As it was declared: a headroom of six places, or the utilisation that it was worked out from."""
    if float(round(Decimal(part), _PLACES)) == part:
        return {"headroom": _plain(part)}
    return {"utilisation": round(1 / (1 + Decimal(part)), _PLACES)}


def _plain(number: float | None) -> Decimal | None:
    return None if number is None else round(Decimal(number), _PLACES)


class _Bare(str):
    """A text that is written without quotes."""


def _dates(from_ms: int | None, to_ms: int | None) -> Table:
    return {"effective_from": _instant(from_ms), "effective_to": _instant(to_ms)}


def _instant(at_ms: int | None) -> _Bare | None:
    return None if at_ms is None else _Bare(format_instant(at_ms))


def _major(micro: int) -> Decimal:
    return Decimal(micro) / MICRO


def _hours(span: tuple[int, int] | None) -> str | None:
    return None if span is None else "-".join(_clock(minute) for minute in span)


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _value(value: object) -> str:
    """A value of TOML 1.0."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_text(str(key))} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    if isinstance(value, _Bare | int | dt.date):
        return str(value)
    return _text(str(value))


def _text(text: str) -> str:
    """A basic string: as in JSON, and what is not seen as an escape of TOML, which knows no pairs of them."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(sign if escape_text(sign) == sign else f"\\U{ord(sign):08x}" for sign in quoted)
