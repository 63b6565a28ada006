"""What accepting a dispute moves, as `gpuledger disputes` shows it before anything moves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger_collector.cli.common import database, refuse
from gpuledger_collector.storage.ledger import usage, zones
from gpuledger_collector.storage.locks import Connection, Lock

if TYPE_CHECKING:
    from gpuledger_collector.accounting.disputes import Dispute, Remedy


def preview(dsn: str | None, config: Path | None, number: int, remedy: Remedy) -> list[str]:
    """What accepting a dispute moves, evidence that waits to be folded included; what is not possible is refused."""
    with database(dsn, config) as opened:
        from gpuledger_collector.accounting.disputes import BadStep
        from gpuledger_collector.services.hourly_usage import fold_requested
        from gpuledger_collector.storage.billing import disputes

        with opened.transaction(Lock.LEDGER, dry_run=True) as connection:
            try:
                disputes.proposed(connection, number, remedy)
            except (BadStep, disputes.NoDispute, ValueError) as error:
                refuse(str(error))
            fold_requested(connection, usage.recompute_requests(connection, disputes.read(connection, number).period))
            return _moves(connection, number, remedy)


def would_move(dsn: str, dispute: Dispute) -> list[str]:
    """What accepting a dispute that waits would move away from its owner; nothing of one that is decided."""
    from gpuledger_collector.accounting.disputes import RESOLVED, Remedy

    if dispute.state in RESOLVED:
        return []
    from gpuledger_collector.storage.database import Database

    with Database(dsn).transaction(read_only=True) as connection:
        try:
            return _moves(connection, dispute.id, Remedy({}))
        except ValueError as error:
            return [f"  nothing: {error}"]


def _moves(connection: Connection, number: int, remedy: Remedy) -> list[str]:
    """What accepting a dispute moves, in sentences. Raises BadStep, NoDispute, ValueError."""
    from gpuledger_collector.export.disputes import move_lines
    from gpuledger_collector.services.dispute_preview import preview_decision
    from gpuledger_collector.storage.billing import disputes
    from gpuledger_collector.wiring import now

    decisions = disputes.proposed(connection, number, remedy)
    return move_lines(
        preview_decision(connection, decisions, int(now().timestamp() * 1000)), zones.calendar(connection)
    )
