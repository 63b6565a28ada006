"""The inventory time line of a board: the same from any order of evidence, and never more than one
device.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.accounting.placement import (
    FAR_MS,
    RETURN_MS,
    Attributes,
    Board,
    Part,
    Placement,
    Retirement,
    Sighting,
    StatedRow,
    place,
    splice_placements,
)
from gpuledger_collector.accounting.quantity import GPU_MICRO

pytestmark = pytest.mark.timeout(3_600)  # 10,000 examples with --long
HOUR = DAY_MS // 24
DEVICE = Part(1, "GPU-0", is_device=True)
INSTANCES = [
    Part(2, "MIG-a", is_device=False),
    Part(3, "MIG-b", is_device=False),
    Part(4, "MIG-c", is_device=False),
]
WHOLE = Attributes("H100", "", GPU_MICRO, "", 1)
SHARES = (142_857, 250_000, 428_571, 500_000, 571_428)


def sighting(part, start, end, *, node=1, attributes=WHOLE):
    return Sighting(start, end, f"n{node}", node, part, attributes)


@st.composite
def sightings(draw, days=6):
    """What nodes saw of a board, mostly in line with each other, sometimes with claims that cannot
    be.
    """
    found = []
    for _ in range(draw(st.integers(1, 10))):
        start = draw(st.integers(0, days * 24 * 4)) * (HOUR // 4)
        length = draw(st.sampled_from([HOUR // 4, HOUR // 2, HOUR, HOUR, 6 * HOUR, DAY_MS]))
        node = draw(st.sampled_from([1, 1, 1, 2]))
        pool = draw(st.sampled_from(["", "", "train", "cloud"]))
        if draw(st.booleans()):
            model = draw(st.sampled_from(["H100", "H100 NVL"]))
            said = Attributes(model, "", GPU_MICRO, pool, 10 * len(model) + len(pool))
            found.append(sighting(DEVICE, start, start + length, node=node, attributes=said))
            continue
        for part in draw(st.lists(st.sampled_from(INSTANCES), min_size=1, max_size=3, unique=True)):
            share = draw(st.sampled_from(SHARES))
            said = Attributes(
                "H100", part.uuid, share, pool, share * 100 + 10 * part.accelerator_id + len(pool)
            )
            found.append(sighting(part, start, start + length, node=node, attributes=said))
    return found


@st.composite
def stated(draw):
    """Rows of an inventory: none, or of the device, or of an instance; in order and disjoint."""
    rows = []
    for part in draw(st.sampled_from([[], [DEVICE], INSTANCES[:1], INSTANCES[:2]])):
        edges = sorted(draw(st.sets(st.integers(0, 6 * 24), min_size=2, max_size=4)))
        for start, end in zip(edges[::2], edges[1::2], strict=False):
            node, model = (
                draw(st.sampled_from([None, 1, 2])),
                draw(st.sampled_from(["", "H100 PCIe"])),
            )
            rows.append(
                StatedRow(
                    part,
                    node,
                    draw(st.sampled_from(["bought", "train"])),
                    model,
                    start * HOUR,
                    end * HOUR,
                )
            )
    return rows


@st.composite
def imported(draw):
    """Days on which usage is imported for pools."""
    return {
        pool: [
            Period(day * DAY_MS, (day + 1) * DAY_MS)
            for day in sorted(draw(st.sets(st.integers(0, 6), max_size=3)))
        ]
        for pool in ("train", "cloud")
    }


@st.composite
def retirements(draw):
    """Instants from which on nodes are out of the fleet; mostly none."""
    nodes = draw(st.sampled_from([[], [], [1], [1, 2]]))
    return tuple(Retirement(node, draw(st.integers(0, 6 * 24)) * HOUR) for node in nodes)


def board(seen, rows=(), days=None, since_ms=0, carried=(), former=None, gone=(), retired=()):
    return Board(
        "GPU-0", since_ms, list(carried), seen, rows, days or {}, former or {}, gone, retired
    )


def whole(seen, rows, days, retired=()):
    """The time line from everything at once, by accelerator."""
    placed: dict[int, list[Placement]] = {}
    for row in place(board(seen, rows, days, retired=retired)).placements:
        placed.setdefault(row.accelerator_id, []).append(row)
    return placed


def bit_by_bit(seen, rows, days, retired=()):
    """The time line from evidence that comes one after the other, each time placed again from two
    days before it.
    """
    known: list[Sighting] = []
    placed: dict[int, list[Placement]] = {}
    for row in place(board([], rows, days, retired=retired)).placements:
        placed.setdefault(row.accelerator_id, []).append(row)
    for one in seen:
        known.append(one)
        start_ms = max(0, one.start_ms - RETURN_MS - DAY_MS)
        before = {
            number: [row for row in mine if row.in_ms < start_ms] for number, mine in placed.items()
        }
        line = place(
            board(
                [other for other in known if other.start_ms >= start_ms - RETURN_MS - DAY_MS],
                rows,
                days,
                start_ms,
                [mine[-1] for mine in before.values() if mine and mine[-1].reaches(start_ms)],
                {number: [row.pool for row in mine] for number, mine in before.items()},
                [mine[-1] for mine in before.values() if mine and not mine[-1].reaches(start_ms)],
                retired,
            )
        )
        placed = {
            number: splice_placements(
                before.get(number, []),
                [row for row in line.placements if row.accelerator_id == number],
                start_ms,
            )
            for number in {*before, *[row.accelerator_id for row in line.placements]}
        }
    return {number: mine for number, mine in placed.items() if mine}


@given(sightings(), stated(), imported(), retirements(), st.randoms(use_true_random=False))
def test_the_order_of_evidence_changes_nothing(seen, rows, days, retired, chance):
    """Law (a): evidence one by one, in any order and more than once, gives what all of it at once
    gives.
    """
    shuffled = [*seen, *seen[:2]]
    chance.shuffle(shuffled)
    assert bit_by_bit(shuffled, rows, days, retired) == whole(seen, rows, days, retired)


@given(sightings(), stated(), imported())
def test_a_board_is_never_more_than_one_device(seen, rows, days):
    """At every instant the parts that are there add up to at most one device, and none is there
    twice.
    """
    placed = [row for mine in whole(seen, rows, days).values() for row in mine]
    for at in {row.in_ms for row in placed}:
        there = [row for row in placed if row.holds(at)]
        assert sum(row.gpu_micro for row in there) <= GPU_MICRO
        assert len({row.accelerator_id for row in there}) == len(there)


@given(sightings(), imported(), st.integers(0, 6 * 24))
def test_evidence_changes_nothing_before_it(seen, days, hour):
    """Law (b): what is placed before an instant does not depend on evidence that begins a day or
    more after it.
    """
    at = hour * HOUR
    early = [one for one in seen if one.start_ms < at]
    cut = at - RETURN_MS - DAY_MS

    def until(placed):
        return {
            number: [
                replace(row, out_ms=min(row.out_ms or FAR_MS, cut))
                for row in mine
                if row.in_ms < cut
            ]
            for number, mine in placed.items()
            if any(row.in_ms < cut for row in mine)
        }

    assert until(whole(seen, (), days)) == until(whole(early, (), days))


def test_a_move_is_taken_over_at_once():
    """A device that is seen on another node, and no more on the first, has moved from that interval
    on.
    """
    placed = whole([sighting(DEVICE, 0, HOUR), sighting(DEVICE, HOUR, 2 * HOUR, node=2)], (), {})
    assert [(row.node_id, row.in_ms, row.out_ms) for row in placed[1]] == [
        (1, 0, HOUR),
        (2, HOUR, None),
    ]


def test_a_claim_between_two_sightings_is_refused():
    """What another node says of a device between two sightings of its own node is a refused claim."""
    seen = [
        sighting(DEVICE, 0, HOUR),
        sighting(DEVICE, 2 * HOUR, 3 * HOUR, node=2),
        sighting(DEVICE, 5 * HOUR, 6 * HOUR),
    ]
    line = place(board(seen))
    assert [(row.node_id, row.in_ms, row.out_ms) for row in line.placements] == [(1, 0, None)]
    assert [(one.kind, one.node_id, one.first_ms) for one in line.claims] == [("node", 2, 2 * HOUR)]


def test_a_claim_of_a_time_that_its_node_sees_is_refused():
    """A node that was silent for two days keeps the device where it sees it during another's claim."""
    seen = [
        sighting(DEVICE, 0, HOUR),
        sighting(DEVICE, 2 * DAY_MS, 2 * DAY_MS + 6 * HOUR, node=2),
        sighting(DEVICE, 2 * DAY_MS + HOUR, 2 * DAY_MS + 2 * HOUR),
    ]
    line = place(board(seen))
    assert [(row.node_id, row.in_ms, row.out_ms) for row in line.placements] == [(1, 0, None)]
    assert [(one.node_id, one.first_ms) for one in line.claims] == [(2, 2 * DAY_MS)]


def test_a_claim_that_ends_where_its_node_is_back_is_a_move():
    """A node that was silent for two days and sees the device again only when a claim ends has lost
    it until then.
    """
    seen = [
        sighting(DEVICE, 0, HOUR),
        sighting(DEVICE, 2 * DAY_MS, 2 * DAY_MS + HOUR, node=2),
        sighting(DEVICE, 2 * DAY_MS + HOUR, 2 * DAY_MS + 2 * HOUR),
    ]
    assert [row.node_id for row in whole(seen, (), {})[1]] == [1, 2, 1]


def test_a_pool_with_imported_usage_is_claimed_in_vain():
    """On a day with imported usage the accelerator keeps the last other pool that held."""
    train, cloud = replace(WHOLE, pool="train"), replace(WHOLE, pool="cloud", id=2)
    seen = [
        sighting(DEVICE, 0, HOUR, attributes=train),
        sighting(DEVICE, HOUR, 2 * HOUR, attributes=cloud),
    ]
    line = place(board(seen, days={"cloud": [Period(0, DAY_MS)]}))
    assert [(row.pool, row.in_ms, row.out_ms) for row in line.placements] == [
        ("train", 0, HOUR),
        ("train", HOUR, DAY_MS),
        ("cloud", DAY_MS, None),
    ]
    assert [(one.kind, one.subject) for one in line.claims] == [("pool", "cloud")]


def test_an_instance_that_comes_back_is_there_by_its_row():
    """Half a board leaves the inventory for a day; from its next row on it is there again, though
    nobody sees it.
    """
    half = Attributes("H100", "MIG-a", 500_000, "", 7)
    rows = [
        StatedRow(INSTANCES[0], 1, "bought", "", 0, DAY_MS),
        StatedRow(INSTANCES[0], 1, "bought", "", 2 * DAY_MS, None),
        StatedRow(INSTANCES[1], 1, "bought", "", 0, None),
    ]
    other = Attributes("H100", "MIG-b", 500_000, "", 8)
    seen = [sighting(INSTANCES[0], HOUR, 2 * HOUR, attributes=half)]
    seen += [
        sighting(INSTANCES[1], at * HOUR, (at + 1) * HOUR, attributes=other) for at in range(1, 72)
    ]
    placed = whole(seen, rows, {})
    times = [
        (row.in_ms, row.out_ms, row.gpu_micro, row.pool)
        for row in placed[INSTANCES[0].accelerator_id]
    ]
    assert times == [(HOUR, DAY_MS, 500_000, "bought"), (2 * DAY_MS, None, 500_000, "bought")]
    assert bit_by_bit(seen, rows, {}) == placed


def test_an_instance_returns_only_where_it_fits():
    """Another geometry took its place meanwhile: its row says where it is, and not that there is
    room.
    """
    half, rest = (
        Attributes("H100", "MIG-a", 500_000, "", 7),
        Attributes("H100", "MIG-b", 571_428, "", 8),
    )
    rows = [
        StatedRow(INSTANCES[0], 1, "bought", "", 0, DAY_MS),
        StatedRow(INSTANCES[0], 1, "bought", "", 2 * DAY_MS, None),
        StatedRow(INSTANCES[1], 1, "bought", "", DAY_MS, None),
    ]
    seen = [
        sighting(INSTANCES[0], HOUR, 2 * HOUR, attributes=half),
        sighting(INSTANCES[1], 30 * HOUR, 31 * HOUR, attributes=rest),
    ]
    placed = whole(seen, rows, {})
    assert [(row.in_ms, row.out_ms) for row in placed[INSTANCES[0].accelerator_id]] == [
        (HOUR, DAY_MS)
    ]


@given(sightings(), retirements())
def test_a_retired_node_has_nothing_until_it_reports_again(seen, retired):
    """From the retirement to the next sighting that begins on the node, nothing that agents saw is
    there on it.
    """
    placed = [row for rows in whole(seen, (), {}, retired).values() for row in rows]
    for end in retired:
        later = [
            one.start_ms for one in seen if one.node_id == end.node_id and one.start_ms >= end.at_ms
        ]
        for at in {end.at_ms, *(row.in_ms for row in placed)}:
            if end.at_ms <= at < min(later, default=FAR_MS):
                assert not [row for row in placed if row.node_id == end.node_id and row.holds(at)]


def test_a_retired_node_that_reports_again_is_there_again():
    """Its device leaves at the retirement, and is there from the next sighting on."""
    seen = [sighting(DEVICE, 0, HOUR), sighting(DEVICE, 9 * HOUR, 10 * HOUR)]
    placed = whole(seen, (), {}, [Retirement(1, 2 * HOUR), Retirement(2, 3 * HOUR)])
    assert [(row.in_ms, row.out_ms) for row in placed[1]] == [(0, 2 * HOUR), (9 * HOUR, None)]
