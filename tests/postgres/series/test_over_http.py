"""GET /v1/series and /v1/samples: the ledger's numbers over time, raw readings hot and packed, for
those who may.
"""

import random

import numpy as np
import pytest

from fakes.collector import running
from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER
from fakes.series import filled, rolled
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.insight.readings import Column, Readings, mean_readings
from gpuledger_collector.storage.access import tokens
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import archive, partitions

pytestmark = pytest.mark.slow

FROM, TO = "2025-10-01", "2025-10-03"
NAMES = ("gpu_utilization_ratio", "gpu_power_watts")


def get(collector, path, token=None):
    status, _, answer = collector.request(
        "GET", path, headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    return status, answer


def test_series_over_http_are_the_ledgers(dsn, fleet, ledger, run):
    """GPU-hours, cost and energy by team and day are those of usage and charges; steps never drawn
    are null.
    """
    filled(fleet, run, random.Random(3))
    rolled(dsn, ledger)
    with running(dsn) as collector:
        status, made = get(collector, f"/v1/series?from={FROM}&to={TO}&by=team&step=1h")
        assert status == 200
        assert made["step_seconds"] == 3600
        hours = sum(sum(item["gpus"]) for item in made["items"])
        expected = fleet.rows(
            "SELECT sum(gpu_ns) / 3.6e12 FROM owner_5min WHERE state = 'held' AND at_ms < %s",
            OCTOBER + 2 * DAY,
        )
        assert hours == pytest.approx(float(expected[0][0]), abs=1e-3)
        _, days = get(collector, f"/v1/series?from={FROM}&to={TO}&by=&step=1d")
        (whole,) = days["items"]
        assert sum(whole["gpus"]) * 24 == pytest.approx(hours, abs=1e-3)
        _, early = get(collector, f"/v1/series?from=2025-09-30&to={FROM}&by=&step=1d")
        assert early["items"] == []
        _, half = get(collector, "/v1/series?from=2025-09-30&to=2025-10-02&by=&step=1d")
        assert half["items"][0]["gpus"] == [None, whole["gpus"][0]]
        _, first = get(collector, f"/v1/series?from={FROM}&to={TO}&by=team&limit=1")
        _, rest = get(collector, f"/v1/series?from={FROM}&to={TO}&by=team&after={first['next']}")
        assert first["items"] + rest["items"] == made["items"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (f"from={FROM}&to={TO}&by=teem", "'teem' is not one of"),
        (f"from={TO}&to={FROM}", "must be after from"),
        ("from=2025-10-01T00:01:00Z&to=2025-10-02", "multiples of 1h"),
        ("from=2025-01-01&to=2025-10-01&step=5m", "at most 9000"),
        (f"from=now&to={TO}", "from: "),
    ],
)
def test_series_that_cannot_be_asked_are_refused(dsn, query, words):
    """422 and the reason."""
    with running(dsn) as collector:
        status, answer = get(collector, f"/v1/series?{query}")
        assert status == 422
        assert words in str(answer)


def test_a_viewer_sees_its_owners_series_alone(dsn, fleet, ledger, run):
    """Its team's held time by whatever group; no free time, no samples; a token held to a user sees
    none.
    """
    filled(fleet, run, random.Random(4))
    rolled(dsn, ledger)
    with Database(dsn).transaction() as connection:
        mine, ann = (
            tokens.create(connection, Token(0, name, "viewer", None, owner, "", NOW_MS))[1]
            for name, owner in (("one", {"team": "team-1"}), ("two", {"user": "ann"}))
        )
    with running(dsn) as collector:
        status, made = get(collector, f"/v1/series?from={FROM}&to={TO}&by=team,pool", mine)
        assert status == 200
        assert {item["team"] for item in made["items"]} == {"team-1"}
        assert get(collector, f"/v1/series?from={FROM}&to={TO}&state=unallocated", mine)[0] == 403
        assert get(collector, f"/v1/series?from={FROM}&to={TO}", ann)[0] == 403
        assert (
            get(collector, f"/v1/samples?from={FROM}&to={TO}&gpu=GPU-0001&step=3600", mine)[0]
            == 403
        )
        assert get(collector, f"/v1/series?from={FROM}&to={TO}")[0] == 401


@pytest.fixture
def sampled(dsn, fleet):
    """Two accelerators, ten minutes each at 10 s of two days: the first day packed, the second hot."""
    for number in (1, 2):
        fleet.accelerator(number)
        fleet.capacity(number, 0)
    ids = dict(fleet.rows("SELECT uuid, id FROM accelerator"))
    with Database(dsn).transaction() as connection:
        partitions.ensure(connection, "gpu_sample", [OCTOBER, OCTOBER + DAY])
        for day in (0, 1):
            for place in range(60):
                for number in (1, 2):
                    power = None if place % 10 == 9 else 100.0 * number + place
                    connection.execute(
                        "INSERT INTO gpu_sample (accelerator_id, at_ms, gpu_utilization_ratio,"
                        " gpu_power_watts) VALUES (%s, %s, %s, %s)",
                        (
                            ids[f"GPU-000{number}"],
                            OCTOBER + day * DAY + place * 10_000,
                            place / 100,
                            power,
                        ),
                    )
    assert archive.pack_day(Database(dsn), OCTOBER) is not None
    return fleet


def rows_of(answer):
    return [
        (item["uuid"], at, *(item["metrics"][name][place] for name in NAMES))
        for item in answer["items"]
        for place, at in enumerate(item["ts"])
    ]


@pytest.mark.parametrize("day", [0, 1])
def test_raw_samples_are_the_same_packed_or_hot_page_by_page(dsn, sampled, day):
    """Every reading once, absent ones null, whatever the size of the pages."""
    start, end = (format_instant(OCTOBER + day * DAY + at) for at in (0, HOUR))
    query = f"/v1/samples?from={start}&to={end}&gpu=GPU-0001,GPU-0002&metrics={','.join(NAMES)}"
    expected = [
        (
            f"GPU-000{number}",
            format_instant(OCTOBER + day * DAY + place * 10_000),
            place / 100,
            None if place % 10 == 9 else 100.0 * number + place,
        )
        for number in (1, 2)
        for place in range(60)
    ]
    with running(dsn) as collector:
        for limit in (7, 60, 1000):
            found, after = [], 0
            for _ in range(40):
                status, answer = get(collector, f"{query}&limit={limit}&after={after}")
                assert status == 200
                found += rows_of(answer)
                after = answer["next"]
                if after is None:
                    break
            assert found == expected
        _, of_node = get(
            collector, f"/v1/samples?from={start}&to={end}&node=n1&metrics={','.join(NAMES)}"
        )
        assert rows_of(of_node) == expected


def test_longer_spans_are_means(dsn, sampled):
    """Two days by ten minutes: one instant each day, means over what was there."""
    with running(dsn) as collector:
        status, answer = get(
            collector,
            f"/v1/samples?from={FROM}&to={TO}&gpu=GPU-0002&step=600&metrics={','.join(NAMES)}",
        )
        assert status == 200
        power = np.mean([200 + place for place in range(60) if place % 10 != 9])
        rows = rows_of(answer)
        assert [row[1] for row in rows] == [format_instant(OCTOBER), format_instant(OCTOBER + DAY)]
        for row in rows:
            assert row[2:] == pytest.approx((0.295, power))


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        (f"from={FROM}&to={TO}&gpu=GPU-0001", 422, "at most an hour"),
        (f"from={FROM}&to={TO}", 422, "gpu and node"),
        (
            f"from={FROM}&to={TO}&gpu=GPU-0001&step=60&metrics=gpu_magic",
            422,
            "'gpu_magic' is not stored",
        ),
        (f"from={FROM}&to={TO}&gpu=GPU-9&step=60", 404, "no accelerator"),
        (f"from={FROM}&to={TO}&node=n9&step=60", 404, "no accelerator was on"),
        ("from=2025-10-01&to=2026-10-01&gpu=GPU-0001&step=86400", 422, "at most 128"),
    ],
)
def test_samples_that_cannot_be_asked_are_refused(dsn, sampled, query, status, words):
    """The bounds, each with its sentence."""
    with running(dsn) as collector:
        answered, said = get(collector, f"/v1/samples?{query}")
        assert answered == status
        assert words in str(said)


def test_means_leave_out_what_is_no_number():
    """NaN and infinities of a driver do not spoil the mean; a step with nothing else has no value."""
    values = np.array([1.0, np.nan, 3.0, np.inf, np.nan], dtype=np.float32)
    at = np.array([0, 1, 2, 10, 11], dtype=np.int64)
    found = mean_readings(Readings(at, {"m": Column(values, np.array([True] * 5))}), 10)
    assert found.at_ms.tolist() == [0, 10]
    assert found.columns["m"].values[0] == 2.0
    assert found.columns["m"].present.tolist() == [True, False]
