"""Quantiles of a few values, without loading numpy: most commands judge less than it takes to
import it.
"""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ascending: Sequence[float], share: float) -> float:
    """Return the quantile of sorted values, linear between neighbors. Needs at least one value."""
    place = share * (len(ascending) - 1)
    below = int(place)
    if below + 1 == len(ascending):
        return ascending[below]
    return ascending[below] + (ascending[below + 1] - ascending[below]) * (place - below)
