"""gpuledger doctor: the most likely misconfigurations, each with its remedy."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from gpuledger_collector import wiring
from gpuledger_collector.accounting.placement import OWNER
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import DONE, FINDINGS, UNAVAILABLE, explain, new_app
from gpuledger_collector.cli.output import print_json
from gpuledger_collector.cli.remediation import Diagnosis, bad, note, ok, remediation
from gpuledger_collector.cli.session import clock_ms, load_settings, open_database
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.insight.ledger_health import MAX_PARTITIONS, LedgerHealth
from gpuledger_collector.insight.queue_health import QueueHealth
from gpuledger_collector.services import new_nodes
from gpuledger_collector.services.ledger_health import DAYS, examine_ledger, worker_problem
from gpuledger_collector.settings import Settings
from gpuledger_common.escapes import escape_text
from gpuledger_common.plurals import plural

app = new_app()
MIN_FREE_BYTES = 1024**3
UNATTRIBUTED_SHARE = 10
"""One part in so many of the held time may have no team."""
MAX_QUEUES = 5
"""Names that a sentence lists."""
STATE_INVENTORY = "look at the node; gpuledger import inventory decides it"
ALLOW_OWNER = (
    "correct the pod's label, or allow it by the namespace's annotation gpuledger.allowed-teams,"
    " gpuledger.allowed-projects or gpuledger.allowed-orgs"
)
"""Remedies of refused claims."""
MARKS = {"bad": "BAD ", "note": "note", "ok": "ok  "}
COLORS = {"bad": "1;31", "note": "33", "ok": "32"}


@app.command(epilog="Example: gpuledger doctor")
def doctor(
    form: options.PageForm = options.PageFormat.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Look for what is most likely misconfigured, and name the remedy. Changes nothing.

    Ends with 1 when something needs a remedy, with 3 when the database cannot be reached.
    """
    chosen = load_settings(config, dsn)
    findings = [*machine(chosen)]
    code = DONE
    try:
        findings += database_findings(chosen, dsn, config)
    except Exception as error:  # whatever it is, the other findings are still worth printing
        sentence, _ = explain(error)
        findings.append(
            bad("database", sentence, "see the sentence; `gpuledger db check` looks closer")
        )
        code = UNAVAILABLE
    findings.sort(key=lambda finding: list(MARKS).index(finding.verdict))
    if form is options.PageFormat.json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_findings(findings)
    raise typer.Exit(
        code or (FINDINGS if any(finding.verdict == "bad" for finding in findings) else DONE)
    )


def database_findings(chosen: Settings, dsn: str | None, config: Path | None) -> list[Diagnosis]:
    """What the database shows. Raises what a database that cannot be reached raises."""
    with open_database(dsn, config) as database:
        now_ms = clock_ms()
        if problem := worker_problem(database):
            # Nothing that reads evidence has an answer until then.
            remedy = "start Postgres there; docs/scale.md says how a worker is replaced"
            return [bad("workers", problem, remedy)]
        seen = examine_ledger(database, clock_ms)
    version = seen.server_version.split()[0]
    return [
        ok("database", f"PostgreSQL {version} answers, its schema is current"),
        *ledger(seen.health, now_ms),
        *unasked_nodes(seen.health, chosen),
        *proofs(seen.broken_proofs),
        viewers(seen.viewers_remedy, seen.unfiltered),
        *roles(seen.unlimited_readers),
        *rights(seen.missing_grant),
        *shared_inference(seen.unmatched_tokens),
        *scheduler_queues(seen.queues, chosen),
        *remediation(seen.declared, chosen, seen.declared_ms),
    ]


def machine(chosen: Settings) -> Iterator[Diagnosis]:
    """The machine: where the database lies, room on its disk, who may reach the collector."""
    if chosen.database_dsn() is None:
        folder = next(path for path in (chosen.data_dir, *chosen.data_dir.parents) if path.exists())
        free = shutil.disk_usage(folder).free
        size = f"{free / 1024**3:.1f} GiB free at {chosen.data_dir}"
        if free < MIN_FREE_BYTES:
            yield bad("disk", size, "make room, or set GPULEDGER_DATA_DIR to a larger disk")
        else:
            yield ok("disk", size)
    else:
        yield ok("disk", "not checked: the database is given by DSN")
    if chosen.on_loopback:
        yield note(
            "network",
            f"listens on {chosen.listen}: agents of other nodes cannot reach it",
            "for a fleet set listen, require_tokens, TLS (docs/guides/platform-engineer.md)",
        )
    elif chosen.reader_tokens() is None:
        yield note(
            "network",
            f"listens on {chosen.listen}; nobody reads over HTTP without a token",
            "gpuledger token create --role viewer, finance or admin opens GET /v1/...",
        )
    else:
        yield ok("network", f"listens on {chosen.listen}, with tokens")
    yield from assistants(chosen)


def assistants(chosen: Settings) -> Iterator[Diagnosis]:
    """Whether assistants that are to be answered can be."""
    if chosen.mcp and not wiring.has_mcp():
        yield bad(
            "assistants",
            "mcp is true, and the package mcp is not installed: they get no answer",
            wiring.MCP_REMEDY,
        )


def ledger(seen: LedgerHealth, now_ms: int) -> Iterator[Diagnosis]:
    """What the ledger shows: agents, prices, attribution, proofs, jobs."""
    yield from agents(seen)
    if seen.prices == 0:
        yield bad(
            "prices",
            "the price book is empty: all usage is unpriced",
            "gpuledger prices set --rate 2.50 --currency USD --from 2026-01-01, or gpuledger import"
            " prices FILE",
        )
    elif seen.unpriced_ns:
        yield bad(
            "prices",
            f"{seen.unpriced_ns // GPU_NS_PER_HOUR} GPU-hours of the last {DAYS} days have no"
            " price",
            "add the missing pool or model: gpuledger prices list, gpuledger prices set",
        )
    else:
        yield ok("prices", f"{plural(seen.prices, 'rate')} in force, nothing unpriced")
    if seen.held_ns and seen.unattributed_ns * UNATTRIBUTED_SHARE > seen.held_ns:
        yield bad(
            "attribution",
            f"{100 * seen.unattributed_ns // seen.held_ns} % of the held time of the last {DAYS}"
            " days has no team",
            "gpuledger tags check shows whose; add tags, or rules with gpuledger apply",
        )
    elif seen.held_ns:
        yield ok(
            "attribution",
            f"{seen.held_ns // GPU_NS_PER_HOUR} GPU-hours held, at most a tenth without a team",
        )
    yield from jobs(seen, now_ms)
    yield from writing(seen)
    yield from refused_senders(seen)
    for claim in seen.claims:
        cure = ALLOW_OWNER if claim.kind == OWNER else STATE_INVENTORY
        yield bad("integrity", claim.sentence(), cure)
    if seen.unbound_tokens:
        yield note(
            "tokens",
            f"with {seen.unbound_tokens} of the tokens any node can be reported",
            "right for Prometheus; for agents: gpuledger token create --role agent --node NODE",
        )
    if seen.conflicts:
        yield bad(
            "integrity",
            f"{seen.conflicts} batches came with other bytes under a known number",
            "two agents share a spool, or somebody forges: look into table ingest_conflict",
        )


def viewers(remedy: str, unfiltered: Sequence[str] = ()) -> Diagnosis:
    """Whether row-level security holds viewers over HTTP to their rows; `remedy`: what to run where
    it does not.

    `unfiltered`: tables that take no policy on Citus.
    """
    if not remedy and unfiltered:
        names = ", ".join(unfiltered)
        return ok(
            "viewers",
            "row-level security holds viewers over HTTP to their rows, but on Citus not for"
            f" {names}",
        )
    if not remedy:
        return ok("viewers", "row-level security holds viewers over HTTP to their rows")
    return note(
        "viewers", "only the collector's own filters hold viewers over HTTP to their rows", remedy
    )


def proofs(wrong: Sequence[str]) -> Iterator[Diagnosis]:
    """Whether what the ledger states twice is equal; `wrong`: what is not, in sentences."""
    if wrong:
        yield bad(
            "proof",
            f"the proof does not hold on some of the last {DAYS} days: {wrong[0]}",
            "gpuledger reconcile --from DATE --to DATE names every place",
        )


def shared_inference(notes: Sequence[str]) -> Iterator[Diagnosis]:
    """What of shared model servers moves nothing: tokens and workloads of no server or of two."""
    for sentence in notes:
        yield note(
            "inference", sentence, "declare it and apply the file; docs/guides/shared-inference.md"
        )


def scheduler_queues(seen: QueueHealth, chosen: Settings) -> Iterator[Diagnosis]:
    """Whether queues of Kubernetes schedulers are read, fit the fleet and have teams."""
    for problem in seen.problems:
        yield bad("queues", problem.sentence(), problem.remedy())
    for cluster in seen.silent:
        of = f"of cluster {cluster} " if cluster else ""
        is_own = bool(chosen.queue_schedulers) and cluster == chosen.kubernetes_cluster
        yield (bad if is_own else note)(
            "queues",
            f"queues {of}were not read for ten minutes: their quotas are not known since",
            "gpuledger queues read says why; after a week the cluster is taken for gone",
        )
    if chosen.queue_schedulers and not seen.is_read:
        yield note(
            "queues",
            "kubernetes_queues is set, and no queue was read yet",
            "gpuledger queues read says why",
        )
    for over in seen.over:
        yield bad(
            "queues", over.sentence(), "lower quotas, or add the missing GPUs to the inventory"
        )
    if seen.without_team:
        names = ", ".join(seen.without_team[:MAX_QUEUES])
        rest = len(seen.without_team) - MAX_QUEUES
        yield bad(
            "queues",
            f"held time of {plural(len(seen.without_team), 'queue')} has no team: {names}"
            + (f" and {rest} more" if rest > 0 else ""),
            'map them by rules: match = {queue = "NAME"} (docs/guides/kubernetes.md#queues)',
        )
    if seen.queues and not (seen.problems or seen.silent or seen.over or seen.without_team):
        yield ok("queues", f"{plural(seen.queues, 'queue')} with a quota")


def rights(grant: str) -> Iterator[Diagnosis]:
    """Whether every session may create the partition of a new day; `grant`: the statement that is
    missing.
    """
    if grant:
        yield bad(
            "partitions",
            "sessions of the collector may be refused the partition of a new day, and its batches"
            " then wait",
            f"run `gpuledger db upgrade`, or let an administrator of the database run: {grant}",
        )


def roles(unlimited: Sequence[str]) -> Iterator[Diagnosis]:
    """Roles of dashboards that could take more than their share of the database."""
    for role in unlimited:
        yield note(
            "readers",
            f"the role {role} is not held to its share of the database",
            f"gpuledger db grant-reader {role}, with its --owner, prints what an administrator"
            " must run",
        )


def agents(seen: LedgerHealth) -> Iterator[Diagnosis]:
    """Nodes and what they report."""
    if seen.nodes == 0:
        yield note(
            "agents",
            "no agent has reported yet",
            "gpuledger-agent run, or gpuledger import usage FILE",
        )
        return
    if seen.silent:
        yield bad(
            "agents",
            f"silent for over ten minutes: {', '.join(seen.silent)}",
            "on the node: systemctl status gpuledger-agent; journalctl -u gpuledger-agent",
        )
    if seen.back_again:
        yield note(
            "agents",
            f"retired, and back again: {', '.join(seen.back_again)}: its GPUs are capacity from"
            " then on",
            "stop its agent, and gpuledger nodes retire NODE again; or gpuledger nodes retire NODE"
            " --keep",
        )
    if seen.uninstalled:
        yield note(
            "agents",
            f"uninstalled: {', '.join(seen.uninstalled)}: its GPUs stay capacity, which nobody"
            " observes",
            "gpuledger nodes retire NODE, or an out_at in the inventory; or install its agent"
            " again",
        )
    for name, detail in seen.troubled:
        yield bad("agents", f"{name}: {detail or 'not well'}", "on the node: gpuledger-agent check")
    if not seen.silent and not seen.troubled:
        verb = "reports" if seen.nodes == 1 else "report"
        yield ok(
            "agents",
            f"{plural(seen.nodes, 'node')} {verb}, {plural(seen.accelerators, 'accelerator')}",
        )


def unasked_nodes(seen: LedgerHealth, chosen: Settings) -> Iterator[Diagnosis]:
    """Nodes that were taken without a token, the day they were first heard of."""
    asks = (
        chosen.require_tokens
        or not chosen.on_loopback
        or chosen.agent_tokens()
        or chosen.identity_header
    )
    if seen.first_heard and not seen.has_agent_tokens and not asks:
        yield note("tokens", new_nodes.sentence(seen.first_heard), new_nodes.CURE)


def jobs(seen: LedgerHealth, now_ms: int) -> Iterator[Diagnosis]:
    """The scheduled work."""
    for job, detail in seen.failed_jobs:
        yield bad(
            "jobs",
            f"{job} failed recently: {detail.partition(chr(10))[0]}",
            "see the collector's log",
        )
    if seen.last_job_ms is None:
        yield note(
            "jobs", "no job has run yet: reports rate what they need themselves", "gpuledger serve"
        )
    elif not seen.failed_jobs:
        yield ok("jobs", f"the last one began {(now_ms - seen.last_job_ms) // 1000} s ago")


def refused_senders(seen: LedgerHealth) -> Iterator[Diagnosis]:
    """Senders whose reports are refused for a limit."""
    for payer, count in seen.refused:
        yield bad(
            "refused",
            f"reports of {payer} exceed a limit: about {count} were refused lately",
            "its agent's log names the limit (docs/reference/admission.md): raise that setting, or,"
            " where nothing on that node explains it, gpuledger token revoke",
        )


def writing(seen: LedgerHealth) -> Iterator[Diagnosis]:
    """What keeps, or kept, batches from being written."""
    for host, error in seen.failed_writers:
        yield bad(
            "writer",
            f"{host} could not write batches, last at {error}",
            "agents send them again; see the collector's log and /readyz",
        )
    if seen.partitions > MAX_PARTITIONS:
        yield bad(
            "partitions",
            f"{seen.partitions} partitions; with over {MAX_PARTITIONS} planning gets slow",
            "the job merge_partitions makes a month of old days: it runs daily in `gpuledger"
            " serve`; max_evidence_age_days keeps old days out",
        )
    else:
        yield ok("partitions", f"{plural(seen.partitions, 'partition')} of evidence")


def _mark(verdict: str) -> str:
    """The mark of a verdict, colored on a terminal that wants colors."""
    is_colored = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"\x1b[{COLORS[verdict]}m{MARKS[verdict]}\x1b[0m" if is_colored else MARKS[verdict]


def print_findings(findings: Sequence[Diagnosis]) -> None:
    """Print a line for each finding, and one for its remedy."""
    for finding in findings:
        print(f"{_mark(finding.verdict)}  {escape_text(f'{finding.topic:12} {finding.sentence}')}")
        if finding.remedy:
            say(f"{'':6}{'':12} -> {finding.remedy}")
