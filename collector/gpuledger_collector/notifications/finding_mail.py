"""Notifications about idle GPUs, about spending that stands out, and the sum of a week, as the people get them.

A letter to an owner is a colleague's: what is idle, since when, by what evidence, what it costs, the one command that
gives it back, and the one link that says that it is meant so. It accuses nobody.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger_collector.accounting.budgets import money_text
from gpuledger_collector.accounting.money import MICRO, minor_digits, to_minor_units
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.notifications.links import AckLinks
from gpuledger_collector.notifications.templating import (
    BAD,
    CALM,
    WARN,
    Block,
    Page,
    date,
    day,
    instant,
    lasting,
    named,
)
from gpuledger_collector.storage.notifications.finding_rules import (
    LINK_MS,
    Action,
    AnomalyNews,
    Card,
    Holding,
    IdleNews,
    Section,
    SummaryNews,
    Wasted,
    give_back,
)
from gpuledger_collector.storage.notifications.messages import Content
from gpuledger_common.escapes import neutral
from gpuledger_common.plurals import plural

KINDS = {"slurm": "Slurm job", "kubernetes": "pod", "container": "container", "process": "process"}
STATES = {"never_used": "never used since it was given", "gone_idle": "worked, and then stopped working"}
GIB = 2**30
SHOWN_CARDS = 8
SHOWN_ROWS = 10
CAUSES = (
    "If it should be working: the usual causes are code that never moves to the GPU, a session that was left open, "
    "and a job that waits for its input or for one of its workers."
)
NO_PRICE = "no price is known"
STORM = "storm"
"""State of an episode that its runs told (jobs.find_anomalies)."""


def idle(news: IdleNews, links: AckLinks | None = None) -> Content:
    """To the owner, or, with `news.told_ms`, to those above."""
    cards = sum(len(section.holding.cards) for section in news.sections)
    cost, more = _sums([section.holding for section in news.sections])
    what = _subject_of(news.sections)
    since = instant(min(section.holding.since_ms for section in news.sections))
    has = "has" if cards == 1 else "have"
    subject = f"[GPU idle] {what}: {plural(cards, 'GPU')} idle since {since}" + (f", {more} a day" if more else "")
    money = f"{cost} so far, {more} a day" if cost else NO_PRICE
    verdict = f"{plural(cards, 'GPU')} of {what} {has} done nothing since {since}: {money}."
    intro = [CAUSES]
    if news.told_ms is not None:
        subject = f"{subject}, nobody answered"
        told = ", ".join(news.told_to) or "its people"
        intro = [
            f"{told} was told on {instant(news.told_ms)}, and has neither given them back nor said that it is meant so."
        ]
    elif not news.to_owner:
        intro = ["No address of their owner is known, so it is told to the team.", CAUSES]
    page = Page(
        subject=subject,
        verdict=verdict,
        blocks=[_block(section, news, links) for section in news.sections],
        why=_why(news, links),
        tone=BAD if news.told_ms is not None else WARN,
        intro=intro,
        actions=[("See every idle GPU of yours and its evidence", "gpuledger idle --now")],
        notes=[_known(news.sections), _sure()],
        attachments={"idle.csv": idle_csv(news.sections)},
    )
    return page.content()


def _subject_of(sections: Sequence[Section]) -> str:
    holding = sections[0].holding
    if len(sections) > 1:
        return f"{len(sections)} workloads"
    return named(holding.label, 60)


def _sums(holdings: Sequence[Holding]) -> tuple[str, str]:
    """What they cost so far, and for a further day; empty where no price is known."""
    cost: dict[str, int] = {}
    more: dict[str, int] = {}
    for holding in holdings:
        for currency, micro, per_day in holding.money():
            cost[currency] = cost.get(currency, 0) + micro
            more[currency] = more.get(currency, 0) + per_day
    said = [" and ".join(money_text(sums[one], one) for one in sorted(sums)) for sums in (cost, more)]
    return said[0], said[1]


def _block(section: Section, news: IdleNews, links: AckLinks | None) -> Block:
    holding = section.holding
    kind = KINDS.get(holding.kind, holding.kind)
    who = f", {named(holding.user, 60)}" if holding.user else ""
    idle_cards = f"{len(holding.cards)} of its {plural(max(holding.held, len(holding.cards)), 'GPU')}"
    cost, more = _sums([holding])
    rows = [
        ("Idle", f"{idle_cards}: {_places(holding.cards)}"),
        ("Since", f"{instant(holding.since_ms)}, for {lasting(holding.until_ms - holding.since_ms)}"),
        ("Why", "; ".join(sorted({STATES.get(card.finding.state, card.finding.state) for card in holding.cards}))),
        ("Seen", _evidence(holding.cards)),
        ("Cost", f"{cost} so far, {more} for each day more" if cost else NO_PRICE),
        ("How sure", f"{round(holding.confidence * 100)} % of such pauses last on"),
    ]
    link = None
    if links is not None:
        link = ("It is meant so", links.notification(section.notification_id, news.at_ms + LINK_MS))
    return Block(named(holding.label), f"{kind} {named(holding.external_id, 60)}{who}", rows, _commands(holding), link)


def _commands(holding: Holding) -> list[tuple[str, str]]:
    command = give_back(holding)
    if command:
        count = len(holding.cards)
        said = [("Give it back" if count == 1 else f"Give all {count} back", command)]
        if holding.kind == "kubernetes":
            said.append(("A controller may start the pod again: scale it down instead where it has one.", ""))
        return said
    if not holding.whole:
        return [("The others work, so nothing is to be ended: ask for fewer GPUs the next time.", "")]
    return []


def _places(cards: Sequence[Card]) -> str:
    """`n07 GPU 0, 1, 2; n08 GPU 4 (NVIDIA H100)`."""
    nodes: dict[str, list[str]] = {}
    for card in sorted(cards, key=lambda one: (one.node, one.gpu_index or 0, one.finding.subject))[:SHOWN_CARDS]:
        place = nodes.setdefault(named(card.node, 60), [])
        place.append(card.finding.subject if card.gpu_index is None else str(card.gpu_index))
    said = "; ".join(f"{node} GPU {', '.join(numbers)}".strip() for node, numbers in nodes.items())
    more = len(cards) - SHOWN_CARDS
    models = ", ".join(sorted({card.model for card in cards if card.model}))
    return said + (f" and {more} more" if more > 0 else "") + (f" ({models})" if models else "")


def _evidence(cards: Sequence[Card]) -> str:
    """Means over the cards of what was read while it lasted; what nobody read is left out, never 0."""
    said = []
    for name, form in (
        ("utilization_ratio", "utilisation {:.0%}"),
        ("sm_active_ratio", "SM activity {:.0%}"),
        ("memory_used_bytes", "{:.1f} GiB of memory held"),
        ("power_watts", "{:.0f} W"),
    ):
        values = [card.finding.evidence[name] for card in cards if card.finding.evidence.get(name) is not None]
        if values:
            mean = sum(values) / len(values)
            said.append(form.format(mean / GIB if name == "memory_used_bytes" else mean).replace("%", " %"))
    each = " each" if len(cards) > 1 else ""
    return ", ".join(said) + each if said else "no reading but that nothing ran"


def _known(sections: Sequence[Section]) -> str:
    seen = instant(min(section.holding.until_ms for section in sections))
    unpriced = sum(card.finding.cost_micro is None for section in sections for card in section.holding.cards)
    less = f" {plural(unpriced, 'GPU')} without a price: in no amount here." if unpriced else ""
    return (
        f"Seen up to {seen}.{less} Cost is the idle time at the rates in force. Warm replicas of services, short "
        "pauses and time without data are never told."
    )


def _sure() -> str:
    return "How sure: how often pauses that lasted as long went on for another half hour, here."


def _why(news: IdleNews, links: AckLinks | None) -> str:
    if news.told_ms is not None:
        return f"You lead the team, and are told once when nobody answers for {plural(news.escalate_days, 'day')}."
    said = "You are told of each such episode once."
    if news.escalate_days:
        said += f" If nobody answers within {plural(news.escalate_days, 'day')}, the team's lead is told."
    if links is not None:
        said += f" The button serves until {instant(news.at_ms + LINK_MS)}; opening its page changes nothing."
    else:
        numbers = " or ".join(
            f"`gpuledger notifications ack {section.notification_id}`" for section in news.sections[:3]
        )
        said += f" To say that it is meant so: {numbers}."
    return said


def idle_csv(sections: Sequence[Section]) -> str:
    """Every accelerator with its money to the micro-unit; cells are no formulas."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            "workload",
            "user",
            "node",
            "gpu",
            "accelerator",
            "state",
            "since_ms",
            "until_ms",
            "cost",
            "per_day",
            "currency",
        ]
    )
    for section in sections:
        for card in section.holding.cards:
            one = card.finding
            writer.writerow(
                [
                    neutral(section.holding.label),
                    neutral(section.holding.user),
                    neutral(card.node),
                    "" if card.gpu_index is None else card.gpu_index,
                    neutral(one.subject),
                    one.state,
                    one.since_ms,
                    one.until_ms,
                    _exact(one.cost_micro),
                    _exact(one.per_day_micro),
                    one.currency or "",
                ]
            )
    return out.getvalue()


def _exact(micro: int | None) -> str:
    if micro is None:
        return ""
    return f"{'-' if micro < 0 else ''}{abs(micro) // MICRO}.{abs(micro) % MICRO:06d}"


def anomaly(news: AnomalyNews, links: AckLinks | None = None) -> Content:
    """Spending that stands out: what it comes to, and which workloads moved it."""
    one, evidence = news.finding, news.finding.evidence
    currency = one.currency or ""
    change = money_text(one.cost_micro or 0, currency)
    more = (one.cost_micro or 0) >= 0
    # A storm of short runs, or a dearer rate in a quiet week, may cost less than the hours before.
    said = f"{money_text(abs(one.cost_micro or 0), currency)} {'more' if more else 'less'}"
    who = named(one.subject, 80)
    if one.state == STORM:  # its money is that of the one job, and the team as a whole may have spent less
        who = f"{named(str(evidence['workloads'][0]), 60)} of {who}"
    since = instant(one.since_ms)
    why = {
        "price": "a rate changed",
        "usage": "it uses more",
        "both": "it uses more, and a rate changed",
        STORM: "one job is started again and again",
    }
    verdict = f"{who} has spent {said} than {_before(evidence)} since {since}: {why.get(one.state, one.state)}."
    if evidence.get("cause"):
        verdict += f" It looks like {_cause_text(evidence)}."
    parts = [int(evidence.get(f"{name}_micro", 0)) for name in ("price", "volume", "mix")]
    rows = [
        ("Since", since),
        ("Seen up to", instant(one.until_ms)),
        ("Change", change),
        *(
            (name, said)
            for name, said in zip(("Price", "Volume", "Mix"), _amounts(parts, currency), strict=True)
            if said != money_text(0, currency)
        ),
        *([("A day more", money_text(one.per_day_micro or 0, currency))] if more else []),
        ("How sure", _how_sure(one)),
    ]
    blocks = [Block(f"Spending of {who}", "", rows, (), _anomaly_link(news, links))]
    moved = evidence.get("drivers", [])
    drivers = [
        (named(str(row["workload"]), 60) + (f" ({row['model']})" if row.get("model") else ""), amount)
        for row, amount in zip(moved, _amounts([int(row["change_micro"]) for row in moved], currency), strict=True)
    ]
    if drivers:
        blocks.append(Block("What moved it", "The changes add up to the whole, in price, volume and mix.", drivers))
    if evidence.get("rates"):
        rates = [
            (f"{row['model']} in {row['pool']}", f"{row['before']} before, {row['now']} now")
            for row in evidence["rates"]
        ]
        blocks.append(Block("Rates that changed", "", rates))
    page = Page(
        subject=f"[GPU spending] {who}: {said} than usual since {since}",
        verdict=verdict,
        blocks=blocks,
        why="You are told of each such episode once, while it is still cheap." + _or_command(news, links),
        tone=BAD if more else CALM,
        actions=[("See the hours and the workloads", "gpuledger anomalies")],
        notes=["Amounts are exact; that it stands out is an estimate. Time without data is never counted as a saving."],
    )
    return page.content()


def _how_sure(one: Finding) -> str:
    """What the confidence of an episode is made of: its flagged hours, or nothing that was measured."""
    if one.state == STORM:
        return f"{round(one.confidence * 100)} %, a guess: told by its runs, not by its money"
    if "highest_score" not in one.evidence:
        return f"{round(one.confidence * 100)} %, a guess: told within minutes, before its hours are whole"
    return f"{round(one.confidence * 100)} % of its hours stand out"


def _cause_text(evidence: Mapping[str, Any]) -> str:
    """`a runaway: train has run for 44 hours ...`."""
    article = {"many small": "many small things", "price": "a price", "scale-up": "a scale-up"}
    kind = str(evidence["cause"])
    return f"{article.get(kind, 'a ' + kind)}: {named(str(evidence.get('sentence', '')), 400)}"


def _before(evidence: Mapping[str, Any]) -> str:
    days = int(evidence.get("days_before", 7))
    return "in the same hours a week before" if days == 7 else f"in the same hours {plural(days, 'day')} before"


def _anomaly_link(news: AnomalyNews, links: AckLinks | None) -> tuple[str, str] | None:
    return None if links is None else ("It is meant so", links.notification(news.notification_id, news.at_ms + LINK_MS))


def _or_command(news: AnomalyNews, links: AckLinks | None) -> str:
    return (
        ""
        if links is not None
        else f" To say that it is meant so: `gpuledger notifications ack {news.notification_id}`."
    )


def acted(action: Action, holding: Holding | None) -> Content:
    """What was done, to those who were told that it would be."""
    name = named(str(action.target.get("name") or action.target.get("workload", "")), 60)
    cost = "" if holding is None else _sums([holding])[0]
    rows = [("Workload", f"{name} ({named(str(action.target.get('workload', '')), 60)})"), ("Done", action.what)]
    if cost:
        rows.append(("It had cost", cost))
    page = Page(
        subject=f"[GPU idle] {name} was ended: its GPUs did nothing",
        verdict=f"{name} was ended because its GPUs had done nothing for long, and nobody said that it is meant so.",
        blocks=[Block("What was done", "", rows)],
        why="Your team opted in to this ([[action]]); you were told of it before. The audit log has it.",
        tone=BAD,
        actions=[("See what else would be ended, and when", "gpuledger actions dry-run")],
    )
    return page.content()


def summary(news: SummaryNews) -> Content:
    """A team's week in one screen."""
    team = named(news.team, 80) or "(unattributed)"
    span = f"{day(news.start_ms, news.zone)} to {day(news.end_ms - 1, news.zone)}"
    hours = sum(one.gpu_ns for one in news.wasted)
    cost: dict[str, int] = {}
    for one in news.wasted:
        if one.currency is not None and one.cost_micro is not None:
            cost[one.currency] = cost.get(one.currency, 0) + one.cost_micro
    money = " and ".join(money_text(cost[one], one) for one in sorted(cost)) or NO_PRICE
    going = [one for one in news.wasted if one.goes_on]
    rows = [
        ("Idle", f"{_hours(hours)} GPU-hours of {plural(len(news.wasted), 'workload')}"),
        ("Cost", money),
        ("Told", f"{plural(news.told, 'episode')}: {news.gave_back} ended since, {news.acknowledged} meant so"),
        ("Goes on", plural(len(going), "workload")),
    ]
    rest = news.wasted[SHOWN_ROWS:]
    shown = _together(news.wasted)
    top = [_week_row(one, shown[at]) for at, one in enumerate(news.wasted[:SHOWN_ROWS])]
    if rest:
        top.append((f"{len(rest)} others", f"{_hours(sum(one.gpu_ns for one in rest))} GPU-hours"))
    notes = []
    if news.unreachable:
        notes.append(
            "Nobody could be told of the GPUs of "
            + ", ".join(named(one, 40) for one in news.unreachable[:20])
            + ": give their addresses in [[contact]]."
        )
    page = Page(
        subject=f"[GPU idle] {team}, {span}: {_hours(hours)} GPU-hours idle, {money}",
        verdict=f"{team} held {_hours(hours)} GPU-hours that did nothing, {span}: {money}.",
        blocks=[Block("The week", "", rows), Block("The dearest", "", top)],
        why="You lead the team, and get this on the first day of each week ([[contact]] summary = false ends it).",
        tone=CALM,
        actions=[
            (
                "See all of them",
                f"gpuledger idle --from {date(news.start_ms, news.zone)} --to {date(news.end_ms, news.zone)}"
                + (f" --team {shlex.quote(news.team)}" if news.team else ""),
            )
        ],
        notes=[*notes, "GPU-hours and cost are of this week alone, at the rates that were in force."],
    )
    return page.content()


def _together(wasted: Sequence[Wasted]) -> list[str]:
    """Amounts in minor units, rounded together for each currency: those shown add up to the sum that is shown."""
    said = [NO_PRICE] * len(wasted)
    for currency in {one.currency for one in wasted if one.currency is not None}:
        places = [at for at, one in enumerate(wasted) if one.currency == currency]
        for at, amount in zip(places, _amounts([wasted[at].cost_micro or 0 for at in places], currency), strict=True):
            said[at] = amount
    return said


def _amounts(micros: Sequence[int], currency: str) -> list[str]:
    """Parts of one sum as people read them, rounded together: what is shown adds up to the sum that is shown."""
    digits = minor_digits(currency)
    return [money_text(unit * MICRO // 10**digits, currency) for unit in to_minor_units(micros, digits)]


def _week_row(one: Wasted, cost: str) -> tuple[str, str]:
    name = named(one.label, 40) + (f" ({named(one.user, 30)})" if one.user else "")
    return name, f"{_hours(one.gpu_ns)} GPU-hours, {cost}" + (", goes on" if one.goes_on else "")


def _hours(gpu_ns: int) -> str:
    tenths = gpu_ns * 10 // GPU_NS_PER_HOUR
    return f"{tenths // 10:,}.{tenths % 10}"
