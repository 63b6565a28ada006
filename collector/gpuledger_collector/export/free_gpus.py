"""Free GPUs by model, as people and programs read them."""

from __future__ import annotations

from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.insight.free_gpus import Availability, FreeModel
from gpuledger_common.plurals import plural


def name_model(item: FreeModel) -> str:
    """What people call it."""
    return item.now.model or "model not known"


FREE_MODELS = Report[FreeModel](
    "free_gpus",
    (
        Column("model", name_model),
        Column("gpus", lambda item: item.now.gpus, Kind.COUNT, heading="GPUs"),
        Column("held_now", lambda item: item.now.held, Kind.COUNT),
        Column("free_now", lambda item: item.now.free, Kind.COUNT),
        Column(
            "other_now",
            lambda item: item.other,
            Kind.COUNT,
            about="Out of use, or unobserved.",
        ),
        Column(
            "least_free",
            lambda item: item.week.least,
            Kind.COUNT,
            about="Free for all of the hour: of the last 168 hours, or 24 of more than 2,000 GPUs.",
        ),
        Column("most_free", lambda item: item.week.most, Kind.COUNT),
        Column("wanted", lambda item: item.wanted, Kind.COUNT),
        Column(
            "hours_enough",
            lambda item: item.week.enough,
            Kind.COUNT,
            about="Hours in which so many as wanted were free at once.",
        ),
        Column(
            "hours_not_known",
            lambda item: item.week.undecided,
            Kind.COUNT,
            about="Hours in which too many were unobserved to say.",
        ),
        Column("hours", lambda item: item.week.hours, Kind.COUNT),
    ),
)
"""Models with what is free of them, most GPUs first."""


def say_availability(item: FreeModel) -> str:
    """In how many hours so many were free at once, as a sentence."""
    week, wanted = item.week, item.wanted
    if not week.hours:
        return f"{name_model(item)}: no full hour of them is over yet."
    verb = "was free" if wanted == 1 else "at once were free"
    sentence = (
        f"{name_model(item)}: {wanted:,} {verb} in {week.enough} of the last"
        f" {plural(week.hours, 'hour')}"
    )
    if week.undecided:
        sentence += f"; of {plural(week.undecided, 'hour')} too little was observed to say"
    return f"{sentence}."


def say_hours(hours: Availability) -> str:
    """The same of an hour of the day: `2 of 7`, and how many more are not known."""
    unknown = f", {hours.undecided} not known" if hours.undecided else ""
    return f"{hours.enough} of {hours.hours}{unknown}"
