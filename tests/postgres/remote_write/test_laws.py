"""Laws: hours depend on which scrapes there are, not on how they came; a walked body is what
protobuf reads.
"""

import itertools
import random
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.postgres import fresh_database
from fakes.profiles import examples
from fakes.prometheus import STALE, Point, labels, one, pod, snappy, two
from gpuledger_collector import wiring
from gpuledger_collector.ingest.batches.store import Store
from gpuledger_collector.ingest.remote_write import decode as decoding
from gpuledger_collector.ingest.remote_write.decode import decode
from gpuledger_collector.ingest.remote_write.series import SeriesCache
from gpuledger_collector.ingest.remote_write.store import RemoteStore
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import placements
from gpuledger_collector.storage.telemetry import partitions

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
NOW = int(time.time()) * 1000
BEGIN = NOW - NOW % HOUR_MS - 2 * HOUR_MS + HOUR_MS - 400_000
"""400 s before an hour ends, so that scrapes lie on both sides of it."""
GAP_MS = 150_000
UTIL, POWER, ENERGY, SM = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_PROF_SM_ACTIVE",
)
HOLDERS = ((), ("a",), ("b",), ("a", "b"))
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def ledger(postgres):
    with fresh_database(postgres) as dsn, Database(dsn).connect() as connection:
        yield Bench(dsn, connection)


class Bench:
    """A receiver without HTTP: requests in, hours out."""

    def __init__(self, dsn, connection):
        self.dsn, self.connection = dsn, connection
        self.book = SeriesCache()
        self.restart()

    def restart(self):
        """Another replica, or the same one after a restart: nothing is remembered."""
        self.store = RemoteStore(Store(partitions.ensure, placements.settle), HOUR_MS)

    def write(self, points, version=1):
        body = snappy(one(points) if version == 1 else two(points))
        writing = decode(body, version, self.book, NOW)
        assert writing.refusals == 0
        [written] = self.store.flush(self.connection, [writing], time.time_ns() // 1_000_000)
        assert (written.samples, written.too_old) == (len(points), 0)

    def meter(self):
        wiring.metering(Settings()).run(Database(self.dsn))

    def hours(self, uuid):
        """State, workload, held, busy, idle, unknown and energy of each hour of an accelerator."""
        fold_usage(Database(self.dsn))
        return self.connection.execute(
            "SELECT u.hour_ms, u.state, w.external_id, u.held_ms, u.busy_ms, u.idle_ms,"
            " u.unknown_ms, u.energy_mj FROM usage_hour u JOIN accelerator a ON a.id ="
            " accelerator_id LEFT JOIN workload w ON w.id = workload_id WHERE a.uuid = %s ORDER BY"
            " 1, 2, 3",
            (uuid,),
        ).fetchall()

    def scalar(self, query, *values):
        return self.connection.execute(query, values).fetchone()[0]


@st.composite
def scrapes(draw):
    """Instants with holders, utilization of each (None: not told), SM activity, power and energy."""
    at_ms, made = BEGIN, []
    joules = 0
    for _ in range(draw(st.integers(1, 6))):
        at_ms += draw(st.sampled_from([5_000, 15_000, 60_000, 149_999, 150_000, 150_001, 200_000]))
        holders = draw(st.sampled_from(HOLDERS))
        joules += draw(st.integers(0, 50_000))
        made.append(
            (
                at_ms,
                holders,
                [draw(st.sampled_from([None, 0.0, 1.0, 2.0, 80.0])) for _ in holders or (None,)],
                draw(st.sampled_from([None, 0.0, 0.5])),
                draw(st.sampled_from([None, 99.5, 400.0])),
                draw(st.sampled_from([None, joules * 1000.0])),
            )
        )
    return made


def points_of(made, node):
    """The samples of these scrapes, of one GPU of a node, in order."""
    points = []
    for at_ms, holders, shares, sm_active, watts, millijoules in made:
        for holder, share in zip(holders or (None,), shares, strict=True):
            own = {} if holder is None else pod(holder)
            several = {
                UTIL: share,
                SM: sm_active,
                POWER: watts,
                ENERGY: millijoules,
                "DCGM_FI_DEV_GPU_TEMP": 50.0,
            }
            points += [
                Point(labels(name, 0, node, **own), value, at_ms)
                for name, value in several.items()
                if value is not None
            ]
    return points


def expected(made):
    """Held (by how many) and busy milliseconds by hour, computed the plain way."""
    held, busy = {}, {}
    for before, after in itertools.pairwise(made):
        if after[0] - before[0] > GAP_MS:
            continue
        shares = [share for share in after[2] if share is not None]
        works = after[3]
        if works is None and shares:
            works = max(shares) / 100 if len(set(shares)) == 1 else sum(shares) / 100
        start = before[0]
        while start < after[0]:
            hour = start // HOUR_MS * HOUR_MS
            end = min(after[0], hour + HOUR_MS)
            state = "held" if after[1] else "unallocated"
            held[hour, state] = held.get((hour, state), 0) + end - start
            if after[1]:
                busy[hour] = busy.get(hour, 0) + (
                    end - start if works is not None and works > 0.01 else 0
                )
            start = end
    return held, busy


def test_a_point_a_request_in_reverse_twice(ledger):
    """The hardest case by hand: shared by pods with a part each, on both sides of an hour, every
    sample alone.
    """
    made = [
        (
            BEGIN + 60_000 * number,
            ("a", "b") if number % 3 else ("b",),
            [1.0, 0.5] if number % 3 else [0.0],
            None,
            99.5,
            None,
        )
        for number in range(9)
    ]
    ledger.write(points_of(made, "whole"))
    ledger.meter()
    for _ in range(2):
        for point in reversed(points_of(made, "parts")):
            ledger.write([point])
        ledger.meter()
    wanted = ledger.hours("GPU-whole-0")
    assert [row[1:5] for row in wanted] == [
        ("held", "vision/a", 140_000, 140_000),
        ("held", "vision/b", 260_000, 140_000),
        ("held", "vision/a", 40_000, 40_000),
        ("held", "vision/b", 40_000, 40_000),
    ]
    assert ledger.hours("GPU-parts-0") == wanted


def test_a_late_scrape_before_a_metered_slot_is_counted(ledger):
    """The first interval of a slot begins in the slot before: a scrape that comes there late counts
    in the next.
    """
    slot = BEGIN - BEGIN % 300_000
    early, late = (
        [(slot + second, ("a",), [80.0], None, None, None)] for second in (290_000, 310_000)
    )
    ledger.write(points_of(late, "edge"))
    ledger.meter()
    assert ledger.hours("GPU-edge-0") == []
    ledger.write(points_of(early, "edge"))
    ledger.meter()
    assert [row[1:5] for row in ledger.hours("GPU-edge-0")] == [
        ("held", "vision/a", 20_000, 20_000)
    ]


def test_replicas_that_get_the_same_scrapes_at_once_store_each_reading_once(ledger):
    """Two Prometheus in a pair, or a sender that comes back to another replica: nothing twice,
    nothing lost.
    """
    made = [
        (BEGIN + 15_000 * number, ("a", "b"), [80.0, 1.0], 0.5, 400.0, 1e6 * number)
        for number in range(24)
    ]
    everything = points_of(made, "pair")
    replicas = [RemoteStore(Store(partitions.ensure, placements.settle), HOUR_MS) for _ in range(4)]
    faults = []

    def send(store, seed):
        points = random.Random(seed).sample(everything, len(everything))
        try:
            with Database(ledger.dsn).connect() as connection:
                for first in range(0, len(points), 13):
                    writing = decode(snappy(one(points[first : first + 13])), 1, ledger.book, NOW)
                    store.flush(connection, [writing], time.time_ns() // 1_000_000)
                    wiring.metering(Settings()).run(Database(ledger.dsn))
        except Exception as error:
            faults.append(error)

    threads = [
        threading.Thread(target=send, args=pair) for pair in zip(replicas, range(4), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    ledger.write(points_of(made, "alone"))
    ledger.meter()
    assert ledger.hours("GPU-pair-0") == ledger.hours("GPU-alone-0") != []
    for column in (
        "gpu_utilization_ratio",
        "gpu_power_watts",
        "gpu_energy_joules_total",
        "gpu_temperature_celsius",
    ):
        assert ledger.scalar(
            f"SELECT count({column}) FROM gpu_sample"
            " WHERE accelerator_id = (SELECT id FROM accelerator WHERE uuid = %s)",
            "GPU-pair-0",
        ) == len(made)
    assert (
        ledger.scalar(
            "SELECT count(*) FROM (SELECT 1 FROM usage_interval GROUP BY accelerator_id,"
            " workload_id, start_ms HAVING count(*) > 1) AS doubled"
        )
        == 0
    )


@examples(15)
@given(made=scrapes(), data=st.data())
def test_hours_depend_on_the_scrapes_alone(ledger, made, data):
    """Split into any requests, in any order, repeated, metered at any time, before and after a
    restart: one result.
    """
    plain, mixed = f"plain-{next(_numbers)}", f"mixed-{next(_numbers)}"
    ledger.write(points_of(made, plain))
    ledger.meter()
    wanted = ledger.hours(f"GPU-{plain}-0")
    held, busy = expected(made)
    found_held: dict = {}
    found_busy: dict = {}
    for hour, state, _, held_ms, busy_ms, *_ in wanted:
        found_held[hour, state] = found_held.get((hour, state), 0) + held_ms
        if state == "held":
            found_busy[hour] = found_busy.get(hour, 0) + busy_ms
    assert (found_held, found_busy) == (held, busy)

    points = points_of(made, mixed)
    again = points + data.draw(st.lists(st.sampled_from(points), max_size=10))
    order = data.draw(st.permutations(again))
    cuts = sorted(
        data.draw(st.sets(st.integers(1, max(1, len(order) - 1)), min_size=min(3, len(order) - 1)))
    )
    for first, last in itertools.pairwise([0, *cuts, len(order)]):
        if first < last:
            ledger.write(order[first:last], data.draw(st.sampled_from([1, 2])))
        happens = data.draw(
            st.sampled_from(["nothing", "nothing", "nothing", "meter", "restart", "fold"])
        )
        if happens == "meter":
            ledger.meter()
        elif happens == "restart":
            ledger.restart()
        elif happens == "fold":
            ledger.meter()
            ledger.hours(f"GPU-{mixed}-0")
    ledger.meter()
    assert ledger.hours(f"GPU-{mixed}-0") == wanted


points = st.lists(
    st.builds(
        Point,
        st.sampled_from(
            [
                labels("DCGM_FI_DEV_GPU_UTIL"),
                labels("DCGM_FI_DEV_GPU_UTIL", 1, **pod("a")),
                labels("up"),
                (("__name__", "DCGM_FI_DEV_GPU_TEMP"), ("UUID", "GPU-1")),
                (("__name__", ""),),
                (),
                (("a", "x" * 20_000), ("b", "1")),
            ]
        ),
        st.one_of(st.just(0.0), st.floats(width=64)),
        st.one_of(
            st.sampled_from([0, 1, -1, NOW]),
            st.integers(-(2**63), 2**63 - 1),
            st.integers(2**35, 2**42),
        ),
    ),
    max_size=12,
)


flips = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3)


def damaged(message, places):
    """A message with some bytes replaced."""
    made = bytearray(message)
    for place, byte in places:
        if place < len(made):
            made[place] = byte
    return bytes(made)


@given(points, points, flips)
def test_a_walked_body_is_what_protobuf_reads(before, made, flips):
    """Where the short way reads a message, damaged or not, it reads the same series and samples as
    protobuf.
    """
    plain = damaged(one(made), flips)
    walked = SeriesCache()
    # What came before is what the walk expects to come again.
    decoding._walk(one(before), walked)
    found = decoding._walk(plain, walked)
    if found is None:
        return
    read = SeriesCache()
    try:
        wanted = decoding._parse_v1(plain, read)
    except decoding.Refused:
        raise AssertionError(plain) from None
    for mine, theirs in zip(found[1:], wanted[1:], strict=True):
        assert mine.tobytes() == theirs.tobytes()
    accelerators = [
        [
            cache.accelerators[index] if index >= 0 else kind
            for kind, index in zip(table["kind"], table["accelerator"], strict=True)
        ]
        for cache, table in ((walked, walked.table()[found[0]]), (read, read.table()[wanted[0]]))
    ]
    assert accelerators[0] == accelerators[1]


@given(points, flips)
def test_a_walked_body_with_symbols_is_what_protobuf_reads(made, flips):
    """The same for 2.0, whose series the short way knows after protobuf has read them."""
    cache = SeriesCache()
    decode(snappy(two(made)), 2, cache, NOW)
    # Other symbols first, so that every number is another one than before.
    plain = damaged(two([Point(labels("up", node="other"), 1.0, NOW), *made]), flips)
    decode(snappy(two([Point(labels("up", node="other"), 1.0, NOW)])), 2, cache, NOW)
    found = decoding._walk_v2(plain, cache)
    if found is None:
        return
    wanted = decoding._parse_v2(plain, cache)
    assert [column.tobytes() for column in found] == [column.tobytes() for column in wanted]


def test_the_common_form_is_walked():
    """What Prometheus sends takes the short way: else the speed that is published would not be its
    own.
    """
    made = [
        Point(labels("DCGM_FI_DEV_GPU_UTIL", gpu, **pod("a")), gpu, NOW + gpu) for gpu in range(8)
    ]
    cache = SeriesCache()
    decode(snappy(two(made[::-1])), 2, cache, NOW)
    _, values, instants = decoding._walk_v2(two(made), cache)
    assert (values.tolist(), instants.tolist()) == ([*range(8)], [NOW + gpu for gpu in range(8)])
    plain = one(
        [Point(labels("DCGM_FI_DEV_GPU_UTIL", gpu, **pod("a")), gpu, NOW + gpu) for gpu in range(8)]
    )
    numbers, values, instants = decoding._walk(plain, SeriesCache())
    assert (values.tolist(), instants.tolist()) == ([*range(8)], [NOW + gpu for gpu in range(8)])
    assert len(set(numbers.tolist())) == 8


@given(
    st.one_of(
        st.binary(max_size=400),
        st.binary(max_size=200).map(snappy),
        points.map(one).map(snappy),
        points.map(two).map(snappy),
    ),
    st.sampled_from([1, 2]),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=3),
)
def test_any_body_is_read_or_refused(body, version, flips):
    """No bytes make the decoder raise anything but a refusal with a 4xx."""
    damaged = bytearray(body)
    for place, byte in flips:
        if place < len(damaged):
            damaged[place] = byte
    try:
        writing = decode(bytes(damaged), version, SeriesCache(), NOW)
    except decoding.Refused as refusal:
        assert refusal.status in (400, 413)  # noqa: PT017
    else:
        assert ((writing.at_ms > 0) & (writing.at_ms <= NOW + decoding.FUTURE_MS)).all()


def test_a_stale_marker_is_written_and_shows_nothing(ledger):
    """The marker says that a series ended; it is no reading, and no scrape."""
    name = f"stale-{next(_numbers)}"
    ledger.write([Point(labels("DCGM_FI_DEV_GPU_UTIL", 0, name), STALE, BEGIN)])
    assert ledger.scalar("SELECT count(*) FROM accelerator WHERE uuid = %s", f"GPU-{name}-0") == 0


def facts_of(ledger, uuid):
    """Start, node, model and team of each interval of an accelerator, in seconds from BEGIN."""
    return ledger.connection.execute(
        "SELECT (s.start_ms - %s) / 1000, n.name, r.model, t.tags ->> 'team', sum(s.held_ms)::int /"
        " 1000 FROM usage_interval s JOIN node n ON n.id = s.node_id JOIN accelerator a ON a.id ="
        " s.accelerator_id JOIN accelerator_attributes r ON r.id = s.accelerator_attributes_id LEFT"
        " JOIN workload_attributes t ON t.id = s.workload_attributes_id WHERE a.uuid = %s GROUP BY"
        " 1, 2, 3, 4 ORDER BY 1, 2",
        (BEGIN, uuid),
    ).fetchall()


def scrape_of(node, seconds, team, **others):
    """One scrape of a GPU that a pod of a team holds."""
    own = {**pod("job"), "team": team, **others}
    return [Point(labels(UTIL, 0, node, **own), 80.0, BEGIN + seconds * 1000)]


def test_a_slot_that_is_metered_again_keeps_the_facts_of_its_scrapes(ledger):
    """Model and tags are those of each scrape: also in mid-slot, and when a late one has the slot
    metered again.
    """
    for seconds, team, model in (
        (0, "alpha", "A"),
        (60, "alpha", "A"),
        (120, "beta", "A"),
        (180, "beta", "B"),
    ):
        ledger.write(scrape_of("dated", seconds, team, modelName=model))
    ledger.meter()
    expected = [
        (0, "dated", "A", "alpha", 60),
        (60, "dated", "A", "beta", 60),
        (120, "dated", "B", "beta", 60),
    ]
    assert [row for row in facts_of(ledger, "GPU-dated-0") if row[4]] == expected
    ledger.write(scrape_of("dated", 600, "zulu", modelName="C"))
    ledger.write(scrape_of("dated", 30, "alpha", modelName="A"))
    ledger.meter()
    assert facts_of(ledger, "GPU-dated-0") == expected


def test_scrapes_of_another_node_take_no_time_of_the_first(ledger):
    """A node that reports another's GPU makes intervals of its own: the first node's are what they
    were.
    """
    for seconds in (0, 60, 120):
        ledger.write(scrape_of("mine", seconds, "alpha"))
    for seconds in (90, 150, 180):
        ledger.write(scrape_of("theirs", seconds, "mallory", UUID="GPU-mine-0"))
    ledger.meter()
    found = facts_of(ledger, "GPU-mine-0")
    assert sum(row[4] for row in found if row[1] == "mine") == 120
    assert sum(row[4] for row in found if row[1] == "theirs") == 90
    assert {row[3] for row in found if row[1] == "mine"} == {"alpha"}
