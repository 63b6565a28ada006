"""gpuledger profiles: which exporters and gateways are understood, and what becomes of a page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import UNAVAILABLE, new_app, refuse
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import load_settings
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_common.gateways import library as gateways
from gpuledger_common.gateways.check import GatewayReport, check_gateway_page
from gpuledger_common.gateways.model import TRUST, GatewayProfile
from gpuledger_common.plurals import plural
from gpuledger_common.profiles.check import FamilyRow, PageReport, check_page, energy_of
from gpuledger_common.profiles.fetch import fetch
from gpuledger_common.profiles.library import (
    all_profiles,
    matching,
    named_profile,
    only_match,
    packaged_ids,
    packaged_text,
)
from gpuledger_common.profiles.lines import Lines, read_lines
from gpuledger_common.profiles.model import ENERGY, Evidence, Profile
from gpuledger_common.profiles.page import PageAccelerator
from gpuledger_common.profiles.read import is_gateway_file
from gpuledger_common.readings import WHOLE_GPU, SourceUnavailable

app = new_app(
    name="profiles",
    help="Exporters and gateways that are understood, by profiles.",
    no_args_is_help=True,
)


@dataclass(frozen=True, slots=True)
class ListedProfile:
    """A profile of either kind, as the list shows it."""

    id: str
    kind: str
    title: str
    evidence: Evidence
    energy: str
    metrics: int


PROFILES = Report[ListedProfile](
    "profiles",
    (
        Column("id", lambda item: item.id),
        Column("exporter", lambda item: item.title),
        Column("version", lambda item: item.evidence.version, is_optional=True),
        Column("evidence", lambda item: item.evidence.status),
        Column("energy", lambda item: item.energy),
        Column("metrics", lambda item: item.metrics, Kind.COUNT),
        Column("repository", lambda item: item.evidence.repository, is_optional=True),
        Column("kind", lambda item: item.kind),
    ),
)
FAMILIES = Report[FamilyRow](
    "families",
    (
        Column("family", lambda item: item.family),
        Column("lines", lambda item: item.lines, Kind.COUNT),
        Column("state", lambda item: item.state),
        Column("metrics", lambda item: ", ".join(item.metrics)),
        Column("reading", lambda item: item.reading, is_optional=True),
        Column("note", lambda item: item.note, is_optional=True),
    ),
)
MAX_SHOWN = 16
"""Accelerators that the table names; csv and json have the families alone."""
EVIDENCE = {"real": "a real page", "synthetic": "synthetic: a page made from the cited source"}


@app.command("list", epilog="Example: gpuledger profiles list")
def list_profiles(form: options.Form = options.Format.table, config: options.Config = None) -> None:
    """List the profiles of exporters and gateways, packaged and of the setting exporter_profiles,
    with their evidence and limits.
    """
    files = load_settings(config).profile_files
    listed = [
        *map(_list_exporter, all_profiles(files)),
        *map(_list_gateway, gateways.all_gateways(files)),
    ]
    footer = [
        f"{plural(len(listed), 'profile')}; `gpuledger profiles check PAGE` shows which fits a page"
    ]
    emit_report(form, PROFILES, listed, footer, is_exact=True)


def _list_exporter(profile: Profile) -> ListedProfile:
    metrics = {family.metric.name for families in profile.families.values() for family in families}
    return ListedProfile(
        profile.id,
        "exporter",
        profile.title,
        profile.evidence,
        ENERGY[profile.energy],
        len(metrics),
    )


def _list_gateway(profile: GatewayProfile) -> ListedProfile:
    kinds = {family.kind for families in profile.families.values() for family in families}
    return ListedProfile(profile.id, "gateway", profile.title, profile.evidence, "-", len(kinds))


@app.command(epilog="Example: gpuledger profiles show intel-gaudi > mine.toml")
def show(identity: Annotated[str, Argument(metavar="ID", help="A packaged profile.")]) -> None:
    """Print a packaged profile, to read or to begin one's own from."""
    if identity in packaged_ids():
        sys.stdout.write(packaged_text(identity))
    elif identity in gateways.packaged_ids():
        sys.stdout.write(gateways.packaged_text(identity))
    else:
        known = ", ".join([*packaged_ids(), *gateways.packaged_ids()])
        refuse(f"there is no profile {identity!r}; there are {known}")


@app.command(epilog="Example: gpuledger profiles check http://node-1:5000/metrics")
def check(
    page: Annotated[
        str,
        Argument(metavar="PAGE", help="The address of an exporter or gateway, or a saved page."),
    ],
    profile: Annotated[
        str,
        Option(
            "--profile",
            metavar="FILE|ID",
            help="Check by this profile. Default: the one that fits.",
        ),
    ] = "",
    node: Annotated[
        str, Option("--node", help="Name of the node, where the page names none.")
    ] = "this-node",
    form: options.Form = options.Format.table,
    config: options.Config = None,
) -> None:
    """Show which profile fits a page and why, and what becomes of each family: mapped, ignored,
    unknown or missing.
    """
    try:
        lines = read_lines(fetch(page))
    except SourceUnavailable as error:
        refuse(str(error), UNAVAILABLE)
    except ValueError as error:
        refuse(f"{page}: {error}")
    files = load_settings(config).profile_files
    name = Path(page).name
    try:
        gateway = _named_gateway(profile) if profile else _only_gateway(files, lines)
        if gateway is not None:
            of_gateway = check_gateway_page(gateway, lines)
            emit_report(
                form, FAMILIES, of_gateway.rows, _gateway_summary(name, of_gateway), is_exact=True
            )
            return
        chosen = named_profile(profile) if profile else only_match(all_profiles(files), lines)
        report = check_page(chosen, lines, node)
    except ValueError as error:
        refuse(f"{page}: {error}")
    emit_report(form, FAMILIES, report.rows, _summary(name, report), is_exact=True)


def _named_gateway(name: str) -> GatewayProfile | None:
    """The gateway profile of this id or file; None for an exporter's. Raises ProfileError."""
    is_file = "/" in name or name.endswith(".toml")
    is_gateway = is_gateway_file(Path(name)) if is_file else name in gateways.packaged_ids()
    return gateways.named_gateway(name) if is_gateway else None


def _only_gateway(files: tuple[Path, ...], lines: Lines) -> GatewayProfile | None:
    """The one gateway profile that a page belongs to; None where it is an exporter's or nobody's.

    Raises ValueError where several profiles match.
    """
    fitting = gateways.matching(gateways.all_gateways(files), lines)
    if not fitting:
        return None
    exporters = matching(all_profiles(files), lines)
    names = [*(entry.id for entry in exporters), *(entry.id for entry in fitting)]
    if len(names) > 1:
        raise ValueError(
            f"the profiles {' and '.join(names)} both match this page: choose one of them"
        )
    return fitting[0]


def _gateway_summary(page: str, report: GatewayReport) -> list[str]:
    """What a page of a gateway is, who asked by it, and what the profile cannot know."""
    profile, counts = report.profile, report.page.counts
    shown = [
        f"{page} is a page of {profile.title} (profile {profile.id}), {_why(report.because)}",
        _evidence_line(profile.evidence),
    ]
    shown += [
        f"who asked: label {tenant.label}, {TRUST[tenant.trust]} ({tenant.reason})"
        for tenant in profile.tenants
    ]
    numbers = (
        (len({series.tenant for series in counts if series.tenant}), "tenant"),
        (len({series.model for series in counts}), "model"),
        (len(counts), "series"),
    )
    shown.append(
        ", ".join(
            f"{count} series" if noun == "series" else plural(count, noun)
            for count, noun in numbers
        )
    )
    if report.page.twins:
        shown.append(f"{report.page.twins} series of deprecated twin names are left out")
    return [*shown, *(f"limit: {limit}" for limit in profile.limits)]


def _why(because: Sequence[str]) -> str:
    names = ", ".join(because[:3]) + (" and others" if len(because) > 3 else "")
    return f"because of {names}" if because else "although it has none of its families"


def _evidence_line(evidence: Evidence) -> str:
    version = f" {evidence.version}" if evidence.version else ""
    return f"evidence: {evidence.repository}{version}, {EVIDENCE[evidence.status]}"


def _summary(page: str, report: PageReport) -> list[str]:
    profile = report.page.profile
    shown = [
        f"{page} is a page of {profile.title} (profile {profile.id}), {_why(report.because)}",
        _evidence_line(profile.evidence),
    ]
    hosts = ", ".join(sorted(report.page.hosts)[:MAX_SHOWN])
    shown.append(f"node: {hosts} (an agent reports under its own name, or --node)")
    accelerators = list(report.page.accelerators.items())
    shown.append(f"{plural(len(accelerators), 'accelerator')}:")
    shown += [_accelerator(profile, uuid, entry) for uuid, entry in accelerators[:MAX_SHOWN]]
    if len(accelerators) > MAX_SHOWN:
        shown.append(f"  and {len(accelerators) - MAX_SHOWN} more")
    shown += [f"odd: {problem}" for problem in report.page.problems]
    return [*shown, *(f"limit: {limit}" for limit in profile.limits)]


def _accelerator(profile: Profile, uuid: str, entry: PageAccelerator) -> str:
    """The line of an accelerator: its size, its holders, its energy, and its health where that is
    not good.
    """
    share = entry.accelerator.gpu_micro / WHOLE_GPU
    size = "a device" if share == 1 else f"{share:.3f} of {entry.accelerator.device_uuid}"
    holders = (
        " and ".join(workload.name or workload.id for workload in entry.owners.values())
        or "nobody named"
    )
    health = "" if entry.health.status == "ok" else f", {entry.health.status}: {entry.health.cause}"
    model = entry.accelerator.model or "no model"
    return (
        f"  {uuid}: {model}, {size}, held by {holders}, energy: {energy_of(profile, entry)}{health}"
    )
