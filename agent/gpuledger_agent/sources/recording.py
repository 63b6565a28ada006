"""Recordings: what a source gave, as JSON lines, so that a card seen once can be replayed anywhere.

The first line is the header (format, node, driver, accelerators); each further line is one tick with its offset in
milliseconds and the samples. `.gz` files are compressed. Standard library only, so that a recording can be made on a
machine that has nothing but nvidia-ml-py.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from gpuledger_agent.readings import Accelerator, Health, Inventory, Process, Sample, SourceUnavailable

FORMAT = "gpuledger-recording/1"


def open_text(path: Path, mode: str) -> IO[str]:
    """The file as text, through gzip when its name ends in .gz."""
    if path.suffix == ".gz":
        return gzip.open(path, mode + "t", encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8")


def header_line(node: str, inventory: Inventory) -> str:
    """The first line of a recording."""
    accelerators = [dataclasses.asdict(entry) for entry in inventory.accelerators]
    return json.dumps({"format": FORMAT, "node": node, "driver": inventory.driver, "accelerators": accelerators,
                       "problems": list(inventory.problems)})  # fmt: skip


def tick_line(offset_ms: int, samples: Sequence[Sample]) -> str:
    """One tick."""
    rows = []
    for sample in samples:
        row: dict[str, Any] = {"uuid": sample.uuid, "values": dict(sample.values)}
        if sample.absent:
            row["absent"] = dict(sample.absent)
        if sample.processes:
            row["processes"] = [[entry.pid, entry.memory_bytes, entry.kind] for entry in sample.processes]
        if sample.health != Health():
            row["health"] = [sample.health.status, sample.health.cause]
        rows.append(row)
    return json.dumps({"offset_ms": offset_ms, "samples": rows}, separators=(",", ":"))


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """A recording in memory: its inventory and its ticks as (offset in ms, samples with monotonic_ns = offset)."""

    node: str
    inventory: Inventory
    ticks: tuple[tuple[int, tuple[Sample, ...]], ...]


def read(path: Path) -> Recording:
    """Reads a recording. Raises SourceUnavailable naming file and line for anything that is not one."""
    try:
        with open_text(path, "r") as file:
            lines = list(_objects(path, file))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise SourceUnavailable(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not lines or lines[0][1].get("format") != FORMAT:
        raise SourceUnavailable(f"{path}:1: is not a recording of this program (format {FORMAT})")
    head = lines[0][1]
    try:
        accelerators = [Accelerator(**entry) for entry in head["accelerators"]]
        inventory = Inventory(head["driver"], accelerators, tuple(head.get("problems", ())))
    except (KeyError, TypeError) as error:
        raise SourceUnavailable(f"{path}:1: the header lacks or has a field that does not belong: {error}") from error
    known = {entry.uuid for entry in accelerators}
    ticks = tuple(_tick(path, number, line, known) for number, line in lines[1:])
    if any(later[0] <= earlier[0] for earlier, later in pairwise(ticks)):
        raise SourceUnavailable(f"{path}: the offsets of its ticks do not grow")
    return Recording(str(head.get("node", "")), inventory, ticks)


def _objects(path: Path, file: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            raise SourceUnavailable(f"{path}:{number}: is not JSON: {error}") from error
        if not isinstance(line, dict):
            raise SourceUnavailable(f"{path}:{number}: is not a JSON object")
        yield number, line


def _tick(path: Path, number: int, line: dict[str, Any], known: set[str]) -> tuple[int, tuple[Sample, ...]]:
    try:
        offset_ms = int(line["offset_ms"])
        samples = tuple(_sample(offset_ms, row) for row in line["samples"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceUnavailable(f"{path}:{number}: is not a tick: {error}") from error
    for sample in samples:
        if sample.uuid not in known:
            raise SourceUnavailable(f"{path}:{number}: {sample.uuid} is not in the header")
    return offset_ms, samples


def _sample(offset_ms: int, row: dict[str, Any]) -> Sample:
    processes = tuple(Process(pid, memory, kind) for pid, memory, kind in row.get("processes", ()))
    health = Health(*row["health"]) if "health" in row else Health()
    return Sample(str(row["uuid"]), offset_ms * 1_000_000, dict(row["values"]), dict(row.get("absent", {})),
                  processes, health)  # fmt: skip
