"""Wrong arguments, of tools and of commands, in our own sentences instead of the validator's text
and addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

SHOWN, SHOWN_LENGTH = 3, 40
_TYPES = {"string_type": "a text", "int_type": "a whole number", "bool_type": "true or false"}
_TYPES |= {
    "int_parsing": "a whole number",
    "bool_parsing": "true or false",
    "int_from_float": "a whole number",
}
_NAMES = {
    dict: "an object",
    list: "a list",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
}


def sentence(error: ValidationError) -> str:
    """Say for each parameter what it may be."""
    faults = error.errors(include_url=False)
    said = [
        f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {complaint(fault)}"
        for fault in faults[:SHOWN]
    ]
    more = len(faults) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")


def complaint(fault: Mapping[str, Any]) -> str:
    """What is wrong with one argument, by the kind of the fault."""
    kind, context, given = fault["type"], fault.get("ctx", {}), fault.get("input")
    if kind == "missing":
        return "is missing"
    if kind == "string_too_long":
        return f"give at most {context['max_length']} characters"
    if kind == "less_than_equal":
        return f"give at most {context['le']}"
    if kind == "greater_than_equal":
        return f"give at least {context['ge']}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"give {context['expected']}"
    if kind in _TYPES:
        flat = ", such as team=vision" if isinstance(given, dict) and kind == "string_type" else ""
        what = (
            repr(given[:SHOWN_LENGTH])
            if isinstance(given, str)
            else _NAMES.get(type(given), "nothing")
        )
        return f"give {_TYPES[kind]}{flat}, not {what}"
    return "is none of what the tool's schema allows"
