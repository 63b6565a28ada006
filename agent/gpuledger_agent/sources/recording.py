"""Recordings: the samples of a source as JSON lines, so that a card can be replayed anywhere.

The first line is the header (format, node, driver, accelerators); each further line is one tick
with its offset in milliseconds, the samples, and the holders. `.gz` files are compressed. A
recording comes from elsewhere, so everything in it is checked before it is used. Standard library
only, so that a machine with nothing but nvidia-ml-py can record.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, get_args

from gpuledger_common.catalog import BY_NAME
from gpuledger_common.readings import (
    Accelerator,
    Health,
    HealthStatus,
    Holder,
    Inventory,
    Process,
    Sample,
    SeriesValue,
    SourceUnavailable,
    Workload,
)

FORMAT = "gpuledger-recording/1"
WORKLOAD_KINDS = frozenset(
    {"slurm", "kubernetes", "container", "process", "static", "simulated", "dcgm", "labels"}
)


_OPTIONAL_TEXTS = ("user", "account", "name", "job", "job_uid", "queue")
_LABEL = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")


def open_text(path: Path, mode: str) -> IO[str]:
    """The file as text, through gzip when its name ends in .gz."""
    if path.suffix == ".gz":
        return gzip.open(path, mode + "t", encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8")


def header_line(node: str, inventory: Inventory) -> str:
    """The first line of a recording."""
    accelerators = [dataclasses.asdict(entry) for entry in inventory.accelerators]
    return json.dumps(
        {
            "format": FORMAT,
            "node": node,
            "driver": inventory.driver,
            "accelerators": accelerators,
            "problems": list(inventory.problems),
        }
    )


def tick_line(
    offset_ms: int, samples: Sequence[Sample], holders: Mapping[str, Sequence[Holder]]
) -> str:
    """One tick."""
    rows = []
    for sample in samples:
        row: dict[str, Any] = {"uuid": sample.uuid, "values": dict(sample.values)}
        if sample.absent:
            row["absent"] = dict(sample.absent)
        if sample.processes:
            row["processes"] = [
                [entry.pid, entry.memory_bytes, entry.kind] for entry in sample.processes
            ]
        if sample.health != Health():
            row["health"] = [sample.health.status, sample.health.cause]
        if sample.series:
            row["series"] = {
                name: [[dict(entry.labels), entry.value] for entry in series]
                for name, series in sample.series.items()
            }
        if holders.get(sample.uuid):
            row["holders"] = [_holder_row(holder) for holder in holders[sample.uuid]]
        rows.append(row)
    return json.dumps({"offset_ms": offset_ms, "samples": rows}, separators=(",", ":"))


def _holder_row(holder: Holder) -> dict[str, Any]:
    workload = dataclasses.asdict(holder.workload)
    return {"weight": holder.weight} | {name: value for name, value in workload.items() if value}


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """One tick: its offset in ms, the samples (with monotonic_ns = offset), and the holders by
    accelerator uuid.
    """

    offset_ms: int
    samples: tuple[Sample, ...]
    holders: Mapping[str, Sequence[Holder]]


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """A recording in memory."""

    node: str
    inventory: Inventory
    ticks: tuple[Tick, ...]


def read(path: Path) -> Recording:
    """Read a recording. Raises SourceUnavailable naming file and line of the first fault."""
    try:
        with open_text(path, "r") as file:
            lines = list(_objects(path, file))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise SourceUnavailable(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error
    if not lines or lines[0][1].get("format") != FORMAT:
        raise SourceUnavailable(f"{path}:1: is not a recording of this program (format {FORMAT})")
    head = lines[0][1]
    try:
        accelerators = [_accelerator(entry) for entry in head["accelerators"]]
        inventory = Inventory(
            _optional(head["driver"], str), accelerators, tuple(map(str, head.get("problems", ())))
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SourceUnavailable(
            f"{path}:1: the header has a missing, unknown or bad field: {error}"
        ) from error
    known = {entry.uuid for entry in accelerators}
    ticks = tuple(_tick(path, number, line, known) for number, line in lines[1:])
    for (earlier, later), (number, _) in zip(pairwise(ticks), lines[2:], strict=True):
        if later.offset_ms <= earlier.offset_ms:
            raise SourceUnavailable(
                f"{path}:{number}: its offset_ms {later.offset_ms} is not after the tick before it"
            )
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


def _tick(path: Path, number: int, line: dict[str, Any], known: set[str]) -> Tick:
    try:
        offset_ms = _require_type(line["offset_ms"], int)
        samples = tuple(_sample(offset_ms, row) for row in line["samples"])
        holders = {
            row["uuid"]: tuple(map(_holder, row["holders"]))
            for row in line["samples"]
            if "holders" in row
        }
    except KeyError as error:
        raise SourceUnavailable(f"{path}:{number}: is not a tick: {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise SourceUnavailable(f"{path}:{number}: is not a tick: {error}") from error
    for sample in samples:
        if sample.uuid not in known:
            raise SourceUnavailable(f"{path}:{number}: {sample.uuid} is not in the header")
    return Tick(offset_ms, samples, holders)


def _require_type(value: Any, kind: type[Any]) -> Any:
    """The value if it is of this type. Raises ValueError."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{value!r} is not a {kind.__name__}")
    return value


def _optional(value: Any, kind: type[Any]) -> Any:
    return None if value is None else _require_type(value, kind)


def _accelerator(entry: dict[str, Any]) -> Accelerator:
    for name, kind in (("uuid", str), ("device_uuid", str), ("index", int), ("model", str)):
        _require_type(entry[name], kind)
    accelerator = Accelerator(**entry)
    if not 0 < _require_type(accelerator.gpu_micro, int) <= 1_000_000:
        raise ValueError(f"gpu_micro {accelerator.gpu_micro} is not a share of a device")
    _optional(accelerator.mig_instance, str)
    _optional(accelerator.memory_bytes, int)
    _optional(accelerator.pci_bus_id, str)
    return accelerator


def _sample(offset_ms: int, row: dict[str, Any]) -> Sample:
    processes = tuple(
        Process(
            _require_type(pid, int),
            _optional(memory, int),
            _one_of(kind, frozenset({"compute", "graphics"})),
        )
        for pid, memory, kind in row.get("processes", ())
    )
    status, cause = row.get("health", ("ok", ""))
    health = Health(_one_of(status, frozenset(get_args(HealthStatus))), _require_type(cause, str))
    values = {name: _number(name, value) for name, value in row["values"].items()}
    absent = _texts(row.get("absent", {}))
    series = {
        _one_of(name, BY_NAME): [_require_labels(name, *entry) for entry in entries]
        for name, entries in row.get("series", {}).items()
    }
    return Sample(
        _require_type(row["uuid"], str),
        offset_ms * 1_000_000,
        values,
        absent,
        processes,
        health,
        series,
    )


def _require_labels(name: str, labels: dict[str, Any], value: Any) -> SeriesValue:
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{name} has a malformed label")
    return SeriesValue(
        tuple((label, _require_type(text, str)) for label, text in labels.items()),
        _number(name, value),
    )


def _number(name: str, value: Any) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}, which is not a number")
    return value


def _one_of(value: Any, known: Collection[str]) -> Any:
    if value not in known:
        raise ValueError(f"{value!r} is not one of {', '.join(sorted(known))}")
    return value


def _holder(row: dict[str, Any]) -> Holder:
    weight = _require_type(row.get("weight", 1), int)
    if weight < 1:
        raise ValueError(f"weight {weight} is not positive")
    texts = {name: _optional(row.get(name), str) for name in _OPTIONAL_TEXTS}
    workload = Workload(
        _require_type(row["id"], str),
        _one_of(row["kind"], WORKLOAD_KINDS),
        tags=_texts(row.get("tags", {})),
        refused=_texts(row.get("refused", {})),
        **texts,
    )
    return Holder(workload, weight)


def _texts(row: dict[str, Any]) -> dict[str, str]:
    return {_require_type(name, str): _require_type(value, str) for name, value in row.items()}
