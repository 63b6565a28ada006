"""Names in addresses: a path that holds one of any letters, line breaks and slashes among them.

Starlette's `path` ends at a line break, and a plain parameter at a slash, so that the page of such an owner or pool was
not found, or that of another was: `/pools/a%0A` answered for `a`.
"""

from __future__ import annotations

from starlette.convertors import Convertor


class NameConvertor(Convertor[str]):
    """A parameter of a path, as in `{owner:name}`, that takes everything (registered by this package)."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        """The name."""
        return value

    def to_string(self, value: str) -> str:
        """The name."""
        return value
