"""The names of owners that a reader may choose among."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.storage import overview
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer


def list_teams(connection: Connection, viewer: Mapping[str, str] | None) -> Sequence[str]:
    """The teams that were ever charged, by name, as a viewer may see them; last nobody's, for who
    sees the whole fleet.
    """
    with as_viewer(connection, viewer):
        teams = sorted(overview.owner_names(connection, "team", "", viewer or {}))
    return teams if viewer is not None else [*teams, UNATTRIBUTED]
