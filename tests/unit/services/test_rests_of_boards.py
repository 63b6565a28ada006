"""What slices leave of a board on the map: one sum where nothing changes, as rating finds it."""

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.services import fleet_map
from gpuledger_collector.storage.billing.fleet_hours import PlacedAccelerator

SHARES = st.sampled_from([142_857, 285_714, 428_571, 571_428, 1_000_000])


@st.composite
def boards(draw):
    """Rows of a few boards, some with slices, that were there before the hour and after it."""
    rows = []
    for device in range(draw(st.integers(1, 3))):
        for part in range(draw(st.integers(1, 3))):
            is_slice = draw(st.booleans())
            rows.append(
                PlacedAccelerator(
                    accelerator_id=len(rows) + 1,
                    uuid=f"slice-{9 - part}-{device}" if is_slice else f"board-{device}",
                    device=f"board-{device}",
                    model="H100",
                    mig_instance="1g" if is_slice else None,
                    gpu_index=device,
                    health="ok",
                    cause="",
                    health_since_ms=None,
                    gpu_micro=draw(SHARES),
                    pool="train",
                    node=f"n{device}",
                    in_ms=draw(st.integers(-3, 0)),
                    out_ms=draw(st.none() | st.integers(HOUR_MS, HOUR_MS + 3)),
                    source="agent",
                )
            )
            if not is_slice:
                break
    return rows


@given(boards(), st.sampled_from([0, 1, HOUR_MS]), st.booleans())
def test_the_rest_of_a_board_that_stays_is_that_of_rating(rows, counted_ms, is_now):
    """The sum of its parts gives the same rests as its placements cut at every instant."""
    counted = Period(0, counted_ms)
    divided = {row.device for row in rows if row.uuid != row.device}
    parts = [row for row in rows if row.device in divided]
    expected = fleet_map._changing_rests(parts, counted, is_now=is_now)
    assert fleet_map._stranded(rows, counted, is_now=is_now) == expected
