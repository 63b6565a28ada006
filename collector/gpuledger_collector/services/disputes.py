"""Disputes: an owner contests lines with the evidence as it stands, finance answers and decides
once; every step is in the audit log.

Each step is one transaction, undone in a dry run. What cannot be done is a BadStep, what is not
known a NoDispute, and what is asked wrongly a DisputeRefused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuledger_collector.accounting import contested_lines, disputes
from gpuledger_collector.accounting.contested_lines import Contest, EvidenceLine
from gpuledger_collector.accounting.dispute_moves import (
    Costs,
    compare_costs,
)
from gpuledger_collector.accounting.disputes import (
    BadStep,
    Dispute,
    DisputeEntry,
    DisputeRecord,
    NoDispute,
    Remedy,
    Reversal,
)
from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath, path_of
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.dispute_preview import (
    Effect,
    affected_by,
    effect_of,
    opposites_of,
    reattributions_of,
)
from gpuledger_collector.services.findings import Viewer
from gpuledger_collector.services.hourly_usage import fold_requested
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.billing import adjustments, reattributions, reports
from gpuledger_collector.storage.billing import disputes as rows
from gpuledger_collector.storage.billing.dispute_evidence import gather
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import usage, zones
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.row_level_security import as_viewer

Rate = Callable[[Period], None]
"""Brings the charges of a period up to date."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """How a dispute was decided, by whom and when; `remedy` None rejects it."""

    number: int
    remedy: Remedy | Reversal | None
    note: str
    who: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A dispute that was accepted: what this changes, of which days, and what they cost before."""

    dispute: Dispute
    remedy: Remedy | Reversal
    effect: Effect
    days: Sequence[Period]
    before: Costs
    to_rate: int
    """Rated days that are rated again for it."""

    @property
    def recipient(self) -> OwnerPath | None:
        """Who gets the time; None: it is unavailable, or no time moves."""
        owner = self.remedy.owner if isinstance(self.remedy, Remedy) else None
        return None if owner is None else path_of(owner)


def list_disputes(database: Database, viewer: Viewer, *, everything: bool = False) -> list[Dispute]:
    """List disputes of a viewer that wait for an answer or a decision, or all, newest first."""
    states = disputes.STATES if everything else disputes.UNDECIDED
    with database.transaction(read_only=True) as connection, as_viewer(connection, viewer.owner):
        return [row for row in rows.in_states(connection, states) if viewer.sees(row.owner)]


def list_contestable_lines(database: Database, contest: Contest) -> list[ExportedCharge]:
    """List the lines that a contest is about, with all their corrections. Raises DisputeRefused."""
    with database.transaction() as connection:
        return _lines_of(connection, contest)


def read_record(database: Database, number: int, viewer: Viewer) -> DisputeRecord:
    """Read a dispute with its evidence, and what is paid for the same by now.

    Raises NoDispute, also where a viewer may not see it.
    """
    with database.transaction(read_only=True) as connection:
        with as_viewer(connection, viewer.owner):
            dispute = _visible(rows.read(connection, number), viewer)
            evidence = rows.evidence(connection, number)
        content = json.loads(evidence)
        return DisputeRecord(
            dispute=dispute,
            evidence=evidence,
            content=content,
            seal_holds=_seal_holds(connection, dispute, evidence),
            billed_now=_billed_now(connection, dispute, content["lines"]),
            is_rated=rows.is_rated(connection, dispute.period),
        )


def open_dispute(
    connection: Connection,
    contest: Contest,
    reason: str,
    who: str,
    now_ms: int,
) -> Dispute:
    """Contest these lines with the evidence as it stands now, sealed, in the transaction in which
    the caller read what the days of the contest are.

    Raises DisputeRefused, and BadStep where they are contested already.
    """
    contested_lines.require_unreserved(contest.owner)
    reason = disputes.words_of(reason, "reason")
    lines = _lines_of(connection, contest)
    contested_lines.require_contestable(lines)
    ids = rows.ids_of(connection, contest)
    if contest.line is not None:
        charge = lines[0].charge
        ids = charge.accelerator_id, charge.workload_id
        contest = replace(
            contest,
            line=contested_lines.line_id(lines[0]),
            period=_part_of_day(connection, charge.day_ms, contest.period),
        )
    rows.lock_openings(connection)
    _require_new(connection, contest, ids)
    dispute, text = _draft(connection, contest, lines, reason, who, now_ms)
    number = rows.insert(connection, dispute, ids, text)
    rows.insert_entry(connection, number, DisputeEntry(now_ms, who, "opened", reason))
    dispute = rows.read(connection, number)
    facts = {
        "owner": dict(dispute.owner),
        "reason": dispute.reason,
        "cost": dict(dispute.cost),
        "seal": dispute.seal,
    }
    audit.record(connection, [_change(number, None, facts)], now_ms, who)
    return dispute


def answer_dispute(
    database: Database,
    number: int,
    words: str,
    who: str,
    now_ms: int,
    *,
    from_owner: bool,
    viewer: Viewer,
    dry_run: bool = False,
) -> Dispute:
    """Say something in a dispute. Raises NoDispute, BadStep, DisputeRefused."""
    with database.transaction(dry_run=dry_run) as connection:
        with as_viewer(connection, viewer.owner):
            _visible(rows.read(connection, number), viewer)
        words = disputes.words_of(words, "note")
        before = rows.lock(connection, number)
        state = disputes.after_answer(before.state, from_owner=from_owner)
        if len(before.entries) >= disputes.MOST_ENTRIES:
            raise BadStep(
                f"the dispute has {len(before.entries)} messages: it waits for a decision"
            )
        rows.update_state(connection, number, state)
        kind = "contested" if from_owner else "answered"
        rows.insert_entry(connection, number, DisputeEntry(now_ms, who, kind, words))
        change = _change(number, {"state": before.state}, {"state": state, "said": words})
        audit.record(connection, [change], now_ms, who)
        return rows.read(connection, number)


def resolve_dispute(
    database: Database, resolution: Resolution, *, dry_run: bool = False
) -> tuple[Dispute, int]:
    """Decide a dispute: it is rejected, the contested time is reattributed, or adjustments are
    reversed.

    Returns the dispute as it is now, and how many days are to be rated again; a closed one among
    them gets a correction. Raises NoDispute, BadStep, DisputeRefused.
    """
    number, remedy, who = resolution.number, resolution.remedy, resolution.who
    with database.transaction(dry_run=dry_run) as connection:
        note = disputes.words_of(resolution.note, "note")
        before = rows.lock(connection, number)
        state = disputes.after_decision(before.state, remedy)
        facts: dict[str, object] = {"state": state, "note": note}
        days = 0
        if isinstance(remedy, Reversal):
            opposites = opposites_of(connection, before, f"dispute {number}: {note}", who)
            for opposite in opposites:
                adjustments.book(connection, opposite, resolution.now_ms)
            days = len({opposite.from_on for opposite in opposites})
            facts["booked"] = [opposite.name for opposite in opposites]
        elif remedy is not None:
            facts["to"] = "unavailable" if remedy.owner is None else dict(remedy.owner)
            decisions = reattributions_of(connection, before, remedy)
            days = reattributions.insert(connection, number, decisions, resolution.now_ms)
        rows.update_state(connection, number, state, resolution.now_ms)
        rows.insert_entry(connection, number, DisputeEntry(resolution.now_ms, who, state, note))
        change = _change(number, {"state": before.state}, facts)
        audit.record(connection, [change], resolution.now_ms, who)
        return rows.read(connection, number), days


def accept_dispute(
    database: Database, resolution: Resolution, rate: Rate, *, dry_run: bool = False
) -> Acceptance:
    """Accept a dispute and say what this changes; `measure_change` says it of the ledger itself.

    The days that it touches are brought up to date before, unless it is a dry run. Raises
    NoDispute, BadStep, DisputeRefused.
    """
    number, remedy, now_ms = resolution.number, resolution.remedy, resolution.now_ms
    assert remedy is not None
    with database.transaction(read_only=True) as connection:
        days = affected_by(connection, number, remedy, now_ms)
    if not dry_run:
        _rate_days(days, remedy, rate)
    if isinstance(remedy, Reversal):
        with database.transaction(read_only=True) as connection:
            before = rows.costs_of_days(connection, days)
            effect = effect_of(connection, number, remedy, now_ms)
    else:
        with database.transaction(Lock.LEDGER, dry_run=True) as connection:
            before = rows.costs_of_days(connection, days)
            # Evidence that arrived since the last fold moves as well; it is folded here and rolled
            # back with the rest.
            fold_requested(connection, usage.recompute_requests(connection, _hull(days)))
            effect = effect_of(connection, number, remedy, now_ms)
    dispute, to_rate = resolve_dispute(database, resolution, dry_run=dry_run)
    return Acceptance(dispute, remedy, effect, days, before, to_rate)


def measure_change(
    database: Database, acceptance: Acceptance, rate: Rate
) -> tuple[dict[str, int], dict[str, int]]:
    """Rate the days of an accepted dispute again: by currency, what the others pay less, and what
    its destination pays more.
    """
    _rate_days(acceptance.days, acceptance.remedy, rate)
    with database.transaction(read_only=True) as connection:
        after = rows.costs_of_days(connection, acceptance.days)
    return compare_costs(acceptance.before, after, acceptance.recipient)


def _rate_days(days: Sequence[Period], remedy: Remedy | Reversal, rate: Rate) -> None:
    # Time that moves can change the volume price of any day between; a reversal changes its own.
    for period in days if isinstance(remedy, Reversal) else [_hull(days)]:
        rate(period)


def _hull(days: Sequence[Period]) -> Period:
    return Period(days[0].start_ms, days[-1].end_ms)


def _visible(dispute: Dispute, viewer: Viewer) -> Dispute:
    """The dispute. Raises NoDispute where the viewer does not see its owner."""
    if not viewer.sees(dispute.owner):
        # The same answer as for a number that does not exist: a viewer must not learn of others'
        # disputes.
        raise NoDispute(dispute.id)
    return dispute


def _lines_of(connection: Connection, contest: Contest) -> list[ExportedCharge]:
    """The lines that a contest is about, with all their corrections. Raises DisputeRefused."""
    contested_lines.require_levels(contest.owner)
    accelerator_id, workload_id = rows.ids_of(connection, contest)
    lines = list(
        reports.billed_of(connection, contest.period, contest.owner, accelerator_id, workload_id)
    )
    return lines if contest.line is None else contested_lines.lines_named(lines, contest.line)


def _part_of_day(connection: Connection, day_ms: int, within: Period) -> Period:
    """The part of a period that lies on the day of a line, which has 23 to 25 hours."""
    day = zones.calendar(connection).day_of(day_ms)
    return Period(max(day_ms, within.start_ms), min(day.end_ms, within.end_ms))


def _require_new(connection: Connection, contest: Contest, ids: rows.Ids) -> None:
    """Raise BadStep where the same is contested already, or too much of the same owner's."""
    same = rows.undecided_like(connection, contest, ids)
    if same is not None:
        raise BadStep(f"these lines are already contested by dispute {same}: answer there")
    level = next(level for level in LEVELS if level in contest.owner)
    count = rows.count_undecided(connection, {level: contest.owner[level]})
    if count >= disputes.MOST_OPEN:
        raise BadStep(
            f"{level} {contest.owner[level]} has {count} undecided disputes: wait for a decision,"
            " or contest more at once"
        )


def _draft(
    connection: Connection,
    contest: Contest,
    lines: Sequence[ExportedCharge],
    reason: str,
    who: str,
    now_ms: int,
) -> tuple[Dispute, str]:
    """A dispute that has no number yet, and its evidence."""
    text = disputes.canonical(
        {
            "owner": dict(contest.owner),
            "reason": reason,
            "opened_ms": now_ms,
            "opened_by": who,
            **gather(connection, lines, contest.period),
        }
    )
    gpu_ns, cost = contested_lines.total_of(lines)
    dispute = Dispute(
        id=0,
        owner=contest.owner,
        period=contest.period,
        accelerator=contest.accelerator,
        workload=contest.workload,
        line=contest.line,
        reason=reason,
        state=disputes.OPEN,
        opened_ms=now_ms,
        opened_by=who,
        gpu_ns=gpu_ns,
        cost=cost,
        seal=disputes.seal_of(text),
        resolved_ms=None,
    )
    return dispute, text


def _change(
    number: int, before: Mapping[str, object] | None, after: Mapping[str, object]
) -> audit.Change:
    return audit.Change("dispute", str(number), before, after)


def _seal_holds(connection: Connection, dispute: Dispute, evidence: str) -> bool:
    """Whether the evidence still has its seal, and the audit log the same one from the opening."""
    seal = disputes.seal_of(evidence)
    return rows.seal_at_opening(connection, dispute.id) == seal == dispute.seal


def _billed_now(
    connection: Connection, dispute: Dispute, lines: Sequence[EvidenceLine]
) -> dict[str, int]:
    """What the contested owner pays for the same time by now, corrections included, by currency.

    Of one contested line its workload and accelerator on that day count. Of adjustments contested
    alone these and their reversals count.
    """
    contest = Contest(dispute.owner, dispute.period, dispute.accelerator, dispute.workload)
    billed = _lines_of(connection, contest)
    if contested_lines.is_about_adjustments(lines):
        billed = contested_lines.entries_called(billed, {line["adjustment"] for line in lines})
    _, cost = contested_lines.total_of(billed)
    return {name: cost.get(name, 0) for name in sorted({*cost, *dispute.cost})}
