"""Cost of energy: an estimate, as the kilowatt-hours behind it are."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.accounting.money import MICRO


@dataclass(frozen=True, slots=True)
class Tariff:
    """Money per kilowatt-hour at the meter, and the power usage effectiveness (PUE) of the
    building, 1 or more.
    """

    rate: Decimal
    currency: str
    pue: Decimal = Decimal(1)


def energy_micro(kwh: float | None, tariff: Tariff | None) -> int | None:
    """Return micro-units for kilowatt-hours of GPUs: kWh x PUE x rate; None where either is
    unknown.
    """
    if kwh is None or tariff is None:
        return None
    return round(Decimal(repr(kwh)) * tariff.pue * tariff.rate * MICRO)
