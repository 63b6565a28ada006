"""What a gateway profile makes of a page, family by family: counted, ignored, not known, or missing
from the page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gpuledger_common.gateways.library import matches
from gpuledger_common.gateways.model import KINDS, GatewayProfile
from gpuledger_common.gateways.page import (
    GatewayPage,
    find_families,
    read_gateway_page,
)
from gpuledger_common.plurals import plural
from gpuledger_common.profiles.check import FamilyRow
from gpuledger_common.profiles.lines import Lines, PageSample
from gpuledger_common.serving_counters import STARTED


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """A page by a gateway profile: why it matches, and what becomes of each family."""

    profile: GatewayProfile
    page: GatewayPage
    because: tuple[str, ...]
    rows: tuple[FamilyRow, ...]


def check_gateway_page(profile: GatewayProfile, lines: Lines) -> GatewayReport:
    """Check a page by a gateway profile."""
    page = read_gateway_page(profile, lines)
    counted = {(series.kind, series.rank) for series in page.counts}
    by_name: dict[str, list[PageSample]] = {}
    for sample in lines.samples:
        by_name.setdefault(sample.name, []).append(sample)
    rows = [_row(profile, name, samples, counted) for name, samples in by_name.items()]
    rows += _missing(profile, set(by_name), {kind for kind, _ in counted})
    return GatewayReport(profile, page, tuple(matches(profile, lines)), tuple(rows))


def _row(
    profile: GatewayProfile,
    name: str,
    samples: Sequence[PageSample],
    counted: Collection[tuple[str, int]],
) -> FamilyRow:
    if name == STARTED and profile.starts_with_process:
        return FamilyRow(name, len(samples), "mapped", (), "counters begin at zero with it")
    if name not in profile.families:
        reason = profile.why_ignored(name)
        return FamilyRow(
            name, len(samples), "unknown" if reason is None else "ignored", (), reason or ""
        )
    families = [
        (sample, family)
        for sample in samples
        for family in find_families(profile, name, sample.labels)
    ]
    used = {family.kind for _, family in families if (family.kind, family.rank) in counted}
    if not used:
        twin = any(
            kind == family.kind and rank < family.rank
            for _, family in families
            for kind, rank in counted
        )
        note = "a twin of another name on this page" if twin else "no series that counts"
        return FamilyRow(name, len(samples), "ignored", (), note)
    others = len(samples) - len(families)
    return FamilyRow(
        name,
        len(samples),
        "mapped",
        tuple(kind for kind in KINDS if kind in used),
        f"{others} of {len(samples)} ignored by a label" if others else "",
        f"{families[0][0].value:g} {families[0][1].kind}",
    )


def _missing(profile: GatewayProfile, names: set[str], counted: set[str]) -> Iterable[FamilyRow]:
    """Kinds of counts that no family of the page gives."""
    candidates: dict[str, list[str]] = {}
    for name, families in profile.families.items():
        for family in families:
            candidates.setdefault(family.kind, []).append(name)
    for kind, known in candidates.items():
        if kind not in counted and not names & set(known):
            first, *others = dict.fromkeys(known)
            more = f" (or {plural(len(others), 'other')})" if others else ""
            yield FamilyRow(first + more, 0, "missing", (kind,))
