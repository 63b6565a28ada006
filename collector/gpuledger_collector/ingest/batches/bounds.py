"""Bound how much a body may hold, counted before any of it becomes an object.

A record of one byte on the wire takes a hundred in memory, and zstd packs millions of them into a
kilobyte. So a body is walked once without creating objects, and one with too many records is
refused as too large; an agent then sends it in halves. The bounds are far above what an agent makes
of a minute, or of a long outage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from gpuledger_common.compression import zstd

MAX_RECORDS: Mapping[str, int] = {
    "accelerators": 4_096,
    "workloads": 16_384,
    "usage_intervals": 131_072,
    "counts": 131_072,
    "token_counts": 32_768,
}
"""Records of each list."""
MAX_ROWS = 262_144
"""Rows of samples."""
MAX_COLUMNS = 1_024
MAX_CELLS = 4_194_304
"""Values of all columns that are sent as lists; columns sent as bytes are bounded by the body."""
MAX_BYTES: Mapping[str, int] = {
    "accelerators": 8 << 20,
    "workloads": 8 << 20,
    "usage_intervals": 16 << 20,
    "counts": 16 << 20,
    "token_counts": 8 << 20,
}
MAX_COMMAS = 2_000_000
"""Separators of values in a JSON body, at any depth."""
JSON_FACTOR = 2
"""JSON needs about twice the bytes of msgpack."""
SMALL_BYTES = 64 * 1024
"""Bodies up to this size cannot hold harmful numbers of records."""
_SPACE = b" \t\r\n"


class TooLarge(Exception):
    """A body that holds too much; the message names the part."""


class _AnyObject(msgspec.Struct, gc=False):
    """Any JSON object, without fields: its entries are skipped, not created."""


_map = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_json_map = msgspec.json.Decoder(dict[str, msgspec.Raw])
_json_objects = msgspec.json.Decoder(list[_AnyObject])


def check(plain: bytes, is_json: bool) -> None:
    """Raise TooLarge for a body that holds too much, msgspec.DecodeError for one that cannot be
    walked.
    """
    if len(plain) <= SMALL_BYTES:
        return
    if is_json:
        # Counting a byte is far cheaper than walking JSON, and there are at most as many values as
        # commas, plus one per list.
        commas = plain.count(b",")
        if commas > MAX_COMMAS:
            raise TooLarge(f"the body has {commas} values, {MAX_COMMAS} are allowed")
    encoding = _JSON if is_json else _MSGPACK
    lists = encoding.entries(plain)
    for name, max_records in MAX_RECORDS.items():
        raw = lists.get(name, b"")
        max_bytes = MAX_BYTES[name] * (JSON_FACTOR if is_json else 1)
        if len(raw) > max_bytes:
            raise TooLarge(f"{name}: is over {max_bytes} bytes")
        if (count := encoding.length(raw)) > max_records:
            raise TooLarge(f"{name}: has {count} entries, {max_records} are allowed")
    _check_samples(encoding, encoding.entries(lists.get("samples", b"")))


def check_list(plain: bytes, name: str, max_records: int) -> None:
    """Raise TooLarge for a JSON object whose list of this name holds too much, msgspec.DecodeError
    for no object.
    """
    commas = plain.count(b",")
    if commas > MAX_COMMAS:
        raise TooLarge(f"the body has {commas} values, {MAX_COMMAS} are allowed")
    if (count := _json_length(_json_entries(plain).get(name, b""))) > max_records:
        raise TooLarge(f"{name}: has {count} entries, {max_records} are allowed")


@dataclass(frozen=True, slots=True)
class _Encoding:
    """How to look into maps and lists without decoding what they hold."""

    entries: Callable[[bytes], Mapping[str, bytes]]
    length: Callable[[bytes], int]


def _check_samples(encoding: _Encoding, samples: Mapping[str, bytes]) -> None:
    for name in ("accelerator", "at_ms"):
        if (count := encoding.length(samples.get(name, b""))) > MAX_ROWS:
            raise TooLarge(f"samples: has {count} rows, {MAX_ROWS} are allowed")
    columns = encoding.entries(samples.get("columns", b""))
    if len(columns) > MAX_COLUMNS:
        raise TooLarge(f"samples: has {len(columns)} columns, {MAX_COLUMNS} are allowed")
    cells = sum(
        encoding.length(encoding.entries(column).get("values", b"")) for column in columns.values()
    )
    if cells > MAX_CELLS:
        raise TooLarge(f"samples: has {cells} values in lists, {MAX_CELLS} are allowed")


def _json_entries(raw: bytes) -> dict[str, bytes]:
    """The undecoded entries of a JSON object; none for anything else.

    A repeated name is refused, as in msgpack. The decoder returns the last entry of a name, so
    bytes that the returned entries do not account for belong to an earlier one.
    """
    if raw.lstrip(_SPACE)[:1] != b"{":
        return {}
    entries = {name: bytes(part) for name, part in _json_map.decode(raw).items()}
    hidden = len(raw) - sum(len(name) + len(part) for name, part in entries.items())
    if hidden > SMALL_BYTES:
        raise msgspec.DecodeError("a name comes twice, or there is more space than values")
    return entries


def _json_length(raw: bytes) -> int:
    """The number of entries of a JSON list, or an upper bound where not all are objects; 0 for
    anything else.
    """
    if raw.lstrip(_SPACE)[:1] != b"[":
        return 0
    commas = raw.count(b",")
    # Few enough to be within any bound, or a list of plain values: commas count them well enough.
    if commas < min(MAX_RECORDS.values()) or raw.find(b"{") < 0:
        return commas + 1
    try:
        return len(_json_objects.decode(raw))
    except msgspec.ValidationError:
        return commas + 1


def _entries(raw: bytes) -> dict[str, bytes]:
    """The undecoded entries of a msgpack map; none for anything else, which is refused cheaply when
    it is decoded.

    A repeated name is refused: the first of the two would be decoded without having been counted.
    """
    # 0x80 to 0x8F: a map of up to 15 entries; 0xDE and 0xDF: maps with a length of two or four
    # bytes.
    if not raw or not (0x80 <= raw[0] <= 0x8F or raw[0] in {0xDE, 0xDF}):
        return {}
    entries = _map.decode(raw)
    if len(entries) != announced_length(raw):
        raise msgspec.DecodeError("a name comes twice")
    return {name: bytes(part) for name, part in entries.items()}


def announced_length(raw: bytes) -> int:
    """The number of entries that the head of a msgpack list or map announces; 0 for anything else."""
    if not raw:
        return 0
    first = raw[0]
    # Small maps (0x8.) and lists (0x9.) have their length in the lower half of the first byte.
    if 0x80 <= first <= 0x9F:
        return first & 0x0F
    width = {0xDC: 2, 0xDE: 2, 0xDD: 4, 0xDF: 4}.get(first, 0)
    return int.from_bytes(raw[1 : 1 + width], "big")


_MSGPACK, _JSON = _Encoding(_entries, announced_length), _Encoding(_json_entries, _json_length)


def inflated_bytes(body: bytes, encoding: str) -> int | None:
    """The size of a body after decompression by its own account; None when that is unknown or can
    be forged.
    """
    if encoding == "zstd":
        try:
            return zstd.get_frame_info(body).decompressed_size
        except (zstd.ZstdError, ValueError):
            return 0
    return None if encoding == "gzip" else len(body)
