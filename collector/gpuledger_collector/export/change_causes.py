"""The largest cause of a change of spending in words, for statements and for assistants."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.change_causes import ChangeCause, SaidCause, say_cause
from gpuledger_collector.accounting.rate_changes import RateChange
from gpuledger_collector.export import html
from gpuledger_collector.export.rate_changes import OTHER_PRICES, name_rate, rate_rows, say_rates


def say_main_cause(
    cause: ChangeCause | None,
    change_micro: int,
    price_micro: int,
    rate_changes: Sequence[RateChange],
    currency: str,
) -> SaidCause | None:
    """The largest cause of a change, in the amounts of the tables beside it; None: nothing changed.

    `price_micro` is what prices did, of which `rate_changes` are a part.
    """
    if cause is None:
        return None
    rate = ""
    # Rows of rates are rounded together, so that they add up: one may differ by a minor unit.
    effects: dict[int, str] = {}
    if cause.rate is not None:
        rate = f"{name_rate(cause.rate)}, "
        rate += say_rates(cause.rate.before, cause.rate.after, currency)
        rows, at = rate_rows(rate_changes, price_micro, currency), rate_changes.index(cause.rate)
        if at < len(rows) and rows[at].at_ms == cause.rate.at_ms:
            effects[cause.micro] = rows[at].effect.signed()

    def signed(micro: int) -> str:
        return f"{effects.get(micro) or html.signed_amount(micro, currency)} {currency}"

    return say_cause(cause, change_micro, signed, rate=rate, prices=OTHER_PRICES)
