"""Options and arguments as `--help` names their values, and as typer reads them.

Both follow from the types that a command's function declares, so that nothing here depends on
typer's internals.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from typer import BadParameter


def adapt_parameters(command: Any) -> None:
    """Adapt the parameters of a command, and of those below it."""
    types = get_type_hints(command.callback) if command.callback else {}
    for parameter in command.params:
        kind = _without_none(types[parameter.name])
        name_value(parameter, kind)
        if parameter.callback is None:
            parameter.process_value = _process_value(parameter, kind)
    get_help_option = command.get_help_option
    command.get_help_option = lambda ctx: absent_is_false(get_help_option(ctx))
    for below in getattr(command, "commands", {}).values():
        adapt_parameters(below)


def absent_is_false(flag: Any) -> Any:
    """The flag, False where it is not given: typer would convert None to a bool, which takes what
    is said below.
    """
    if flag is not None:
        flag.default = False
    return flag


def _without_none(hint: Any) -> Any:
    """The type of a value that is given: `int` of `int | None`."""
    return get_args(hint)[0] if isinstance(hint, UnionType) else hint


def _choices(kind: Any) -> dict[str, Enum]:
    """The members of an enum by their values; of any other type, none."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {choice.value: choice for choice in kind}
    return {}


def _no_type(_ctx: Any) -> None:
    """What `--help` shows for the type of an argument."""


def name_value(parameter: Any, kind: Any) -> None:
    """Name a value in `--help` by what it holds, instead of by its Python type."""
    if parameter.param_type_name == "argument":
        parameter.display_type = _no_type
    elif parameter.metavar is None:
        choices = "|".join(_choices(kind))
        held = {int: "N", float: "N", Path: "FILE"}.get(kind, parameter.opts[0].lstrip("-").upper())
        parameter.metavar = choices or held


def _own_words(error: BadParameter) -> str:
    """What is wrong with a value, without the words of what typer converts by."""
    cause = error.__cause__
    if type(cause).__name__ != "ValidationError":
        return error.message
    from gpuledger_collector.mcp.arguments import complaint

    return "; ".join(complaint(fault) for fault in cause.errors(include_url=False))  # type: ignore[union-attr]


def _process_value(parameter: Any, kind: Any) -> Callable[[Any, Any], Any]:
    """Read a value as typer does, and without typer where nothing is to be converted.

    typer converts by pydantic, importing which takes longer than what most commands compute. A
    command that is called with few options never needs it: its other values are absent or defaults.
    """
    process_by_typer = parameter.process_value
    choices = _choices(kind)

    def process_value(ctx: Any, value: Any) -> Any:
        if value is None and not parameter.required:
            return () if parameter.multiple or parameter.nargs == -1 else None
        if isinstance(value, str) and value in choices:
            return choices[value]
        if type(value) is kind:
            return value
        try:
            # A path is left to typer, which looks whether it has to exist.
            return process_by_typer(ctx, value)
        except BadParameter as error:
            error.message = _own_words(error)
            raise

    return process_value
