"""A day of four accelerators: one gone idle, one free, one never used, one a warm replica."""

from __future__ import annotations

from fakes.fleet import DAY, HOUR, OCTOBER, Fleet, Held

MINUTE = 60_000
GIB = 2**30
CHANGE = 10 * HOUR + 30 * MINUTE + 30_000
"""When the rate changes: inside a minute."""


def minutes(
    fleet: Fleet, number: int, start: int, end: int, utilization: float, processes: float = 1
) -> None:
    """A sample a minute, as the rollup leaves it."""
    fleet.connection.execute(
        "INSERT INTO gpu_minute (accelerator_id, minute_ms, samples, utilization_ratio,"
        " memory_used_bytes, processes, zero_ratio) SELECT %s, m, 4, %s, %s, %s, %s FROM"
        " generate_series(%s::bigint, %s::bigint - 1, 60000) AS m",
        (
            fleet.accelerator(number),
            utilization,
            60 * GIB if processes else GIB // 2,
            processes,
            float(utilization == 0),
            OCTOBER + start,
            OCTOBER + end,
        ),
    )


def furnish(fleet: Fleet) -> None:
    """A job that works six hours and rests for the rest of a day; a free card; one that was never
    used; a replica.
    """
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', 'H100', 'on_demand', 2.49, 'USD', 0, now()),"
        " ('', 'H100', 'on_demand', 1.999999999, 'USD', %s, now())",
        (OCTOBER + CHANGE,),
    )
    for number in (1, 2, 3, 4):
        fleet.accelerator(number)
        fleet.capacity(number, 0)
    fleet.workload(1, team="vision", project="seg")
    fleet.workload(3, team="robotics")
    fleet.workload(4, team="inference", serving="true")
    for hour in range(24):
        span = (hour * HOUR, hour * HOUR + HOUR)
        fleet.evidence(
            [
                Held(1, 1, *span),
                Held(2, None, *span, "unallocated"),
                Held(3, 3, *span),
                Held(4, 4, *span),
            ]
        )
    minutes(fleet, 1, 0, 6 * HOUR, 0.9)
    minutes(fleet, 1, 6 * HOUR, DAY, 0.0)
    minutes(fleet, 2, 0, DAY, 0.0, processes=0)
    minutes(fleet, 3, 0, DAY, 0.0, processes=0)
    minutes(fleet, 4, 0, DAY, 0.0)
