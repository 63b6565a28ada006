"""Worlds: databases that take long to furnish, furnished once a session and copied for each test.

A test that takes the fixture of a world starts with a copy of it:

    def furnish(dsn): ...                # fills an empty ledger

    @pytest.fixture
    @world(furnish)
    def october(fleet): return fleet     # what the test is given, on its own copy
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

import pytest
from psycopg.conninfo import conninfo_to_dict

Furnish = Callable[[str], None]
Function = TypeVar("Function", bound=Callable[..., object])


def world(furnish: Furnish) -> Callable[[Function], Function]:
    """Say what furnishes the database of every test that takes this fixture."""

    def declare(fixture: Function) -> Function:
        fixture.furnish = furnish  # type: ignore[attr-defined]
        return fixture

    return declare


def worlds_of(request: pytest.FixtureRequest) -> list[Furnish]:
    """What furnishes the database of the test that asks."""
    known = request.node._fixtureinfo.name2fixturedefs
    functions = [known[name][-1].func for name in request.fixturenames if name in known]
    return [function.furnish for function in functions if hasattr(function, "furnish")]


class Templates:
    """The furnished databases of a session, each made when a test first needs it."""

    def __init__(self, create: Callable[[], contextlib.AbstractContextManager[str]]) -> None:
        self._create = create
        self._names: dict[Furnish, str] = {}
        self._open = contextlib.ExitStack()

    def name_for(self, furnish: Furnish) -> str:
        """The database that this furnished."""
        if furnish not in self._names:
            dsn = self._open.enter_context(self._create())
            furnish(dsn)
            self._names[furnish] = str(conninfo_to_dict(dsn)["dbname"])
        return self._names[furnish]

    def close(self) -> None:
        """Drop them."""
        self._open.close()
