"""The simulated fleet's shared model server: who asks it, and what its replicas count.

Every GPU that serves the project `chat-api` is a replica of one model. Teams ask it through a
gateway, which counts their tokens by the hour; the replicas count what they worked for, as vLLM
does. They count a little more: some calls bypass the gateway.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from gpuledger_agent.sources.fleet import DAY_MS, Fleet, Hold, Node, noise
from gpuledger_common.readings import HOUR_MS
from gpuledger_common.serving_counters import CounterReading, part_of

PROJECT = "chat-api"
ALIAS, SERVED_NAME = "chat-large", "meta-llama/Llama-3.3-70B-Instruct"
"""The model's name at the gateway, and that by which the server counts."""
ENDPOINT = "http://127.0.0.1:8000/metrics"
PART = part_of({"model_name": SERVED_NAME})
REPLICAS = 4
OUTPUT_AN_HOUR = 9_000_000
"""Tokens that the replicas generate together in their busiest hours."""
OLDEST_MS = 30 * DAY_MS - HOUR_MS
"""Age of the oldest counters that a collector takes, less the time that a simulation lasts."""
READ_EVERY_MS = 600_000
"""The longest pause over which counters of endpoints still count."""


@dataclass(frozen=True, slots=True)
class Asker:
    """A team that asks the model: its part of the output, how long its prompts are for a token of
    output, and how much of them the server finds in its cache.
    """

    team: str
    share: float
    prompt: float
    cached: float


ASKERS = (
    Asker("nlp", 0.46, 9.0, 0.62),
    Asker("data", 0.29, 4.0, 0.08),
    Asker("speech", 0.17, 2.5, 0.35),
    Asker("", 0.04, 6.0, 0.20),  # a key without a team
)
DIRECT = Asker("", 0.04, 5.0, 0.10)
"""Calls that bypass the gateway."""
NIGHTLY = "data"
"""This team works at night, the others by day."""


@dataclass(frozen=True, slots=True)
class HourTokens:
    """Tokens of one asker in one hour; `cached` is a part of `prompt`."""

    prompt: int
    cached: int
    output: int

    def __add__(self, other: HourTokens) -> HourTokens:
        return HourTokens(
            self.prompt + other.prompt, self.cached + other.cached, self.output + other.output
        )


NOTHING = HourTokens(0, 0, 0)


def hour_tokens(asker: Asker, hour_ms: int) -> HourTokens:
    """What an asker had from the server in the hour that begins then."""
    day = 0.5 - 0.5 * math.cos(2 * math.pi * ((hour_ms % DAY_MS) / DAY_MS - 0.12))
    rhythm = 1 - day if asker.team == NIGHTLY else day
    key = zlib.crc32(f"{asker.team}/{asker.prompt}".encode())
    varied = (0.15 + 0.85 * rhythm) * (0.8 + 0.4 * noise(key, hour_ms))
    output = int(OUTPUT_AN_HOUR * asker.share * varied)
    prompt = int(output * asker.prompt)
    return HourTokens(prompt, int(prompt * asker.cached), output)


def first_counted_ms(now_ms: int) -> int:
    """The first midnight (UTC) from which counters are still taken: whole days are counted."""
    return -(-(now_ms - OLDEST_MS) // DAY_MS) * DAY_MS


def asked_lines(start_ms: int, end_ms: int) -> Iterator[str]:
    """What the gateway counted in whole hours, as `gpuledger import inference` reads it."""
    yield "start,end,model,tenant,input_tokens,cached_tokens,output_tokens"
    first = -(-start_ms // HOUR_MS) * HOUR_MS
    for hour_ms in range(first, end_ms - HOUR_MS + 1, HOUR_MS):
        for asker in ASKERS:
            tokens = hour_tokens(asker, hour_ms)
            yield (
                f"{hour_ms // 1000},{(hour_ms + HOUR_MS) // 1000},{ALIAS},{asker.team},"
                f"{tokens.prompt},{tokens.cached},{tokens.output}"
            )


@lru_cache(maxsize=1024)
def served_tokens(hour_ms: int) -> HourTokens:
    """What the replicas worked for together in an hour."""
    return sum((hour_tokens(asker, hour_ms) for asker in (*ASKERS, DIRECT)), NOTHING)


def replica_tokens(hour_ms: int, replica: int) -> HourTokens:
    """A replica's part of an hour; the parts of all of them add up to it."""
    tokens = served_tokens(hour_ms)
    return HourTokens(
        *((count + replica) // REPLICAS for count in (tokens.prompt, tokens.cached, tokens.output))
    )


@dataclass
class ReplicaCounters:
    """Counters of the replicas on a node, as the agent's reader of endpoints gives them."""

    fleet: Fleet
    node: Node
    since_ms: int = 0
    """Nothing is read before this instant: collectors refuse counters that are weeks old."""
    _readings: list[CounterReading] = field(default_factory=list)
    _counted: dict[int, tuple[Hold, int, HourTokens]] = field(default_factory=dict)
    """By replica: its workload, and what that had counted by the begin of an hour."""

    def read(self, at_ms: int) -> None:
        """Read the counters of every replica that serves now."""
        if at_ms < self.since_ms:
            return
        hour_ms = at_ms // HOUR_MS * HOUR_MS
        for replica, hold in enumerate(self._serving(at_ms)):
            before, now = self._until(replica, hold, hour_ms), replica_tokens(hour_ms, replica)
            values = {
                "prompt_tokens": before.prompt + now.prompt * (at_ms - hour_ms) // HOUR_MS,
                "generated_tokens": before.output + now.output * (at_ms - hour_ms) // HOUR_MS,
            }
            self._readings += [
                CounterReading(
                    hold.workload, ENDPOINT, counter, at_ms, value, PART, "vllm", hold.start_ms
                )
                for counter, value in values.items()
            ]

    def take(self) -> list[CounterReading]:
        """The readings since the last time."""
        taken, self._readings = self._readings, []
        return taken

    def put_back(self, readings: Iterable[CounterReading]) -> None:
        """Give back readings that could not be spooled."""
        self._readings = [*readings, *self._readings]

    def _serving(self, at_ms: int) -> list[Hold]:
        holds = (
            self.fleet.holding(lane, at_ms) for lane in self.node.lanes if lane.shape == "serving"
        )
        return [
            hold
            for hold in holds
            if hold is not None and hold.workload.tags.get("project") == PROJECT
        ]

    def _until(self, replica: int, hold: Hold, hour_ms: int) -> HourTokens:
        """What a replica has counted from its start to the begin of an hour."""
        known, at_ms, counted = self._counted.get(replica, (None, 0, NOTHING))
        if known != hold:
            at_ms, counted = hold.start_ms, NOTHING
        for each_ms in range(at_ms, hour_ms, HOUR_MS):
            counted += replica_tokens(each_ms, replica)
        self._counted[replica] = hold, hour_ms, counted
        return counted
