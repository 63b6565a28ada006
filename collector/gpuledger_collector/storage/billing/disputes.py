"""Disputes in Postgres: opened with their evidence, answered, and resolved once; every step is in
the audit log.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuledger_collector.accounting import disputes
from gpuledger_collector.accounting.adjustments import Adjustment
from gpuledger_collector.accounting.disputes import Dispute, DisputeEntry, Remedy, Reversal
from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.owner_tree import LEVELS, path_of
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.reattribution import UNNUMBERED, Key, Reattribution, spans_of
from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message
from gpuledger_collector.accounting.usage import HELD, UNAVAILABLE
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.billing import adjustments, reattributions, reports
from gpuledger_collector.storage.billing.dispute_evidence import gather, line_id
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

SHORT = 8
"""Fewest letters of a line's hash that name it."""
MOST_LINES = 20_000
MOST_OPEN = 100
"""Undecided disputes of what an owner belongs to (its organization, else its team, ...)."""
MOST_ENTRIES = 200
"""Messages of a dispute."""
_COLUMNS = """d.id, d.owner, d.start_ms, d.end_ms, a.uuid, w.key, d.line, d.reason, d.state, d.opened_ms, d.opened_by,
    d.gpu_ns, d.cost, d.seal, d.resolved_ms"""
_FROM = """FROM dispute d LEFT JOIN accelerator a ON a.id = d.accelerator_id
    LEFT JOIN workload w ON w.id = d.workload_id"""


class NoDispute(LookupError):
    """There is no dispute of that number."""


@dataclass(frozen=True, slots=True)
class Contest:
    """What is to be contested: an owner's lines of some days, narrowed down by names where they are
    given.
    """

    owner: Mapping[str, str]
    period: Period
    accelerator: str | None = None
    workload: str | None = None
    line: str | None = None


def lines_of(connection: Connection, contest: Contest) -> list[ExportedCharge]:
    """The lines that it is about, with all their corrections. Raises ValueError with a sentence."""
    if not contest.owner or set(contest.owner) - set(LEVELS):
        raise ValueError(f"owner: name at least one level of {', '.join(LEVELS)}")
    accelerator_id, workload_id = _ids(connection, contest)
    lines = list(
        reports.billed_of(connection, contest.period, contest.owner, accelerator_id, workload_id)
    )
    if contest.line is None:
        return lines
    if len(contest.line) < SHORT:
        raise ValueError(
            f"line: give at least {SHORT} letters of its hash (gpuledger disputes lines shows them)"
        )
    lines = [line for line in lines if line_id(line).startswith(contest.line.lower())]
    if len(lines) > 1:
        raise ValueError(f"line: {contest.line} names {len(lines)} lines; give more of its letters")
    return lines


def _ids(connection: Connection, contest: Contest) -> tuple[int | None, int | None]:
    """The database's numbers of what is named. Raises ValueError for what is not known."""
    ids: list[int | None] = []
    for what, name, query in (
        ("accelerator", contest.accelerator, "SELECT id FROM accelerator WHERE uuid = %s"),
        (
            "workload",
            contest.workload,
            "SELECT id FROM workload WHERE key = %s OR external_id = %s ORDER BY key",
        ),
    ):
        rows = (
            []
            if name is None
            else connection.execute(query, (name,) * query.count("%s")).fetchall()
        )
        if name is not None and len(rows) != 1:
            many = f"{len(rows)} are called {name}: give the whole key, such as slurm:cluster:42"
            raise ValueError(f"{what}: {many if rows else f'none is called {name}'}")
        ids.append(rows[0][0] if rows else None)
    return ids[0], ids[1]


def open_dispute(
    connection: Connection, contest: Contest, reason: str, who: str, now_ms: int
) -> Dispute:
    """Contest these lines with the evidence as it stands now, sealed.

    Raises ValueError with a sentence, and BadStep where they are contested already.
    """
    reserved = next((name for name in contest.owner.values() if is_reserved(name)), None)
    if reserved is not None:
        raise ValueError(f"owner: {reserved_message(reserved)}")
    reason = disputes.words_of(reason, "reason")
    lines = lines_of(connection, contest)
    if not any(left_of(lines).values()) and not any(line.charge.adjustment for line in lines):
        raise ValueError("nothing of this owner was charged then: there is nothing to contest")
    if len(lines) > MOST_LINES:
        raise ValueError(
            f"{len(lines)} lines are too many for one dispute; name fewer days, or a workload"
        )
    accelerator_id, workload_id = _ids(connection, contest)
    if contest.line is not None:
        charge = lines[0].charge
        accelerator_id, workload_id = charge.accelerator_id, charge.workload_id
        contest = replace(
            contest, line=line_id(lines[0]), period=_day(connection, charge.day_ms, contest.period)
        )
    _require_new(connection, contest, accelerator_id, workload_id)
    text = disputes.canonical(
        {
            "owner": dict(contest.owner),
            "reason": reason,
            "opened_ms": now_ms,
            "opened_by": who,
            **gather(connection, lines, contest.period),
        }
    )
    gpu_ns, cost = totals(lines)
    row = connection.execute(
        "INSERT INTO dispute (owner, start_ms, end_ms, accelerator_id, workload_id, line, reason,"
        " state, opened_ms, opened_by, gpu_ns, cost, evidence, seal) VALUES (%s::jsonb, %s, %s, %s,"
        " %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s) RETURNING id",
        (
            json.dumps(dict(contest.owner)),
            contest.period.start_ms,
            contest.period.end_ms,
            accelerator_id,
            workload_id,
            contest.line,
            reason,
            disputes.OPEN,
            now_ms,
            who,
            gpu_ns,
            json.dumps(cost),
            text,
            disputes.seal_of(text),
        ),
    ).fetchone()
    assert row is not None
    _say(connection, row[0], DisputeEntry(now_ms, who, "opened", reason))
    made = read(connection, row[0])
    audit.record(
        connection, [audit.Change("dispute", str(made.id), None, _facts(made))], now_ms, who
    )
    return made


def _require_new(
    connection: Connection, contest: Contest, accelerator_id: int | None, workload_id: int | None
) -> None:
    """Raise BadStep where the same is contested already, or too much of the same owner's."""
    # Of two openings at once the second one sees the first.
    connection.execute("LOCK TABLE dispute IN SHARE ROW EXCLUSIVE MODE")
    undecided = [state for state in disputes.STATES if state not in disputes.RESOLVED]
    start_ms, end_ms = contest.period.start_ms, contest.period.end_ms
    same = connection.execute(
        "SELECT id FROM dispute WHERE state = ANY(%s) AND owner = %s::jsonb AND start_ms = %s AND"
        " end_ms = %s AND (accelerator_id, workload_id, line) IS NOT DISTINCT FROM (%s::bigint,"
        " %s::bigint, %s::text)",
        (
            undecided,
            json.dumps(dict(contest.owner)),
            start_ms,
            end_ms,
            accelerator_id,
            workload_id,
            contest.line,
        ),
    ).fetchone()
    if same is not None:
        raise disputes.BadStep(
            f"these lines are already contested by dispute {same[0]}: answer there"
        )
    level = next(level for level in LEVELS if level in contest.owner)
    widest = {level: contest.owner[level]}
    counted = connection.execute(
        "SELECT count(*) FROM dispute WHERE state = ANY(%s) AND owner @> %s::jsonb",
        (undecided, json.dumps(widest)),
    ).fetchone()
    if counted is not None and counted[0] >= MOST_OPEN:
        name = f"{level} {contest.owner[level]}"
        raise disputes.BadStep(
            f"{name} has {counted[0]} undecided disputes: wait for a decision, or contest more at"
            " once"
        )


def _day(connection: Connection, day_ms: int, within: Period) -> Period:
    """The part of a period that lies on the day of a line, which has 23 to 25 hours."""
    day = zones.calendar(connection).day_of(day_ms)
    return Period(max(day_ms, within.start_ms), min(day.end_ms, within.end_ms))


def left_of(lines: Iterable[ExportedCharge]) -> dict[object, int]:
    """GPU-nanoseconds that are left of a day, accelerator and workload once corrections are taken
    off.
    """
    left: dict[object, int] = defaultdict(int)
    for line in lines:
        left[(line.charge.day_ms, line.charge.accelerator_id, line.charge.workload_id)] += (
            line.charge.gpu_ns
        )
    return left


def totals(lines: Iterable[ExportedCharge]) -> tuple[int, dict[str, int]]:
    """GPU-nanoseconds and, by currency, micro-units of some lines; what has no price costs nothing
    here.
    """
    gpu_ns, cost = 0, dict[str, int]()
    for line in lines:
        gpu_ns += line.charge.gpu_ns
        if line.charge.currency is not None:
            cost[line.charge.currency] = cost.get(line.charge.currency, 0) + (
                line.charge.cost_micro or 0
            )
    return gpu_ns, dict(sorted(cost.items()))


def answer(
    connection: Connection, number: int, words: str, who: str, now_ms: int, *, from_owner: bool
) -> Dispute:
    """Say something in a dispute. Raises NoDispute, BadStep, ValueError."""
    words = disputes.words_of(words, "note")
    before = _locked(connection, number)
    state = disputes.after_answer(before.state, from_owner=from_owner)
    if len(before.entries) >= MOST_ENTRIES:
        raise disputes.BadStep(
            f"the dispute has {len(before.entries)} messages: it waits for a decision"
        )
    connection.execute("UPDATE dispute SET state = %s WHERE id = %s", (state, number))
    _say(
        connection,
        number,
        DisputeEntry(now_ms, who, "contested" if from_owner else "answered", words),
    )
    change = audit.Change(
        "dispute", str(number), {"state": before.state}, {"state": state, "said": words}
    )
    audit.record(connection, [change], now_ms, who)
    return read(connection, number)


def resolve(
    connection: Connection,
    number: int,
    remedy: Remedy | Reversal | None,
    note: str,
    who: str,
    now_ms: int,
) -> tuple[Dispute, int]:
    """Decide a dispute: `remedy` None rejects it, else the contested time is reattributed, or
    adjustments reversed.

    The dispute as it is now, and how many days are to be rated again; a closed one among them gets
    a correction. Raises NoDispute, BadStep, ValueError.
    """
    note = disputes.words_of(note, "note")
    before = _locked(connection, number)
    state = disputes.after_decision(before.state, remedy)
    days = 0
    now = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
    decided: dict[str, object] = {"state": state, "note": note}
    if isinstance(remedy, Reversal):
        opposites = _opposites(connection, before, f"dispute {number}: {note}", who)
        for opposite in opposites:
            adjustments.book(connection, opposite, now)
        days = len({opposite.from_on for opposite in opposites})
        decided["booked"] = [opposite.name for opposite in opposites]
    elif remedy is not None:
        decided["to"] = "unavailable" if remedy.owner is None else dict(remedy.owner)
        days = reattributions.add(connection, number, _decisions(connection, before, remedy), now)
    connection.execute(
        "UPDATE dispute SET state = %s, resolved_ms = %s WHERE id = %s", (state, now_ms, number)
    )
    _say(connection, number, DisputeEntry(now_ms, who, state, note))
    audit.record(
        connection,
        [audit.Change("dispute", str(number), {"state": before.state}, decided)],
        now_ms,
        who,
    )
    return read(connection, number), days


def proposed(connection: Connection, number: int, remedy: Remedy) -> list[Reattribution]:
    """What accepting a dispute would decide, to be previewed.

    Raises NoDispute, BadStep, ValueError.
    """
    dispute = read(connection, number)
    disputes.after_decision(dispute.state, remedy)
    return _decisions(connection, dispute, remedy)


def is_about_adjustments(connection: Connection, number: int) -> bool:
    """Whether adjustments alone are contested. Raises NoDispute."""
    return all("adjustment" in line for line in json.loads(evidence(connection, number))["lines"])


def proposed_reversals(connection: Connection, number: int) -> list[Adjustment]:
    """The entries that accepting a dispute about adjustments would book.

    Raises NoDispute, BadStep, ValueError.
    """
    dispute = read(connection, number)
    disputes.after_decision(dispute.state, Reversal())
    return _opposites(connection, dispute, "", "")


def _opposites(
    connection: Connection, dispute: Dispute, reason: str, approver: str
) -> list[Adjustment]:
    """The opposite of each contested entry, of which the evidence must hold the whole.

    Raises ValueError.
    """
    contested: dict[str, int] = defaultdict(int)
    for line in json.loads(evidence(connection, dispute.id))["lines"]:
        if "adjustment" not in line:
            raise ValueError(
                "not only adjustments are contested, which alone can be reversed: contest their"
                " lines"
            )
        contested[line["adjustment"]] += line["cost_micro"]
    opposites = [
        adjustments.opposite_of(connection, name, reason, approver) for name in sorted(contested)
    ]
    for name, opposite in zip(sorted(contested), opposites, strict=True):
        if contested[name] != -sum(share.micro for share in opposite.entry_shares()):
            raise ValueError(
                f"{name!r} is contested in part, and can only be reversed whole: gpuledger"
                " adjustments reverse"
            )
    return opposites


def _decisions(connection: Connection, dispute: Dispute, remedy: Remedy) -> list[Reattribution]:
    """The contested time by workload and accelerator: what the evidence's lines say, and nothing
    that came after it.

    Of one contested line only time of exactly its owner moves, otherwise that of the dispute's
    owner and below it. Raises ValueError.
    """
    lines = json.loads(evidence(connection, dispute.id))["lines"]
    accelerators = _numbers(
        connection, "accelerator", "uuid", {line["accelerator"] for line in lines}
    )
    workloads = _numbers(connection, "workload", "key", {line["workload"] for line in lines})
    # What a correction took from the owner already is not the owner's any more: only what is left
    # moves.
    left: dict[tuple[Key, int], int] = defaultdict(int)
    spans: list[tuple[Key, int, Period]] = []
    for line in lines:
        if line["workload"] is not None:
            key = (workloads[line["workload"]], accelerators.get(line["accelerator"]))
            left[(key, line["day_ms"])] += line["gpu_ns"]
            spans.append((key, line["day_ms"], Period(line["start_ms"], line["end_ms"])))
    keyed = spans_of(
        ((key, span) for key, day_ms, span in spans if left[(key, day_ms)] > 0), dispute.period
    )
    if not keyed and any(line.get("adjustment") for line in lines):
        raise ValueError(
            "adjustments are amounts, and no time that could move: an acceptance that reverses"
            " (--reverse) takes them back, and what is right is booked anew"
        )
    if not keyed and any(line.get("node_cost") for line in lines):
        raise ValueError(
            "a node's cost follows who held its accelerators: contest the lines of that time"
        )
    if not keyed:
        raise ValueError(
            "no workload is known to have held this time: give it one (tags, rules), not a"
            " reattribution"
        )
    if remedy.owner is None and any(accelerator_id is None for _, accelerator_id in keyed):
        raise ValueError(
            "usage imported as counts has no accelerator that could be unavailable: name an owner"
        )
    state, owner = (UNAVAILABLE, None) if remedy.owner is None else (HELD, path_of(remedy.owner))
    contested = dispute.owner if dispute.line is None else lines[0]["owner"]
    return [
        Reattribution(
            UNNUMBERED,
            workload_id,
            accelerator_id,
            span.start_ms,
            span.end_ms,
            state,
            owner,
            contested,
        )
        for (workload_id, accelerator_id), spans_of_key in keyed.items()
        for span in spans_of_key
    ]


def _numbers(
    connection: Connection, table: str, column: str, names: Iterable[str | None]
) -> dict[str, int]:
    wanted = [name for name in names if name is not None]
    return dict(
        connection.execute(
            f"SELECT {column}, id FROM {table} WHERE {column} = ANY(%s)", (wanted,)
        ).fetchall()
    )


def _locked(connection: Connection, number: int) -> Dispute:
    connection.execute("SELECT FROM dispute WHERE id = %s FOR UPDATE", (number,))
    return read(connection, number)


def _say(connection: Connection, number: int, entry: DisputeEntry) -> None:
    connection.execute(
        "INSERT INTO dispute_entry (dispute_id, at_ms, who, kind, words) VALUES (%s, %s, %s,"
        " %s, %s)",
        (number, entry.at_ms, entry.who, entry.kind, entry.words),
    )


def _facts(dispute: Dispute) -> dict[str, object]:
    return {
        "owner": dict(dispute.owner),
        "reason": dispute.reason,
        "cost": dict(dispute.cost),
        "seal": dispute.seal,
    }


def listed(connection: Connection, states: Sequence[str] = disputes.STATES) -> list[Dispute]:
    """Disputes in these states, newest first, without what was said."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} {_FROM} WHERE d.state = ANY(%s) ORDER BY d.id DESC", (list(states),)
    )
    return [_dispute(row) for row in rows]


def waiting(connection: Connection, period: Period) -> list[Dispute]:
    """Disputes about time in the period that are not decided yet, by number."""
    open_disputes = listed(
        connection, [state for state in disputes.STATES if state not in disputes.RESOLVED]
    )
    return sorted(
        (dispute for dispute in open_disputes if dispute.period.clip(period)),
        key=lambda dispute: dispute.id,
    )


def read(connection: Connection, number: int) -> Dispute:
    """A dispute with all that was said. Raises NoDispute."""
    row = connection.execute(f"SELECT {_COLUMNS} {_FROM} WHERE d.id = %s", (number,)).fetchone()
    if row is None:
        raise NoDispute(f"there is no dispute {number}")
    rows = connection.execute(
        "SELECT at_ms, who, kind, words FROM dispute_entry WHERE dispute_id = %s ORDER BY id",
        (number,),
    )
    return replace(_dispute(row), entries=[DisputeEntry(*entry) for entry in rows])


def _dispute(row: Sequence[Any]) -> Dispute:
    return Dispute(
        id=row[0],
        owner=row[1],
        period=Period(row[2], row[3]),
        accelerator=row[4],
        workload=row[5],
        line=row[6],
        reason=row[7],
        state=row[8],
        opened_ms=row[9],
        opened_by=row[10],
        gpu_ns=int(row[11]),
        cost=row[12],
        seal=row[13],
        resolved_ms=row[14],
    )


def evidence(connection: Connection, number: int) -> str:
    """The evidence of a dispute as it was sealed. Raises NoDispute."""
    row = connection.execute("SELECT evidence FROM dispute WHERE id = %s", (number,)).fetchone()
    if row is None:
        raise NoDispute(f"there is no dispute {number}")
    return str(row[0])


def seal_holds(connection: Connection, dispute: Dispute) -> bool:
    """Whether the evidence still has its seal, and the audit log the same one from the opening."""
    noted = connection.execute(
        "SELECT after->>'seal' FROM audit WHERE what = 'dispute' AND subject = %s AND before IS"
        " NULL",
        (str(dispute.id),),
    ).fetchone()
    seal = disputes.seal_of(evidence(connection, dispute.id))
    return noted is not None and noted[0] == seal == dispute.seal


def billed_now(connection: Connection, dispute: Dispute) -> tuple[dict[str, int], bool]:
    """What the contested owner pays for the same time by now, corrections included, and whether it
    is rated.

    By currency, micro-units; of one contested line its workload and accelerator on that day count.
    Of adjustments contested alone these and their reversals count.
    """
    contest = Contest(dispute.owner, dispute.period, dispute.accelerator, dispute.workload)
    lines = lines_of(connection, contest)
    if is_about_adjustments(connection, dispute.id):
        names = {
            line["adjustment"] for line in json.loads(evidence(connection, dispute.id))["lines"]
        }
        entries = [
            (line, line.charge.adjustment) for line in lines if line.charge.adjustment is not None
        ]
        contested = {entry.id for _, entry in entries if entry.name in names}
        lines = [line for line, entry in entries if contested & {entry.id, entry.reverses}]
    _, cost = totals(lines)
    span = {"start": dispute.period.start_ms, "end": dispute.period.end_ms}
    waiting = connection.execute(
        "SELECT EXISTS (SELECT FROM day_recompute WHERE day_ms < %(end)s AND day_ms > %(start)s -"
        " 86400000) OR EXISTS (SELECT FROM hour_recompute WHERE hour_ms < %(end)s AND hour_ms >"
        " %(start)s - 3600000)",
        span,
    ).fetchone()
    return {name: cost.get(name, 0) for name in sorted({*cost, *dispute.cost})}, not (
        waiting and waiting[0]
    )
