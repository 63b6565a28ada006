"""Carbon: measured energy x PUE x the grid's intensity gives grams of CO2 equivalent (GHG Protocol,
scope 2).

Energy is the accelerator's own, as measured; what the building adds comes in with the PUE. Unknown
energy, or energy that no intensity covers, makes unknown grams: never zero.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.accounting.period import DatedDays
from gpuledger_collector.accounting.quantity import round_half_even_div

MJ_PER_KWH = 3_600_000_000
"""Millijoules of a kilowatt-hour."""


@dataclass(frozen=True, slots=True)
class Intensity(DatedDays):
    """Grams of CO2 equivalent a kilowatt-hour of a pool (empty: any), and the PUE of its building,
    while it holds.
    """

    region: str
    pool: str
    grams_per_kwh: Decimal
    pue: Decimal = Decimal(1)
    from_on: dt.date | None = None
    to_on: dt.date | None = None


def intensity_of(in_force: Iterable[Intensity], pool: str) -> Intensity | None:
    """The intensity of a pool among those that hold: one that names it before one for any, then the
    latest to begin.
    """
    fit = [intensity for intensity in in_force if intensity.pool in ("", pool)]
    return max(
        fit,
        key=lambda intensity: (bool(intensity.pool), intensity.from_on or dt.date.min),
        default=None,
    )


def micrograms(energy_mj: int, intensity: Intensity) -> int:
    """Millionths of a gram for an energy, rounded once, half to even."""
    return round_half_even_div(energy_mj * per_kwh(intensity), MJ_PER_KWH)


def per_kwh(intensity: Intensity) -> int:
    """Micrograms of a kilowatt-hour, the building's part included."""
    return int(intensity.grams_per_kwh.scaleb(3)) * int(intensity.pue.scaleb(3))
