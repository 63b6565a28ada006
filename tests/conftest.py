"""For every test: a guardian that ends what a run leaves, hypothesis' profile, and the command line
of gpuledger, which is built once a process, since that is costly.
"""

import atexit
import functools
import gc
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

import guardian
from fakes import profiles

MEMORY_BYTES = 6 * 1024**3
"""Free memory from which on the files of a run are put there: databases and spools need a tenth of
it.
"""


def use_memory() -> None:
    """Put temporary files into memory where it has room and lets programs run: copying a database
    costs a fourth.
    """
    folder = guardian.memory_folder() if guardian.FOLDER in os.environ else None
    if folder is None or os.environ.get("TEST_FILES") == "disk":
        return
    space = os.statvfs(folder)
    if space.f_bavail * space.f_frsize >= MEMORY_BYTES and not space.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = None  # read TMPDIR again


guardian.enter()
use_memory()
gc.disable()  # what is collected stays: looking at it again and again is a sixth of the time
profiles.load()
# Threads of OpenMP wait for each other by spinning: beside other tests two of them take five times
# as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@functools.lru_cache(maxsize=1)
def whole_command() -> Any:
    """The command line of `gpuledger`."""
    from typer.main import get_command

    from gpuledger_collector.cli import build

    return get_command(build())


def command_of(app: Any) -> Any:
    """What a typer app becomes; for ours always the same."""
    from typer.main import get_command

    return whole_command() if app.info.name == "gpuledger" else get_command(app)


WHOLLY_SLOW = re.compile(r"^pytestmark = .*pytest\.mark\.slow", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file of which `./dev test` or `./dev test --slow` takes nothing, unless it is
    named: collecting all costs each process ten seconds.
    """
    if not re.fullmatch(r"test_.*\.py", collection_path.name):
        return None
    text, marks = collection_path.read_text(encoding="utf-8"), config.option.markexpr
    if marks.startswith("not slow"):
        return bool(WHOLLY_SLOW.search(text)) or None
    return (marks.startswith("slow") and "mark.slow" not in text) or None


WORLDS = ("tests/dashboards/", "tests/pages/test_site", "tests/postgres/mcp/")
"""Where tests share a ledger of the session: one process furnishes it."""
WAITING = (
    "tests/deploy/test_lowest_versions",
    "tests/faults/",
    "tests/replicas/",
    "tests/engines/",
    "tests/architecture/",
    "tests/journeys/",
    "tests/deploy/",
    "tests/agent/",
)
"""Tests that wait more than they compute: for processes that are killed and started again, for
downloads, for time.
"""
COMPUTING = (
    "tests/postgres/money/test_cells",
    *WORLDS,
    "tests/scenarios/",
    "tests/oracle/",
    "tests/postgres/trust/test_names",
    "tests/pages/",
    "tests/documentation/test_site",
    "tests/postgres/",
)
"""In the order in which they begin, so that no process is left alone with one of them at the end."""


def scope_of(nodeid: str) -> str:
    """What goes to one process: a file, or all that shares a ledger."""
    return next(filter(nodeid.startswith, WORLDS), nodeid.partition("::")[0])


def in_turn(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The longest first; one scope that waits and one that computes in turn, so that processors are
    busy while some tests wait.
    """

    def rank(scope: str, starts: Sequence[str]) -> int:
        return next((at for at, start in enumerate(starts) if scope.startswith(start)), len(starts))

    scopes: dict[str, list[pytest.Item]] = {}
    for item in items:
        scopes.setdefault(scope_of(item.nodeid), []).append(item)
    waiting = sorted(
        (scope for scope in scopes if scope.startswith(WAITING)), key=lambda one: rank(one, WAITING)
    )
    computing = sorted(
        (scope for scope in scopes if not scope.startswith(WAITING)),
        key=lambda one: rank(one, COMPUTING),
    )
    turns = itertools.chain.from_iterable(itertools.zip_longest(waiting, computing))
    return [item for scope in turns if scope is not None for item in scopes[scope]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest."""
    items[:] = in_turn(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one process, and each shared ledger, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling

    class ByLedger(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

        def remove_node(self, node: Any) -> Any:
            """Give what a killed process leaves to another, but for the test that it was in: that
            one has failed.
            """
            units = list(self.assigned_work[node].values())
            crashed = next(
                (test for unit in units for test, is_done in unit.items() if not is_done), None
            )
            for unit in units:
                if crashed in unit:
                    unit[crashed] = True
            super().remove_node(node)
            return crashed

    config.option.loadscopereorder = False
    return ByLedger(config, log)


NOT_TO_BE_HAD = (
    "../shared",
    "capture",
    "GPULEDGER_TEST_",
    "root",
    "/dev/kmsg",
    "NVIDIA driver",
    "mirror of Debian",
)
"""What a reason of skipping names where no package brings what the test needs."""


def is_missing(reason: str) -> bool:
    """Whether a test was skipped for want of what CI can have, where GPULEDGER_TEST_ENGINES
    requires it.
    """
    return os.environ.get("GPULEDGER_TEST_ENGINES") == "required" and not any(
        word in reason for word in NOT_TO_BE_HAD
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test fail that is skipped although every engine is said to be there."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2])
        if is_missing(reason):
            report.outcome = "failed"
            report.longrepr = (
                f"{reason}; GPULEDGER_TEST_ENGINES=required lets nothing be skipped that CI can"
                " have"
            )
    return report


def pytest_collection_finish() -> None:
    """Build commands once, where a collected test runs any: tests of pure arithmetic start without
    typer.

    What was collected stays, so the collector of cyclic garbage need not look at its half a million
    objects again, up to the end of the process: pytest collects five times when its session ends,
    and xdist interrupts a process that takes more than five seconds for that. The end itself
    collects them: nanobind, of an extension module, complains of what it leaves.
    """
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)
    if testing := sys.modules.get("typer.testing"):
        testing._get_command = command_of  # type: ignore[attr-defined]
