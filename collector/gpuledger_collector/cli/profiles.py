"""gpuledger profiles: which exporters are understood, and what becomes of a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import UNAVAILABLE, new_app, refuse
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import load_settings
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_common.plurals import plural
from gpuledger_common.profiles.check import FamilyRow, PageReport, check_page, energy_of
from gpuledger_common.profiles.fetch import fetch
from gpuledger_common.profiles.library import (
    all_profiles,
    named_profile,
    only_match,
    packaged_ids,
    packaged_text,
)
from gpuledger_common.profiles.lines import read_lines
from gpuledger_common.profiles.model import ENERGY, Profile
from gpuledger_common.profiles.page import PageAccelerator
from gpuledger_common.readings import WHOLE_GPU, SourceUnavailable

app = new_app(
    name="profiles", help="Exporters that are understood, by profiles.", no_args_is_help=True
)
PROFILES = Report[Profile](
    "profiles",
    (
        Column("id", lambda item: item.id),
        Column("exporter", lambda item: item.title),
        Column("version", lambda item: item.evidence.version, is_optional=True),
        Column("evidence", lambda item: item.evidence.status),
        Column("energy", lambda item: ENERGY[item.energy]),
        Column(
            "metrics",
            lambda item: len(
                {family.metric.name for families in item.families.values() for family in families}
            ),
            Kind.COUNT,
        ),
        Column("repository", lambda item: item.evidence.repository, is_optional=True),
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
    """List the profiles, packaged and of the setting exporter_profiles, with their evidence and
    limits.
    """
    profiles = all_profiles(load_settings(config).profile_files)
    footer = [
        f"{plural(len(profiles), 'profile')}; `gpuledger profiles check PAGE` shows which fits a"
        " page"
    ]
    emit_report(form, PROFILES, profiles, footer, is_exact=True)


@app.command(epilog="Example: gpuledger profiles show intel-gaudi > mine.toml")
def show(identity: Annotated[str, Argument(metavar="ID", help="A packaged profile.")]) -> None:
    """Print a packaged profile, to read or to begin one's own from."""
    if identity not in packaged_ids():
        refuse(f"there is no profile {identity!r}; there are {', '.join(packaged_ids())}")
    sys.stdout.write(packaged_text(identity))


@app.command(epilog="Example: gpuledger profiles check http://node-1:5000/metrics")
def check(
    page: Annotated[
        str, Argument(metavar="PAGE", help="The address of an exporter, or a saved page.")
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
    try:
        chosen = named_profile(profile) if profile else only_match(all_profiles(files), lines)
        report = check_page(chosen, lines, node)
    except ValueError as error:
        refuse(f"{page}: {error}")
    emit_report(form, FAMILIES, report.rows, _summary(Path(page).name, report), is_exact=True)


def _summary(page: str, report: PageReport) -> list[str]:
    profile = report.page.profile
    evidence = profile.evidence
    names = ", ".join(report.because[:3]) + (" and others" if len(report.because) > 3 else "")
    why = f"because of {names}" if report.because else "although it has none of its families"
    shown = [f"{page} is a page of {profile.title} (profile {profile.id}), {why}"]
    version = f" {evidence.version}" if evidence.version else ""
    shown.append(f"evidence: {evidence.repository}{version}, {EVIDENCE[evidence.status]}")
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
