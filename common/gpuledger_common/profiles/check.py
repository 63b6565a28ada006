"""What a profile makes of a page, family by family: mapped, ignored, not known, or missing from the
page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuledger_common.plurals import plural
from gpuledger_common.profiles.library import matches
from gpuledger_common.profiles.lines import Lines, PageSample
from gpuledger_common.profiles.model import ENERGY, Family, Profile
from gpuledger_common.profiles.page import Page, PageAccelerator, read_page
from gpuledger_common.profiles.series import derived_labels

State = Literal["mapped", "ignored", "unknown", "missing"]
ENERGY_METRIC, POWER_METRIC = "gpu_energy_joules_total", "gpu_power_watts"


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """A family of the page, or one that the profile asks for, and what becomes of it."""

    family: str
    lines: int
    state: State
    metrics: tuple[str, ...]
    note: str = ""
    reading: str = ""
    """A value of each metric in its base unit, so that a wrong factor is seen."""


@dataclass(frozen=True, slots=True)
class PageReport:
    """A page by a profile: why it matches, and what becomes of each family and each accelerator."""

    page: Page
    because: tuple[str, ...]
    rows: tuple[FamilyRow, ...]


def check_page(profile: Profile, lines: Lines, host: str) -> PageReport:
    """Check a page by a profile. Raises ValueError where it shows no device."""
    page = read_page(profile, lines, host)
    rows = [*_show_families(profile, lines), *_missing(profile, lines)]
    return PageReport(page, tuple(matches(profile, lines)), tuple(rows))


def energy_of(profile: Profile, entry: PageAccelerator) -> str:
    """Where the energy of an accelerator comes from, by what its lines show."""
    if ENERGY_METRIC in entry.values:
        return ENERGY[profile.energy]
    return ENERGY["integrated"] if POWER_METRIC in entry.values else ENERGY["unknown"]


def _show_families(profile: Profile, lines: Lines) -> Iterable[FamilyRow]:
    """Every family of the page."""
    by_name: dict[str, list[PageSample]] = {}
    for sample in lines.samples:
        by_name.setdefault(sample.name, []).append(sample)
    for name, samples in by_name.items():
        yield _row(profile, name, samples)


def _row(profile: Profile, name: str, samples: Sequence[PageSample]) -> FamilyRow:
    plain = profile.plain_name(name)
    labels = [derived_labels(profile, sample.labels) for sample in samples]
    own = [
        (sample.value, entry)
        for sample, entry in zip(samples, labels, strict=True)
        if profile.match_condition.holds(entry)
    ]
    if plain is not None and not own and plain != profile.devices_family:
        return FamilyRow(name, len(samples), "unknown", (), "lacks the labels of this exporter")
    raw = [
        (family, values)
        for family in profile.families.get(plain or "", ())
        if (values := [value for value, entry in own if family.condition.holds(entry)])
    ]
    notes = [
        part for family, values in raw for part in (*_how(family), *_count_removed(family, values))
    ]
    notes += _roles(profile, plain) if plain is not None else ()
    if not notes:
        reason = profile.why_ignored(plain or name)
        return FamilyRow(
            name, len(samples), "unknown" if reason is None else "ignored", (), reason or ""
        )
    readings = {family.metric.name: _reading(family, values) for family, values in raw}
    note = "; ".join(filter(None, dict.fromkeys(notes)))
    return FamilyRow(
        name, len(samples), "mapped", tuple(readings), note, ", ".join(readings.values())
    )


def _how(family: Family) -> list[str]:
    rule = family.rule
    parts = [f"x {rule.scale:g}"] if rule.scale != 1 else []
    if rule.is_zero_absent:
        parts.append("0 is a failed read")
    if family.rank:
        parts.append(f"choice {family.rank + 1}")
    if family.combine == "sum":
        parts.append("part of a sum")
    return parts or [""]


def _reading(family: Family, raw: Iterable[float]) -> str:
    """The first value that counts, in base units; a dash where none does."""
    scaled = (family.rule.to_base_units(value) for value in raw)
    first = next(
        (value for value in scaled if value is not None and family.rule.is_possible(value)), None
    )
    return "-" if first is None else f"{first:.6g} {family.metric.unit}"


def _count_removed(family: Family, raw: Sequence[float]) -> Iterable[str]:
    """How many values are no readings: by a sentinel, or by the range."""
    scaled = [family.rule.to_base_units(value) for value in raw]
    refused = [
        value for value in scaled if value is not None and not family.rule.is_possible(value)
    ]
    if failed := scaled.count(None):
        yield f"{failed} of {len(raw)} absent"
    if refused:
        yield f"{len(refused)} of {len(raw)} refused: {family.rule.refusal(refused[0])}"


def _roles(profile: Profile, name: str) -> Iterable[str]:
    if name in profile.health:
        yield "health"
    if profile.part is not None and any(
        name in (value.name, value.of) for value in profile.part.values
    ):
        yield "share of a part"
    if any(name in join.families for join in profile.joins) and name not in profile.families:
        yield "labels for other families"
    if name == profile.devices_family:
        yield "the number of devices that the page should show"


def _missing(profile: Profile, lines: Lines) -> Iterable[FamilyRow]:
    """Metrics of the profile that no family of the page gives."""
    present = {profile.plain_name(sample.name) for sample in lines.samples}
    candidates: dict[str, list[str]] = {}
    given: set[str] = set()
    for name, families in profile.families.items():
        for family in families:
            candidates.setdefault(family.metric.name, []).append(name)
            if name in present:
                given.add(family.metric.name)
    for metric, names in candidates.items():
        if metric not in given:
            first, *others = dict.fromkeys(names)
            more = f" (or {plural(len(others), 'other')})" if others else ""
            yield FamilyRow(first + more, 0, "missing", (metric,))
