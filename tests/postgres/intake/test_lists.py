"""Lists that come again are decoded, judged and numbered once: everything is written as if they
were new each time.
"""

import dataclasses
import itertools
import random
import uuid

import msgspec
import pytest

from fakes.batches import NOON_MS, accelerator, batch, free, held, samples, workload
from fakes.postgres import fresh_database
from gpuledger_collector.ingest.batches import attributes, validate
from gpuledger_collector.ingest.batches import decode as decoding
from gpuledger_collector.ingest.batches.decode import ListCache, RecordList, decode
from gpuledger_collector.ingest.batches.store import Store
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import placements
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_common.wire import Samples, encode

NOW_MS = NOON_MS + 40_000_000
MINUTE_MS = 60_000
_worlds = itertools.count(1)
_seqs = itertools.count(1)


@pytest.fixture(scope="module")
def connection(postgres):
    with fresh_database(postgres) as dsn, Database(dsn).connect() as opened:
        yield opened


def accepted(made):
    """A batch as the collector takes it: its lists are those of earlier batches with the same
    bytes.
    """
    return validate.accept(decode(encode(made), "application/msgpack", ""), NOW_MS)


def accepted_anew(made):
    """The same, and nothing of it was ever seen."""
    found = decode(encode(made), "application/msgpack", "")
    lists = {
        name: RecordList(getattr(found, name).records) for name in ("accelerators", "workloads")
    }
    return validate.accept(dataclasses.replace(found, **lists), NOW_MS)


def of(accelerators, **changes):
    """A batch of these accelerators."""
    return msgspec.structs.replace(batch(accelerators=0, **changes), accelerators=accelerators)


CARDS = (
    ((0, {}),),
    ((0, {"model": "NVIDIA A100", "health": "failed", "health_cause": "Xid 79"}),),
    ((0, {"pool": "train"}),),
    ((0, {}), (1, {"gpu_micro": 142_857, "mig_instance": "1g.10gb"})),
    ((1, {}), (0, {"index": 3})),
)
"""ListCache of cards, few, so that the same come again: number and what is said of it."""
JOBS = (
    (("slurm", {"team": "vision"}),),
    (("slurm", {"team": "speech"}),),
    (("process", {}), ("slurm", {"team": "vision"})),
)
WHATS = ("held", "held", "free", "samples", "nothing")


def history(chance, steps=40):
    """Groups of batches, mostly of now and sometimes late; and at times a store that forgets, an
    inventory bought.
    """
    minute = 0
    for step in range(steps):
        if chance.random() < 0.06:
            yield "forget"
        if step == steps * 4 // 5:
            yield "import"
        group = []
        for _ in range(chance.randint(1, 2)):
            minute += chance.randint(0, 1)
            at = max(0, minute - chance.choice((0, 0, 0, 0, 5)))
            group.append(
                (
                    chance.randint(0, 1),
                    chance.choice(CARDS),
                    chance.choice(JOBS),
                    at,
                    chance.choice(WHATS),
                )
            )
        yield group


def build(world, told, seq):
    """A batch of a world: nodes, cards and jobs bear its name; cards and jobs may be said by either
    node.
    """
    node, cards, jobs, minute, what = told
    start_ms = NOON_MS + minute * MINUTE_MS
    accelerators = [accelerator(number, f"{world}-a", **face) for number, face in cards]
    rows = {
        "held": [
            held(place, start_ms, start_ms + MINUTE_MS, place % len(jobs))
            for place in range(len(cards))
        ],
        "free": [free(place, start_ms, start_ms + MINUTE_MS) for place in range(len(cards))],
    }
    return of(
        accelerators,
        seq=seq,
        node=f"{world}-n{node}",
        workloads=[workload(f"{world}-job", kind=kind, tags=tags) for kind, tags in jobs],
        usage_intervals=rows.get(what, []),
        samples=(
            samples(len(cards), [start_ms + 5])
            if what in ("held", "samples") and cards
            else Samples()
        ),
    )


class World:
    """A store of its own, and what it wrote, under names of its own."""

    def __init__(self, connection, take):
        self.connection, self.take = connection, take
        self.name = f"w{next(_worlds)}"
        self.store = Store(partitions.ensure, self.settle)
        self.contested, self.answers = [], []

    def settle(self, connection, accelerators, since_ms):
        def refused(claim):
            self.contested.append(claim.first_ms)

        return placements.settle(connection, accelerators, since_ms, refused)

    def step(self, what, seqs):
        if what == "forget":
            self.store.forget()
        elif what == "import":
            like = f"GPU-{self.name}-%"
            self.connection.execute(
                "INSERT INTO inventory (accelerator_id, node_id, pool, in_ms) SELECT DISTINCT ON"
                " (a.id) a.id, node_id, 'bought', in_ms FROM capacity c JOIN accelerator a ON a.id"
                " = accelerator_id WHERE a.uuid LIKE %s ORDER BY a.id, in_ms",
                (like,),
            )
            ids = self.connection.execute(
                "SELECT id FROM accelerator WHERE uuid LIKE %s", (like,)
            ).fetchall()
            placements.settle(self.connection, [number for (number,) in ids], 0)
        else:
            group = [
                self.take(build(self.name, told, seq)) for told, seq in zip(what, seqs, strict=True)
            ]
            self.answers += self.store.flush(self.connection, group, NOW_MS)

    def written(self):
        """All that is in the database, by names, without the world's own."""
        like = (f"%{self.name}-%",)
        queries = (
            (
                "SELECT uuid, model, mig_instance, gpu_micro, gpu_index, health, health_cause FROM"
                " accelerator WHERE uuid LIKE %s ORDER BY uuid"
            ),
            "SELECT key, tags, user_name FROM workload WHERE key LIKE %s ORDER BY key",
            (
                "SELECT a.uuid, n.name, pool, gpu_model, c.gpu_micro, in_ms, out_ms, c.source FROM"
                " capacity c JOIN accelerator a ON a.id = accelerator_id JOIN node n ON n.id ="
                " node_id WHERE a.uuid LIKE %s ORDER BY 1, in_ms"
            ),
            (
                "SELECT a.uuid, n.name, kind, first_ms, last_ms FROM refused_claim c JOIN"
                " accelerator a ON a.id = accelerator_id JOIN node n ON n.id = c.node_id WHERE"
                " a.uuid LIKE %s ORDER BY 1, 2, 3, 4"
            ),
            (
                "SELECT a.uuid, s.start_ms, t.model, t.pool, t.gpu_micro, v.tags FROM"
                " usage_interval s JOIN accelerator a ON a.id = s.accelerator_id JOIN"
                " accelerator_attributes t ON t.id = s.accelerator_attributes_id LEFT JOIN"
                " workload_attributes v ON v.id = s.workload_attributes_id WHERE a.uuid LIKE %s"
                " ORDER BY 1, s.node_id, s.seq, s.record, 2"
            ),
            (
                "SELECT a.uuid, w.key, n.name, state, start_ms, end_ms, held_ms, seq, record FROM"
                " usage_interval s JOIN accelerator a ON a.id = accelerator_id JOIN node n ON n.id"
                " = s.node_id LEFT JOIN workload w ON w.id = workload_id WHERE a.uuid LIKE %s ORDER"
                " BY seq, record"
            ),
            (
                "SELECT a.uuid, at_ms, count(*) FROM gpu_sample JOIN accelerator a ON a.id ="
                " accelerator_id WHERE a.uuid LIKE %s GROUP BY 1, 2 ORDER BY 1, 2"
            ),
            (
                "SELECT DISTINCT a.uuid, hour_ms FROM hour_recompute JOIN accelerator a ON a.id ="
                " accelerator_id WHERE a.uuid LIKE %s ORDER BY 1, 2"
            ),
            (
                "SELECT a.uuid, at_ms, state, w.key FROM gpu_latest JOIN accelerator a ON a.id ="
                " accelerator_id LEFT JOIN workload w ON w.id = workload_id WHERE a.uuid LIKE %s"
                " ORDER BY 1"
            ),
            "SELECT name, status, heartbeat FROM node WHERE name LIKE %s ORDER BY 1",
        )
        rows = [self.connection.execute(query, like).fetchall() for query in queries]
        return [
            repr(each).replace(f"{self.name}-", "")
            for each in (*rows, self.answers, self.contested)
        ]


@pytest.mark.parametrize("seed", range(3))
def test_lists_that_come_again_are_as_new_ones(connection, seed):
    """Faces and tags that change and change back, cards that two nodes claim, inventories imported
    and forgotten: a store that remembers lists writes and answers what one does that sees each for
    the first time.
    """
    worlds = [World(connection, accepted), World(connection, accepted_anew)]
    for step, what in enumerate(history(random.Random(seed))):
        seqs = [next(_seqs) for _ in what]
        for world in worlds:
            world.step(what, seqs)
        known, new = (world.written() for world in worlds)
        assert known == new, f"step {step}: {what}"


def test_a_list_is_as_its_bytes_say(connection):
    """The same list from two nodes: what is shared is shared, what a node's name scopes is each
    node's own.
    """
    store = Store(partitions.ensure, placements.settle)
    jobs = [workload("lists-7", kind="slurm"), workload("lists-7", kind="process")]
    for minute in range(3):
        for node in ("lists-a", "lists-b"):
            start_ms = NOON_MS + minute * MINUTE_MS
            made = batch(
                minute,
                node,
                workloads=jobs,
                start_ms=start_ms,
                usage_intervals=[
                    held(0, start_ms, start_ms + 9),
                    held(1, start_ms, start_ms + 9, 1),
                ],
            )
            store.flush(connection, [accepted(made)], NOW_MS)
    assert connection.execute(
        "SELECT n.name, w.key, count(*) FROM usage_interval s JOIN node n ON n.id = node_id JOIN"
        " workload w ON w.id = workload_id WHERE w.external_id = 'lists-7' GROUP BY 1, 2 ORDER BY"
        " 1, 2"
    ).fetchall() == [
        ("lists-a", "process:lists-a:lists-7", 3),
        ("lists-a", "slurm::lists-7", 3),
        ("lists-b", "process:lists-b:lists-7", 3),
        ("lists-b", "slurm::lists-7", 3),
    ]


def test_a_full_directory_forgets_and_learns_again(connection, monkeypatch):
    """What was found of a list is not believed when the names were forgotten, and ids stay what
    they were.
    """
    monkeypatch.setattr(attributes, "MAX_CACHED", 3)
    store = Store(partitions.ensure, placements.settle)
    for round_ in range(4):
        group = [
            accepted(batch(round_, f"full-{node}", start_ms=NOON_MS + round_ * MINUTE_MS))
            for node in range(3)
        ]
        assert {answer.status for answer in store.flush(connection, group, NOW_MS)} == {"committed"}
        assert len(store.ids.accelerators) <= 6
    found = connection.execute(
        "SELECT a.uuid, n.name, count(*) FROM usage_interval s JOIN accelerator a ON a.id ="
        " accelerator_id JOIN node n ON n.id = node_id WHERE n.name LIKE 'full-%' GROUP BY 1, 2"
        " ORDER BY 1"
    ).fetchall()
    assert found == [
        (f"GPU-full-{node}-{place}", f"full-{node}", 4) for node in range(3) for place in range(2)
    ]


BAD = [
    accelerator(0, "bad"),
    accelerator(1, "bad", gpu_micro=0),
    accelerator(0, "bad"),
    accelerator(2, "bad", pool="\0"),
]
BAD_JOBS = [workload(""), workload("bad-job"), workload("x", tags={"a": "\0"})]


def test_refusals_of_a_list_come_again_with_it():
    """A list with bad records brings the same refusals, in the same order, however often it comes,
    beside those of the batch's other records; and who changes an answer changes no other.
    """
    made = of(
        BAD,
        node="bad",
        workloads=BAD_JOBS,
        usage_intervals=[held(0, NOON_MS, NOON_MS + 9, 1), held(1, NOON_MS, NOON_MS + 9, 1)],
    )
    expected = accepted_anew(made)
    names = [refusal.record for refusal in expected.rejected]
    assert names[:3] == ["accelerators[1]", "accelerators[3]", "accelerators[2]"]
    assert names[3:6] == ["workloads[0]", "workloads[2]", "usage_intervals[1]"]
    for _ in range(3):
        again = accepted(made)
        assert again.rejected == expected.rejected
        assert (again.accelerators, again.workloads) == (expected.accelerators, expected.workloads)
        again.rejected.clear()


def as_wire(made, **raw):
    """A batch as msgpack with some of its values put in as they are."""
    whole = msgspec.msgpack.decode(encode(made))
    return msgspec.msgpack.encode({**whole, **raw})


def odd_lists():
    good = msgspec.to_builtins(accelerator(0, "odd"))
    invalid = msgspec.msgpack.encode([{**good, "model": "MARK"}]).replace(
        b"MARK", b"\xff\xfe\xff\xfe"
    )
    return {
        "a record of the wrong type": [good, {**good, "uuid": 7}, "no record"],
        "a record without a name": [good, {"index": 1}],
        "text that is no UTF-8": msgspec.Raw(invalid),
        "no list": {"a": 1},
        "nil": None,
        "a list in a list": [[good]],
        "empty": [],
    }


@pytest.mark.parametrize("name", sorted(odd_lists()))
def test_an_odd_list_is_refused_the_same_each_time(name):
    """What a type cannot hold is refused record by record, or the body as a whole, the second time
    as the first.
    """
    body = as_wire(
        batch(1, "odd", usage_intervals=[], samples=Samples()), accelerators=odd_lists()[name]
    )
    told = []
    for _ in range(3):
        try:
            found = validate.accept(decode(body, "application/msgpack", ""), NOW_MS)
            told.append((sorted(found.accelerators), found.rejected))
        except decoding.Refused as refusal:
            told.append((refusal.status, refusal.detail))
    assert told[0] == told[1] == told[2]
    first = told[0]
    if name.startswith("a "):
        expected = [0] if "record" in name else []
        assert first[0] == expected
        assert [one.record for one in first[1]] == {
            "a record of the wrong type": ["accelerators[1]", "accelerators[2]"],
            "a record without a name": ["accelerators[1]"],
            "a list in a list": ["accelerators[0]"],
        }[name]
    elif name == "empty":
        assert first[0] == []
    else:
        assert first[0] == 400


def test_a_name_that_comes_twice_is_taken_once():
    """Of two lists under one name the last counts, whatever the first is."""
    inner = encode(batch(1, "twice", accelerators=1))
    assert inner[0] & 0xF0 == 0x80
    second = msgspec.msgpack.encode("accelerators") + msgspec.msgpack.encode(
        [accelerator(5, "twice")]
    )
    body = bytes([inner[0] + 1]) + inner[1:] + second
    for _ in range(2):
        found = validate.accept(decode(body, "application/msgpack", ""), NOW_MS)
        assert [one.uuid for one in found.accelerators.values()] == ["GPU-twice-5"]


def test_lists_left_out_are_empty():
    """A heartbeat alone is a batch."""
    whole = {
        name: value
        for name, value in msgspec.msgpack.decode(encode(batch(1, "bare"))).items()
        if name in ("version", "node", "epoch", "seq", "heartbeat")
    }
    found = accepted_of(msgspec.msgpack.encode(whole))
    assert (found.accelerators, found.workloads, found.usage_intervals, found.block) == (
        {},
        {},
        {},
        None,
    )


def accepted_of(body):
    return validate.accept(decode(body, "application/msgpack", ""), NOW_MS)


def test_what_is_remembered_of_lists_is_bounded(monkeypatch):
    """However short the lists and however many, they take no more than is said; a long one is not
    remembered.
    """
    import gc
    import tracemalloc

    monkeypatch.setattr(decoding, "MAX_CACHED_BYTES", 2 * 1024 * 1024)
    lists = ListCache(validate.WireWorkload)
    gc.collect()
    tracemalloc.start()
    try:
        most = 0
        for number in range(6000):
            listed = lists.decode(
                msgspec.Raw(msgspec.msgpack.encode([{"id": str(number), "kind": "a"}]))
            )
            kept, _ = validate._validate(listed, "workloads", validate.check_workload)
            kept.cache[""] = {0: number}
            if number % 100 == 0:
                most = max(most, tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert most < 2.5 * 1024 * 1024
    long = msgspec.Raw(
        msgspec.msgpack.encode([{"id": str(number), "kind": "a"} for number in range(200)])
    )
    assert lists.decode(long) is not lists.decode(long)


def test_long_epochs_are_not_remembered():
    """A UUID may be written with millions of hyphens: it names the same epoch, and stays nowhere."""
    plain = str(uuid.uuid4())
    before = validate._uuid.cache_info().currsize
    for number in range(3):
        made = batch(1, "hyphens", epoch=plain.replace("-", "") + "-" * (100_000 + number))
        assert accepted(made).epoch == uuid.UUID(plain)
    assert validate._uuid.cache_info().currsize == before


def test_an_inventory_that_changes_is_never_seen_half_changed(connection):
    """A second writer that looks while the first remembers a change does not keep what was there
    before it.
    """
    store = Store(partitions.ensure, placements.settle)
    store.flush(connection, [accepted(batch(1, "half-a"))], NOW_MS)
    [numbered] = store.ids.resolve(connection, [accepted(batch(2, "half-a"))], NOW_MS)
    assert store._is_confirmed(numbered)
    looked = []

    class Slow(dict):
        def update(self, rows):
            looked.append(store._is_confirmed(numbered))
            super().update(rows)

    store._placements = Slow(store._placements)
    moved = [accelerator(number, "half-a") for number in range(2)]
    later_ms = NOON_MS + 2 * MINUTE_MS
    usage_intervals = [held(number, later_ms, later_ms + MINUTE_MS) for number in range(2)]
    store.flush(
        connection, [accepted(of(moved, node="half-b", usage_intervals=usage_intervals))], NOW_MS
    )
    assert looked
    assert {row.node_id for row in store._placements.values()} != {numbered.node_id}
    assert not store._is_confirmed(numbered)


NUMBERS = [-1, 2**31, 2**63, 2**64 - 1]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_out_of_range_are_refused_alone(number):
    """Positions, instants and lengths that no column can hold take nothing along, in msgpack as in
    JSON.
    """
    rows = samples(1, [NOON_MS, NOON_MS + 1, NOON_MS + 2])
    odd = [
        msgspec.structs.replace(rows, accelerator=[0, number, 0]),
        msgspec.structs.replace(
            rows, at_ms=[NOON_MS, number if number != 2**31 else 0, NOON_MS + 2]
        ),
    ]
    good = held(0, NOON_MS, NOON_MS + 9)
    bad = [
        msgspec.structs.replace(good, **{name: number})
        for name in ("accelerator", "workload", "held_ms", "end_ms")
    ]
    for block in odd:
        made = batch(1, "odd", accelerators=1, usage_intervals=[good, *bad], samples=block)
        for body, kind in (
            (encode(made), "application/msgpack"),
            (msgspec.json.encode(made), "application/json"),
        ):
            found = validate.accept(decode(body, kind, ""), NOW_MS)
            assert list(found.usage_intervals) == [0]
            assert found.block.at_ms.tolist() == [NOON_MS, NOON_MS + 2]
            assert len(found.block.columns["gpu_utilization_ratio"]) == 2 * 4
            assert [one.record for one in found.rejected] == [
                *(f"usage_intervals[{place}]" for place in range(1, 5)),
                "samples[1]",
            ]
