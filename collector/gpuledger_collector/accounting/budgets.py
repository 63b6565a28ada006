"""Budgets: what an owner may spend or use in a period, when its people are notified, and why that
changed.

Thresholds are a small state machine for each (budget, period, rule, percent): nothing, pending,
firing, acked, resolved. Each fires once in its period, whatever happens later. Amounts are
micro-units and compared exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import lcm

from gpuledger_collector.accounting.money import MICRO, decimal_text, group_digits, minor_digits
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import HOUR_MS, UTC_DAYS, Calendar, Period
from gpuledger_collector.accounting.quantity import round_half_even_div, round_together

MONTH, QUARTER, RANGE = "month", "quarter", "range"
PERIODS = (MONTH, QUARTER, RANGE)
DIRECT, TOTAL, GPU_HOURS = "direct", "total", "gpu_hours"
MEASURES = (DIRECT, TOTAL, GPU_HOURS)
"""What counts against a budget: direct cost, with the owner's shares of common costs, or hours
held.
"""
MEASURED = {DIRECT: "direct cost", TOTAL: "total cost", GPU_HOURS: "GPU-hours"}
"""What people call it."""
HOURS_UNIT = "GPU-hours"
HOUR_DIGITS = 2
MICRO_HOUR_NS = 3_600_000
"""GPU-nanoseconds of a millionth of a GPU-hour."""
ACTUAL, FORECAST, PACE = "actual", "forecast", "pace"
PENDING, FIRING, ACKED, RESOLVED = "pending", "firing", "acked", "resolved"
ROW_EVALUATIONS = 3
"""A forecast must cross in this many evaluations in a row before it fires."""
EVALUATION_GAP_MS = HOUR_MS
"""Evaluations closer than this count as one."""
HYSTERESIS_PERCENT = 3
"""A forecast must fall this far below a threshold, in percent of the budget, before the alert is
resolved.
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """When to notify whom: percents of the budget; `pace` is a percent of the even pace of the
    period.
    """

    actual: tuple[int, ...] = (50, 80, 100)
    forecast: tuple[int, ...] = (100,)
    pace: int | None = None
    recipients: tuple[str, ...] = ()
    escalate_to: tuple[str, ...] = ()
    quiet: tuple[int, int] | None = None
    """Quiet hours in minutes of the UTC day; only alerts that all of the budget is spent are sent
    then.
    """
    escalate_hours: int = 24
    """Hours after which `escalate_to` is notified that nobody acknowledged that all of the budget
    is spent.
    """


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount for an owner (`owner`: levels of the tree; none: the whole fleet) in each period of
    its kind.

    `amount_micro` is in millionths of its unit: of the currency, or of a GPU-hour, where `currency`
    is empty.
    """

    id: int
    name: str
    owner: Mapping[str, str]
    kind: str
    span: Period | None
    amount_micro: int
    currency: str
    terms: Terms = field(default_factory=Terms)
    calendar: Calendar = field(default=UTC_DAYS, compare=False, repr=False)
    """In which its periods begin and end; `span` names days as those of UTC."""
    measure: str = DIRECT

    @property
    def is_money(self) -> bool:
        """Whether its amounts are money; else they are GPU-hours."""
        return self.measure != GPU_HOURS

    @property
    def unit(self) -> str:
        """The unit of its amounts: a currency, or GPU-hours."""
        return self.currency if self.is_money else HOURS_UNIT

    @property
    def spent_word(self) -> str:
        """What happens to its amount: money is spent, hours are used."""
        return "spent" if self.is_money else "used"

    @property
    def digits(self) -> int:
        """Decimal places with which exact amounts are shown."""
        return minor_digits(self.currency) if self.is_money else HOUR_DIGITS

    @property
    def shown_micro(self) -> int:
        """Micro-units in the last of these places."""
        return int(MICRO // 10**self.digits)

    def plain(self, micro: int, digits: int | None = None) -> str:
        """An amount for files and programs: `40000.00`; `digits` 0 for estimates."""
        places = self.digits if digits is None else digits
        return decimal_text(round_half_even_div(micro, MICRO // 10**places), places)

    def number(self, micro: int, digits: int | None = None) -> str:
        """An amount for people, without its unit: `40,000.00`; `digits` 0 for estimates."""
        return group_digits(self.plain(micro, digits))

    def text(self, micro: int, digits: int | None = None) -> str:
        """An amount as people write it: `USD 40,000.00`, `5,000.00 GPU-hours`."""
        number = self.number(micro, digits)
        return f"{self.currency} {number}" if self.is_money else f"{number} {HOURS_UNIT}"

    @property
    def measure_text(self) -> str:
        """What counts against it, as people say it."""
        return MEASURED[self.measure]

    @property
    def owner_label(self) -> str:
        """The owner as people write it: `vision/detector`; `(whole fleet)` for the root."""
        return (
            "/".join(self.owner[level] for level in LEVELS if level in self.owner)
            or "(whole fleet)"
        )

    def period_at(self, at_ms: int) -> Period:
        """The period that holds an instant, in the billing zone; a range is always itself."""
        if self.span is not None:
            return self.calendar.days_named(self.span)
        at = self.calendar.date_of(at_ms)
        first, months = (at.month, 1) if self.kind == MONTH else ((at.month - 1) // 3 * 3 + 1, 3)
        last = first + months
        return self.calendar.date_range(
            f"{at.year:04d}-{first:02d}-01",
            f"{at.year + (last > 12):04d}-{(last - 1) % 12 + 1:02d}-01",
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of a budget at an instant, in micro-units; None: not known.

    `likely_micro`: what the period's end will reach with four chances in five. `pace_percents`: the
    burn of the last hour and of the last six hours, in percent of the even pace.
    """

    at_ms: int
    period: Period
    spent_micro: int
    likely_micro: int | None = None
    middle_micro: int | None = None
    pace_percents: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """How far one threshold of a budget is in a period. `fired_ms` None: it has not fired yet."""

    rule: str
    percent: int
    state: str
    seen: int
    evaluated_ms: int
    fired_ms: int | None = None
    escalated_ms: int | None = None
    acked_by: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Alerts that changed, and of them those that fire now."""

    changed: tuple[Alert, ...]
    fired: tuple[Alert, ...]


def evaluate(budget: Budget, reading: Reading, known: Iterable[Alert]) -> Evaluation:
    """The next state of every threshold. `known`: the alerts of this budget and period so far."""
    before = {(alert.rule, alert.percent): alert for alert in known}
    changed, fired = [], []
    for rule, percent in thresholds(budget.terms):
        old = before.get((rule, percent))
        new = _next(budget, reading, rule, percent, old)
        if new is not None and new != old:
            changed.append(new)
            if new.fired_ms is not None and (old is None or old.fired_ms is None):
                fired.append(new)
    return Evaluation(tuple(changed), tuple(fired))


def thresholds(terms: Terms) -> list[tuple[str, int]]:
    """Every (rule, percent), lowest first."""
    rules = [(ACTUAL, percent) for percent in sorted(set(terms.actual))]
    rules += [(FORECAST, percent) for percent in sorted(set(terms.forecast))]
    return rules + ([(PACE, terms.pace)] if terms.pace is not None else [])


def _next(
    budget: Budget, reading: Reading, rule: str, percent: int, old: Alert | None
) -> Alert | None:
    crossed = _is_crossed(budget, reading, rule, percent)
    if crossed is None:
        return old
    # What has fired keeps its instant for the rest of the period: it may resolve and fire again,
    # but notifies once.
    if old is None or old.fired_ms is None:
        return _towards_firing(reading, rule, percent, old, crossed=crossed)
    if crossed and old.state == RESOLVED:
        return replace(old, state=FIRING, evaluated_ms=reading.at_ms)
    if old.state != RESOLVED and _is_over(budget, reading, rule, percent):
        return replace(old, state=RESOLVED, evaluated_ms=reading.at_ms)
    return old


def _towards_firing(
    reading: Reading, rule: str, percent: int, old: Alert | None, *, crossed: bool
) -> Alert | None:
    if not crossed:
        return None if old is None else replace(old, seen=0, evaluated_ms=reading.at_ms)
    if rule != FORECAST:
        return Alert(
            rule=rule,
            percent=percent,
            state=FIRING,
            seen=1,
            evaluated_ms=reading.at_ms,
            fired_ms=reading.at_ms,
        )
    if old is None:
        return Alert(rule=rule, percent=percent, state=PENDING, seen=1, evaluated_ms=reading.at_ms)
    # Evaluations in quick succession see the same forecast; they must not count as several.
    if reading.at_ms < old.evaluated_ms + EVALUATION_GAP_MS:
        return old
    seen = old.seen + 1
    fires = seen >= ROW_EVALUATIONS
    return Alert(
        rule=rule,
        percent=percent,
        state=FIRING if fires else PENDING,
        seen=seen,
        evaluated_ms=reading.at_ms,
        fired_ms=reading.at_ms if fires else None,
    )


def _is_crossed(budget: Budget, reading: Reading, rule: str, percent: int) -> bool | None:
    """Whether the threshold is reached; None where that cannot be known."""
    reached = reading.spent_micro * 100 >= budget.amount_micro * percent
    if rule == ACTUAL:
        return reached
    if rule == PACE:
        # Both windows: the last hour alone is noise, and the last six alone still fire when the
        # burn has stopped.
        return None if reading.pace_percents is None else min(reading.pace_percents) >= percent
    if reading.likely_micro is None:
        return None
    # What is spent already is the other rule's matter: a forecast warns of what is to come.
    return not reached and reading.likely_micro * 100 >= budget.amount_micro * percent


def _is_over(budget: Budget, reading: Reading, rule: str, percent: int) -> bool:
    """Whether a threshold that fired is no longer reached."""
    if rule == ACTUAL:
        return reading.spent_micro * 100 < budget.amount_micro * percent
    if rule == PACE:
        return reading.pace_percents is not None and reading.pace_percents[0] < percent
    if reading.middle_micro is None:
        return False
    # The middle and not the likely end, and a margin below: a forecast that wavers must not resolve
    # and fire in turn.
    return reading.middle_micro * 100 < budget.amount_micro * (percent - HYSTERESIS_PERCENT)


def send_at(terms: Terms, alert: Alert, at_ms: int) -> int:
    """When an alert may be sent: at once if all of the budget is spent, otherwise after the quiet
    hours.
    """
    if terms.quiet is None or is_urgent(alert):
        return at_ms
    start, end = terms.quiet
    minute = at_ms // 60_000 % 1440
    quiet = start <= minute < end if start < end else minute >= start or minute < end
    return at_ms - at_ms % 60_000 + (end - minute) % 1440 * 60_000 if quiet else at_ms


def is_urgent(alert: Alert) -> bool:
    """Whether all of the budget is spent: such an alert ignores quiet hours and digests."""
    return alert.rule == ACTUAL and alert.percent >= 100


def must_escalate(budget: Budget, alert: Alert, at_ms: int) -> bool:
    """Whether nobody acknowledged in time that all of the budget is spent, so that others are
    notified, once.
    """
    return (
        bool(budget.terms.escalate_to)
        and is_urgent(alert)
        and alert.state == FIRING
        and alert.escalated_ms is None
        and alert.fired_ms is not None
        and at_ms >= alert.fired_ms + budget.terms.escalate_hours * HOUR_MS
    )


def percent_of(part_micro: int, whole_micro: int) -> int:
    """The part in whole percents, cut off rather than rounded up: 99.9 % of a budget is not all of
    it.
    """
    return part_micro * 100 // whole_micro


@dataclass(frozen=True, slots=True)
class HolderSpend:
    """What one holder had in a window: `label` names it to people, `model` is what its price hangs
    on.
    """

    label: tuple[str, ...]
    model: str
    gpu_ns: int
    cost_micro: int


@dataclass(frozen=True, slots=True)
class Driver:
    """What one holder added to the change of spend, and why: three parts that add up to it."""

    label: tuple[str, ...]
    model: str
    before_micro: int
    after_micro: int
    price_micro: int
    volume_micro: int
    mix_micro: int

    @property
    def change_micro(self) -> int:
        """After less before."""
        return self.after_micro - self.before_micro


def drivers(before: Iterable[HolderSpend], after: Iterable[HolderSpend]) -> list[Driver]:
    """Why spend differs between two windows, one driver a holder and model, the largest change
    first.

    price: the later quantity at the change of its price; volume: the change of quantity at the
    earlier average price of all; mix: the change of quantity at what its own earlier price differs
    from that average. A holder that is new has the earlier price of its model, else its own. Parts
    are exact fractions, rounded together for each holder, so they add up to its change, and the
    changes add up to the whole (price-volume-mix variance).
    """
    old, new = _sum_spend(before), _sum_spend(after)
    # Without any spend before there is no earlier price; the later one makes all of the change
    # volume.
    average = _average(list(old.values())) or _average(list(new.values())) or Fraction(0)
    of_model = _model_prices(old)
    changes = []
    for key in old.keys() | new.keys():
        quantity_0, cost_0 = old.get(key, (0, 0))
        quantity_1, cost_1 = new.get(key, (0, 0))
        own = Fraction(cost_1, quantity_1) if quantity_1 else average
        price_0 = Fraction(cost_0, quantity_0) if quantity_0 else of_model.get(key[1], own)
        more = quantity_1 - quantity_0
        # The first part is the rest, so the three add up to the change exactly before they are
        # rounded.
        parts = [cost_1 - cost_0 - more * price_0, more * average, more * (price_0 - average)]
        changes.append(Driver(*key, cost_0, cost_1, *_round_together(parts)))
    return sorted(
        changes, key=lambda driver: (-abs(driver.change_micro), driver.label, driver.model)
    )


def _sum_spend(held: Iterable[HolderSpend]) -> dict[tuple[tuple[str, ...], str], tuple[int, int]]:
    sums: dict[tuple[tuple[str, ...], str], tuple[int, int]] = {}
    for spend in held:
        gpu_ns, cost = sums.get((spend.label, spend.model), (0, 0))
        sums[spend.label, spend.model] = (gpu_ns + spend.gpu_ns, cost + spend.cost_micro)
    return {key: sums[key] for key in sums if sums[key] != (0, 0)}


def _average(held: Sequence[tuple[int, int]]) -> Fraction | None:
    gpu_ns = sum(spend[0] for spend in held)
    return Fraction(sum(spend[1] for spend in held), gpu_ns) if gpu_ns else None


def _model_prices(
    held: Mapping[tuple[tuple[str, ...], str], tuple[int, int]],
) -> dict[str, Fraction]:
    models = {model for _, model in held}
    prices = {
        model: _average([value for key, value in held.items() if key[1] == model])
        for model in models
    }
    return {model: price for model, price in prices.items() if price is not None}


def _round_together(parts: Sequence[Fraction]) -> list[int]:
    """Fractions that add up to an integer, as integers that do."""
    unit = lcm(*(part.denominator for part in parts))
    return round_together([int(part * unit) for part in parts], unit)


def top(drivers: Sequence[Driver], count: int) -> list[Driver]:
    """The first drivers, and the rest summed up in one more, which is never about one alone."""
    if len(drivers) <= count + 1:
        return list(drivers)
    rest = drivers[count:]
    sums = [
        sum(getattr(driver, name) for driver in rest)
        for name in ("before_micro", "after_micro", "price_micro", "volume_micro", "mix_micro")
    ]
    return [
        *drivers[:count],
        Driver((f"{len(rest)} others",), "", *sums),
    ]
