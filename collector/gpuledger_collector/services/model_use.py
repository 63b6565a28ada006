"""Read what models on shared servers cost owners in a period, for their statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.model_use import ModelUse, list_model_use
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.inference_costs import read_days
from gpuledger_collector.storage.billing import statements
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection


def read_model_use(
    connection: Connection, period: Period, level: str
) -> Mapping[str, Sequence[ModelUse]]:
    """By owners of a level what they asked of models in a month: of a closed one as kept at its
    close, and nothing where it kept none, since its statement stays the same.

    Reads the tokens of all tenants, since what one pays depends on them.
    """
    days = read_days(connection, period)
    if not days.kept and statements.closed_record(connection, period) is not None:
        return {}
    return list_model_use(days.servers, days.lines, level, zones.calendar(connection))
