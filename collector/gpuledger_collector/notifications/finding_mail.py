"""Mails about idle GPUs, anomalous spending, reclaimed GPUs and a team's week.

A mail to an owner is written like a colleague's: what is idle and since when, by which readings,
what it costs, the one command that frees it, and the one link that says that it is intended. It
accuses nobody.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from gpuledger_collector.accounting.money import Money, round_amounts
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.readable import hours_text
from gpuledger_collector.insight.anomalies.causes import UNUSED
from gpuledger_collector.insight.anomalies.detector import LONG_RUNNING_HOURS
from gpuledger_collector.insight.anomalies.spending_findings import (
    BY_LONG_RUNNING,
    HELD_MS,
    PILES_UP,
    UNUSUAL_HOURS,
)
from gpuledger_collector.insight.durations import lasting
from gpuledger_collector.insight.findings import AT_LISTED_RATES, Finding
from gpuledger_collector.insight.notifications.finding_rules import (
    LINK_MS,
    AnomalyNotice,
    IdleAccelerator,
    IdleNotice,
    IdleWorkload,
    Section,
    WastedUsage,
    WeeklySummary,
    reclaim_command,
)
from gpuledger_collector.insight.notifications.messages import Content
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimAction
from gpuledger_collector.notifications.amounts import csv_text, exact
from gpuledger_collector.notifications.links import AckLinks, PageLinks
from gpuledger_collector.notifications.templating import (
    BAD,
    CALM,
    WARN,
    MailBlock,
    MailPage,
    date,
    day,
    instant,
    safe_name,
)
from gpuledger_common.escapes import neutral
from gpuledger_common.plurals import plural

KINDS = {"slurm": "Slurm job", "kubernetes": "pod", "container": "container", "process": "process"}
STATES = {"never_used": "never used since the job got it", "gone_idle": "was used, then went idle"}
GIB = 2**30
MAX_ACCELERATORS = 8
MAX_ROWS = 10
MAX_USERS = 3
MAX_RUNS = 3
MAX_ID = 400
"""Of an id's characters: one that is cut is found by no command."""
FEW_HOURS = 4
MIN_ALIKE = 3
CAUSES = (
    "If it should be working: the usual causes are code that never moves to the GPU, a session that"
    " was left open, and a job that waits for its input or for one of its workers."
)
NO_PRICE = "no price is known"
INTENDED = "This is intended"
UNATTRIBUTED_NAME = "(unattributed)"
STORM = "storm"
"""State of a spending episode that was found from its runs (insight.anomalies)."""
HEADLINES = {
    "runaway": "a run of {name} is far beyond earlier ones",
    "retry storm": "{name} is started again and again",
    "plateau": "{name} holds GPUs and uses none",
    "leak": "it grows day by day",
    "new workload": "new workload {name}",
    "price": "a rate changed",
    "scale-up": "more GPUs for {name}",
    "many small": "many workloads cost more",
}
"""What an episode is about, by the cause of its evidence."""
DOES_NOTHING, DOES_NOT_END = ", which does nothing", ", which pile up"
PARTS = {"price": "Price", "volume": "GPU-hours", "mix": "Models"}
"""The parts of a change as mails call them: dearer, more of it, or of dearer models."""
TO_DO = {
    "runaway": "Ask {whom} whether {name} should still run, and on so many GPUs; if not, end it.",
    "retry storm": (
        "Ask {whom} whether the runs of {name} fail: the log of the last one says so. If they do,"
        " its retries should stop until it is mended."
    ),
    "plateau": "Ask {whom} whether the GPUs of {name} can be given back: nothing runs on them.",
    "leak": (
        "No single day stands out. Compare the GPUs of {name} with those of a week ago: replicas or"
        " sessions that are never ended grow like this."
    ),
    "new workload": "Ask {whom} what it is for, if you do not know of it.",
    "price": "Nothing has to be stopped. See whether the new rate is meant:",
    "scale-up": "Ask {whom} whether so many GPUs for {name} are needed, and for how long.",
    "many small": "No workload alone explains it. Begin with the first ones under What changed.",
}
IT_ENDED = "It has ended. Ask {whom} whether it was meant, so that it does not come back."
NOTHING_RUNS = "Ask {whom} to end {name}: its GPUs do nothing."
ALL_STAY = (
    "Ask {whom} why no run of {name} ends: replicas or sessions that are left behind grow so."
)
SEE_RATES = "gpuledger prices list"
READINGS = (
    ("utilization_ratio", "utilization {:.0%}"),
    ("sm_active_ratio", "SM activity {:.0%}"),
    ("memory_used_bytes", "{:.1f} GiB of memory held"),
    ("power_watts", "{:.0f} W"),
)
IdleHolding = tuple[IdleWorkload, IdleAccelerator]
"""An idle accelerator with the workload that holds it."""
IDLE_COLUMNS: Mapping[str, Callable[[IdleHolding], object]] = {
    "workload": lambda item: neutral(item[0].label),
    "user": lambda item: neutral(item[0].user),
    "node": lambda item: neutral(item[1].node),
    "gpu": lambda item: item[1].gpu_index,
    "accelerator": lambda item: neutral(item[1].finding.subject),
    "state": lambda item: item[1].finding.state,
    "since_ms": lambda item: item[1].finding.since_ms,
    "until_ms": lambda item: item[1].finding.until_ms,
    "cost": lambda item: exact(item[1].finding.cost_micro),
    "per_day": lambda item: exact(item[1].finding.per_day_micro),
    "currency": lambda item: item[1].finding.currency,
}


def idle(
    notice: IdleNotice, links: AckLinks | None = None, pages: PageLinks | None = None
) -> Content:
    """The mail about idle GPUs, to the owner, or with `notice.notified_ms` to the leads."""
    workloads = [section.workload for section in notice.sections]
    gpus = plural(sum(len(workload.accelerators) for workload in workloads), "GPU")
    cost, per_day = _costs(workloads)
    subject_name = (
        safe_name(workloads[0].label, 60) if len(workloads) == 1 else f"{len(workloads)} workloads"
    )
    since = instant(min(workload.since_ms for workload in workloads))
    subject = f"[GPU idle] {subject_name}: {gpus} idle since {since}" + (
        f", {per_day} a day" if per_day else ""
    )
    have = "has" if gpus == "1 GPU" else "have"
    money = f"{cost} so far, {per_day} a day" if cost else NO_PRICE
    intro = [CAUSES]
    if notice.notified_ms is not None:
        subject = f"{subject}, no response"
        people = ", ".join(notice.notified) or "The owner"
        intro = [
            f"{people} was notified on {instant(notice.notified_ms)}, and has neither freed the"
            " GPUs nor said that this is intended."
        ]
    elif not notice.to_owner:
        intro = ["No address of the owner is known, so this mail goes to the team.", CAUSES]
    return MailPage(
        subject=subject,
        verdict=f"{gpus} of {subject_name} {have} been idle since {since}: {money}.",
        blocks=[_workload_block(section, notice, links) for section in notice.sections],
        why=_why(notice, links),
        tone=BAD if notice.notified_ms is not None else WARN,
        open=None if pages is None else _idle_page(workloads, pages),
        intro=intro,
        actions=[("See all your idle GPUs and their evidence", "gpuledger idle --now")],
        notes=[
            _coverage(workloads),
            (
                "Confidence: how often pauses that had lasted as long continued for another half"
                " hour on this fleet."
            ),
        ],
        attachments={"idle.csv": idle_csv(notice.sections)},
    ).content()


def _idle_page(workloads: Sequence[IdleWorkload], pages: PageLinks) -> tuple[str, str]:
    """The receipt of the one job; of several, the idle GPUs of their team, of all where they are of
    several teams.
    """
    if len(workloads) == 1:
        return "Open the job", pages.job(workloads[0].external_id)
    teams = {workload.team for workload in workloads}
    return "Open your idle GPUs", pages.idle(teams.pop() if len(teams) == 1 else "")


def _costs(workloads: Iterable[IdleWorkload]) -> tuple[str, str]:
    """Cost so far, and of a further day; empty without a price."""
    costs: dict[str, int] = {}
    days: dict[str, int] = {}
    for workload in workloads:
        for currency, micro, per_day in workload.money():
            costs[currency] = costs.get(currency, 0) + micro
            days[currency] = days.get(currency, 0) + per_day
    return _sum_text(costs), _sum_text(days)


def _sum_text(sums: Mapping[str, int]) -> str:
    return " and ".join(str(Money(sums[currency], currency)) for currency in sorted(sums))


def _workload_block(section: Section, notice: IdleNotice, links: AckLinks | None) -> MailBlock:
    workload = section.workload
    accelerators = workload.accelerators
    kind = KINDS.get(workload.kind, workload.kind)
    user = f", {safe_name(workload.user, 60)}" if workload.user else ""
    held = plural(max(workload.held, len(accelerators)), "GPU")
    cost, per_day = _costs([workload])
    states = sorted({STATES.get(each.finding.state, each.finding.state) for each in accelerators})
    rows = [
        ("Idle", f"{len(accelerators)} of its {held}: {_places(accelerators)}"),
        (
            "Since",
            f"{instant(workload.since_ms)}, for {lasting(workload.until_ms - workload.since_ms)}",
        ),
        ("Why", "; ".join(states)),
        ("Readings", _readings(accelerators)),
        ("Cost", f"{cost} so far, {per_day} for each further day" if cost else NO_PRICE),
        ("Confidence", f"{round(workload.confidence * 100)} % of such pauses continue"),
    ]
    link = None
    if links is not None:
        link = (INTENDED, links.notification(section.notification_id, notice.at_ms + LINK_MS))
    place = f"{kind} {safe_name(workload.external_id, 60)}{user}"
    return MailBlock(safe_name(workload.label), place, rows, _commands(workload), link)


def _commands(workload: IdleWorkload) -> list[tuple[str, str]]:
    command = reclaim_command(workload)
    if not command:
        others_work = (
            "The other GPUs are busy, so nothing should be ended: ask for fewer GPUs next time."
        )
        return [] if workload.is_entirely_idle else [(others_work, "")]
    count = len(workload.accelerators)
    commands = [("Free it" if count == 1 else f"Free all {count}", command)]
    if workload.kind == "kubernetes":
        commands.append(
            ("A controller may start the pod again: if it has one, scale that down instead.", "")
        )
    return commands


def _places(accelerators: Sequence[IdleAccelerator]) -> str:
    """`n07 GPU 0, 1, 2; n08 GPU 4 (NVIDIA H100)`."""
    nodes: dict[str, list[str]] = {}
    ordered = sorted(
        accelerators, key=lambda each: (each.node, each.gpu_index or 0, each.finding.subject)
    )
    for accelerator in ordered[:MAX_ACCELERATORS]:
        index = (
            accelerator.finding.subject
            if accelerator.gpu_index is None
            else str(accelerator.gpu_index)
        )
        nodes.setdefault(safe_name(accelerator.node, 60), []).append(index)
    text = "; ".join(f"{node} GPU {', '.join(indexes)}".strip() for node, indexes in nodes.items())
    hidden = len(accelerators) - MAX_ACCELERATORS
    models = ", ".join(
        sorted({accelerator.model for accelerator in accelerators if accelerator.model})
    )
    return text + (f" and {hidden} more" if hidden > 0 else "") + (f" ({models})" if models else "")


def _readings(accelerators: Sequence[IdleAccelerator]) -> str:
    """Mean readings over the accelerators; a metric that nobody measured is left out, never 0."""
    texts = []
    for name, template in READINGS:
        evidence = [accelerator.finding.evidence.get(name) for accelerator in accelerators]
        # Mean over the GPUs that have the reading: an absent one is unknown, not zero.
        values = [value for value in evidence if value is not None]
        if values:
            mean = sum(values) / len(values)
            texts.append(
                template.format(mean / GIB if name == "memory_used_bytes" else mean).replace(
                    "%", " %"
                )
            )
    each = " each" if len(accelerators) > 1 else ""
    return ", ".join(texts) + each if texts else "none, except that no process ran"


def _coverage(workloads: Sequence[IdleWorkload]) -> str:
    seen = instant(min(workload.until_ms for workload in workloads))
    unpriced = sum(
        each.finding.cost_micro is None for workload in workloads for each in workload.accelerators
    )
    missing = f" {plural(unpriced, 'GPU')} without a price: in no amount here." if unpriced else ""
    return (
        f"Seen up to {seen}.{missing} Cost is the idle time at the rates in force. Warm replicas of"
        " services, short pauses and time without data are never reported."
    )


def _why(notice: IdleNotice, links: AckLinks | None) -> str:
    days = plural(notice.escalate_days, "day")
    if notice.notified_ms is not None:
        return f"You lead the team, and are notified once when nobody responds for {days}."
    text = "You are notified of each such episode once."
    if notice.escalate_days:
        text += f" If nobody responds within {days}, the team's lead is notified."
    if links is not None:
        return (
            f"{text} The button works until {instant(notice.at_ms + LINK_MS)}; opening its page"
            " changes nothing."
        )
    commands = (
        f"`gpuledger notifications ack {section.notification_id}`"
        for section in notice.sections[:3]
    )
    return f"{text} To say that it is intended: {' or '.join(commands)}."


def idle_csv(sections: Sequence[Section]) -> str:
    """Every accelerator with its cost to the micro-unit; no cell is a formula."""
    holdings = (
        (section.workload, accelerator)
        for section in sections
        for accelerator in section.workload.accelerators
    )
    return csv_text(IDLE_COLUMNS, holdings)


def anomaly(
    notice: AnomalyNotice, links: AckLinks | None = None, pages: PageLinks | None = None
) -> Content:
    """The mail about anomalous spending: what it comes to, and which workloads caused it."""
    finding, evidence = notice.finding, notice.finding.evidence
    who = safe_name(finding.subject, 80)
    # The cost is that of the one job; the team as a whole may have spent less.
    if finding.state == STORM:
        who = f"{_first_workload(evidence)} of {who}"
    cause = str(evidence.get("cause", ""))
    names = {
        "name": _subject_of(evidence),
        "whom": users_text(notice.users) or "the team",
    }
    actions = [("See the hours and the workloads", "gpuledger anomalies")]
    link = None
    if links is not None:
        link = (INTENDED, links.notification(notice.notification_id, notice.at_ms + LINK_MS))
    else:
        acknowledge = f"gpuledger notifications ack {notice.notification_id}"
        actions.insert(0, ("If it is intended, say so", acknowledge))
    if cause in TO_DO:
        is_over = finding.resolved_ms is not None and cause != "price"
        to_do = IT_ENDED if is_over else _to_do(evidence, cause)
        actions.insert(0, (to_do.format_map(names), SEE_RATES if cause == "price" else ""))
    return MailPage(
        subject=f"[GPU spending] {headline(finding)}, {pace_text(finding)} since"
        f" {instant(finding.since_ms)}",
        verdict=_anomaly_verdict(finding, who),
        blocks=[
            MailBlock(f"Spending of {who}", "", _anomaly_rows(notice), (), link),
            *_anomaly_blocks(finding),
        ],
        why=_why_anomaly(notice),
        tone=BAD if (finding.cost_micro or 0) >= 0 else CALM,
        open=None if pages is None else ("Open the episode", pages.anomalies(finding.subject)),
        actions=actions,
        notes=[f"Amounts are exact, {AT_LISTED_RATES}.{_estimate_note(finding)}"],
    ).content()


def headline(finding: Finding) -> str:
    """Whose spending it is, and what it is about: `vision: new workload sweep-0 and others`."""
    evidence = finding.evidence
    cause = str(evidence.get("cause", ""))
    text = HEADLINES.get(cause, "unusual spending").format(name=_subject_of(evidence))
    if cause == "new workload":
        text += DOES_NOTHING if _does_nothing(evidence) else ""
        text += DOES_NOT_END if evidence.get(PILES_UP) else ""
    return f"{safe_name(finding.subject, 80)}: {text}"


def _to_do(evidence: Mapping[str, Any], cause: str) -> str:
    """What to ask for, by what is known: GPUs that do nothing are given back, whatever they are
    for.
    """
    if _does_nothing(evidence) and cause in {"runaway", "new workload", "scale-up"}:
        return NOTHING_RUNS
    return ALL_STAY if evidence.get(PILES_UP) else TO_DO[cause]


def _does_nothing(evidence: Mapping[str, Any]) -> bool:
    """Whether the GPUs of the cause are known to have worked in next to none of their time; of most
    of it that has to be known.
    """
    known_ms, held_ms = _known_ms(evidence), int(evidence.get(HELD_MS, 0))
    is_known = held_ms > 0 and 2 * known_ms >= held_ms
    return is_known and int(evidence["busy_ms"]) <= UNUSED * known_ms


def _known_ms(evidence: Mapping[str, Any]) -> int:
    """GPU-time of the cause of which it is known whether the GPUs worked."""
    return int(evidence.get("busy_ms", 0)) + int(evidence.get("idle_ms", 0))


def _why_anomaly(notice: AnomalyNotice) -> str:
    if notice.collected_ms is None:
        return "You are notified of each such episode once."
    return (
        "You are notified of each such episode once; of this one again, since it has grown after"
        f" the mail of {day(notice.collected_ms)}, which had it among small ones."
    )


def _first_workload(evidence: Mapping[str, Any]) -> str:
    """The name that the cause is about first; empty where it is about none."""
    return safe_name(str(next(iter(evidence.get("workloads", ())), "")), 60)


def _subject_of(evidence: Mapping[str, Any]) -> str:
    """The workloads that the cause is about, the first by its name."""
    others = " and others" if len(evidence.get("workloads", ())) > 1 else ""
    return f"{_first_workload(evidence) or 'it'}{others}"


def _change_text(finding: Finding) -> str:
    """`USD 412.00 more`, or `less`: a storm of short runs, or a dearer rate in a quiet week, may
    cost less than the hours before.
    """
    cost = finding.cost_micro or 0
    return f"{Money(abs(cost), finding.currency or '')} {'more' if cost >= 0 else 'less'}"


def pace_text(finding: Finding) -> str:
    """`USD 412.00 a day more` of what goes on and costs more, else what it came to."""
    if finding.resolved_ms is not None or not finding.per_day_micro or finding.per_day_micro < 0:
        return _change_text(finding)
    return f"{Money(finding.per_day_micro, finding.currency or '')} a day more"


def spent_text(finding: Finding) -> str:
    """What the episode cost in all, and the same hours before; empty where that is not known."""
    if (amounts := _spent_and_usual(finding)) is None:
        return ""
    spent, usual = amounts
    # Of the amounts as they are read, so that whoever computes it again finds the same.
    percent = (
        f" ({round(100 * (spent.minor - usual.minor) / usual.minor):+} %)" if usual.minor else ""
    )
    return f"{spent} instead of {usual}{percent}"


def shown_change(finding: Finding) -> Money:
    """What it costs more, as the amounts of `spent_text` differ: so that whoever adds up those of
    several finds their sum.
    """
    if (amounts := _spent_and_usual(finding)) is None:
        return Money(finding.cost_micro or 0, finding.currency or "")
    spent, usual = amounts
    return Money.from_minor(spent.minor - usual.minor, spent.currency)


def _spent_and_usual(finding: Finding) -> tuple[Money, Money] | None:
    """What the episode cost, and the same hours before; None where that is not known."""
    before = finding.evidence.get("before_micro")
    if before is None or finding.cost_micro is None:
        return None
    currency = finding.currency or ""
    return Money(before + finding.cost_micro, currency), Money(before, currency)


def _use_text(evidence: Mapping[str, Any]) -> str:
    """How much of its time that is known the GPUs of the cause worked; empty where none is known."""
    known_ms = _known_ms(evidence)
    if not known_ms or not (name := _first_workload(evidence)):
        return ""
    others = " and others" if len(evidence["workloads"]) > 1 else ""
    share = round(100 * int(evidence.get("busy_ms", 0)) / known_ms)
    return f"GPUs of {name}{others} were busy in {share} % of their time"


def _runs_text(runs: Sequence[str]) -> str:
    """Ids of the latest runs, as `gpuledger runs show` takes them, the latest first."""
    shown = [safe_name(run, MAX_ID) for run in reversed(runs[-MAX_RUNS:])]
    return ", ".join(shown) + (" and earlier ones" if len(runs) > MAX_RUNS else "")


def users_text(users: Sequence[str]) -> str:
    """The first users by name, and how many others there are."""
    names = [safe_name(user, 60) for user in users]
    if len(names) > MAX_USERS:
        names[MAX_USERS:] = [plural(len(names) - MAX_USERS, "other")]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _anomaly_verdict(finding: Finding, who: str) -> str:
    """What happened, how much it is, since when, and whether it goes on."""
    verdict = (
        f"{who} has spent {_change_text(finding)} than in {_hours_before(finding)} since"
        f" {instant(finding.since_ms)}."
    )
    if sentence := safe_name(str(finding.evidence.get("sentence", "")), 400):
        verdict += f" {'Cause' if finding.state == 'price' else 'Likely cause'}: {sentence}."
    if finding.resolved_ms is not None:
        return f"{verdict} It ended at {instant(finding.until_ms)}."
    if (finding.cost_micro or 0) > 0 and finding.per_day_micro:
        hour, day_long = (
            Money(micro, finding.currency or "")
            for micro in (finding.per_day_micro * HOUR_MS // DAY_MS, finding.per_day_micro)
        )
        verdict += f" That is {hour} an hour on average, {day_long} if a day goes on like this"
        verdict += ", and more as long as runs pile up." if finding.evidence.get(PILES_UP) else "."
    return verdict


def _estimate_note(finding: Finding) -> str:
    """What is no fact: that it is unusual, but for a rate of the price book."""
    return "" if finding.state == "price" else " That they are unusual is an estimate."


def _hours_before(finding: Finding) -> str:
    """The hours that an episode is compared with."""
    days = int(finding.evidence.get("days_before", 7))
    return f"the same hours {'a week' if days == 7 else plural(days, 'day')} before"


def _anomaly_rows(notice: AnomalyNotice) -> list[tuple[str, str]]:
    finding = notice.finding
    currency = finding.currency or ""
    state = "ongoing, seen up to" if finding.resolved_ms is None else "ended"
    rows = [("When", f"since {instant(finding.since_ms)}, {state} {instant(finding.until_ms)}")]
    if notice.users:
        rows.append(("Run by", users_text(notice.users)))
    if notice.runs:
        rows.append(("Runs", _runs_text(notice.runs)))
    if use := _use_text(finding.evidence):
        rows.append(("Use", use))
    spent = spent_text(finding)
    rows.append(
        ("Cost", spent) if spent else ("Change", str(Money(finding.cost_micro or 0, currency)))
    )
    amounts = _amounts([int(finding.evidence.get(f"{part}_micro", 0)) for part in PARTS], currency)
    parts = [
        (label, amount)
        for label, amount in zip(PARTS.values(), amounts, strict=True)
        if amount != str(Money(0, currency))
    ]
    # One part alone is the change itself, and a storm is about its runs.
    rows += parts if len(parts) > 1 and finding.state != STORM else ()
    rows.append(("How sure", _confidence_text(finding)))
    return rows


def _anomaly_blocks(finding: Finding) -> list[MailBlock]:
    """What moved the cost, and rates that changed; without any of them no block."""
    evidence, blocks = finding.evidence, []
    drivers, currency = evidence.get("drivers", []), finding.currency or ""
    amounts = _amounts([int(driver["change_micro"]) for driver in drivers], currency)
    models = {driver["model"] for driver in drivers if driver.get("model")}
    names = [
        safe_name(str(driver["workload"]), 60)
        + (f" ({driver['model']})" if len(models) > 1 and driver.get("model") else "")
        for driver in drivers
    ]
    zero = str(Money(0, currency))
    changes = _together([each for each in zip(names, amounts, strict=True) if each[1] != zero])
    is_price = evidence.get("cause") == "price"
    if changes:
        on = f", all on {safe_name(models.pop())}" if len(models) == 1 else ""
        title = "What pays the new rate" if is_price else "What changed"
        blocks.append(MailBlock(title, f"against {_hours_before(finding)}{on}", changes))
    rates = [
        (f"{rate['model']} in {rate['pool']}", f"{rate['before']} before, {rate['now']} now")
        for rate in evidence.get("rates", [])
    ]
    # Where they are the cause, its sentence says them.
    if rates and not is_price:
        blocks.append(MailBlock("Rates that changed", "", rates))
    return blocks


def _together(changes: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Lines in a row with one amount as one of them, from three on: `sweep-0 and 7 more`, each."""
    lines = []
    for amount, alike in groupby(changes, key=itemgetter(1)):
        names = [name for name, _ in alike]
        if len(names) < MIN_ALIKE:
            lines += [(name, amount) for name in names]
        else:
            lines.append((f"{names[0]} and {len(names) - 1} more", f"{amount} each"))
    return lines


def _confidence_text(finding: Finding) -> str:
    """On what it rests that an episode is unusual: its hours, the price book, or less."""
    if finding.state == STORM:
        return "likely, not certain: how its runs ended is not known"
    if finding.state in {"price", "both"}:
        return "certain: the price book has the new rate"
    if "highest_score" not in finding.evidence:
        return "a guess: found within minutes, before an hour was complete"
    hours = (finding.until_ms - finding.since_ms) // HOUR_MS
    flagged = finding.evidence.get(UNUSUAL_HOURS, round(finding.confidence * hours))
    seen = (
        f", seen in what runs for over {LONG_RUNNING_HOURS} hours"
        if finding.evidence.get(BY_LONG_RUNNING)
        else ""
    )
    if hours < FEW_HOURS:
        return f"early, from {plural(hours, 'hour')}: it may end by itself{seen}"
    return f"over {plural(hours, 'hour')}, far above usual in {flagged} of them{seen}"


def write_reclaim_mail(action: ReclaimAction, workload: IdleWorkload | None) -> Content:
    """The mail about a workload that was ended, to those who had been notified before."""
    external_id = str(action.target.get("workload", ""))
    name = safe_name(str(action.target.get("name") or external_id), 60)
    rows = [("Workload", f"{name} ({safe_name(external_id, 60)})"), ("Done", action.what)]
    if workload is not None and (cost := _costs([workload])[0]):
        rows.append(("It had cost", cost))
    return MailPage(
        subject=f"[GPU idle] {name} was ended: its GPUs were idle",
        verdict=(
            f"{name} was ended because its GPUs had been idle for long and nobody said that this is"
            " intended."
        ),
        blocks=[MailBlock("What was done", "", rows)],
        why=(
            "Your team opted in to this ([[action]]), and you were notified before. It is in the"
            " audit log."
        ),
        tone=BAD,
        actions=[("See what else would be ended, and when", "gpuledger actions dry-run")],
    ).content()


def summary(week: WeeklySummary, pages: PageLinks | None = None) -> Content:
    """The mail about a team's week, on one screen."""
    team = safe_name(week.team, 80) or UNATTRIBUTED_NAME
    span = f"{day(week.start_ms, week.zone)} to {day(week.end_ms - 1, week.zone)}"
    hours = f"{hours_text(sum(usage.gpu_ns for usage in week.wasted))} GPU-hours"
    costs: dict[str, int] = {}
    for usage in week.wasted:
        if usage.currency is not None and usage.cost_micro is not None:
            costs[usage.currency] = costs.get(usage.currency, 0) + usage.cost_micro
    cost = _sum_text(costs) or NO_PRICE
    handled = f"{week.ended} ended since, {week.acknowledged} intended"
    rows = [
        ("Idle", f"{hours} of {plural(len(week.wasted), 'workload')}"),
        ("Cost", cost),
        ("Week before", _week_before(week)),
        ("Notified", f"{plural(week.notified, 'episode')}: {handled}"),
        ("Ongoing", plural(sum(usage.ongoing for usage in week.wasted), "workload")),
    ]
    dearest = [
        _week_row(*pair) for pair in zip(week.wasted, _week_costs(week.wasted), strict=True)
    ][:MAX_ROWS]
    if rest := week.wasted[MAX_ROWS:]:
        dearest.append(
            (f"{len(rest)} others", f"{hours_text(sum(usage.gpu_ns for usage in rest))} GPU-hours")
        )
    notes = ["GPU-hours and cost are of this week alone, at the rates that were in force."]
    if week.unreachable:
        users = ", ".join(safe_name(user, 40) for user in week.unreachable[:20])
        notes.insert(
            0,
            f"Nobody could be notified of the GPUs of {users}: add their addresses in [[contact]].",
        )
    dates = f"--from {date(week.start_ms, week.zone)} --to {date(week.end_ms, week.zone)}"
    # A page shows months; a week in two of them is looked for in the later one.
    months = date(week.end_ms - 1, week.zone)[:7]
    option = f" --team {shlex.quote(week.team)}" if week.team else ""
    return MailPage(
        subject=f"[GPU idle] {team}, {span}: {hours} idle, {cost}",
        verdict=f"{team} held {hours} that were idle, {span}: {cost}{_compare_with_week_before(week, costs)}.",
        open=(
            None
            if pages is None
            else ("Open the idle GPUs", pages.idle(week.team or UNATTRIBUTED_NAME, months))
        ),
        blocks=[MailBlock("The week", "", rows), MailBlock("The dearest", "", dearest)],
        why=(
            "You lead the team, and get this on the first day of each week ([[contact]] summary ="
            " false ends it)."
        ),
        tone=CALM,
        actions=[("See all of them", f"gpuledger idle {dates}{option}")],
        notes=notes,
    ).content()


def _compare_with_week_before(week: WeeklySummary, costs: Mapping[str, int]) -> str:
    """What that is more or less than in the week before, in words; empty where that week is not
    known.

    In money where both weeks are priced in one currency; else in GPU-hours, which are always known.
    """
    before = week.before
    if before is None:
        return ""
    is_priced = before.is_priced and all(usage.cost_micro is not None for usage in week.wasted)
    gpu_ns = sum(usage.gpu_ns for usage in week.wasted)
    if is_priced and len(costs) == 1 and set(before.costs) <= set(costs):
        ((currency, micro),) = costs.items()
        change = micro - before.costs.get(currency, 0)
        amount = str(Money(abs(change), currency))
    else:
        change = gpu_ns - before.gpu_ns
        amount = f"{hours_text(abs(change))} GPU-hours"
    if change == 0:
        return ", as in the week before"
    return f", {amount} {'more' if change > 0 else 'less'} than the week before"


def _week_before(week: WeeklySummary) -> str:
    if week.before is None:
        return "not known: the ledger did not cover it"
    if not week.before.gpu_ns:
        return "nothing idle"
    return f"{hours_text(week.before.gpu_ns)} GPU-hours, {_sum_text(week.before.costs) or NO_PRICE}"


def _week_costs(wasted: Sequence[WastedUsage]) -> list[str]:
    """Costs rounded together by currency, so that the rows shown add up to the total shown."""
    texts = [NO_PRICE] * len(wasted)
    for currency in {usage.currency for usage in wasted if usage.currency is not None}:
        indexes = [index for index, usage in enumerate(wasted) if usage.currency == currency]
        amounts = _amounts([wasted[index].cost_micro or 0 for index in indexes], currency)
        for index, amount in zip(indexes, amounts, strict=True):
            texts[index] = amount
    return texts


def _amounts(micros: Sequence[int], currency: str) -> list[str]:
    """Parts of a total as people read them, rounded together so that they add up to the total
    shown.
    """
    return [str(part) for part in round_amounts(micros, currency)]


def _week_row(usage: WastedUsage, cost: str) -> tuple[str, str]:
    name = safe_name(usage.label, 40) + (f" ({safe_name(usage.user, 30)})" if usage.user else "")
    return name, f"{hours_text(usage.gpu_ns)} GPU-hours, {cost}" + (
        ", ongoing" if usage.ongoing else ""
    )
