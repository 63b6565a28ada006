"""Path parameters for names with any characters, including line breaks and slashes.

Starlette's `path` ends at a line break and a plain parameter at a slash, so `/pools/a%0A` would
answer for `a`.
"""

from __future__ import annotations

from starlette.convertors import Convertor


class NameConvertor(Convertor[str]):
    """A path parameter, as in `{owner:name}`, that matches everything (registered by this package)."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        """The name."""
        return value

    def to_string(self, value: str) -> str:
        """The name."""
        return value
