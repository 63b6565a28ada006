"""The plot of a pool's back-test."""

from itertools import combinations

import pytest

from gpuledger_collector.export.pool_plots import (
    LETTER,
    LINE,
    WIDTH,
    frontier,
    place_labels,
    ticks,
)


@pytest.mark.parametrize("cost", [0.0, 1e-9, 12.0])
def test_policies_that_cost_the_same_are_drawn(cost):
    """Also where all cost nothing, as in a pool that nobody has used for weeks."""
    drawn = frontier(
        [("gpuledger", cost, 0.0), ("the peak, always", cost, 0.0)], [], "USD", "a title", "a text"
    )
    assert drawn.count("<circle") == 2
    assert "nan" not in drawn


def test_no_label_lies_upon_another_or_on_a_point():
    """Also where all policies lie close together, and at the right edge."""
    names = ["the peak, always", "Kubernetes HPA", "current demand", "best reactive", "gpuledger"]
    for step in (0.0, 1.5, 9.0):
        points = [(640.0 + step * at, 200.0 + step * at, name) for at, name in enumerate(names)]
        boxes = []
        for (at, base, anchor), name in zip(place_labels(points), names, strict=True):
            size = LETTER * len(name)
            left = at - size if anchor == "end" else at
            assert left >= 0
            assert left + size <= WIDTH
            boxes.append((left, base - LINE / 2, left + size, base + LINE / 2))
        for one, other in combinations(boxes, 2):
            assert (
                one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3]
            )


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 100, ["0", "20", "40", "60", "80", "100"]),
        (41_300, 58_900, ["45k", "50k", "55k"]),
        (62_100, 102_000, ["70k", "80k", "90k", "100k"]),
        (100_100, 101_900, ["100.5k", "101k", "101.5k"]),
        (0.02, 0.11, ["0.02", "0.04", "0.06", "0.08", "0.1"]),
        (1001.2, 1009.9, ["1,002", "1,004", "1,006", "1,008"]),
    ],
)
def test_ticks_are_round_and_differ(low, high, texts):
    """Each says where it stands, in so many digits as their distance has."""
    assert [text for _, text in ticks(low, high)] == texts


def test_axes_have_names():
    """Down what is waited, and to the right what it costs."""
    drawn = frontier(
        [("gpuledger", 10.0, 0.5), ("the peak, always", 20.0, 0.0)], [], "cost, USD", "t", "d"
    )
    assert ">wait, GPU-hours<" in drawn
    assert ">cost, USD<" in drawn
