"""The one workload that a user names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuledger_collector.cli.common import refuse
from gpuledger_collector.services.runs import NotOneWorkload


@contextmanager
def require_one_workload(name: str, kind: str) -> Iterator[None]:
    """Refuse a name that no workload has, or several."""
    try:
        yield
    except NotOneWorkload as error:
        if not error.count:
            refuse(f"no {kind} has the key, the id or the name {name!r}")
        keys = ", ".join(error.keys)
        refuse(f"{name!r} names {error.count} {kind}s; choose one by its key: {keys}")
