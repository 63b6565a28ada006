"""docs/scale.md: every figure of its table again from docs/performance.md and from rows measured
here.
"""

import re
from pathlib import Path

import psycopg
import pytest

from gpuledger_collector.services.upkeep import SLOW_METRICS_WAIT_MS, pack_usage_intervals
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import partitions

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
PAGE, MEASURED = (
    (DOCS / "scale.md").read_text(encoding="utf-8"),
    (DOCS / "performance.md").read_text(encoding="utf-8"),
)
FLEETS = (2_000, 10_000, 100_000)
MEASURED_AT = 2_000
PACKED_INTERVAL = 10
"""Its place among the bold figures."""
READINGS, EVERY_S, PER_NODE, PUSH_S, DAY_S = 28, 10, 8, 60, 86_400


def measured(row: str, column: int) -> float:
    """A cell of the row of docs/performance.md that begins so, without the range of its runs."""
    (line,) = [line for line in MEASURED.splitlines() if line.startswith(f"| {row} |")]
    return float(line.split("|")[column + 1].split()[0].replace(",", ""))


def bold() -> list[float]:
    """The figures from which the page says that it computes, in its order."""
    return [float(one.replace(",", "")) for one in re.findall(r"\*\*([\d.,]+)\*\*", PAGE)]


def table(row: str = "| GPU-samples a second |") -> dict[str, tuple[str, ...]]:
    (text,) = [part for part in PAGE.split("\n\n") if row in part]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return {name: tuple(cells) for name, *cells in rows if name and not name.startswith("---")}


def test_the_figures_are_those_that_were_measured():
    """The bold ones are in docs/performance.md, or are measured below."""
    assert bold() == [
        measured("as simulated (a full mantissa each)", 1),
        measured("as simulated (a full mantissa each)", 2),
        measured("gpuledger: with Postgres and meter", 2),
        measured("fold one more hour, rate its day again", 1),
        measured("charge the month from its usage", 1),
        143,
        202,
        204,
        227,
        17,
        5.1,
        28,
        3,
    ]
    assert f"{MEASURED_AT:,} GPUs" in MEASURED


def test_ten_years_follow_from_them():
    """What is kept for some days is that of the first table, the rest that of each day, ten years
    of it; goals are met.
    """
    rows = {
        name: [float(cell.replace(",", "")) if cell else None for cell in cells]
        for name, cells in table("| archive of samples |").items()
        if not name.startswith("ten years")
    }
    (_, packed, *_, usage_interval, change, _, packed_interval, _, moved) = bold()
    minutes, samples, days = MEASURED_AT * 1_440, MEASURED_AT * DAY_S / EVERY_S, 3_650
    first = {
        name: float(cells[0].replace(",", ""))
        for name, cells in table().items()
        if cells[0][:1].isdigit()
    }
    keep = Settings()

    def kept(begin: str) -> float:
        (figure,) = [
            value for name, value in first.items() if name.startswith(begin) and "for the" in name
        ]
        return figure

    intervals, unpacked = kept("usage intervals, GB"), minutes * usage_interval * days / 1e9
    slow = kept("changes of slow metrics, GB")
    expected = {
        "samples of 3 days, until packed": [kept("samples, GB")] * 2,
        "changes of slow metrics of 14 days": [
            minutes * moved * change * keep.keep_state_days / 1e9,
            slow,
        ],
        "minutes of 37 days": [kept("minutes, GB")] * 2,
        "usage intervals of 38 days, until packed": [None, intervals],
        "usage intervals of all years": [unpacked, minutes * packed_interval * days / 1e9],
        "archive of samples": [samples * packed * days / 1e9] * 2,
    }
    for name, figures in expected.items():
        assert [figure or 0 for figure in rows[name][:2]] == pytest.approx(
            [figure or 0 for figure in figures], abs=0.06
        ), name
    names = list(rows)
    for total, parts in (
        ("together, without the archive", names[:7]),
        ("together", [*names[:7], "archive of samples"]),
    ):
        for column in (0, 1):
            assert rows[total][column] == pytest.approx(
                sum(rows[name][column] or 0 for name in parts), abs=0.06
            ), total
        assert rows[total][1] <= rows[total][2]


def test_the_table_follows_from_them():
    """Every cell of every fleet, to the digit that is shown."""
    (
        hot,
        packed,
        per_core,
        hour_s,
        month_s,
        minute,
        usage,
        usage_interval,
        change,
        packed_change,
        packed_interval,
        readings,
        moved,
    ) = bold()
    keep = Settings()
    days, minute_days, state_days = (
        keep.pack_after_days,
        keep.keep_minute_days,
        keep.keep_state_days,
    )
    # An hour, what it waits for late ones, and an hour until the next run.
    waiting_hours = 2 + SLOW_METRICS_WAIT_MS / 3_600_000
    wanted = {
        "GPU-samples a second": (lambda n: n / EVERY_S, 0),
        "posts a second": (lambda n: n / PER_NODE / PUSH_S, 1),
        "samples, GB a day until packed": (lambda n: n * DAY_S / EVERY_S * hot / 1e9, 1),
        f"samples, GB for the {days} days until packed": (
            lambda n: n * DAY_S / EVERY_S * hot * days / 1e9,
            1,
        ),
        "archive, GB a day": (lambda n: n * DAY_S / EVERY_S * packed / 1e9, 1),
        "minutes, million rows a day": (lambda n: n * 1_440 / 1e6, 1),
        "minutes, GB a day": (lambda n: n * 1_440 * minute / 1e9, 1),
        f"minutes, GB for the {minute_days} days that they are kept": (
            lambda n: n * 1_440 * minute * minute_days / 1e9,
            1,
        ),
        "changes of slow metrics, GB until packed": (
            lambda n: n * 60 * waiting_hours * moved * change / 1e9,
            1,
        ),
        "changes of slow metrics, GB a day": (lambda n: n * 1_440 * moved * packed_change / 1e9, 2),
        f"changes of slow metrics, GB for the {state_days} days that they are kept": (
            lambda n: n * 1_440 * moved * packed_change * state_days / 1e9,
            1,
        ),
        "usage intervals, GB a day until packed": (lambda n: n * 1_440 * usage_interval / 1e9, 1),
        f"usage intervals, GB for the {keep.max_evidence_age_days + 1} days until packed": (
            lambda n: n * 1_440 * usage_interval * (keep.max_evidence_age_days + 1) / 1e9,
            1,
        ),
        "usage intervals packed, GB a year": (
            lambda n: n * 1_440 * packed_interval * 365 / 1e9,
            1,
        ),
        "usage hours, thousand rows a day": (lambda n: n * 24 / 1e3, 0),
        "usage hours, GB a year": (lambda n: n * 24 * 365 * usage / 1e9, 1),
        "cores for ingest by remote write": (lambda n: n / EVERY_S * readings / per_core, 2),
        "rating one more hour, seconds": (lambda n: hour_s * n / MEASURED_AT, 1),
        "rating a whole month, seconds": (lambda n: month_s * n / MEASURED_AT, 1),
    }
    assert table() == {
        name: tuple(f"{of(n):,.{digits}f}" for n in FLEETS) for name, (of, digits) in wanted.items()
    }
    assert f"{FLEETS[2] * 1_440 * minute * 365 / 1e12:.1f} TB a year" in PAGE
    by_agents = measured("*fast*: gpuledger, with Postgres", 3)
    assert f"{by_agents:,.0f} GPU-samples of {READINGS} readings" in PAGE
    assert f"{FLEETS[2] / EVERY_S / by_agents:.2f} cores for {FLEETS[2]:,} GPUs" in PAGE


def test_the_most_fast_readings_of_a_sample_are_as_many(dsn):
    """Columns of the table of samples, without accelerator and instant."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FROM information_schema.columns WHERE table_name = 'gpu_sample'"
        ).fetchone()
    assert row == (READINGS + 2,)


@pytest.mark.parametrize(
    ("table_name", "insert", "said"),
    [
        (
            "usage_hour",
            (
                "INSERT INTO usage_hour SELECT a, 1790856000000 + h * 3600000, 'held', a, 3600000,"
                " 1800000, 1800000, 0, 1000, a FROM generate_series(1, 200) a, generate_series(1,"
                " 100) h"
            ),
            202,
        ),
        (
            "gpu_minute",
            (
                "INSERT INTO gpu_minute ({columns}) SELECT {values} FROM generate_series(1, 50) a,"
                " generate_series(1, 400) m"
            ),
            143,
        ),
        (
            "usage_interval",
            (
                "INSERT INTO usage_interval SELECT a, a, 'held', at, at + 60000, 60000, 30000,"
                " 30000, 0, 1000, 1, '00000000-0000-4000-8000-000000000001', at, a, a, a FROM"
                " generate_series(1790812800000, 1790812800000 + 999 * 60000, 60000) at,"
                " generate_series(1, 20) a"
            ),
            204,
        ),
        (
            "gpu_state",
            (
                "INSERT INTO gpu_state SELECT a, metric, at, random() FROM"
                " generate_series(1790812800000, 1790812800000 + 999 * 60000, 60000) at,"
                " generate_series(1, 5) a, unnest(ARRAY['gpu_temperature_margin_celsius',"
                " 'gpu_throttle_power_seconds_total', 'gpu_throttle_base_clocks_seconds_total',"
                " 'gpu_throttle_low_utilization_seconds_total']) metric"
            ),
            227,
        ),
        (
            "gpu_state_hour",
            (
                "INSERT INTO gpu_state_hour SELECT a, metric, at / 3600000 * 3600000, array_agg((at"
                " % 3600000)::integer), array_agg(random()) FROM"
                " generate_series(1790812800000, 1790812800000 + 999 * 60000, 60000) at,"
                " generate_series(1, 50) a, unnest(ARRAY['gpu_temperature_margin_celsius',"
                " 'gpu_throttle_power_seconds_total', 'gpu_throttle_base_clocks_seconds_total',"
                " 'gpu_throttle_low_utilization_seconds_total']) metric GROUP BY 1, 2, 3 ORDER BY 3, 1"
            ),
            17,
        ),
    ],
)
def test_bytes_of_a_row(dsn, table_name, insert, said):
    """20,000 rows with every column filled, or ten times as many packed changes, table and indexes,
    to 5 %.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        names = [
            row[0]
            for row in connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = %s",
                (table_name,),
            )
        ]
        given = {"accelerator_id": "a", "minute_ms": "1790856000000 + m * 60000", "samples": "6"}
        values = ", ".join(given.get(name, "0.5") for name in names)
        if table_name in partitions.PARTITIONED:
            partitions.ensure(connection, table_name, [1_790_812_800_000])
        connection.execute(insert.format(columns=", ".join(names), values=values).encode())
        connection.execute("VACUUM")
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(relid)) / %(rows)s FROM (SELECT %(name)s::regclass AS"
            " relid UNION SELECT relid FROM pg_partition_tree(%(name)s)) AS part",
            {"name": table_name, "rows": 200_000 if table_name == "gpu_state_hour" else 20_000},
        ).fetchone()
    assert row is not None
    assert float(row[0]) == pytest.approx(said, rel=0.05)


def test_bytes_of_a_packed_interval(dsn):
    """A day of 200 GPUs that are held and half idle: ends that miss the minute by some
    milliseconds, idle time in steps of a sample, and power that varies by a few percent.
    """
    day_ms = 1_790_812_800_000
    database = Database(dsn)
    with database.connect() as connection:
        partitions.ensure(connection, "usage_interval", [day_ms])
        connection.execute(
            """
            INSERT INTO usage_interval
            SELECT a, a, 'held', at, until, until - at, until - at - idle, idle, 0,
                25000000 + (random() * 1000000)::bigint, 1, '00000000-0000-4000-8000-000000000001',
                at / 60000, a % 8, a, a
            FROM generate_series(1, 200) a, generate_series(0, 1438) m, LATERAL (
                SELECT %(day)s + m * 60000 + abs(hashint4(a * 1440 + m)) % 7 AS at,
                    %(day)s + (m + 1) * 60000 + abs(hashint4(a * 1440 + m + 1)) % 7 AS until,
                    (random() * 5)::integer * 10000 AS idle
            ) AS minute
            """.replace(" % ", " %% "),
            {"day": day_ms},
        )
        packed = pack_usage_intervals(database, 37, day_ms + 50 * 86_400_000)
        connection.execute("VACUUM usage_interval_day")
        size = connection.execute("SELECT pg_total_relation_size('usage_interval_day')").fetchone()
    assert packed.intervals == 200 * 1_439
    assert size is not None
    assert size[0] / packed.intervals == pytest.approx(bold()[PACKED_INTERVAL], rel=0.05)
