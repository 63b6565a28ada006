"""Fuzzed bodies: whatever comes, the collector has a verdict; no fault of ours, no 5xx, no growth.

Valid batches (msgpack, JSON) and requests of remote write (1.0, 2.0) are changed by structure and
by bytes: values of other types and extremes anywhere in the document, tokens that lie about what
follows, cuts, splices of two bodies, repetitions, flipped bits, before or after compression. Most
are decoded and judged in this process, as the collector's route does it; every `--every`-th goes
over HTTP to a real collector with its Postgres as well. It ends with 1 at the first body that
raises anything but a refusal, and prints it.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import http.client
import json
import os
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpuledger_collector.ingest.batches.decode import Refused, decode
from gpuledger_collector.ingest.batches.validate import accept
from gpuledger_collector.ingest.remote_write import decode as remote
from gpuledger_collector.ingest.remote_write.series import SeriesCache
from gpuledger_common.compression import zstd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench.startup import resident_mib
from fakes.batches import NOON_MS, as_json, batch, held, samples, workload
from fakes.postgres import open_folder
from fakes.processes import CollectorProcess
from fakes.prometheus import WRITE, headers, one, pod, scrape, snappy, two
from gpuledger_common.wire import encode

NOW_MS = NOON_MS + 86_400_000
NO_QUOTAS = {
    f"GPULEDGER_NODE_{name}": "0"
    for name in (
        "BYTES_PER_SECOND",
        "INFLATED_BYTES_PER_SECOND",
        "NAMES_PER_SECOND",
        "NEW_NAMES_PER_HOUR",
        "NEW_DAYS_PER_HOUR",
    )
}
ODD = [
    None,
    True,
    False,
    0,
    1,
    -1,
    127,
    2**31,
    -(2**31),
    2**53,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    NOON_MS,
    1e308,
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    "\0",
    "held",
    "f4",
    "x" * 300,
    "\ud7ff\U0010ffff",
    "../../etc/passwd",
    "'; DROP TABLE node; --",
    "=cmd|' /C calc'!A0",
    b"",
    b"\xff" * 7,
    [],
    [[]],
    {},
    {"": ""},
    [None] * 9,
    [0, "", {}],
]
TOKENS = [
    b"\xc0",
    b"\xc1",
    b"\x93",
    b"\x82",
    b"\xd4\x01\x00",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xcb\x7f\xf8" + bytes(6),
    b"\xcb\x7f\xf0" + bytes(6),
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + bytes(7),
    b"\xa4\xff\xfe\xfd\xfc",
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"null",
    b"1e999",
    b'"\\ud800"',
    b"[[[[",
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\x12\x10\x09",
    b"\x80" * 10,
    b"\xff" * 10,
]
Document = dict[str, object]
Body = tuple[str, bytes, str]
"""Kind (msgpack, json, one, two), body as sent, encoding."""


def documents() -> list[Document]:
    """Batches as plain values, so that any value can stand anywhere."""
    made = [
        batch(),
        batch(
            2, "node-2", accelerators=4, workloads=[workload(), workload("b", user=None, tags={})]
        ),
        batch(
            3,
            usage_intervals=[
                held(0, NOON_MS, NOON_MS + 9, 0, held_ms=4, busy_ms=4),
                held(0, NOON_MS, NOON_MS + 9, 0, held_ms=5, busy_ms=5),
            ],
        ),
        batch(
            4,
            samples=samples(
                2, [NOON_MS], gpu_utilization_ratio=[0.5, None], gpu_power_watts=[1.0, 2.0]
            ),
        ),
    ]
    return [msgspec.msgpack.decode(encode(each)) for each in made]


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    found = [path] if path else []
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in children:
        found += places(child, (*path, key))
    return found


class Fuzzer:
    """Bodies by a seed."""

    def __init__(self, seed: int) -> None:
        self.chance, self.count = random.Random(seed), 0
        self.documents = [(document, places(document)) for document in documents()]
        now = NOON_MS
        points = [
            *scrape(now),
            *scrape(now, 1, **pod("train-1")),
            *scrape(now + 1000, 2, {"DCGM_FI_DEV_GPU_UTIL": 0.0}),
        ]
        self.plain = {
            "msgpack": [msgspec.msgpack.encode(document) for document, _ in self.documents],
            "json": [
                as_json(batch()),
                json.dumps({"version": 1, "node": "n", "epoch": "x", "seq": 1}).encode(),
            ],
            "one": [one(points), one(scrape(now)), one([])],
            "two": [two(points), two(scrape(now))],
        }

    def body(self) -> Body:
        chance = self.chance
        kind = chance.choices(("msgpack", "json", "one", "two"), (5, 2, 2, 1))[0]
        if kind == "msgpack" and chance.random() < 0.5:
            plain = self._other_values()
        else:
            plain = chance.choice(self.plain[kind])
            for _ in range(chance.choice((1, 1, 2, 5))):
                plain = self._other_bytes(plain, kind)
        return self._compress(kind, plain)

    def _other_values(self) -> bytes:
        document, paths = self.chance.choice(self.documents)
        changed = copy.deepcopy(document)
        self.count += 1
        changed["seq"] = self.count  # a new key, so that what is taken is also written
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            path, target = self.chance.choice(paths), changed
            try:
                for key in path[:-1]:
                    target = target[key]  # type: ignore[index,assignment]
                if self.chance.random() < 0.1:
                    del target[path[-1]]  # type: ignore[arg-type]
                else:
                    target[path[-1]] = copy.deepcopy(self.chance.choice(ODD))  # type: ignore[index]
            except (KeyError, IndexError, TypeError):
                continue
        return msgspec.msgpack.encode(changed)

    def _other_bytes(self, plain: bytes, kind: str) -> bytes:
        if not plain:
            return self.chance.randbytes(self.chance.randrange(40))
        at, to = sorted((self.chance.randrange(len(plain)), self.chance.randrange(len(plain))))
        step = self.chance.randrange(8)
        if step <= 1:
            return plain[:at] + bytes([plain[at] ^ 1 << self.chance.randrange(8)]) + plain[at + 1 :]
        if step == 2:
            return plain[:at] + self.chance.choice(TOKENS) + plain[at:]
        if step == 3:
            token = self.chance.choice(TOKENS)
            return plain[:at] + token + plain[at + len(token) :]
        if step == 4:
            return plain[:at]
        if step == 5:
            return plain[:at] + plain[to:]
        if step == 6:
            return plain[:to] + plain[at:to] * self.chance.choice((1, 2, 30)) + plain[to:]
        other = self.chance.choice(self.plain[kind])
        return plain[:at] + other[self.chance.randrange(len(other) + 1) :]

    def _compress(self, kind: str, plain: bytes) -> Body:
        chance = self.chance.random()
        if kind in {"one", "two"}:
            body, encoding = snappy(plain), "snappy"
        elif chance < 0.6:
            body, encoding = zstd.compress(plain, 1), "zstd"
        elif chance < 0.65:
            body, encoding = gzip.compress(plain, 1), "gzip"
        else:
            body, encoding = plain, ""
        if encoding and self.chance.random() < 0.1:
            body = self._other_bytes(body, kind)
        return kind, body, encoding


class Judge:
    """What the collector's routes do with a body before the database."""

    def __init__(self) -> None:
        self.verdicts: Counter = Counter()
        self.book, self.uses = SeriesCache(), 0

    def __call__(self, kind: str, body: bytes, encoding: str) -> None:
        try:
            if kind in {"msgpack", "json"}:
                accepted = accept(decode(body, f"application/{kind}", encoding), NOW_MS)
                self.verdicts["partly taken" if accepted.rejected else "taken"] += 1
                return
            self.uses += 1
            # The book of a collector is bounded as well, but far above a benchmark's aim.
            if self.uses % 20_000 == 0:
                self.book = SeriesCache()
            remote.inflated_size(body[:5])
            writing = remote.decode(body, 1 if kind == "one" else 2, self.book, NOW_MS)
            self.verdicts["partly taken" if writing.refusals else "taken"] += 1
        except Refused as refusal:
            if not (400 <= refusal.status < 500 and refusal.detail):
                raise
            self.verdicts[f"refused with {refusal.status}"] += 1


class OverHttp:
    """A real collector with its database, and what it answered."""

    def __init__(self) -> None:
        self.folder = open_folder("gpuledger-fuzz-")
        self.collector = CollectorProcess(self.folder, GPULEDGER_JOBS="false", **NO_QUOTAS)
        self.collector.start()
        self.collector.wait_ready()
        self.connection = http.client.HTTPConnection("127.0.0.1", self.collector.port, timeout=30)
        self.statuses: Counter = Counter()
        self.early = 0.0

    def __call__(self, kind: str, body: bytes, encoding: str) -> int:
        if kind in {"msgpack", "json"}:
            path, sent = (
                "/v1/batches",
                {"Content-Type": f"application/{kind}", "Content-Encoding": encoding},
            )
        else:
            path, sent = WRITE, headers(1 if kind == "one" else 2)
        self.connection.request("POST", path, body, sent)
        answer = self.connection.getresponse()
        answer.read()
        self.statuses[answer.status] += 1
        if self.statuses.total() == 500:
            self.early = self.resident()
        return answer.status

    def resident(self) -> float:
        assert self.collector.process is not None
        return resident_mib(self.collector.process.pid, "VmRSS")

    def close(self) -> None:
        self.collector.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def show(body: Body, why: str) -> None:
    print(f"{why}\n{body[0]} {body[2]} {body[1].hex()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--bodies", type=int, default=20_000, help="how many to judge (default: 20,000)"
    )
    parser.add_argument(
        "--every", type=int, default=100, help="every so many goes over HTTP as well; 0: none"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--growth", type=float, default=50, help="MiB that a process may grow after its start"
    )
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="end after this long, however many were judged"
    )
    given = parser.parse_args()
    fuzzer, judge = Fuzzer(given.seed), Judge()
    over: Callable[..., int] | None = OverHttp() if given.every else None
    begun, early, largest = time.monotonic(), 0.0, 0
    try:
        for number in range(given.bodies):
            body = fuzzer.body()
            largest = max(largest, len(body[1]))
            try:
                judge(*body)
                if (
                    over is not None
                    and number % given.every == 0
                    and (status := over(*body)) >= 500
                ):
                    show(body, f"body {number} of seed {given.seed} was answered {status}")
                    return 1
            except Exception:
                show(
                    body,
                    f"body {number} of seed {given.seed} is a fault of ours:"
                    f" {traceback.format_exc()}",
                )
                return 1
            if time.monotonic() - begun > given.seconds:
                break
            if number == min(20_000, given.bodies // 4):
                early = resident_mib(os.getpid(), "VmRSS")
        seconds = time.monotonic() - begun
        grown = resident_mib(os.getpid(), "VmRSS") - early
        total = judge.verdicts.total()
        print(
            f"{total:,} bodies of seed {given.seed}, up to {largest:,} bytes, in {seconds:.0f} s:"
            " no fault"
        )
        print("| verdict | bodies |\n|---|---|")
        for verdict, count in judge.verdicts.most_common():
            print(f"| {verdict} | {count:,} |")
        print(
            f"\nmemory of this process since its {min(20_000, given.bodies // 4):,}th body:"
            f" {grown:+.1f} MiB"
        )
        if isinstance(over, OverHttp):
            statuses = ", ".join(
                f"{count:,} x {status}" for status, count in sorted(over.statuses.items())
            )
            more = over.resident() - over.early
            print(f"over HTTP, with Postgres: {over.statuses.total():,} ({statuses})")
            print(f"memory of the collector since the 500th: {more:+.1f} MiB")
            grown = max(grown, more if over.early else 0.0)
        return int(grown > given.growth)
    finally:
        if isinstance(over, OverHttp):
            over.close()


if __name__ == "__main__":
    sys.exit(main())
