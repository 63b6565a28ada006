"""Split an integer in proportion to weights so that the parts add up to it: the largest-remainder
method (Hamilton).

Each part is within one of its exact share. Standard library only: the exact accounting of the
collector uses it too.
"""

from __future__ import annotations

from collections.abc import Sequence


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Parts of `total` in proportion to the weights; among equal remainders the earlier part gets
    more.

    Raises ValueError for a negative total or weight, and for a total to be split over weights that
    are all zero.
    """
    if total < 0 or any(weight < 0 for weight in weights):
        raise ValueError("a split needs a total and weights that are not negative")
    weight_sum = sum(weights)
    if weight_sum == 0:
        if total:
            raise ValueError("nothing to split over: all weights are zero")
        return [0] * len(weights)
    parts = [total * weight // weight_sum for weight in weights]
    missing = total - sum(parts)
    if missing:
        by_remainder = sorted(
            range(len(weights)), key=lambda at: (-(total * weights[at] % weight_sum), at)
        )
        for at in by_remainder[:missing]:
            parts[at] += 1
    return parts


def split_signed(total: int, weights: Sequence[int]) -> list[int]:
    """As `split`, also of a negative total: the parts of its opposite, with their signs changed."""
    return split(total, weights) if total >= 0 else [-part for part in split(-total, weights)]
