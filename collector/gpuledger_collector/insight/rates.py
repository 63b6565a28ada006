"""Money of GPU time as an estimate, never a bill."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.accounting.money import MICRO

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class GpuHourRate:
    """Money per GPU-hour in an ISO 4217 currency."""

    per_gpu_hour: Decimal
    currency: str


def money_micro(gpu_s: float, rate: GpuHourRate | None) -> int | None:
    """Return micro-units of GPU-seconds at a rate; None without one."""
    return None if rate is None else round(Decimal(gpu_s) / HOUR_S * rate.per_gpu_hour * MICRO)
