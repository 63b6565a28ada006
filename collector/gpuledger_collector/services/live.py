"""What changed on the fleet within the last seconds, for pages that stay open: one look for all who
watch, and of its changes to each reader what it may see.

Whoever sees one owner's part is told of that owner's findings alone, and how many: their rows are
then read by the page itself, under row-level security.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuledger_collector.insight.live_changes import (
    LiveChanges,
    LiveFinding,
    LiveState,
    PresentAccelerator,
    changes_between,
    live_state,
)
from gpuledger_collector.services.database import Connection, Database
from gpuledger_collector.services.findings import Viewer
from gpuledger_collector.storage import live

SESSION = "-c statement_timeout=5s -c lock_timeout=2s"


@dataclass(frozen=True, slots=True)
class LiveNarrowing:
    """What a page that stays open is narrowed to, besides an owner: a pool (empty: the one without a
    name), a node; None: not.
    """

    pool: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class LiveLook:
    """One look: the fleet, and what changed since the look before (None: this is the first)."""

    state: LiveState
    changes: LiveChanges | None


class LiveWatch:
    """Looks at the fleet, on one session that stays open between looks."""

    def __init__(self, database: Database) -> None:
        self._database = database.as_application("gpuledger-live", SESSION)
        self._connection: Connection | None = None
        self._before: LiveState | None = None

    def look(self, now_ms: int) -> LiveLook:
        """Look once, by one statement. Blocks. Raises StorageError, psycopg.Error."""
        if self._connection is None:
            self._connection = self._database.connect()
        try:
            rows = live.read_rows(self._connection)
        except BaseException:
            self.close()
            raise
        before, after = self._before, live_state(*rows, now_ms)
        self._before = after
        return LiveLook(after, None if before is None else changes_between(before, after))

    def close(self) -> None:
        """Close the session; the next look is a first one."""
        connection, self._connection, self._before = self._connection, None, None
        if connection is not None:
            connection.close()


def changes_seen(
    changes: LiveChanges, state: LiveState, viewer: Viewer, narrowed: LiveNarrowing
) -> LiveChanges:
    """What a viewer is told of the changes that led to this state, on a page that is narrowed so.

    What nobody holds is in no owner's part, as in lists of findings. A node is in each pool of which
    it has accelerators.
    """

    def is_there(item: PresentAccelerator | LiveFinding) -> bool:
        return narrowed.pool in {None, item.pool} and narrowed.node in {None, item.node}

    if viewer.owner is not None:

        def is_own(item: LiveFinding) -> bool:
            return not item.is_free and viewer.sees(item.owner, item.team) and is_there(item)

        return LiveChanges(
            appeared=tuple(filter(is_own, changes.appeared)),
            ended=tuple(filter(is_own, changes.ended)),
        )
    if narrowed.pool is None and narrowed.node is None:
        return changes

    items = state.accelerators.values()
    nodes_of_pool = {item.node for item in items if item.pool == narrowed.pool}

    def is_node(name: str) -> bool:
        return narrowed.node in {None, name} and (narrowed.pool is None or name in nodes_of_pool)

    return replace(
        changes,
        changed_holder=tuple(filter(is_there, changes.changed_holder)),
        changed_state=tuple(filter(is_there, changes.changed_state)),
        added=tuple(filter(is_there, changes.added)),
        removed=tuple(filter(is_there, changes.removed)),
        fell_silent=tuple(filter(is_node, changes.fell_silent)),
        came_back=tuple(filter(is_node, changes.came_back)),
        new_nodes=tuple(filter(is_node, changes.new_nodes)),
        appeared=tuple(filter(is_there, changes.appeared)),
        ended=tuple(filter(is_there, changes.ended)),
    )
