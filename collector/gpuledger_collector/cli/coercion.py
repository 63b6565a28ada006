"""Values of options that typer need not coerce: what is absent, has the option's type, or is one of its choices.

typer coerces by pydantic, importing which takes longer than what most commands compute. A command that is called with
few options never needs it: its other values are absent or defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import EnumType
from typing import Any, NamedTuple

from typer import core

_TYPED_PARAMETER: Any = core._TyperParameter


class _Coercion(NamedTuple):
    """Coercion of a parameter, by typer where it is needed."""

    coercion_by_typer: Callable[[Any], Any]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value that a command is given."""
        kind = param.type_descriptor
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        # A path can have conditions, such as to exist, that its type does not show.
        if type(value) is kind.annotation and not kind.is_path:
            return value
        if isinstance(kind.annotation, EnumType) and value in kind.annotation._value2member_map_:
            return kind.annotation(value)
        return self.coercion_by_typer(param).coerce(value, param=param, ctx=ctx)


def spare_coercion() -> None:
    """Have typer coerce only values that need it."""
    coercion = _Coercion(_TYPED_PARAMETER.get_runtime_param)
    _TYPED_PARAMETER.get_runtime_param = lambda _parameter: coercion
