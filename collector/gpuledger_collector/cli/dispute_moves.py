"""What accepting a dispute moves, as `gpuledger disputes` shows it before anything moves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger_collector.cli.common import database, refuse

if TYPE_CHECKING:
    from gpuledger_collector.accounting.disputes import Dispute, Remedy
    from gpuledger_collector.storage.ledger.ledgers import LedgerUnit


def preview(dsn: str | None, config: Path | None, number: int, remedy: Remedy) -> list[str]:
    """What accepting a dispute moves, evidence that waits to be folded included; what is not possible is refused."""
    with database(dsn, config) as opened:
        from gpuledger_collector.accounting.disputes import BadStep
        from gpuledger_collector.services.hourly_usage import fold_requested
        from gpuledger_collector.storage.billing import disputes
        from gpuledger_collector.storage.ledger.ledgers import Ledger

        with Ledger(opened.dsn).trial() as unit:
            try:
                disputes.proposed(unit.connection, number, remedy)
            except (BadStep, disputes.NoDispute, ValueError) as error:
                refuse(str(error))
            fold_requested(unit, unit.marks(disputes.one(unit.connection, number).period))
            return _moves(unit, number, remedy)


def would_move(dsn: str, dispute: Dispute) -> list[str]:
    """What accepting a dispute that waits would move away from its owner; nothing of one that is decided."""
    from gpuledger_collector.accounting.disputes import RESOLVED, Remedy

    if dispute.state in RESOLVED:
        return []
    from gpuledger_collector.storage.ledger.ledgers import Ledger

    with Ledger(dsn).snapshot() as unit:
        try:
            return _moves(unit, dispute.id, Remedy({}))
        except ValueError as error:
            return [f"  nothing: {error}"]


def _moves(unit: LedgerUnit, number: int, remedy: Remedy) -> list[str]:
    """What accepting a dispute moves, in sentences. Raises BadStep, NoDispute, ValueError."""
    from gpuledger_collector.export.disputes import move_lines
    from gpuledger_collector.services.dispute_preview import preview_decision
    from gpuledger_collector.storage.billing import disputes
    from gpuledger_collector.wiring import now

    decisions = disputes.proposed(unit.connection, number, remedy)
    return move_lines(preview_decision(unit, decisions, int(now().timestamp() * 1000)), unit.calendar())
