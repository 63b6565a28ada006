"""Numbers as people read them: the one rule of commands, pages, mails and their sentences.

Files, JSON, proofs and seals are exact and do not come through here. For people a number is rounded
once, from its exact value, half to even as charges are; its thousands stand apart; and what is more
than nothing is never shown as nothing (`<0.1`), as what is less than all is never 100 %. Money is
written by `accounting.money`, by the same rule.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR, round_half_even_div

LARGE = 1000
"""From here on, whole numbers decide."""
HUNDRED = Decimal(100)


def round_text(value: Decimal, places: int) -> str:
    """A number to so many decimal places: `1,234.5`; `<0.1` and `>-0.1` where rounding would leave
    nothing of it.
    """
    return _shown(value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_EVEN), value, places)


def _shown(rounded: Decimal, value: Decimal | int, places: int) -> str:
    if rounded:
        return f"{rounded:,f}"
    if not value:
        return f"{abs(rounded):f}"
    step = Decimal(1).scaleb(-places)
    return f"<{step:f}" if value > 0 else f">-{step:f}"


def places_of_size(smallest: Decimal) -> int:
    """Decimal places of an energy or an emission, by how large it is: three digits say enough."""
    size = abs(smallest)
    return 0 if size >= HUNDRED else 1 if size >= 10 else 2 if size >= 1 else 3


def size_text(value: Decimal) -> str:
    """A quantity with as many digits as say something: `1,254`, `25.4`, `0.254`."""
    return round_text(value, places_of_size(value))


def hours_text(gpu_ns: int, places: int = 1) -> str:
    """GPU-nanoseconds as hours: `1,234.5`, `12.0`, `<0.1`; more places where parts of an hour are
    listed.
    """
    units = round_half_even_div(gpu_ns * 10**places, GPU_NS_PER_HOUR)
    return _shown(Decimal(units).scaleb(-places), gpu_ns, places)


def count_text(number: Decimal) -> str:
    """GPUs, which may be parts of some: `12`, `12.5`."""
    if not number:
        return "0"
    return round_text(number, 0 if abs(number) > LARGE else 1).removesuffix(".0")


def share_text(share: Decimal) -> str:
    """A share of a whole, or a change of it, in percent and without its sign: `83`; `<1` where it
    is not nothing and `>99` (`<-99`) where it is not all.
    """
    percent = HUNDRED * share
    if abs(percent) < HUNDRED and abs(round(percent)) == HUNDRED:
        return ">99" if percent > 0 else "<-99"
    return round_text(percent, 0)


def percent(share: Decimal) -> str:
    """A share as `83 %`."""
    return f"{share_text(share)} %"
