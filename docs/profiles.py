"""The reference page of exporter profiles, from the packaged profiles."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger_common.catalog import METRICS
from gpuledger_common.profiles.library import all_profiles
from gpuledger_common.profiles.model import ENERGY, Condition, Family, Profile

INTRODUCTION = """The exporters that the agent (`--source exporter`) and remote write understand;
[the guide](../guides/exporters.md) explains how a profile is written and checked. A profile is *real* where a page that
others captured, or that the exporter's own tests hold, shows its families; else it is *synthetic*: tested with a page
that we made from the cited source. `gpuledger profiles check PAGE` shows what becomes of a page.
"""
ORDER = {metric.name: place for place, metric in enumerate(METRICS)}
Table = Callable[[list[str], list[list[str]]], str]


def page(table: Table) -> str:
    """Every packaged profile: evidence, mapping, what is not mapped, limits."""
    profiles = all_profiles()
    rows = [
        [
            f"[{profile.id}](#{profile.id})",
            profile.title,
            profile.evidence.version,
            profile.evidence.status,
            ENERGY[profile.energy],
        ]
        for profile in profiles
    ]
    overview = table(["profile", "exporter", "version", "evidence", "energy"], rows)
    return f"# Exporter profiles\n\n{INTRODUCTION}\n{overview}\n" + "\n".join(
        section(profile, table) for profile in profiles
    )


def section(profile: Profile, table: Table) -> str:
    """One profile."""
    evidence = profile.evidence
    sources = ", ".join(f"`{source}`" for source in evidence.sources)
    text = f"## {profile.id}\n\n{profile.title}, {evidence.status}: {evidence.repository} {evidence.version} ({sources}).\n"
    text += "".join(f"\n- {limit}" for limit in profile.limits) + "\n\n"
    families = [family for entries in profile.families.values() for family in entries]
    families.sort(key=lambda family: (ORDER[family.metric.name], family.rank))
    text += table(["metric", "family", "series", "factor"], [row(family) for family in families])
    if profile.ignored:
        text += "\nNot mapped:\n\n" + "".join(
            f"- `{entry.pattern}`: {entry.reason}\n" for entry in profile.ignored
        )
    return text


def row(family: Family) -> list[str]:
    """A family of a metric."""
    return [
        f"`{family.metric.name}`",
        f"`{family.name}`",
        series(family.condition),
        f"{family.rule.scale:g}",
    ]


def series(condition: Condition) -> str:
    """Which series of a family count."""
    parts = [
        f"`{name}` is " + " or ".join(f"`{value}`" if value else "empty" for value in values)
        for name, values in condition.where.items()
    ]
    return ", ".join([*parts, *(f"no `{name}`" for name in condition.unless)])
