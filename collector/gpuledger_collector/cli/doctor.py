"""gpuledger doctor: the most likely misconfigurations, each with its cure."""

from __future__ import annotations

import enum
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import typer

from gpuledger_collector.cli.common import DONE, FINDINGS, LACKING, Config, Dsn, database, explain, settings
from gpuledger_collector.cli.terminal import say
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from gpuledger_collector.settings import Settings
    from gpuledger_collector.storage.ledger.health import LedgerHealth

DAYS = 7
DAY_MS = 86_400_000
MIN_FREE_BYTES = 1024**3
MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


class Shape(enum.StrEnum):
    """How it is printed."""

    table = "table"
    json = "json"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: `bad` needs a cure, `note` is worth knowing, `ok` is as it should be."""

    verdict: Literal["ok", "note", "bad"]
    topic: str
    sentence: str
    cure: str = ""


def register(root: typer.Typer) -> None:
    """Add `gpuledger doctor`."""
    root.command(epilog="Example: gpuledger doctor")(doctor)


def doctor(
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Look for what is most likely misconfigured, and say the cure. Changes nothing.

    Ends with 1 when something needs a cure, with 3 when the database cannot be reached.
    """
    wanted = settings(config, dsn)
    found = [*surroundings(wanted)]
    code = DONE
    try:
        with database(dsn, config) as opened:
            from gpuledger_collector.cli.remediation import remediation
            from gpuledger_collector.services.node_health import SILENT_MS
            from gpuledger_collector.storage.access import readers, row_level_security
            from gpuledger_collector.storage.ledger.health import read_declarations, read_health
            from gpuledger_collector.wiring import now

            now_ms = round(now().timestamp() * 1000)
            with opened.transaction() as connection:
                version = connection.info.parameter_status("server_version") or ""
                seen = read_health(connection, now_ms, now_ms - DAYS * DAY_MS, SILENT_MS)
                asked_ms = round(now().timestamp() * 1000)
                declared = read_declarations(connection, asked_ms, asked_ms - DAYS * DAY_MS)
                cure = "" if row_level_security.is_enabled(connection) else row_level_security.advice(connection)
                loose = readers.not_held(connection)
        found.append(Finding("ok", "database", f"PostgreSQL {version.split()[0]} answers, its schema is current"))
        found += [*ledger_findings(seen, now_ms), wall(cure), *roles(loose), *remediation(declared, wanted, asked_ms)]
    except Exception as error:
        sentence, _ = explain(error)
        found.append(Finding("bad", "database", sentence, "see the sentence; `gpuledger db check` looks closer"))
        code = LACKING
    emit(found, shape)
    bad = any(finding.verdict == "bad" for finding in found)
    raise typer.Exit(code or (FINDINGS if bad else DONE))


def surroundings(wanted: Settings) -> Iterator[Finding]:
    """The machine: where the database lies, room on its disk, who may reach the collector."""
    if wanted.database_dsn() is None:
        folder = next(path for path in (wanted.data_dir, *wanted.data_dir.parents) if path.exists())
        free = shutil.disk_usage(folder).free
        size = f"{free / 1024**3:.1f} GiB free at {wanted.data_dir}"
        if free < MIN_FREE_BYTES:
            yield Finding("bad", "disk", size, "make room, or set GPULEDGER_DATA_DIR to a larger disk")
        else:
            yield Finding("ok", "disk", size)
    else:
        yield Finding("ok", "disk", "the database is given by DSN; its disk is its own")
    if wanted.on_loopback:
        yield Finding(
            "note",
            "network",
            f"listens on {wanted.listen}: agents of other nodes cannot reach it",
            "for a fleet set listen, require_tokens, TLS (docs/guides/platform-engineer.md)",
        )
    elif wanted.reader_tokens() is None:
        yield Finding(
            "note",
            "network",
            f"listens on {wanted.listen}; nobody reads over HTTP without a token",
            "gpuledger token create --role viewer, finance or admin opens GET /v1/...",
        )
    else:
        yield Finding("ok", "network", f"listens on {wanted.listen}, with tokens")


def ledger_findings(seen: LedgerHealth, now_ms: int) -> Iterator[Finding]:
    """What the ledger shows: agents, prices, attribution, proofs, jobs."""
    yield from agents(seen)
    if seen.prices == 0:
        yield Finding("bad", "prices", "the price book is empty: all usage is unpriced", "gpuledger import prices FILE")
    elif seen.unpriced_ns:
        yield Finding(
            "bad",
            "prices",
            f"{hours(seen.unpriced_ns)} GPU-hours of the last {DAYS} days have no price",
            "add the missing pool or model: gpuledger prices list, gpuledger prices set",
        )
    else:
        yield Finding("ok", "prices", f"{plural(seen.prices, 'rate')} in force, nothing unpriced")
    if seen.held_ns and seen.unattributed_ns * 10 > seen.held_ns:
        share = 100 * seen.unattributed_ns // seen.held_ns
        yield Finding(
            "bad",
            "attribution",
            f"{share} % of the held time of the last {DAYS} days has no team",
            "gpuledger tags check shows whose; add tags, or rules with gpuledger apply",
        )
    elif seen.held_ns:
        yield Finding("ok", "attribution", f"{hours(seen.held_ns)} GPU-hours held, at most a tenth without a team")
    if seen.broken_days:
        yield Finding(
            "bad",
            "proof",
            f"the proof does not hold on {seen.broken_days} of the last {DAYS} days",
            "gpuledger reconcile --from DATE --to DATE names them",
        )
    yield from jobs(seen, now_ms)
    yield from writing(seen)
    for claim in seen.claims:
        yield Finding(
            "bad", "integrity", claim.sentence(), "look at the node; gpuledger import inventory says who is right"
        )
    if seen.unbound_tokens:
        yield Finding(
            "note",
            "tokens",
            f"with {seen.unbound_tokens} of the tokens any node can be reported",
            "right for Prometheus; for agents: gpuledger token create --role agent --node NODE",
        )
    if seen.conflicts:
        yield Finding(
            "bad",
            "integrity",
            f"{seen.conflicts} batches came with other bytes under a known number",
            "two agents share a spool, or somebody forges: look into table ingest_conflict",
        )


def wall(cure: str) -> Finding:
    """Whether row-level security stands before viewers over HTTP; `cure`: what is to be run where it does not."""
    if not cure:
        return Finding("ok", "viewers", "row-level security stands before viewers over HTTP")
    return Finding("note", "viewers", "the collector's own filters alone hold viewers over HTTP to their rows", cure)


def roles(loose: Sequence[str]) -> Iterator[Finding]:
    """Roles of dashboards that could take more than their share of the database."""
    for role in loose:
        yield Finding(
            "note",
            "readers",
            f"the role {role} is not held to its share of the database",
            f"gpuledger db grant-reader {role}, with its --owner, prints what an administrator must run",
        )


def agents(seen: LedgerHealth) -> Iterator[Finding]:
    """Nodes and what they report."""
    if seen.nodes == 0:
        yield Finding(
            "note", "agents", "no agent has reported yet", "gpuledger-agent run, or gpuledger import usage FILE"
        )
        return
    if seen.silent:
        yield Finding(
            "bad",
            "agents",
            f"silent for over ten minutes: {', '.join(seen.silent)}",
            "on the node: systemctl status gpuledger-agent; journalctl -u gpuledger-agent",
        )
    for name, detail in seen.troubled:
        yield Finding("bad", "agents", f"{name}: {detail or 'not well'}", "on the node: gpuledger-agent check")
    if not seen.silent and not seen.troubled:
        yield Finding(
            "ok",
            "agents",
            f"{plural(seen.nodes, 'node')} {'reports' if seen.nodes == 1 else 'report'}, "
            f"{plural(seen.accelerators, 'accelerator')}",
        )


def jobs(seen: LedgerHealth, now_ms: int) -> Iterator[Finding]:
    """The scheduled work."""
    for job, detail in seen.failed_jobs:
        yield Finding("bad", "jobs", f"{job} failed of late: {detail.partition(chr(10))[0]}", "see the collector's log")
    if seen.last_job_ms is None:
        yield Finding("note", "jobs", "no job has run yet: reports rate what they need themselves", "gpuledger serve")
    elif not seen.failed_jobs:
        yield Finding("ok", "jobs", f"the last one began {(now_ms - seen.last_job_ms) // 1000} s ago")


def writing(seen: LedgerHealth) -> Iterator[Finding]:
    """What keeps, or kept, batches from being written."""
    from gpuledger_collector.storage.telemetry.partitions import MAX_PARTITIONS

    for host, error in seen.failed_writers:
        yield Finding(
            "bad",
            "writer",
            f"{host} could not write batches, last at {error}",
            "agents send them again; see the collector's log and /readyz",
        )
    if seen.partitions > MAX_PARTITIONS:
        yield Finding(
            "bad",
            "partitions",
            f"{seen.partitions} partitions, over {MAX_PARTITIONS} plans get slow",
            "the job merge_partitions makes a month of old days: it runs daily in `gpuledger serve`; "
            "max_evidence_age_days keeps old days out",
        )
    else:
        yield Finding("ok", "partitions", f"{plural(seen.partitions, 'partition')} of evidence")


def hours(gpu_ns: int) -> int:
    """Whole GPU-hours."""
    return gpu_ns // 3_600_000_000_000


def emit(found: list[Finding], shape: Shape) -> None:
    """Print the findings, what needs a cure first."""
    ordered = sorted(found, key=lambda finding: ("bad", "note", "ok").index(finding.verdict))
    if shape is Shape.json:
        import json
        from dataclasses import asdict

        print(json.dumps([asdict(finding) for finding in ordered], indent=2))
        return
    for finding in ordered:
        say(f"{MARKS[finding.verdict]}  {finding.topic:12} {finding.sentence}")
        if finding.cure:
            say(f"{'':6}{'':12} -> {finding.cure}")
