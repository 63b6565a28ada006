"""Read the tables of a TOML file key by key; every fault is collected with its place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gpuledger_common.settings import nearest_name


class Table:
    """A table of a file. Values of the wrong type become the default, and a fault says so."""

    def __init__(self, content: Mapping[str, Any], place: str, faults: list[str]) -> None:
        self._content, self.place, self._faults = content, place, faults
        self._used: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def fault(self, key: str, what: str) -> None:
        """Report a key that cannot be used."""
        self._faults.append(f"{self.place}{key}: {what}")

    def _value(self, key: str) -> Any:
        self._used.add(key)
        return self._content.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A text; required where there is no default."""
        value = self._value(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or (default is None and not value):
            self.fault(key, "is required" if value is None else f"{value!r} is not a text")
            return default or ""
        return value

    def choice(self, key: str, choices: Collection[str], default: str | None = None) -> str:
        """One of these texts."""
        value = self.text(key, default)
        if value and value not in choices:
            self.fault(key, f"{value!r} is not one of {', '.join(choices)}")
        return value

    def texts(self, key: str, is_required: bool = False) -> tuple[str, ...]:
        """A text, or a list of them."""
        value = self._value(key)
        if value is None and not is_required:
            return ()
        values = [value] if isinstance(value, str) else value
        if (
            not isinstance(values, list)
            or not all(isinstance(entry, str) for entry in values)
            or not values
        ):
            self.fault(key, "is required" if value is None else f"{value!r} is not a list of texts")
            return ()
        return tuple(values)

    def number(self, key: str, default: float) -> float:
        """A number."""
        value = self._value(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fault(key, f"{value!r} is not a number")
            return default
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers."""
        value = self._value(key)
        if value is None:
            return ()
        values = value if isinstance(value, list) else [value]
        if any(isinstance(entry, bool) or not isinstance(entry, int | float) for entry in values):
            self.fault(key, f"{value!r} is not a list of numbers")
            return ()
        return tuple(map(float, values))

    def flag(self, key: str) -> bool:
        """True or false; false where it is missing."""
        value = self._value(key)
        if value is not None and not isinstance(value, bool):
            self.fault(key, f"{value!r} is not true or false")
        return value is True

    def mapping(self, key: str) -> dict[str, tuple[str, ...]]:
        """Texts, or lists of them, by name."""
        inner = self.table(key)
        return {name: inner.texts(name) for name in inner._content}  # noqa: SLF001  # of this class

    def lists(self, key: str) -> tuple[tuple[str, ...], ...]:
        """Lists of texts; at least one."""
        value = self._value(key)
        entries = value if isinstance(value, list) else []
        good = all(
            isinstance(entry, list) and entry and all(isinstance(part, str) for part in entry)
            for entry in entries
        )
        if not entries or not good:
            self.fault(
                key,
                "is required" if value is None else f"{value!r} is not a list of lists of texts",
            )
            return ()
        return tuple(map(tuple, entries))

    def table(self, key: str) -> Table:
        """A table; an empty one where it is missing."""
        value = self._value(key)
        if value is not None and not isinstance(value, dict):
            self.fault(key, "is not a table")
        return Table(value if isinstance(value, dict) else {}, f"{self.place}{key}.", self._faults)

    def tables(self, key: str) -> list[Table]:
        """A list of tables."""
        value = self._value(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            self.fault(key, "is not a list of tables")
            return []
        return [
            Table(entry, f"{self.place}{key} {number}: ", self._faults)
            for number, entry in enumerate(value, 1)
        ]

    def texts_or_tables(self, key: str) -> list[Table]:
        """A list of texts and tables; a text stands for a table with this `name`."""
        value = self._value(key)
        values = value if isinstance(value, list) else [value]
        if (
            value is None
            or not values
            or not all(isinstance(entry, str | dict) for entry in values)
        ):
            self.fault(key, "is required" if value is None else "is not a list of families")
            return []
        entries = [{"name": entry} if isinstance(entry, str) else entry for entry in values]
        return [
            Table(entry, f"{self.place}{key} {number}: ", self._faults)
            for number, entry in enumerate(entries, 1)
        ]

    def skip_rest(self) -> None:
        """Leave the other keys unread, where a fault already says why the table cannot be used."""
        self._used |= set(self._content)

    def close(self) -> None:
        """Report keys that nobody asked for."""
        for key in self._content:
            if key not in self._used:
                self.fault(key, f"is not known; the nearest key is {nearest_name(key, self._used)}")
