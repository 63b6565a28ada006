"""Values as TOML 1.0 writes them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal

from gpuledger_common.escapes import escape_text


def table(name: str, values: Mapping[str, object]) -> Iterable[str]:
    """The lines of a table of an array of tables."""
    return ["", f"[[{name}]]", *(f"{key} = {value(each)}" for key, each in values.items())]


def value(content: object) -> str:
    """A value; instants are written in UTC, decimals with all their places."""
    if isinstance(content, bool):
        return "true" if content else "false"
    if isinstance(content, Mapping):
        return (
            "{ "
            + ", ".join(f"{quote_text(str(key))} = {value(each)}" for key, each in content.items())
            + " }"
        )
    if isinstance(content, list | tuple):
        return "[" + ", ".join(map(value, content)) + "]"
    if isinstance(content, Decimal):
        return f"{content.normalize():f}"
    if isinstance(content, dt.datetime):
        unit = "milliseconds" if content.microsecond else "seconds"
        return content.astimezone(dt.UTC).isoformat(timespec=unit).replace("+00:00", "Z")
    if isinstance(content, int | dt.date):
        return str(content)
    return quote_text(str(content))


def quote_text(text: str) -> str:
    """A basic string: as in JSON, with invisible characters as escapes of TOML, which has no
    surrogate pairs.
    """
    return "".join(
        sign if escape_text(sign) == sign else f"\\U{ord(sign):08x}"
        for sign in json.dumps(text, ensure_ascii=False)
    )
