"""Bodies that nobody would write: whatever comes, the answer is a verdict, never a fault of ours."""

import copy
import json
import os

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.batches import NOON_MS, batch
from fakes.collector import JSON, MSGPACK, running
from fakes.postgres import fresh_database
from gpuledger_common.compression import zstd

pytestmark = pytest.mark.slow

EXAMPLES = 3000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 150
MOSTLY = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

odd = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([0, 1, -1, 2**31, 2**63 - 1, 2**63, NOON_MS, NOON_MS + 1, 10**15])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "\0", "held", "f4", "i8", "GPU-node-1-0", "x" * 5000])
    | st.lists(st.integers(-5, 5), max_size=3)
    | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
)


@pytest.fixture(scope="module")
def collector(postgres):
    with fresh_database(postgres) as made, running(made) as started:
        yield started


def places(value, path=()):
    """The path of every value inside a JSON document."""
    yield path
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


def put(document, path, value):
    made = copy.deepcopy(document)
    target = made
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return made


PLAIN = json.loads(msgspec.json.encode(batch(accelerators=2)))
PLAIN["samples"]["columns"]["gpu_power_watts"] = {"kind": "f8", "values": [1.0, None] * 6}
PLAIN["samples"]["columns"]["gpu_power_limit_watts"] = {"kind": "f4", "values": [350] * 12}
PATHS = [path for path in places(PLAIN) if path]


@MOSTLY
@given(
    changes=st.lists(st.tuples(st.sampled_from(PATHS), odd), min_size=1, max_size=4),
    as_json=st.booleans(),
)
def test_a_twisted_batch_gets_a_verdict(collector, changes, as_json):
    """Any values anywhere in a batch: 200, 400, 409 or 422 with a reason; a 422 names every record
    it refuses.
    """
    document = PLAIN
    for path, value in changes:
        try:
            document = put(document, path, value)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
    try:
        body = (
            json.dumps(document).encode()
            if as_json
            else zstd.compress(msgspec.msgpack.encode(document))
        )
    except (OverflowError, UnicodeEncodeError):
        return
    status, answer = collector.post(body, JSON if as_json else MSGPACK)
    assert status in {200, 400, 409, 422}, answer
    if status == 422:
        assert answer["rejected"]
        assert all(refusal["record"] and refusal["reason"] for refusal in answer["rejected"])
    if status in {400, 409}:
        assert answer["detail"]


@MOSTLY
@given(
    body=st.binary(max_size=300),
    encoding=st.sampled_from(["", "zstd", "gzip"]),
    as_json=st.booleans(),
)
def test_noise_gets_a_verdict(collector, body, encoding, as_json):
    """Any bytes under any announced form are a 400."""
    headers = {
        "Content-Type": "application/json" if as_json else "application/msgpack",
        "Content-Encoding": encoding,
    }
    status, answer = collector.post(zstd.compress(body) if encoding == "zstd" else body, headers)
    assert status == 400
    assert answer["detail"]


def test_after_all_of_it_the_ledger_is_sound(collector):
    """What the fuzzing left behind adds up: as many intervals as the batch ledger says, no more
    samples (those of other nodes' accelerators are left out), and no span held twice over.
    """
    # Every value of this batch is sound, so that something is stored whatever the other tests of
    # this file sent.
    assert collector.post(msgspec.json.encode(batch(seq=2**40, accelerators=2)), JSON)[0] == 200
    with psycopg.connect(collector.dsn) as connection:
        totals = connection.execute(
            "SELECT (SELECT coalesce(sum(usage_intervals), 0) FROM ingest_batch), (SELECT count(*)"
            " FROM usage_interval WHERE state <> 'present'), (SELECT coalesce(sum(samples), 0) FROM"
            " ingest_batch), (SELECT count(*) FROM gpu_sample)"
        ).fetchone()
        wrong = connection.execute(
            "SELECT count(*) FROM (SELECT 1 FROM usage_interval WHERE state = 'held' GROUP BY"
            " node_id, epoch, seq, accelerator_id, start_ms, end_ms HAVING sum(held_ms) <> end_ms -"
            " start_ms) AS s"
        ).fetchone()
    assert totals is not None
    assert totals[0] == totals[1]
    assert totals[2] >= totals[3] > 0
    assert wrong == (0,)
