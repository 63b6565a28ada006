"""MIG boards whose instances do not fill them: what lies in no instance is told beside the bill."""

import json

from hypothesis import given
from hypothesis import strategies as st

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.accounting.stranded import ROUNDING_MICRO, Instance, remainders

OCT = ("--from", "2025-10-01", "--to", "2025-10-03", "--by", "team")


def slices(fleet, shares: dict[int, int], start: int, end: int) -> None:
    for number, share in shares.items():
        fleet.accelerator(number, gpu_micro=share)
        fleet.connection.execute(
            "UPDATE accelerator SET device_uuid = 'GPU-board', mig_instance = '1g', uuid = %s WHERE uuid = %s",
            (f"MIG-{number}", f"GPU-{number:04d}"),
        )
        row = fleet.rows(f"SELECT id FROM accelerator WHERE uuid = 'MIG-{number}'")[0]
        fleet.node("m1")
        fleet.connection.execute(
            "INSERT INTO capacity (accelerator_id, node_id, pool, in_ms, out_ms, source) "
            "SELECT %s, id, 'mig', %s, %s, 'agent' FROM node WHERE name = 'm1'",
            (row[0], 1_759_276_800_000 + start, 1_759_276_800_000 + end),
        )


def test_a_board_half_cut_strands_the_other_half(fleet, run) -> None:
    """Two quarters for a day and a full board for the next: half a board for 24 hours, at the pool's rate."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    slices(fleet, {1: 250_000, 2: 250_000}, 0, 2 * DAY)
    slices(fleet, {3: 500_000}, DAY, 2 * DAY)
    code, out, err = run("chargeback", *OCT, "--format", "json")
    assert code == 0
    said = "pool 'mig': 12.000000 GPU-hours of NVIDIA H100 80GB HBM3 lie in no MIG instance (stranded), worth USD 24.00"
    assert said in err
    assert any(said in note for note in json.loads(out)["notes"])


def test_a_whole_board_strands_nothing(fleet, run) -> None:
    """Boards without MIG, and seven sevenths, say nothing of slices."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(9, 0, DAY)
    fleet.evidence([Held(9, 1, 0, HOUR)])
    slices(fleet, dict.fromkeys(range(1, 8), 142_857), 0, DAY)
    assert "stranded" not in run("chargeback", *OCT)[2]


@given(st.lists(st.tuples(st.integers(1, GPU_MICRO), st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=7))
def test_instances_and_remainder_are_one_board(layout) -> None:
    """At every instant with an instance that leaves room, what is left and what is there are a whole board."""
    instances = [Instance("d", "p", "m", "n", share, Period(at, at + length)) for share, at, length in layout]
    left = remainders(instances)
    for at in range(101):
        there = [one.gpu_micro for one in instances if one.period.start_ms <= at < one.period.end_ms]
        rest = [rated.gpu_micro for rated, period in left if period.start_ms <= at < period.end_ms]
        room = GPU_MICRO - sum(there)
        assert rest == ([room] if there and room > ROUNDING_MICRO else [])
