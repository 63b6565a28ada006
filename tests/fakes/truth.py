"""What a faulty fleet really did: every batch made, what became of it, and what the ledger must
therefore say.

A node of this fleet is the agent's real spool and real push over HTTP; only its readings are made
here, so that each is known. The number `k` of a batch on its node gives its instants, holders and
values, whatever its place in the spool.
"""

import contextlib
import random
import shutil
import sqlite3
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from fakes.batches import NOON_MS, batch, free, held, samples, workload
from gpuledger_agent.push import Http, Pusher
from gpuledger_agent.spool import BatchContents, DiskNearlyFull, Spool
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.storage.telemetry import archive, usage_evidence
from gpuledger_common.batches import pack

SPAN_MS, GPUS = 10_000, 2
OFFSETS_MS = (0, 5_000)
"""When a GPU is sampled within a span."""
LONGEST_WAIT_S = 0.05
"""Waits between two requests are cut to this; which answer leads to which wait is tested elsewhere.
"""
Key = tuple[str, str, int]


def value_of(k: int, gpu: int, sample: int) -> float:
    """The reading that must come back: exact in float32."""
    return ((k * 31 + gpu * 7 + sample) % 1024) / 1024


def held_of(k: int, gpu: int) -> int:
    """Milliseconds of the span of batch `k` in which the GPU is held; the rest of the span nobody
    holds it.
    """
    return 0 if (k + gpu) % 4 == 3 else SPAN_MS


def body_of(node: str, epoch: str, seq: int, k: int) -> bytes:
    """Batch `k` of a node: alone held, shared by two, or free."""
    start, end = NOON_MS + k * SPAN_MS, NOON_MS + (k + 1) * SPAN_MS
    usage_intervals = []
    for gpu in range(GPUS):
        if not held_of(k, gpu):
            usage_intervals.append(free(gpu, start, end))
        elif k % 3:
            usage_intervals.append(held(gpu, start, end))
        else:
            usage_intervals += [
                held(gpu, start, end, who, held_ms=ms, busy_ms=ms)
                for who, ms in ((0, 3_333), (1, 6_667))
            ]
    instants = [start + offset for offset in OFFSETS_MS]
    values = [value_of(k, gpu, place) for place in range(len(instants)) for gpu in range(GPUS)]
    made = batch(
        seq,
        node,
        epoch=epoch,
        accelerators=GPUS,
        workloads=[
            workload(f"job-{k // 50}"),
            workload(f"job-{k // 50}-b", tags={"team": "speech"}),
        ],
        usage_intervals=usage_intervals,
        samples=samples(GPUS, instants, gpu_utilization_ratio=values),
    )
    return pack(made)


@dataclass
class Truth:
    """Every batch of the fleet by (node, epoch, number): which `k` it is, and which ends it came
    to.
    """

    made: dict[Key, int] = field(default_factory=dict)
    acknowledged: set[Key] = field(default_factory=set)
    refused: Counter = field(default_factory=Counter)
    """Answers that nobody may give here, by what was said."""


class WatchedSpool(Spool):
    """The agent's spool; whoever watches is told of each acknowledgement before it takes effect."""

    def __init__(self, truth: Truth, node: str, folder: Path, max_bytes: int) -> None:
        super().__init__(folder, max_bytes, 0, free_floor=0)
        self._truth, self._node = truth, node

    def acknowledge(self, seq: int, rejected: tuple[tuple[str, str], ...] = ()) -> None:
        self._truth.acknowledged.add((self._node, self.epoch, seq))
        if rejected:
            self._truth.refused[f"a record of a good batch was refused: {rejected[0]}"] += 1
        super().acknowledge(seq, rejected)


class Node:
    """One agent in a thread: makes batches, spools them, and pushes them through a broken network."""

    def __init__(
        self, truth: Truth, name: str, port: int, folder: Path, max_bytes: int = 2**26
    ) -> None:
        self.truth, self.name, self.folder, self.max_bytes = truth, name, folder, max_bytes
        self.http = Http(f"http://127.0.0.1:{port}", timeout_s=1.5)
        self.chance = random.Random(name)
        self.faults: Counter = Counter()
        self.offset_ms = 0
        self.wanted: list[str] = []
        """What is to be done to this node next, by its own thread: see `_suffer`."""
        self.producing, self.stopping = threading.Event(), threading.Event()
        self.producing.set()
        self._next = 0
        self._open()

    def _open(self) -> None:
        self.spool = WatchedSpool(self.truth, self.name, self.folder, self.max_bytes)
        self.pusher = Pusher(self.spool, self.http.post, self._wall_ms, self.chance.random)

    def _wall_ms(self) -> int:
        return max(0, time.time_ns() // 1_000_000 + self.offset_ms)

    def end(self) -> None:
        """The faults are over: nothing more is made, and what waits is delivered, also by a machine
        that is slow.
        """
        self.producing.clear()
        self.http._connection.timeout_s = 30.0
        self.stopping.set()

    def make(self) -> None:
        """Spools the next batch; raises what the spool raises, and then the batch is still to be
        made.
        """
        k = self._next

        def body(epoch: str, seq: int) -> bytes:
            number.append((epoch, seq))
            return body_of(self.name, epoch, seq, k)

        number: list[tuple[str, int]] = []
        seq = self.spool.add(body, self._wall_ms(), BatchContents(GPUS, GPUS * len(OFFSETS_MS)))
        self.truth.made[self.name, self.spool.epoch, seq] = k
        self._next += 1

    def run(self) -> None:
        """Until told to stop and nothing waits; what ends it before is told."""
        try:
            self._live()
        except Exception as error:
            self.truth.refused[f"{self.name} ended with {error!r}"] += 1

    def _live(self) -> None:
        while not (self.stopping.is_set() and self.spool.counts().pending == 0):
            while self.wanted:
                self._suffer(self.wanted.pop(0))
            if self.producing.is_set() and self.spool.counts().pending < 8:
                for _ in range(self.chance.randint(1, 4)):
                    self.make()
            wait_s = self.pusher.step()
            if wait_s is None or wait_s > 0:
                time.sleep(LONGEST_WAIT_S if wait_s is None else min(wait_s, LONGEST_WAIT_S))

    def _suffer(self, what: str) -> None:
        if what == "clock":
            years = self.chance.choice((-10, -1, -0.001, 0, 0.001, 1, 10))
            self.offset_ms = int(years * 365.25 * 86_400_000)
            self.faults["clock of a node set"] += 1
        elif what == "restart":
            self.spool.close()
            self.http.close()
            self._open()
            self.faults["agent restarted"] += 1
        elif what == "flood":
            before = self.spool.counts().dropped
            for _ in range(700):
                self.make()
            self.faults["batch dropped: spool full"] += self.spool.counts().dropped - before
        elif what == "fill":
            self._on_a_full_disk()

    def _on_a_full_disk(self) -> None:
        """Another program takes the rest of the disk; what cannot be spooled then is kept and
        spooled later.
        """
        others = self.folder / "others"
        with contextlib.suppress(OSError), others.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        for _ in range(200):
            try:
                self.make()
            except (sqlite3.Error, DiskNearlyFull):
                self.faults["write refused: disk full"] += 1
        others.unlink()


@dataclass
class Verdict:
    """The three numbers that must be 0, each with examples, and what they were found among."""

    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    unaccounted: list[str] = field(default_factory=list)
    batches: Counter = field(default_factory=Counter)
    samples: int = 0
    gpu_ms: int = 0

    @property
    def clean(self) -> bool:
        return not (self.lost or self.twice or self.unaccounted)


def ends_of(node: Node, verdict: Verdict) -> set[Key]:
    """Batches of a node that are not acknowledged and for which its spool has another end; others
    are unaccounted.
    """
    epoch, counts = node.spool.epoch, node.spool.counts()
    verdict.batches.update(
        made=counts.produced,
        acknowledged=counts.acked,
        dropped=counts.dropped,
        dead=counts.dead,
        waiting=counts.pending,
    )
    if not counts.is_conserved:
        verdict.unaccounted.append(f"{node.name}: {counts}")
    mine = {key for key in node.truth.made if key[0] == node.name}
    seqs = sorted(key[2] for key in mine)
    if seqs != list(range(1, counts.produced + 1)):
        verdict.unaccounted.append(
            f"{node.name}: {len(seqs)} batches were made, {counts.produced} numbered"
        )
    acknowledged = mine & node.truth.acknowledged
    open_ended = mine - acknowledged
    ranges = [(first, last) for first, last, _, _ in node.spool.losses()]
    dropped = {key for key in open_ended if any(first <= key[2] <= last for first, last in ranges)}
    dead_lettered = {
        key for key in open_ended if key[2] in {seq for seq, record, _ in node.spool.dead_letters()}
    }
    for key in sorted(open_ended - dropped - dead_lettered):
        verdict.unaccounted.append(f"{key} has no end")
    told = (len(acknowledged), len(dropped), len(dead_lettered))
    if told != (counts.acked, counts.dropped, counts.dead):
        verdict.unaccounted.append(f"{node.name}: {told} batches, counted as {counts}")
    if epoch not in {key[1] for key in mine}:
        verdict.unaccounted.append(f"{node.name}: its spool was replaced")
    return dropped | dead_lettered


def judge(truth: Truth, nodes: list[Node], dsn: str) -> Verdict:
    """Holds the database against the truth: run it when nothing waits and every hour is folded and
    rated.
    """
    verdict = Verdict()
    for node in nodes:
        ends_of(node, verdict)
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT n.name, b.epoch::text, b.seq, b.usage_intervals, b.samples FROM ingest_batch b"
            " JOIN node n ON n.id = b.node_id"
        ).fetchall()
        usage_intervals = connection.execute(
            "SELECT n.name, s.epoch::text, s.seq, count(*), count(DISTINCT s.record),"
            f" sum(s.held_ms) FROM {usage_evidence.intervals(0)} AS s JOIN node n ON n.id ="
            " s.node_id GROUP BY 1, 2, 3"
        ).fetchall()
        found = _samples(connection, max(truth.made.values(), default=0))
        billed = dict(
            connection.execute(
                "SELECT a.uuid, sum(c.gpu_ns)::bigint FROM charge c JOIN accelerator a ON a.id ="
                " c.accelerator_id WHERE c.state = 'held' GROUP BY 1"
            ).fetchall()
        )
    committed = Counter(
        (name, epoch, seq) for name, epoch, seq, _, _ in rows if (name, epoch, seq) in truth.made
    )
    verdict.batches["committed"] = len(committed)
    verdict.twice += [
        f"batch {key} is in the ledger {times} times"
        for key, times in committed.items()
        if times > 1
    ]
    verdict.lost += [f"batch {key}" for key in sorted(truth.acknowledged - set(committed))]
    _judge_usage_intervals(truth, usage_intervals, set(committed), verdict)
    _judge_samples(truth, found, set(committed), verdict)
    _judge_bill(truth, billed, set(committed), verdict)
    verdict.unaccounted += [f"{times} x {what}" for what, times in truth.refused.items()]
    return verdict


def _samples(connection: psycopg.Connection, last: int) -> list[tuple[str, int, float]]:
    """Every sample up to batch `last` and two days on, hot or packed by a job meanwhile."""
    period = Period(NOON_MS - DAY_MS, NOON_MS + last * SPAN_MS + 2 * DAY_MS)
    names = dict(connection.execute("SELECT id, uuid FROM accelerator").fetchall())
    found = archive.samples(connection, list(names), period)
    column = found.columns.get("gpu_utilization_ratio")
    if column is None:
        return []
    return [
        (names[number], at_ms, value if present else None)
        for number, at_ms, value, present in zip(
            found.accelerator_id.tolist(),
            found.at_ms.tolist(),
            column.values.tolist(),
            column.present.tolist(),
            strict=True,
        )
    ]


def _judge_usage_intervals(truth: Truth, rows: list, committed: set[Key], verdict: Verdict) -> None:
    seen = {}
    for name, epoch, seq, count, distinct, held_ms in rows:
        key = (name, epoch, seq)
        if key not in truth.made:
            continue
        seen[key] = int(held_ms)
        if count != distinct:
            verdict.twice.append(f"{count - distinct} usage intervals of {key}")
    for key in committed:
        wanted = sum(held_of(truth.made[key], gpu) for gpu in range(GPUS))
        if key not in seen or seen[key] < wanted:
            verdict.lost.append(f"{wanted - seen.get(key, 0)} ms of {key}")
        elif seen[key] > wanted:
            verdict.twice.append(f"{seen[key] - wanted} ms of {key}")


def _judge_samples(truth: Truth, rows: list, committed: set[Key], verdict: Verdict) -> None:
    wanted = {
        (f"GPU-{key[0]}-{gpu}", NOON_MS + truth.made[key] * SPAN_MS + offset): value_of(
            truth.made[key], gpu, place
        )
        for key in committed
        for gpu in range(GPUS)
        for place, offset in enumerate(OFFSETS_MS)
    }
    mine = {uuid for uuid, _ in wanted}
    seen = Counter((uuid, at_ms) for uuid, at_ms, _ in rows if uuid in mine)
    values = {(uuid, at_ms): value for uuid, at_ms, value in rows}
    verdict.samples = len(wanted)
    verdict.lost += [
        f"sample {place}" for place, value in wanted.items() if values.get(place) != value
    ]
    verdict.twice += [f"sample {place}" for place, times in seen.items() if times > 1]
    verdict.twice += [
        f"sample {place} that no committed batch has" for place in seen if place not in wanted
    ]


def _judge_bill(
    truth: Truth, billed: dict[str, int], committed: set[Key], verdict: Verdict
) -> None:
    wanted: Counter = Counter()
    for key in committed:
        for gpu in range(GPUS):
            wanted[f"GPU-{key[0]}-{gpu}"] += held_of(truth.made[key], gpu)
    verdict.gpu_ms = sum(wanted.values())
    for uuid, held_ms in wanted.items():
        more = billed.get(uuid, 0) - held_ms * 1_000_000
        if more > 0:
            verdict.twice.append(f"{more} ns billed beyond what {uuid} was held")
        elif more < 0:
            verdict.lost.append(f"{-more} ns of {uuid} are not billed")


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int = 3):
    """A real filesystem of a few MiB on `folder`, or None where none can be mounted."""
    import subprocess

    folder.mkdir(parents=True, exist_ok=True)
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder],
        capture_output=True,
        check=False,
    )
    if not mounted or mounted.returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
