"""Settings of agent and collector: one TOML file, and variables of the environment, which override
it.

Every fault is collected, so that one start reports all of them, each with its place and the nearest
known name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger_common.bounded_file import read_toml_text


class SettingsError(Exception):
    """A setting cannot be used; the message says where it stands and what is wrong."""

    permanent = True


@dataclass(frozen=True, slots=True)
class GivenSetting:
    """A setting as somebody wrote it; `place` names the file and key, or the variable."""

    name: str
    value: object
    place: str


TEST_PREFIX = "GPULEDGER_TEST_"
"""Variables that tell the tests which servers they may use."""
MODEL_PREFIX = "GPULEDGER_MODEL_"
"""Variables that name the models of forecast methods; the packages that run these read them."""


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises SettingsError with file and reason."""
    import tomllib

    try:
        return tomllib.loads(read_toml_text(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"{path}: nests too deep, or holds a number that is too long"
        ) from error


def lines_of(path: Path, names: Collection[str]) -> dict[str, str]:
    """`:LINE` of each name at the top of a TOML file, where a line begins with it."""
    lines: dict[str, str] = {}
    for number, line in enumerate(read_toml_text(path).splitlines(), 1):
        name = (
            line.strip()
            .lstrip("[")
            .partition("=")[0]
            .partition("]")[0]
            .partition(".")[0]
            .strip()
            .strip("\"'")
        )
        if name in names:
            lines.setdefault(name, f":{number}")
    return lines


def nearest_name(name: str, known: Collection[str]) -> str:
    """The known name that is spelled most like this one."""
    import difflib

    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]


def given_settings(
    config: Path | None,
    environment: Mapping[str, str],
    known: Collection[str],
    prefix: str,
    foreign_prefix: str | None = None,
) -> tuple[list[GivenSetting], list[str]]:
    """The settings of the file and then of the environment, and a sentence about each unknown name.

    Variables that begin with `foreign_prefix` belong to another program, those with TEST_PREFIX to
    the tests and those with MODEL_PREFIX to forecast methods; all are ignored. Raises SettingsError
    for a file that cannot be read.
    """
    given: list[GivenSetting] = []
    faults: list[str] = []
    content = {} if config is None else read_toml(config)
    lines = {} if config is None else lines_of(config, content)
    for name, value in content.items():
        place = f"{config}{lines.get(name, '')}: {name}"
        if name in known:
            given.append(GivenSetting(name, value, place))
        else:
            faults.append(
                f"{place} is not a setting; the nearest one is {nearest_name(name, known)}"
            )
    variables = {prefix + name.upper(): name for name in known}
    ignored = (TEST_PREFIX, MODEL_PREFIX, foreign_prefix or TEST_PREFIX)
    for variable, text in sorted(environment.items()):
        if not variable.startswith(prefix) or variable.startswith(ignored):
            continue
        if variable in variables:
            given.append(GivenSetting(variables[variable], text, variable))
        else:
            faults.append(
                f"{variable} is not a setting; the nearest one is"
                f" {nearest_name(variable, variables)}"
            )
    return given, faults
