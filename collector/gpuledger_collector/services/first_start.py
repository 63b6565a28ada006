"""What a first start asks of a ledger before it reads the history of a monitoring system into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.attribution import Rule
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage import locks, overview
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import rules, usage_sources
from gpuledger_collector.storage.locks import Lock


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Whether a ledger has rules of its own, and whether nothing of it was ever rated."""

    has_rules: bool
    is_new: bool


def read_state(database: Database) -> LedgerState:
    """Read how far a ledger is."""
    with database.transaction(read_only=True) as connection:
        return LedgerState(
            bool(rules.current(connection)), overview.first_rated_ms(connection) is None
        )


def require_not_imported(
    database: Database, period: Period, nodes: Sequence[str], pools: Sequence[str]
) -> None:
    """Raise OtherSource where a file brought usage of these nodes or pools for another pool."""
    with database.transaction(read_only=True) as connection:
        usage_sources.refuse_beside_imported(connection, period, nodes, pools)


def declare_first_rules(database: Database, first: Sequence[Rule], now_ms: int) -> bool:
    """Declare rules in a ledger that has none yet; return whether it had none."""
    with database.transaction() as connection:
        locks.take(connection, Lock.PRICES)
        if rules.current(connection):
            return False
        rules.replace_rules(connection, first, now_ms)
        return True
