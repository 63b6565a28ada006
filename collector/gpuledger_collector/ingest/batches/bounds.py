"""How much a body may hold, counted before any of it becomes an object.

A record of one byte on the wire is a hundred in memory, and zstd packs millions of them into a kilobyte: so a body is
walked once without making anything, and what is too many is refused as too large. An agent then sends it in halves.
The bounds are far above what an agent makes of a minute, or of a long outage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from gpuledger_common.compression import zstd

MOST: Mapping[str, int] = {"accelerators": 4_096, "workloads": 16_384, "usage_intervals": 131_072, "counts": 131_072}
"""Records of each list."""
MOST_ROWS = 262_144
"""Rows of samples."""
MOST_COLUMNS = 1_024
MOST_CELLS = 4_194_304
"""Values of columns that are typed as lists, all together; columns of bytes are as large as they are."""
MOST_BYTES: Mapping[str, int] = {
    "accelerators": 8 << 20,
    "workloads": 8 << 20,
    "usage_intervals": 16 << 20,
    "counts": 16 << 20,
}
MOST_COMMAS = 2_000_000
"""Of a body in JSON: what separates its values, wherever they lie."""
JSON_BYTES = 2
"""How many times as many bytes a list may have in JSON."""
SMALL_BYTES = 64 * 1024
"""Bodies up to here cannot do harm by number."""


class Large(Exception):
    """A body that holds too much; the message says of what."""


class _Entry(msgspec.Struct, gc=False):
    """Any object of JSON, of which nothing is kept: so its entries are read past and not made."""


_map = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_json_map = msgspec.json.Decoder(dict[str, msgspec.Raw])
_json_objects = msgspec.json.Decoder(list[_Entry])


def check(plain: bytes, is_json: bool) -> None:
    """Raise Large for a body that holds too much, msgspec.DecodeError for one that cannot be walked."""
    if len(plain) <= SMALL_BYTES:
        return
    if is_json:
        commas = plain.count(b",")
        if commas > MOST_COMMAS:
            raise Large(f"the body has {commas} values, {MOST_COMMAS} are taken at once")
    form = _JSON if is_json else _MSGPACK
    found = form.entries(plain)
    for name, most in MOST.items():
        raw = found.get(name, b"")
        most_bytes = MOST_BYTES[name] * (JSON_BYTES if is_json else 1)
        if len(raw) > most_bytes:
            raise Large(f"{name}: is over {most_bytes} bytes")
        if (count := form.length(raw)) > most:
            raise Large(f"{name}: has {count} entries, {most} are taken at once")
    _check_samples(form, form.entries(found.get("samples", b"")))


@dataclass(frozen=True, slots=True)
class _Form:
    """How maps and lists of an encoding are looked into without making anything of what they hold."""

    entries: Callable[[bytes], Mapping[str, bytes]]
    length: Callable[[bytes], int]


def _check_samples(form: _Form, rows: Mapping[str, bytes]) -> None:
    for name in ("accelerator", "at_ms"):
        if (count := form.length(rows.get(name, b""))) > MOST_ROWS:
            raise Large(f"samples: has {count} rows, {MOST_ROWS} are taken at once")
    columns = form.entries(rows.get("columns", b""))
    if len(columns) > MOST_COLUMNS:
        raise Large(f"samples: has {len(columns)} columns, {MOST_COLUMNS} are taken at once")
    cells = sum(form.length(form.entries(column).get("values", b"")) for column in columns.values())
    if cells > MOST_CELLS:
        raise Large(f"samples: has {cells} values in lists, {MOST_CELLS} are taken at once")


def _json_entries(raw: bytes) -> dict[str, bytes]:
    """The entries of an object of JSON, not decoded; none of what is no object.

    A name that comes twice is refused, as in msgpack: what the last ones do not account for lies in a first one.
    """
    if raw.lstrip(_SPACE)[:1] != b"{":
        return {}
    found = {name: bytes(part) for name, part in _json_map.decode(raw).items()}
    hidden = len(raw) - sum(len(name) + len(part) for name, part in found.items())
    if hidden > SMALL_BYTES:
        raise msgspec.DecodeError("a name comes twice, or there is more space than values")
    return found


_SPACE = b" \t\r\n"


def _json_length(raw: bytes) -> int:
    """How many entries a list of JSON has; no fewer than it has where not all of them are objects; 0 for no list."""
    if raw.lstrip(_SPACE)[:1] != b"[":
        return 0
    commas = raw.count(b",")
    if commas < min(MOST.values()) or raw.find(b"{") < 0:
        return commas + 1
    try:
        return len(_json_objects.decode(raw))
    except msgspec.ValidationError:
        return commas + 1


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


_MSGPACK, _JSON = _Form(_entries, length_of), _Form(_json_entries, _json_length)


def inflated_bytes(body: bytes, encoding: str) -> int | None:
    """What a body becomes by its own account; None when it does not say, or says it where it can lie."""
    if encoding == "zstd":
        try:
            return zstd.get_frame_info(body).decompressed_size
        except (zstd.ZstdError, ValueError):
            return 0
    return None if encoding == "gzip" else len(body)
