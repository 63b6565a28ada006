"""POST /api/v1/write: the receiver's rules of the specification, and what becomes of the samples."""

import resource
import time

import cramjam
import psycopg
import pytest

from fakes.collector import running
from fakes.postgres import fresh_database
from fakes.prometheus import STALE, WRITE, Point, headers, labels, one, pod, scrape, snappy, two
from gpuledger_collector import wiring
from gpuledger_collector.ingest.remote_write import series
from gpuledger_collector.ingest.remote_write.decode import MAX_INFLATED_BYTES
from gpuledger_collector.ingest.remote_write.messages import ONE, TWO
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_common.wire import MAX_BODY_BYTES

NOW = int(time.time()) * 1000
T = NOW - NOW % 3_600_000 - 3_600_000 + 600_000
"""Ten minutes into the hour before this one."""


@pytest.fixture
def collector(dsn):
    with running(dsn) as started:
        yield started


@pytest.fixture(scope="module")
def shared(postgres):
    with fresh_database(postgres) as dsn, running(dsn) as started:
        yield started


def rows(dsn, query):
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


def write(collector, points, version=1):
    body = snappy(one(points) if version == 1 else two(points))
    status, answer, text = collector.request("POST", WRITE, body, headers(version))
    return status, int(answer["X-Prometheus-Remote-Write-Samples-Written"]), text


def wait_for(condition, seconds=60):
    """Latest values of requests that follow each other are written a moment later."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def meter(dsn):
    wiring.metering(Settings()).run(Database(dsn))
    fold_usage(Database(dsn))


@pytest.mark.parametrize("version", [1, 2])
def test_scrapes_become_samples_and_hours(collector, version):
    """A minute of scrapes of two GPUs, one held by a pod: samples, latest, inventory, held and
    unallocated time.
    """
    for at_ms in range(T, T + 60_001, 15_000):
        points = scrape(at_ms, 0, **pod("train-0")) + scrape(at_ms, 1)
        assert write(collector, points, version)[:2] == (204, 8)
    meter(collector.dsn)
    assert rows(
        collector.dsn,
        "SELECT count(*), count(DISTINCT at_ms), min(gpu_power_watts) FROM gpu_sample",
    ) == [(10, 5, 400.0)]
    assert rows(
        collector.dsn,
        "SELECT a.uuid, n.name, u.state, w.key, u.held_ms, u.busy_ms, u.energy_mj FROM usage_hour u"
        " JOIN accelerator a ON a.id = accelerator_id LEFT JOIN workload w ON w.id = u.workload_id"
        " JOIN capacity c USING (accelerator_id) JOIN node n ON n.id = c.node_id ORDER BY 1",
    ) == [
        (
            "GPU-node-1-0",
            "node-1",
            "held",
            "kubernetes::vision/train-0",
            60_000,
            60_000,
            24_000_000,
        ),
        ("GPU-node-1-1", "node-1", "unallocated", None, 60_000, 0, 24_000_000),
    ]
    latest = "SELECT at_ms, state, gpu_utilization_ratio FROM gpu_latest ORDER BY accelerator_id"
    wanted = [
        (T + 60_000, "held", pytest.approx(0.8)),
        (T + 60_000, "unallocated", pytest.approx(0.8)),
    ]
    wait_for(lambda: rows(collector.dsn, latest) == wanted)


GOOD = snappy(one(scrape(T)))
GOOD_TWO = snappy(two(scrape(T)))


def without(name):
    return {key: value for key, value in headers().items() if key != name}


def varint(number):
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def other_symbols(symbols, refs):
    request = TWO["Request"](symbols=symbols)
    series = request.timeseries.add(labels_refs=refs)
    series.samples.add(value=1, timestamp=T)
    return snappy(request.SerializeToString())


RULES = {
    "1.0 without proto": (headers(), GOOD, 204, 4),
    "1.0 with proto": (
        headers(**{"Content-Type": "application/x-protobuf;proto=prometheus.WriteRequest"}),
        GOOD,
        204,
        4,
    ),
    "1.0, type in other case and with spaces": (
        headers(**{"Content-Type": "Application/X-Protobuf; proto=prometheus.WriteRequest"}),
        GOOD,
        204,
        4,
    ),
    "1.0 without a version header": (without("X-Prometheus-Remote-Write-Version"), GOOD, 204, 4),
    "2.0": (headers(2), GOOD_TWO, 204, 4),
    "an empty message": (headers(), snappy(b""), 204, 0),
    "an empty 2.0 message has no first symbol": (headers(2), snappy(b""), 400, 0),
    "no content type": (without("Content-Type"), GOOD, 415, 0),
    "text": (headers(**{"Content-Type": "text/plain"}), GOOD, 415, 0),
    "JSON": (headers(**{"Content-Type": "application/json"}), b"{}", 415, 0),
    "an unknown proto": (
        headers(**{"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v3.Request"}),
        GOOD,
        415,
        0,
    ),
    "no encoding": (without("Content-Encoding"), GOOD, 415, 0),
    "gzip": (headers(**{"Content-Encoding": "gzip"}), GOOD, 415, 0),
    "zstd": (headers(**{"Content-Encoding": "zstd"}), GOOD, 415, 0),
    "framed snappy": (headers(), bytes(cramjam.snappy.compress(one(scrape(T)))), 400, 0),
    "no snappy at all": (headers(), one(scrape(T)), 400, 0),
    "no body": (headers(), b"", 400, 0),
    "half a body": (headers(), GOOD[: len(GOOD) // 2], 400, 0),
    "no protobuf": (headers(), snappy(b"\xff" * 50), 400, 0),
    "1.0 as 2.0": (headers(2), GOOD, 400, 0),
    "a bomb by its header": (headers(), varint(MAX_INFLATED_BYTES + 1) + GOOD, 413, 0),
    "a bomb": (headers(), snappy(bytes(MAX_INFLATED_BYTES + 1)), 413, 0),
    "a header that lies": (headers(), varint(1_000_000) + GOOD[2:], 400, 0),
    "too long as sent": (headers(), bytes(MAX_BODY_BYTES + 1), 413, 0),
    "first symbol not empty": (headers(2), other_symbols(["x", "__name__", "up"], [1, 2]), 400, 0),
    "refs without a pair": (headers(2), other_symbols(["", "__name__", "up"], [1]), 400, 0),
    "a ref to nothing": (headers(2), other_symbols(["", "__name__", "up"], [1, 3]), 400, 0),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_rules_of_requests(shared, rule):
    """Status and written counts by content type, encoding and body; the counts are there whatever
    the status.
    """
    sent, body, status, written = RULES[rule]
    found, answer, _ = shared.request("POST", WRITE, body, sent)
    assert (found, int(answer["X-Prometheus-Remote-Write-Samples-Written"])) == (status, written)
    assert answer["X-Prometheus-Remote-Write-Histograms-Written"] == "0"
    assert answer["X-Prometheus-Remote-Write-Exemplars-Written"] == "0"


UTIL = "DCGM_FI_DEV_GPU_UTIL"
PLAIN = labels(UTIL, 5)
BAD = {
    "unsorted": (PLAIN[1], PLAIN[0], *PLAIN[2:]),
    "repeated": (PLAIN[0], *PLAIN),
    "an empty name": (("", "x"), *PLAIN),
    "no name": (
        PLAIN[1:]
        if PLAIN[0][0] == "__name__"
        else tuple(pair for pair in PLAIN if pair[0] != "__name__")
    ),
    "too many": tuple(sorted([*PLAIN, *[(f"x{number:03}", "1") for number in range(100)]])),
    "too long": tuple(sorted([*PLAIN, ("x", "1" * 5000)])),
    "not storable": labels(UTIL, 5, modelName="H100\0"),
    "nowhere": tuple(pair for pair in PLAIN if pair[0] not in ("Hostname", "instance")),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("fault", BAD)
def test_a_bad_series_is_refused_and_its_neighbors_are_written(shared, fault, version):
    """A partial write: 400, so that the sender does not repeat it, and the count of what was
    written.
    """
    status, written, text = write(shared, [*scrape(T, 6), Point(BAD[fault], 1.0, T)], version)
    assert (status, written) == (400, 4), text
    assert text.startswith("a series ")


@pytest.mark.parametrize(
    ("at_ms", "status"),
    [(0, 400), (-1, 400), (NOW + 3_600_000, 400), (2**62, 400), (NOW + 60_000, 204)],
    ids=["1970", "before 1970", "an hour ahead", "no date", "a minute ahead"],
)
def test_instants_that_no_clock_shows_are_refused(shared, at_ms, status):
    """Before 2000, or more than ten minutes ahead: one would make all that follows too old."""
    assert write(shared, [Point(labels(UTIL, 7, node=f"n{at_ms}"), 1.0, at_ms)])[0] == status


def test_what_is_older_than_the_window_is_refused(collector):
    """The window reaches back from the accelerator's newest scrape, so that a sender may catch up
    after days.
    """
    newest = T + 1_800_000
    assert write(collector, scrape(newest))[0] == 204
    assert write(collector, scrape(newest - 3_600_000))[:2] == (204, 4)
    status, written, text = write(
        collector, scrape(newest - 3_600_001) + scrape(newest - 3_600_001, 1)
    )
    assert (status, written) == (400, 4)
    assert "older" in text
    assert write(collector, scrape(newest))[:2] == (204, 4)
    assert rows(collector.dsn, "SELECT count(*) FROM gpu_sample") == [(3,)]


def test_foreign_series_and_other_kinds_are_passed_over(collector):
    """What is none of ours is counted, not written, and no fault of the sender."""
    foreign = [
        Point((("__name__", "up"), ("instance", "x")), 1.0, T),
        Point(labels("node_load1"), 1.0, T),
    ]
    assert write(collector, foreign)[:2] == (204, 0)
    request = ONE["WriteRequest"].FromString(one(scrape(T)))
    request.timeseries[0].exemplars.add(value=1, timestamp=T).labels.add(name="trace_id", value="1")
    request.timeseries.add().histograms.add(timestamp=T)
    request.metadata.add(type=2, metric_family_name=UTIL, help="what it is")
    status, answer, _ = collector.request(
        "POST", WRITE, snappy(request.SerializeToString()), headers()
    )
    assert (status, answer["X-Prometheus-Remote-Write-Samples-Written"]) == (204, "4")
    assert (
        'remote_write_samples_total{outcome="foreign"} 2.0'
        in collector.request("GET", "/metrics")[2]
    )
    assert write(collector, [Point(labels(UTIL), STALE, T + 15_000)])[:2] == (204, 1)
    assert rows(collector.dsn, "SELECT count(*), max(at_ms) FROM scrape") == [(1, T)]


def test_the_same_request_again_changes_nothing(collector):
    """By series and instant: again, and in parts that overlap; every table of evidence stays as it
    is.
    """
    points = scrape(T, 0, **pod("a")) + scrape(T + 15_000, 0, **pod("a"))
    tables = (
        "gpu_sample",
        "gpu_state",
        "gpu_latest",
        "scrape",
        "scrape_head",
        "scrape_recompute",
        "workload",
        "accelerator",
    )

    def all_rows():
        return {
            table: sorted(map(str, rows(collector.dsn, f"SELECT * FROM {table}")))
            for table in tables
        }

    assert write(collector, points)[:2] == (204, 8)
    wait_for(lambda: rows(collector.dsn, "SELECT at_ms FROM gpu_latest") == [(T + 15_000,)])
    before = all_rows()
    assert before["gpu_sample"]
    assert write(collector, points, 2)[:2] == (204, 8)
    assert write(collector, points[2:6])[:2] == (204, 4)
    assert all_rows() == before


def test_a_scrape_in_two_requests_is_one_scrape(collector):
    """Prometheus cuts at a number of samples: each reading is stored once, and the newest state is
    whole.
    """
    points = scrape(T, 0, **pod("a"))
    write(collector, points[:2])
    write(collector, points[1:])
    assert rows(
        collector.dsn,
        "SELECT count(gpu_utilization_ratio), count(gpu_temperature_celsius), count(*) FROM"
        " gpu_sample",
    ) == [(1, 1, 2)]
    latest = (
        "SELECT gpu_utilization_ratio, gpu_power_watts, gpu_temperature_celsius FROM gpu_latest"
    )
    wait_for(lambda: rows(collector.dsn, latest) == [(pytest.approx(0.8), 400.0, 60.0)])


def test_both_vintages_of_labels_and_whose_pod_it_is(collector):
    """Old and new names; labels that Prometheus renamed; the exporter's own pod holds nothing; a
    Slurm job does.
    """
    cases = [
        labels("DCGM_FI_DEV_GPU_UTIL", 0, **pod("old")),
        labels(
            "DCGM_FI_DEV_GPU_UTIL_RATIO",
            1,
            Hostname="",
            hostname="node-1",
            **pod("new"),
            team="vision",
        ),
        labels(
            UTIL,
            2,
            **pod("dcgm-exporter-x", "gpu-operator"),
            exported_pod="mine",
            exported_namespace="ns",
        ),
        labels(UTIL, 3, **pod("nvidia-dcgm-exporter-x", "gpu-operator")),
        labels(UTIL, 4, hpc_job="4711"),
        labels(UTIL, 5, GPU_I_ID="7", GPU_I_PROFILE="1g.10gb", **pod("slice")),
    ]
    for at_ms in (T, T + 15_000):
        assert write(collector, [Point(one_of, 1.0, at_ms) for one_of in cases])[:2] == (204, 6)
    meter(collector.dsn)
    assert rows(
        collector.dsn,
        "SELECT a.uuid, a.gpu_micro, n.name, u.state, w.key, w.tags ->> 'team' FROM usage_hour u"
        " JOIN accelerator a ON a.id = accelerator_id LEFT JOIN workload w ON w.id = workload_id"
        " JOIN capacity c USING (accelerator_id) JOIN node n ON n.id = c.node_id ORDER BY"
        " a.gpu_index",
    ) == [
        ("GPU-node-1-0", 1_000_000, "node-1", "held", "kubernetes::vision/old", None),
        ("GPU-node-1-1", 1_000_000, "node-1", "held", "kubernetes::vision/new", "vision"),
        ("GPU-node-1-2", 1_000_000, "node-1", "held", "kubernetes::ns/mine", None),
        ("GPU-node-1-3", 1_000_000, "node-1", "unallocated", None, None),
        ("GPU-node-1-4", 1_000_000, "node-1", "held", "slurm::4711", None),
        ("GPU-node-1-5/7", 142_857, "node-1", "held", "kubernetes::vision/slice", None),
    ]


def test_a_device_with_instances_is_counted_by_them(collector):
    """Lines of the device beside those of its MIG instances are not counted a second time, in
    whatever request.
    """
    mig = {"GPU_I_ID": "7", "GPU_I_PROFILE": "3g.40gb"}
    for at_ms in (T, T + 15_000):
        write(collector, [Point(labels("DCGM_FI_DEV_POWER_USAGE"), 300.0, at_ms)])
    meter(collector.dsn)
    assert rows(collector.dsn, "SELECT count(*) FROM usage_interval") == [(1,)]
    for at_ms in (T, T + 15_000):
        write(
            collector,
            [Point(labels("DCGM_FI_PROF_GR_ENGINE_ACTIVE", **mig, **pod("a")), 0.5, at_ms)],
        )
    meter(collector.dsn)
    assert rows(
        collector.dsn,
        "SELECT a.uuid, s.state, s.busy_ms FROM usage_interval s JOIN accelerator a ON a.id ="
        " s.accelerator_id",
    ) == [("GPU-node-1-0/7", "held", 15_000)]
    assert inventory(collector.dsn) == [("GPU-node-1-0/7", T, None)]


def inventory(dsn):
    return rows(
        dsn,
        "SELECT uuid, in_ms, out_ms FROM capacity c JOIN accelerator a ON a.id = accelerator_id"
        " ORDER BY 1",
    )


def test_a_device_that_is_divided_leaves_the_inventory(collector):
    """From the first scrape of its instances on; when MIG is switched off again, it is back."""
    mig = {"GPU_I_ID": "7", "GPU_I_PROFILE": "3g.40gb"}
    for start, own in ((T, {}), (T + 60_000, mig), (T + 600_000, {})):
        for at_ms in (start, start + 15_000):
            write(
                collector,
                [Point(labels("DCGM_FI_PROF_GR_ENGINE_ACTIVE", **own, **pod("a")), 0.5, at_ms)],
            )
            meter(collector.dsn)
        if not own and start > T:
            break
        wanted = [("GPU-node-1-0", T, None if not own else T + 60_000)]
        assert inventory(collector.dsn)[:1] == wanted
    assert inventory(collector.dsn) == [
        ("GPU-node-1-0", T, T + 60_000),
        ("GPU-node-1-0", T + 600_000, None),
        ("GPU-node-1-0/7", T + 60_000, T + 600_000),
    ]


def test_old_scrapes_are_forgotten_when_they_are_metered(collector):
    """The table holds what may still be asked for: the window and a slot."""
    for at_ms in range(T - 7_200_000, T, 60_000):
        write(collector, scrape(at_ms, 0, {UTIL: 1.0}))
    meter(collector.dsn)
    [(count, first)] = rows(collector.dsn, "SELECT count(*), min(at_ms) FROM scrape")
    assert first >= T - 60_000 - 3_600_000 - 300_000 - 150_000
    assert count < 75
    assert rows(collector.dsn, "SELECT sum(held_ms) FROM usage_hour") == [(119 * 60_000,)]
    assert rows(collector.dsn, "SELECT count(*) FROM scrape_recompute") == [(0,)]


def test_tokens_are_those_of_agents(dsn, tmp_path):
    """Without one of them: 401, and nothing is written."""
    (tmp_path / "tokens").write_text("secret\n")
    with running(dsn, agent_token_file=tmp_path / "tokens") as collector:
        assert collector.request("POST", WRITE, GOOD, headers())[0] == 401
        assert (
            collector.request("POST", WRITE, GOOD, headers(Authorization="Bearer wrong"))[0] == 401
        )
        assert (
            collector.request("POST", WRITE, GOOD, headers(Authorization="Bearer secret"))[0] == 204
        )


def test_a_database_that_is_away_is_503(postgres):
    """The sender keeps what is answered 503 and comes back."""
    with fresh_database(postgres) as dsn, running(dsn) as collector:
        broken = dsn.replace("dbname=", "dbname=gone_")
        collector.parts.remote.commit._connect = lambda: psycopg.connect(broken)
        status, answer, text = collector.request("POST", WRITE, GOOD, headers())
        assert (status, answer["X-Prometheus-Remote-Write-Samples-Written"]) == (503, "0"), text
        assert int(answer["Retry-After"]) > 0


def test_a_full_book_is_begun_anew(collector, monkeypatch):
    """The memory for known series is bounded: what was known is looked at again, and nothing else
    changes.
    """
    monkeypatch.setattr(series, "MAX_SERIES", 6)
    first = collector.parts.remote.cache
    for at_ms in (T, T + 15_000, T + 30_000):
        for gpu in range(3):
            assert write(collector, scrape(at_ms, gpu))[:2] == (204, 4)
    assert collector.parts.remote.cache is not first
    assert len(collector.parts.remote.cache.indexes) <= 6 + 4
    meter(collector.dsn)
    assert rows(collector.dsn, "SELECT held_ms FROM usage_hour") == [(30_000,)] * 3


def test_memory_stays_bounded_under_bombs(shared):
    """Bodies at the limit of what is taken, of many tiny series: refused or read, and the memory is
    given back.
    """
    whole = MAX_INFLATED_BYTES - 16
    empty = snappy(b"\x0a\x00" * (whole // 2))
    samples = snappy(b"\x0a" + varint(whole) + b"\x12\x00" * (whole // 2))
    labeled = snappy(b"\x0a" + varint(whole) + b"\x0a\x00" * (whole // 2 - 1) + b"\x12\x00")
    symbols = snappy(b"\x22\x00" * (whole // 2))
    refs = snappy(
        b"\x2a" + varint(whole) + b"\x0a" + varint(whole - 8) + b"\x01" * (whole - 8) + b"\x12\x00"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for body in (
        empty,
        samples,
        labeled,
        symbols,
        refs,
        snappy(bytes(whole)),
        varint(2**34) + GOOD,
    ):
        for version in (1, 2):
            status, _, text = shared.request("POST", WRITE, body, headers(version))
            assert status in (204, 400, 413), text
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024


def test_labels_that_change_within_a_request(collector, dsn):
    """A request with scrapes before and after a change of the model, or of an instance's profile,
    is written.
    """
    old, new = "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL"
    points = [
        *scrape(T),
        *scrape(T + 15_000),
        *scrape(T + 30_000, modelName=new),
        *scrape(T + 45_000, modelName=new),
    ]
    small, large = (
        {"GPU_I_ID": "1", "GPU_I_PROFILE": profile} for profile in ("1g.10gb", "3g.40gb")
    )
    points += [*scrape(T, 1, **small), *scrape(T + 15_000, 1, **large)]
    assert write(collector, points)[:2] == (204, len(points))
    assert rows(dsn, "SELECT model FROM accelerator WHERE uuid = 'GPU-node-1-0'") == [(new,)]
    meter(dsn)
    assert rows(
        dsn,
        f"SELECT r.model, (start_ms - {T}) / 1000, (end_ms - {T}) / 1000 FROM usage_interval s"
        " JOIN accelerator_attributes r ON r.id = accelerator_attributes_id"
        " JOIN accelerator a ON a.id = s.accelerator_id WHERE a.uuid = 'GPU-node-1-0' ORDER BY 2",
    ) == [(old, 0, 15), (new, 15, 45)]
    assert rows(
        dsn,
        "SELECT mig_instance FROM accelerator_attributes WHERE mig_instance IS NOT NULL ORDER BY 1",
    ) == [
        ("1g.10gb/1",),
        ("3g.40gb/1",),
    ]
