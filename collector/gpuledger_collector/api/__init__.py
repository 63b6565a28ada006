"""The collector's HTTP surface."""

from starlette.convertors import Convertor, register_url_convertor


class NameConvertor(Convertor[str]):
    """A path parameter, as in `{owner:name}`, that matches everything, line breaks and slashes too.

    Starlette's `path` ends at a line break and a plain parameter at a slash, so `/pools/a%0A` would
    answer for `a`.
    """

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        """The name."""
        return value

    def to_string(self, value: str) -> str:
        """The name."""
        return value


register_url_convertor("name", NameConvertor())
