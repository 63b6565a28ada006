"""Free GPUs by model, as people and programs read them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from markupsafe import Markup

from gpuledger_collector.accounting.period import Calendar
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.accounting.readable import percent, round_text
from gpuledger_collector.export.instants import say_instant
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.insight.findings import FREE_MINUTES
from gpuledger_collector.insight.free_gpus import (
    COUNTS,
    DAYS,
    LIKELY,
    MORNING,
    Availability,
    FreeAtOnce,
    FreeModel,
    FullestHour,
    ModelNow,
)
from gpuledger_common.plurals import plural

SHOWN_SPANS = 2
"""Spans of the day that a sentence names."""
SHOWN_MODELS = 5
"""Models that a sentence names."""


def name_model(item: FreeModel) -> str:
    """What people call it."""
    return item.now.model or "model not known"


def _columns_of(gpus: int) -> tuple[Column[FreeModel], Column[FreeModel]]:
    """In how many hours so many were free at once, and in how many that is not known; empty of a
    model that has fewer.
    """

    def enough(item: FreeModel) -> int | None:
        week = item.week_of(gpus)
        return None if week is None else week.enough

    def unknown(item: FreeModel) -> int | None:
        week = item.week_of(gpus)
        return None if week is None else week.undecided

    return (
        Column(f"hours_{gpus}_free", enough, Kind.COUNT),
        Column(f"hours_{gpus}_not_known", unknown, Kind.COUNT),
    )


FREE_MODELS = Report[FreeModel](
    "free_gpus",
    (
        Column("model", name_model),
        Column("gpus", lambda item: item.now.gpus, Kind.COUNT, heading="GPUs"),
        Column("held_now", lambda item: item.now.held, Kind.COUNT),
        Column("free_now", lambda item: item.now.free, Kind.COUNT),
        Column(
            "free_on_one_node",
            lambda item: item.now.free_on_node,
            Kind.COUNT,
            about="The most that are free on one node now.",
        ),
        Column(
            "other_now",
            lambda item: item.other,
            Kind.COUNT,
            about="Degraded, failed or unobserved.",
        ),
        Column(
            "least_free",
            lambda item: item.least,
            Kind.COUNT,
            about="Free for all of the hour: of the last 168 hours, or 24 of more than 2,000 GPUs.",
        ),
        Column("most_free", lambda item: item.most, Kind.COUNT),
        Column(
            "likely_tomorrow",
            lambda item: item.likely_tomorrow,
            Kind.COUNT,
            about="Likely to be free at once tomorrow from 08:00 to 12:00 of the billing zone, by earlier"
            " mornings: of weekdays, or of weekends if tomorrow is one. Empty: too few are known.",
        ),
        Column("hours", lambda item: len(item.hours), Kind.COUNT),
        *(column for gpus in COUNTS for column in _columns_of(gpus)),
        Column("wanted", lambda item: item.wanted, Kind.COUNT, about="Empty: no number was."),
        Column(
            "hours_enough",
            lambda item: item.asked and item.asked.week.enough,
            Kind.COUNT,
            about="Hours in which so many as wanted were free at once.",
        ),
        Column(
            "hours_not_known",
            lambda item: item.asked and item.asked.week.undecided,
            Kind.COUNT,
            about="Hours in which too many were unobserved to say.",
        ),
    ),
)
"""Models with what is free of them, the scarcest first."""


def say_availability(item: FreeModel, at_once: FreeAtOnce, zone: str) -> str:
    """How many are free now, in how many hours so many were at once, and at which hours of the day,
    as a sentence.
    """
    week, gpus = at_once.week, at_once.gpus
    begin = f"{gpus:,} {name_model(item)}: {item.now.free:,} free now"
    if gpus > item.now.gpus:
        return f"{begin}; there are but {item.now.gpus:,}."
    if not week.hours:
        return f"{begin}; no full hour of them is over yet."
    verb = "one was" if gpus == 1 else "so many were"
    sentence = f"{begin}; {verb} free in {week.enough} of the last {plural(week.hours, 'hour')}"
    best = at_once.likeliest
    if best is not None and week.enough < week.hours:
        spans, others = at_once.likeliest_spans, at_once.other_spans
        named = " and ".join(f"{first} to {end}" for first, end in (others or spans)[:SHOWN_SPANS])
        when = f"at {named} {zone}" if spans else "at every hour of the day alike"
        if others:
            when = f"at all hours but {named} {zone}"
        if len(others or spans) > SHOWN_SPANS:
            when += " and other hours"
        sentence += f", {'most often ' if spans else ''}{when}, on {best.enough} of"
        sentence += f" {plural(best.hours, 'day')}"
    if week.undecided:
        sentence += f"; of {plural(week.undecided, 'hour')} too little was observed to say"
    return f"{sentence}.{_say_outlook(item, at_once, zone)}"


def _say_outlook(item: FreeModel, at_once: FreeAtOnce, zone: str) -> str:
    """Whether tomorrow's morning is likely to have so many, by the mornings before, and what would
    have to happen if not; empty: too few of them are known.
    """
    mornings, likely = at_once.mornings, item.likely_tomorrow
    if mornings.outlook is None:
        return ""
    sentence = (
        f" Tomorrow morning: {mornings.outlook}, as"
        f" {'one was' if at_once.gpus == 1 else 'so many were'} in {mornings.enough} of the"
        f" {plural(mornings.hours - mornings.undecided, 'hour')} {_say_morning('between', 'and', zone)}"
        f" on {item.tomorrow}s{_say_unknown(mornings)}."
    )
    if mornings.outlook == LIKELY or likely is None:
        return sentence
    counted = f"{likely:,} {'is' if likely == 1 else 'are'}" if likely else "None is"
    return (
        f"{sentence} {counted} likely: {at_once.gpus - likely:,} more would have to be given back."
    )


def _say_morning(word: str, until: str, zone: str) -> str:
    first, end = MORNING
    return f"{word} {first:02}:00 {until} {end:02}:00 {zone}"


def say_tomorrow(items: Sequence[FreeModel], zone: str) -> str:
    """How many of each model are likely to be free at once tomorrow morning; empty: of none of them
    enough mornings are known.
    """
    known = [item for item in items if item.likely_tomorrow is not None]
    if not known:
        return ""
    counts = [f"{item.likely_tomorrow:,} {name_model(item)}" for item in known[:SHOWN_MODELS]]
    more = len(known) - SHOWN_MODELS
    if more > 0:
        counts.append(plural(more, "more model"))
    when = f"tomorrow {_say_morning('from', 'to', zone)}, as on {known[0].tomorrow}s before"
    return f"Likely to be free at once {when}: {', '.join(counts)}."


def say_fullest(hour: FullestHour, calendar: Calendar) -> Markup:
    """When most GPUs of the last days were held, and how many of how many."""
    held, seen = (Decimal(gpu_ns) / GPU_NS_PER_HOUR for gpu_ns in (hour.held_ns, hour.seen_ns))
    return Markup(
        "Fullest of the last {} days: the hour from {}, in which {} of {} GPUs were held ({})."
    ).format(
        DAYS,
        say_instant(hour.at_ms, hour.at_ms, calendar),
        round_text(held, 1),
        round_text(seen, 0),
        percent(held / seen),
    )


def say_unlisted(models: Sequence[ModelNow]) -> str:
    """How the free GPUs of now and those in the list of idle GPUs differ, in a sentence of both pages;
    empty where they do not.
    """
    missing = [(model.not_listed, model) for model in models if model.not_listed]
    gone = [(model.not_free, model) for model in models if model.not_free]
    parts = []
    if missing:
        parts.append(
            f"{_say_counts(missing)} free now, and not in the list of idle GPUs yet, which has a GPU"
            f" when nobody has held it for {FREE_MINUTES} minutes"
        )
    if gone:
        parts.append(f"{_say_counts(gone)} in that list, and not free by the latest reading")
    return f"{'; '.join(parts)}." if parts else ""


def _say_counts(counted: Sequence[tuple[int, ModelNow]]) -> str:
    named = [f"{count:,} {model.model or 'of no known model'}" for count, model in counted]
    is_one = len(counted) == 1 and counted[0][0] == 1
    return f"{', '.join(named)} {'is' if is_one else 'are'}"


def say_hours(hours: Availability) -> str:
    """The same of an hour of the day: `2 of 7`, and how many more are not known."""
    return f"{hours.enough} of {hours.hours}{_say_unknown(hours)}"


def _say_unknown(hours: Availability) -> str:
    return f", {hours.undecided} not known" if hours.undecided else ""
