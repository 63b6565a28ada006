"""A simulated fleet as a pure function of seed and time.

A demo's month must pass in seconds and continue live, and a test must know the truth. So
accelerators that are scheduled together form a *lane*, time is cut into blocks of four days, and
the workloads of a lane in a block come from a random generator seeded with just these. The state at
any instant is then known without the instants before it.
"""

from __future__ import annotations

import math
import random
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from gpuledger_common.readings import HOUR_MS, WHOLE_GPU, Accelerator, Workload

DAY_MS = 24 * HOUR_MS
BLOCK_MS = 4 * DAY_MS
"""Jobs end with their block at the latest: demand falls at each fourth midnight (UTC), as `simulate
--story` says.
"""
CYCLE_MS = 28 * DAY_MS
"""Faults repeat with this period."""

Shape = Literal[
    "training", "research", "notebook", "serving", "nightly", "reserved", "starved", "crashing"
]

GIB = 1024**3
MODELS: dict[str, tuple[str, int, float, float]] = {
    "h100": ("NVIDIA H100 80GB HBM3", 80 * GIB, 70.0, 700.0),
    "a100": ("NVIDIA A100-SXM4-80GB", 80 * GIB, 55.0, 400.0),
    "l40s": ("NVIDIA L40S", 48 * GIB, 35.0, 350.0),
    "l4": ("NVIDIA L4", 24 * GIB, 16.0, 72.0),
}
"""Short name to model, memory in bytes, idle and full power in watts (data sheets; idle as commonly
read).
"""


@dataclass(frozen=True, slots=True)
class Lane:
    """Accelerators of a node that one workload holds at a time, and the kind of these workloads."""

    name: str
    shape: Shape
    slots: tuple[int, ...]
    teams: tuple[tuple[str, str], ...]
    sharers: int = 1


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the fleet; a lane refers to its accelerators by position (slot)."""

    name: str
    model: str
    accelerators: tuple[Accelerator, ...]
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """A workload that holds a lane from start to end (unix ms)."""

    start_ms: int
    end_ms: int
    workload: Workload
    shape: Shape
    begun_ms: int | None = None
    """When it really began, where a block cut it; None: at its start."""


_FOUNDATION = (("foundation", "llm-pretrain"), ("foundation", "rlhf"))
_VISION = (("vision", "segmentation-v3"), ("vision", "video-gen"), ("foundation", "rlhf"))
_RESEARCH = (("vision", "segmentation-v3"), ("speech", "asr-large"), ("nlp", "retrieval"), ("", ""))
LaneLayout = tuple[Shape, tuple[int, ...], tuple[tuple[str, str], ...]]
"""Shape, slots, and the (team, project) pairs of its workloads."""
_LAYOUT: tuple[tuple[str, str, int, tuple[LaneLayout, ...]], ...] = (
    ("h100-01", "h100", 8, (("training", tuple(range(8)), _FOUNDATION),)),
    (
        "h100-02",
        "h100",
        8,
        (("training", (0, 1, 2, 3), _VISION), ("training", (4, 5, 6, 7), _FOUNDATION)),
    ),
    (
        "h100-03",
        "h100",
        8,
        (
            *[("serving", (slot,), (("inference", "chat-api"),)) for slot in range(4)],
            ("research", (4,), _RESEARCH),
            ("research", (5,), _RESEARCH),
            ("reserved", (6, 7), (("robotics", "sim2real"),)),
        ),
    ),
    (
        "a100-01",
        "a100",
        7,
        (
            *[("research", (slot,), _RESEARCH) for slot in range(5)],
            ("notebook", (5,), (("nlp", "retrieval"),)),
            ("notebook", (6,), (("speech", "asr-large"),)),
            *[
                ("notebook", (slot,), (("vision", "segmentation-v3"), ("", "")))
                for slot in (7, 8, 9)
            ],
        ),
    ),
    (
        "a100-02",
        "a100",
        8,
        (
            ("research", (0, 1), _RESEARCH),
            ("research", (2, 3), _RESEARCH),
            ("starved", (4, 5), (("data", "etl-embed"),)),
            ("nightly", (6,), (("data", "nightly-index"),)),
            ("nightly", (7,), (("speech", "asr-batch"),)),
        ),
    ),
    (
        "l40s-01",
        "l40s",
        4,
        (
            ("nightly", (0, 1), (("data", "nightly-index"),)),
            ("research", (2,), _RESEARCH),
            ("research", (3,), _RESEARCH),
        ),
    ),
    (
        "l4-01",
        "l4",
        4,
        (
            ("serving", (0,), (("inference", "rerank"),)),
            ("serving", (1,), (("inference", "embed"),)),
            ("notebook", (2,), (("robotics", "sim2real"),)),
            ("serving", (3,), (("inference", "moderation"),)),
        ),
    ),
)
_MIG = (("3g.40gb/1", 500_000, 40), ("2g.20gb/5", 285_714, 20), ("1g.10gb/9", 142_857, 10))
"""Instances of the sliced A100: profile and id, dominant share max(compute/7, memory/8) in
micro-GPUs, GiB.
"""
_USERS = (
    "amina",
    "bjorn",
    "chen",
    "divya",
    "emeka",
    "farah",
    "goran",
    "hana",
    "ines",
    "jonas",
    "kofi",
    "lena",
)
SHARED_LANE = ("l4-01", 3)
FAILED_GPU = ("h100-02", 5)
SILENT_NODE = "a100-02"
STUCK_GPU = ("l40s-01", 3)
REMAP_GPU = ("a100-01", 4)
"""A row of its memory waits for a remap, which a reset would do."""
ECC_GPU, ECC_EVERY_MS = ("l40s-01", 1), 9 * DAY_MS
"""Its memory has an uncorrected error every nine days."""
HOT_GPU = ("h100-02", 0)
"""It is slowed down by its temperature in the afternoons."""
LOADED_MS = 1_767_225_600_000
"""When the driver of every node was loaded, on which counters begin: 2026-01-01."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A recurring incident: one workload that holds these lanes (node, first slot) for a time in
    each cycle.
    """

    lanes: tuple[tuple[str, int], ...]
    cycle_ms: int
    start_ms: int
    length_ms: int
    shape: Shape
    user: str
    team: str
    project: str
    name: str
    description: str
    run_ms: int = 0
    """Length of each of its runs; 0: it is one run."""
    kind: Literal["slurm", "simulated"] = "simulated"
    """Which scheduler its workload names."""

    def runs(self, begin_ms: int) -> Iterator[tuple[int, int]]:
        """Start and end of each run, in the cycle in which it begins at `begin_ms`."""
        end_ms = begin_ms + self.length_ms
        for start_ms in range(begin_ms, end_ms, self.run_ms or self.length_ms):
            yield start_ms, min(end_ms, start_ms + (self.run_ms or self.length_ms))


RUNAWAY = Incident(
    (("a100-02", 6), ("a100-02", 7), ("l40s-01", 0)),
    18 * DAY_MS,
    6 * DAY_MS + 13 * HOUR_MS,
    44 * HOUR_MS,
    "research",
    "goran",
    "data",
    "nightly-index",
    "reindex-all-retry",
    "a runaway: reindex-all-retry of data runs for two days on every card it gets",
)
FORGOTTEN = Incident(
    (("a100-01", 5),),
    9 * DAY_MS,
    4 * DAY_MS + 14 * HOUR_MS,
    70 * HOUR_MS,
    "notebook",
    "lena",
    "nlp",
    "retrieval",
    "retrieval-notebook",
    "a forgotten notebook: retrieval-notebook of nlp stays open",
)
WEEKEND = Incident(
    (("a100-02", 2),),
    14 * DAY_MS,
    8 * DAY_MS + 18 * HOUR_MS,
    62 * HOUR_MS,
    "reserved",
    "farah",
    "nlp",
    "retrieval",
    "weekend-hold",
    "a weekend: weekend-hold of nlp holds two cards and uses none",
)
STORM = Incident(
    (("l40s-01", 2),),
    19 * DAY_MS,
    11 * DAY_MS + 7 * HOUR_MS,
    9 * HOUR_MS,
    "crashing",
    "kofi",
    "speech",
    "asr-large",
    "asr-eval",
    "a retry storm: asr-eval of speech fails after minutes and is restarted, 54 times",
    10 * 60_000,
)
KEPT = Incident(
    (("l4-01", 2),),
    8 * DAY_MS,
    2 * DAY_MS + 9 * HOUR_MS,
    8 * DAY_MS,
    "reserved",
    "jonas",
    "robotics",
    "sim2real",
    "interactive-shell",
    "an open session: interactive-shell of robotics holds a card for eight days and uses none",
    kind="slurm",
)
INCIDENTS = (RUNAWAY, FORGOTTEN, WEEKEND, STORM, KEPT)
"""A job that runs for two days on every card it gets, a notebook left open, two cards held unused
from Friday 18:00 to Monday 08:00 UTC, a job that fails after minutes and is restarted again and
again, and a session of Slurm that is always there: whenever one looks, a card is held idle and a
command gives it back.

Day 0 of unix time was a Thursday.
"""


FAILED_FROM, FAILED_UNTIL = 11 * DAY_MS + 3 * HOUR_MS, 11 * DAY_MS + 15 * HOUR_MS
SILENT_FROM, SILENT_UNTIL = 18 * DAY_MS + 8 * HOUR_MS, 18 * DAY_MS + 14 * HOUR_MS
STUCK_FROM, STUCK_UNTIL = 23 * DAY_MS + 6 * HOUR_MS, 25 * DAY_MS + 6 * HOUR_MS
FAULTS = (
    (
        FAILED_FROM,
        FAILED_UNTIL,
        f"GPU {FAILED_GPU[1]} of {FAILED_GPU[0]} falls off the bus: unavailable",
    ),
    (SILENT_FROM, SILENT_UNTIL, f"the agent of {SILENT_NODE} is down: unobserved"),
    (
        STUCK_FROM,
        STUCK_UNTIL,
        f"GPU {STUCK_GPU[1]} of {STUCK_GPU[0]} shows 100 % while nobody holds it: a stuck counter",
    ),
)
"""Faults of every CYCLE_MS: start and end within the cycle, and a description."""


def hash_uuid(*parts: object) -> str:
    """Sixteen bytes from the parts, as UUID digits."""
    generator = random.Random("/".join(map(str, parts)))
    digits = f"{generator.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


@dataclass
class Fleet:
    """The fleet of a seed."""

    seed: int = 7
    given_back_ms: int = 0
    """From this instant on nobody holds the lanes of reservations; 0: they are held forever."""
    nodes: tuple[Node, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = tuple(self._node(*row) for row in _LAYOUT)
        self._by_name = {node.name: node for node in self.nodes}
        self._holds = lru_cache(maxsize=4096)(self._make_holds)
        self._latest: dict[str, tuple[int, list[int], tuple[Hold, ...]]] = {}

    def node(self, name: str) -> Node:
        """The node of this name; an unknown name gets the first node's layout and workloads of its
        own.
        """
        known = self._by_name.get(name)
        return known if known is not None else self._node(name, *_LAYOUT[0][1:])

    def _node(self, name: str, model: str, gpus: int, lanes: tuple[LaneLayout, ...]) -> Node:
        title, memory, _, _ = MODELS[model]
        uuids = [f"GPU-{hash_uuid(self.seed, name, slot)}" for slot in range(gpus)]
        accelerators = [
            Accelerator(
                uuid, uuid, slot, title, None, WHOLE_GPU, memory, f"00000000:{0x10 + slot:02X}:00.0"
            )
            for slot, uuid in enumerate(uuids)
        ]
        if name == "a100-01":  # one more device, divided into MIG instances
            device, bus = (
                f"GPU-{hash_uuid(self.seed, name, gpus)}",
                f"00000000:{0x10 + gpus:02X}:00.0",
            )
            for profile, share, size in _MIG:
                uuid = f"MIG-{hash_uuid(self.seed, name, profile)}"
                accelerators.append(
                    Accelerator(uuid, device, gpus, title, profile, share, size * GIB, bus)
                )
        return Node(
            name,
            model,
            tuple(accelerators),
            tuple(
                Lane(
                    f"{name}/{position}",
                    shape,
                    slots,
                    teams,
                    2 if (name, slots[0]) == SHARED_LANE else 1,
                )
                for position, (shape, slots, teams) in enumerate(lanes)
            ),
        )

    def incidents(self, start_ms: int, end_ms: int) -> list[tuple[int, int, str]]:
        """Incidents and faults between two instants: start, end (unix ms) and description, in order
        of time.
        """
        entries = [
            (begin, begin + incident.length_ms, incident.description)
            for incident in INCIDENTS
            for begin in _recurring(incident.cycle_ms, incident.start_ms, start_ms, end_ms)
        ]
        for from_ms, until_ms, description in FAULTS:
            entries += [
                (begin, begin + until_ms - from_ms, description)
                for begin in _recurring(CYCLE_MS, from_ms, start_ms, end_ms)
            ]
        if start_ms < self.given_back_ms < end_ms:
            entries.append(
                (self.given_back_ms, end_ms, "the reservation sim2real of robotics is released")
            )
        return sorted(
            (max(begin, start_ms), min(end, end_ms), text)
            for begin, end, text in entries
            if end > start_ms
        )

    def holds(self, lane: Lane, at_ms: int) -> tuple[Hold, ...]:
        """The holds of the lane in the block of an instant, ascending and disjoint."""
        return self._holds(lane, at_ms // BLOCK_MS)

    def holding(self, lane: Lane, at_ms: int) -> Hold | None:
        """The hold of the lane at an instant."""
        block = at_ms // BLOCK_MS
        latest = self._latest.get(lane.name)
        # Asked at each sample, mostly of the block before: a name is found faster than a lane,
        # whose hash is computed.
        if latest is None or latest[0] != block:
            holds = self._holds(lane, block)
            latest = self._latest[lane.name] = block, [hold.start_ms for hold in holds], holds
        _, starts, holds = latest
        position = bisect_right(starts, at_ms) - 1
        return holds[position] if position >= 0 and at_ms < holds[position].end_ms else None

    def _make_holds(self, lane: Lane, block: int) -> tuple[Hold, ...]:
        rng = random.Random(f"{self.seed}/{lane.name}/{block}")
        periods = self._until_released(lane, _PERIODS[lane.shape](rng, block * BLOCK_MS))
        holds = [
            self._hold(lane, block, number, period, rng) for number, period in enumerate(periods)
        ]
        for incident in _incident_holds(lane, block):
            before = [
                replace(hold, end_ms=min(hold.end_ms, incident.start_ms))
                for hold in holds
                if hold.start_ms < incident.start_ms
            ]
            holds = [
                *before,
                incident,
                *(hold for hold in holds if hold.start_ms >= incident.end_ms),
            ]
        return tuple(holds)

    def _until_released(self, lane: Lane, periods: Periods) -> Periods:
        """The periods; those of a reservation end when it is given back."""
        for start_ms, end_ms in periods:
            until = (
                min(end_ms, self.given_back_ms)
                if lane.shape == "reserved" and self.given_back_ms
                else end_ms
            )
            if start_ms < until:
                yield start_ms, until

    def _hold(
        self, lane: Lane, block: int, number: int, period: tuple[int, int], rng: random.Random
    ) -> Hold:
        team, project = lane.teams[rng.randrange(len(lane.teams))]
        user = _USERS[rng.randrange(len(_USERS))]
        external = str(100_000 + zlib.crc32(f"{lane.name}/{block}/{number}".encode()) % 900_000)
        tags = {"team": team, "project": project} if team else {}
        if lane.shape in {"training", "research"} and team:
            tags["experiment"] = f"exp-{rng.randrange(10, 99)}"
        name = f"{project or 'adhoc'}-{lane.shape}"
        return Hold(
            *period, Workload(external, "simulated", user, team or None, name, tags), lane.shape
        )

    def is_failed(self, node: str, slot: int, at_ms: int) -> bool:
        """Whether this GPU is off the bus: half a day in every four weeks."""
        return (node, slot) == FAILED_GPU and FAILED_FROM <= at_ms % CYCLE_MS < FAILED_UNTIL

    def stuck(self, node: str, slot: int, at_ms: int) -> bool:
        """Whether this GPU's utilization shows 100 % while nobody holds it: a weekend in every four
        weeks.
        """
        return (node, slot) == STUCK_GPU and STUCK_FROM <= at_ms % CYCLE_MS < STUCK_UNTIL

    def errors(self, node: str, slot: int, at_ms: int) -> dict[str, int]:
        """Counts of Xids and of faults of the memory since the driver was loaded; only what has
        occurred changes.
        """
        age_ms = max(0, at_ms - LOADED_MS)
        here = (node, slot)
        return {
            "gpu_xid_errors_total": (age_ms - FAILED_FROM) // CYCLE_MS + 1
            if here == FAILED_GPU
            else 0,
            "gpu_ecc_uncorrected_volatile_total": age_ms // ECC_EVERY_MS if here == ECC_GPU else 0,
            "gpu_remapped_rows_pending": int(here == REMAP_GPU),
            "gpu_pcie_replays_total": age_ms // CYCLE_MS,
        }

    def silent(self, node: str, at_ms: int) -> bool:
        """Whether this node's agent is down: six hours in every four weeks."""
        return node == SILENT_NODE and SILENT_FROM <= at_ms % CYCLE_MS < SILENT_UNTIL


def _recurring(cycle_ms: int, offset_ms: int, start_ms: int, end_ms: int) -> Iterator[int]:
    """Instants `offset_ms` after the start of a cycle: the last one before `start_ms`, and those up
    to the end.
    """
    first = (start_ms - offset_ms) // cycle_ms
    for cycle in range(first, (end_ms - offset_ms) // cycle_ms + 1):
        if cycle * cycle_ms + offset_ms < end_ms:
            yield cycle * cycle_ms + offset_ms


def _incident_holds(lane: Lane, block: int) -> Iterator[Hold]:
    """The holds of incidents on a lane in a block."""
    start, end = block * BLOCK_MS, (block + 1) * BLOCK_MS
    node = lane.name.partition("/")[0]
    for incident in INCIDENTS:
        if (node, lane.slots[0]) not in incident.lanes:
            continue
        for begin in _recurring(
            incident.cycle_ms, incident.start_ms, start - incident.length_ms, end
        ):
            cycle = begin // incident.cycle_ms
            if begin + incident.length_ms <= start:
                continue
            tags = {"team": incident.team, "project": incident.project}
            for number, (first, last) in enumerate(incident.runs(begin)):
                if first < end and last > start:
                    run = f"{incident.name}/{cycle}" + (f"/{number}" if incident.run_ms else "")
                    external = str(100_000 + zlib.crc32(run.encode()) % 900_000)
                    workload = Workload(
                        external, incident.kind, incident.user, incident.team, incident.name, tags
                    )
                    yield Hold(max(first, start), min(last, end), workload, incident.shape, first)


Periods = Iterator[tuple[int, int]]


def _minutes(rng: random.Random, low: float, high: float) -> int:
    return round(rng.uniform(low, high) * 60) * 1000


def _back_to_back(
    rng: random.Random, start_ms: int, low_h: float, high_h: float, gap_h: float
) -> Periods:
    """Workloads with pauses between them, until the end of the block."""
    at, end = start_ms + _minutes(rng, 0, gap_h * 60), start_ms + BLOCK_MS
    while at < end:
        until = min(at + _minutes(rng, low_h * 60, high_h * 60), end)
        yield at, until
        at = until + _minutes(rng, 2, gap_h * 60)


def _training(rng: random.Random, start_ms: int) -> Periods:
    return _back_to_back(rng, start_ms, 14, 60, 3)


# Each generator draws from `rng` in a fixed order: another order would be another fleet for the
# same seed.
def _research(rng: random.Random, start_ms: int) -> Periods:
    """Shorter runs, begun mostly on working days between 8 and 20 UTC."""
    for day in range(4):
        morning = start_ms + day * DAY_MS
        weekend = (morning // DAY_MS + 4) % 7 in {0, 6}
        at = morning + _minutes(rng, 0, 9 * 60)
        for _ in range(rng.randrange(0, 2) if weekend else rng.randrange(2, 5)):
            until = min(at + _minutes(rng, 25, 6 * 60), morning + DAY_MS)
            if until <= at:
                break
            yield at, until
            at = until + _minutes(rng, 10, 150)


def _notebook(rng: random.Random, start_ms: int) -> Periods:
    """Opened in the morning, often left open overnight."""
    for day in range(4):
        morning = start_ms + day * DAY_MS
        if (morning // DAY_MS + 4) % 7 in {0, 6} or rng.random() < 0.15:
            continue
        at = morning + _minutes(rng, 7 * 60, 11 * 60)
        hours = rng.uniform(11, 13) if rng.random() < 0.5 else rng.uniform(3, 9)
        yield at, min(at + _minutes(rng, hours * 60, hours * 60 + 1), start_ms + BLOCK_MS)


def _entire_block(_rng: random.Random, start_ms: int) -> Periods:
    yield start_ms, start_ms + BLOCK_MS


def _nightly(rng: random.Random, start_ms: int) -> Periods:
    for day in range(4):
        at = start_ms + day * DAY_MS + HOUR_MS + _minutes(rng, 0, 20)
        yield at, at + _minutes(rng, 200, 280)


_PERIODS: dict[Shape, Callable[[random.Random, int], Periods]] = {
    "training": _training,
    "research": _research,
    "notebook": _notebook,
    "serving": _entire_block,
    "nightly": _nightly,
    "reserved": _entire_block,
    "starved": lambda rng, start_ms: _back_to_back(rng, start_ms, 8, 20, 6),
}


def noise(key: int, at_ms: int) -> float:
    """A pseudo-random number in 0..1 determined by its arguments (splitmix64, Steele 2014)."""
    value = (key * 0x9E3779B97F4A7C15 + at_ms * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return ((value ^ value >> 31) >> 11) / 2**53


def slowed_seconds(at_ms: int, share: float) -> float:
    """Seconds since the driver was loaded for which clocks were reduced: a share of the time, most
    at 18:00 UTC.
    """
    age_days = max(0, at_ms - LOADED_MS) / DAY_MS
    # The integral of share x (1 + cos(2 pi (t - 0.75))) days; it never falls.
    offset = math.sin(2 * math.pi * (age_days - 0.75)) - math.sin(2 * math.pi * -0.75)
    return round(86_400 * share * (age_days + offset / (2 * math.pi)), 3)


def activity(hold: Hold, key: int, at_ms: int) -> float:
    """SM activity of one accelerator of a hold, 0..1, at an instant."""
    age = at_ms - (hold.start_ms if hold.begun_ms is None else hold.begun_ms)
    random_part = noise(key, at_ms // 1000)
    if hold.shape == "training":
        if age < 10 * 60_000:
            return 0.15 + 0.1 * random_part
        return 0.03 if age % HOUR_MS < 120_000 else 0.86 + 0.1 * random_part
    if hold.shape in {"research", "nightly"}:
        return 0.0 if age < 4 * 60_000 else 0.5 + 0.4 * random_part
    if hold.shape == "serving":
        rhythm = 0.5 - 0.5 * math.cos(2 * math.pi * ((at_ms % DAY_MS) / DAY_MS - 0.12))
        busy = 0.12 + 0.75 * rhythm
        return (
            (0.2 + 0.6 * rhythm) * (0.8 + 0.4 * random_part)
            if noise(key + 1, at_ms // 60_000) < busy
            else 0.0
        )
    if hold.shape == "starved":
        return (0.75, 0.0, 0.06 * random_part)[at_ms // 20_000 % 3]
    if hold.shape == "crashing":
        return 0.4 * random_part if age >= 5 * 60_000 else 0.0
    if hold.shape == "notebook":
        working = age < 5 * HOUR_MS and noise(key, at_ms // (7 * 60_000)) < 0.35
        return 0.3 + 0.5 * random_part if working else 0.0
    return 0.0
