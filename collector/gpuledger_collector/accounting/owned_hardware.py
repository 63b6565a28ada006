"""Owned hardware: what a GPU-hour of it costs, from what was paid for it and what it takes to run
it.

    rate = (capex - salvage) / GPUs / hours of life + opex x months of life / GPUs / hours of life
         + watts / 1000 x PUE x price of a kWh / GPUs

Hours are those between the two dates, not a month divided by thirty: over its life a machine earns
exactly what it cost. It is a rate for *capacity*: never divided by utilization, so that idle time
shows instead of making everyone dearer. When the hardware is written off, its depreciation ends and
the other costs remain.

Measured energy is not charged in addition to the rate: charges must add up to capacity x rate, and
energy that nothing measured would be paid by nobody. With `energy = measured` it is left out of the
rate; the kWh stand on every charge as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import lcm

from gpuledger_collector.accounting.money import RATE_DIGITS
from gpuledger_collector.accounting.period import HOUR_MS, format_date, format_instant, parse_date
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.quantity import round_together

RATED, MEASURED = "rated", "measured"
ENERGY = (RATED, MEASURED)
"""Whether the power named makes up a part of the rate, or energy is left to the meters."""
PARTS = ("depreciation", "opex", "energy")
"""What a rate is made of, in the order in which people read it."""
PER = ("gpu", "node")
"""What capex, salvage, watts and opex are given for."""


@dataclass(frozen=True, slots=True)
class Owned:
    """Hardware of one kind, in service from `starts_ms` on; amounts in the currency's major unit,
    per `per`.
    """

    name: str
    capex: Decimal
    months: int
    currency: str
    starts_ms: int
    per: str = "gpu"
    gpus: int = 1
    """GPUs of a node; 1 where amounts are per GPU."""
    salvage: Decimal = Decimal(0)
    opex_per_month: Decimal = Decimal(0)
    watts: Decimal = Decimal(0)
    pue: Decimal = Decimal(1)
    price_per_kwh: Decimal = Decimal(0)
    energy: str = RATED
    pool: str = ""
    gpu_model: str = ""
    node: str = ""
    region: str = ""
    list_rate: Decimal | None = None
    count: int | None = None
    """How many GPUs or nodes were bought; None: not declared, and then the cash view knows no
    purchase.
    """

    @property
    def written_off_ms(self) -> int:
        """The instant at which its depreciation ends: the same day of the month, so many months
        later.
        """
        return add_months(self.starts_ms, self.months)

    @property
    def life_hours(self) -> Fraction:
        """Hours over which it is depreciated."""
        return Fraction(self.written_off_ms - self.starts_ms, HOUR_MS)

    def parts(self, *, written_off: bool = False) -> dict[str, Fraction]:
        """The parts of the rate per GPU-hour, exact."""
        each = Fraction(1, self.gpus)
        each_hour = each * Fraction(HOUR_MS, self.written_off_ms - self.starts_ms)
        kilowatts = Fraction(self.watts) * Fraction(1, 1000) * Fraction(self.pue)
        return {
            "depreciation": Fraction(0)
            if written_off
            else Fraction(self.capex - self.salvage) * each_hour,
            # All months over all hours: a month's cost divided by that month's hours would make
            # February dearer.
            "opex": Fraction(self.opex_per_month) * self.months * each_hour,
            "energy": Fraction(0)
            if self.energy == MEASURED
            else kilowatts * Fraction(self.price_per_kwh) * each,
        }

    def prices(self) -> list[Price]:
        """Its entries of the price book: while it is depreciated, and from then on.

        Each says how it was derived.
        """
        ends_ms = self.written_off_ms
        # Two versions of one price: the rate falls by its depreciation on the day on which it is
        # written off.
        spans = ((self.starts_ms, ends_ms, False), (ends_ms, None, True))
        return [self._price(starts, ends, written_off=done) for starts, ends, done in spans]

    def _price(self, starts_ms: int, ends_ms: int | None, *, written_off: bool) -> Price:
        parts = round_parts(self.parts(written_off=written_off))
        basis: dict[str, object] = {
            "name": self.name,
            "parts": {name: f"{part:f}" for name, part in parts.items()},
        }
        return Price(
            id=None,
            pool=self.pool,
            gpu_model=self.gpu_model,
            purchase="owned",
            # The rate is the sum of the rounded parts, so that people can add up what they are
            # shown.
            rate=sum(parts.values(), Decimal(0)),
            currency=self.currency,
            effective_from_ms=starts_ms,
            effective_to_ms=ends_ms,
            list_rate=self.list_rate,
            region=self.region,
            node=self.node,
            basis=basis | {"from": self._facts()},
        )

    def _facts(self) -> Mapping[str, str]:
        facts = {
            "capex": self.capex,
            "salvage": self.salvage,
            "opex_per_month": self.opex_per_month,
            "watts": self.watts,
            "pue": self.pue,
            "price_per_kwh": self.price_per_kwh,
        }
        return {
            "per": self.per,
            "gpus": str(self.gpus),
            "months": str(self.months),
            "hours": as_number(self.life_hours),
            "in_service": format_instant(self.starts_ms),
            "written_off": format_instant(self.written_off_ms),
            "energy": self.energy,
            **({} if self.count is None else {"count": str(self.count)}),
            **{name: f"{value.normalize():f}" for name, value in facts.items()},
        }


def round_parts(parts: Mapping[str, Fraction]) -> dict[str, Decimal]:
    """Parts to the places of a rate, by largest remainder: they add up to the rounded sum."""
    # On a common denominator the parts are integers, and the rounding is exact.
    unit = lcm(*(part.denominator for part in parts.values()))
    scaled = [int(part * unit * 10**RATE_DIGITS) for part in parts.values()]
    return {
        name: Decimal(count).scaleb(-RATE_DIGITS)
        for name, count in zip(parts, round_together(scaled, unit), strict=True)
    }


def as_number(number: Fraction) -> str:
    """A whole number as such, another as a quotient: never as a float."""
    return (
        str(number.numerator)
        if number.denominator == 1
        else f"{number.numerator}/{number.denominator}"
    )


def add_months(at_ms: int, months: int) -> int:
    """The same instant of the day (UTC) so many months later; where that day does not exist, the
    first after it.
    """
    date = format_date(at_ms)
    at = int(date[:4]) * 12 + int(date[5:7]) - 1 + months
    first_ms = parse_date(f"{at // 12:04d}-{at % 12 + 1:02d}-01")
    following_ms = parse_date(f"{(at + 1) // 12:04d}-{(at + 1) % 12 + 1:02d}-01")
    same_ms = first_ms + at_ms - parse_date(f"{date[:7]}-01")
    return min(same_ms, following_ms)
