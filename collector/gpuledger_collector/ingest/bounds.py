"""How much a body may hold, counted before any of it becomes an object.

A record of one byte on the wire is a hundred in memory, and zstd packs millions of them into a kilobyte: so a body is
walked once without making anything, and what is too many is refused as too large. An agent then sends it in halves.
The bounds are far above what an agent makes of a minute, or of a long outage.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpuledger_agent.compression import zstd

MOST: Mapping[str, int] = {"accelerators": 4_096, "workloads": 16_384, "stretches": 131_072, "counts": 131_072}
"""Records of each list."""
MOST_ROWS = 262_144
"""Rows of samples."""
MOST_COLUMNS = 1_024
MOST_CELLS = 4_194_304
"""Values of columns that are typed as lists, all together; columns of bytes are as large as they are."""
MOST_BYTES: Mapping[str, int] = {
    "accelerators": 8 << 20,
    "workloads": 8 << 20,
    "stretches": 16 << 20,
    "counts": 16 << 20,
}
MOST_COMMAS = 2_000_000
"""Of a body in JSON, whose lists cannot be counted without reading them."""
SMALL_BYTES = 64 * 1024
"""Bodies up to here cannot do harm by number."""


class Large(Exception):
    """A body that holds too much; the message says of what."""


_map = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def check(plain: bytes, is_json: bool) -> None:
    """Raise Large for a body that holds too much, msgspec.DecodeError for one that cannot be walked."""
    if len(plain) <= SMALL_BYTES:
        return
    if is_json:
        commas = plain.count(b",")
        if commas > MOST_COMMAS:
            raise Large(f"the body has {commas} values, {MOST_COMMAS} are taken at once")
        return
    found = _entries(plain)
    for name, most in MOST.items():
        raw = found.get(name, b"")
        if (count := length_of(raw)) > most:
            raise Large(f"{name}: has {count} entries, {most} are taken at once")
        if len(raw) > MOST_BYTES[name]:
            raise Large(f"{name}: is over {MOST_BYTES[name]} bytes")
    _check_samples(_entries(found.get("samples", b"")))


def _check_samples(rows: Mapping[str, bytes]) -> None:
    for name in ("accelerator", "at_ms"):
        if (count := length_of(rows.get(name, b""))) > MOST_ROWS:
            raise Large(f"samples: has {count} rows, {MOST_ROWS} are taken at once")
    if (count := length_of(rows.get("columns", b""))) > MOST_COLUMNS:
        raise Large(f"samples: has {count} columns, {MOST_COLUMNS} are taken at once")
    columns = _entries(rows.get("columns", b"")).values()
    cells = sum(length_of(_entries(column).get("values", b"")) for column in columns)
    if cells > MOST_CELLS:
        raise Large(f"samples: has {cells} values in lists, {MOST_CELLS} are taken at once")


def _entries(raw: bytes) -> dict[str, bytes]:
    """The entries of a map, not decoded; none of what is no map, which is refused cheaply when it is decoded.

    A name that comes twice is refused: the first of the two would be decoded without having been counted.
    """
    if not raw or not (0x80 <= raw[0] <= 0x8F or raw[0] in {0xDE, 0xDF}):
        return {}
    found = _map.decode(raw)
    if len(found) != length_of(raw):
        raise msgspec.DecodeError("a name comes twice")
    return {name: bytes(part) for name, part in found.items()}


def length_of(raw: bytes) -> int:
    """How many entries a list or map of msgpack says that it has; 0 for what is neither."""
    if not raw:
        return 0
    first = raw[0]
    if 0x80 <= first <= 0x9F:
        return first & 0x0F
    width = {0xDC: 2, 0xDE: 2, 0xDD: 4, 0xDF: 4}.get(first, 0)
    return int.from_bytes(raw[1 : 1 + width], "big")


def inflated_bytes(body: bytes, encoding: str) -> int | None:
    """What a body becomes by its own account; None when it does not say, or says it where it can lie."""
    if encoding == "zstd":
        try:
            return zstd.get_frame_info(body).decompressed_size
        except (zstd.ZstdError, ValueError):
            return 0
    return None if encoding == "gzip" else len(body)
