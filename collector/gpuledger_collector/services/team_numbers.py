"""The numbers of teams, from which their colors follow: on the map of the fleet, in spend over time
and on boards alike, whatever is asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.storage.billing import fleet_hours
from gpuledger_collector.storage.locks import Connection


def number_teams(connection: Connection) -> Mapping[str, int]:
    """Number every team of the ledger from 0, by when it came: a color does not depend on who else
    is shown, nor on who looks.
    """
    return {row.team or UNATTRIBUTED: row.number for row in fleet_hours.team_colors(connection)}
