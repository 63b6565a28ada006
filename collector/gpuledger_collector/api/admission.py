"""What each HTTP route admits: one row for every route and method, from the constants and settings
that enforce it.
"""

from __future__ import annotations

from dataclasses import replace

from gpuledger_collector.accounting.contested_lines import MOST_LINES
from gpuledger_collector.accounting.disputes import MOST_ENTRIES, MOST_OPEN
from gpuledger_collector.accounting.spend_series import MOST_DAYS
from gpuledger_collector.api import (
    batches,
    intake,
    limits,
    live,
    queue,
    queue_page,
    reader_limits,
    remote_write,
    runs,
    samples,
    token_reports,
)
from gpuledger_collector.api.context import MAX_DAYS, MAX_ROWS
from gpuledger_collector.api.series import MAX_STEPS
from gpuledger_collector.export.proof import SHOWN_CLAIMS
from gpuledger_collector.export.shortened import MOST_ROWS
from gpuledger_collector.export.site import LIVE
from gpuledger_collector.ingest import queue_readings, token_records
from gpuledger_collector.ingest.batches import bounds
from gpuledger_collector.ingest.remote_write.decode import MAX_INFLATED_BYTES, MAX_SAMPLES
from gpuledger_collector.insight.free_gpus import DAYS as FREE_DAYS
from gpuledger_collector.insight.free_gpus import MORNING_DAYS, WEEKEND
from gpuledger_collector.notifications import links
from gpuledger_collector.services.database import LARGE_LINES, MOST_LINES_IN_MEMORY
from gpuledger_collector.services.forecasts import MOST_POOLS
from gpuledger_collector.services.gpu_receipt import MOST_RECEIPT_DAYS
from gpuledger_collector.settings import Settings
from gpuledger_common.admission import NONE, Admission
from gpuledger_common.wire import MAX_BODY_BYTES, MAX_DECODED_BYTES


def _mib(size: int) -> str:
    return f"{size // 1024 // 1024} MiB"


DEFAULTS = Settings()
NODE = "node of the token; with a token for any node, the node in the batch"
SENDER = "node of the token, else the token"
READER = "token; without tokens, the address"
READING = (
    f"{reader_limits.AT_ONCE} of a payer and {reader_limits.AT_ONCE_OF_ALL} of all in a worker,"
    f" after {reader_limits.WAIT_SECONDS:g} s 429 or 503"
)
READ_DEADLINE = (
    f"`page_seconds` ({DEFAULTS.page_seconds}), then 503; cancelled when the reader disconnects"
)
BODY = f"{limits.MAX_BODY_BYTES // 1024} KiB"
BODY_DEADLINE = (
    f"{intake.BODY_SECONDS:.0f} s for the body, {intake.MIN_BYTES_PER_SECOND} bytes a second after "
    f"{intake.GRACE_SECONDS:.0f} s"
)
HEAD_DEADLINE = f"{limits.HEAD_SECONDS:.0f} s for the head, {limits.BODY_SECONDS:.0f} s for a body"
AGE = f"`max_evidence_age_days` ({DEFAULTS.max_evidence_age_days})"
SHARE = f"1/{intake.SHARE} of `queue_bytes` ({_mib(DEFAULTS.queue_bytes)}) for a payer"


def _rates(*names: str) -> str:
    """Settings of quotas with their defaults."""
    return ", ".join(f"`{name}` ({getattr(DEFAULTS, name):,})" for name in names)


def _report(way_in: str, **bounds_of_it: str) -> Admission:
    """A route on which agents and Prometheus report."""
    shared = {
        "payer": SENDER,
        "inflated_bytes": NONE,
        "age": AGE,
        "in_progress": f"{SHARE}; {intake.DECODERS} large bodies decoded at once, one of a payer",
        "deadline": BODY_DEADLINE,
        "query": NONE,
    }
    return Admission(way_in=way_in, **(shared | bounds_of_it))


REPORTS = (
    _report(
        f"POST {batches.PATH}",
        payer=NODE,
        bytes=_mib(MAX_BODY_BYTES),
        inflated_bytes=_mib(MAX_DECODED_BYTES),
        records=", ".join(f"{name} {most:,}" for name, most in bounds.MAX_RECORDS.items())
        + f", rows of samples {bounds.MAX_ROWS:,}",
        rate=_rates(
            "node_samples_per_second",
            "node_bytes_per_second",
            "node_inflated_bytes_per_second",
            "node_names_per_second",
        ),
        adds=_rates("node_new_names_per_hour", "node_new_days_per_hour", "node_new_owners_per_hour")
        + f"; pages list {MOST_ROWS} owners, {MOST_POOLS} pools and {SHOWN_CLAIMS} refused claims, "
        "and sum or count the others",
    ),
    _report(
        f"POST {queue.PATH}",
        bytes=_mib(queue.MAX_BYTES),
        records=f"waiting {queue_readings.MAX_WAITING:,}",
        rate=_rates(
            "node_queue_readings_per_hour", "node_samples_per_second", "node_bytes_per_second"
        ),
        in_progress=f"{SHARE}, one reading; {queue.STORES} readings stored at once",
        deadline=f"{BODY_DEADLINE}; {queue.STORE_SECONDS} s to store it",
        adds=f"{_mib(queue.MAX_STORED_BYTES)} a reading, {_rates('node_queue_bytes_per_hour')}",
    ),
    _report(
        f"POST {token_reports.PATH}",
        payer="token for any node",
        bytes=_mib(token_reports.MAX_BYTES),
        records=f"records {token_records.MAX_RECORDS:,}",
        rate=_rates("node_samples_per_second", "node_bytes_per_second"),
        in_progress=f"{SHARE}; {token_reports.STORES} report stored at once",
        deadline=f"{BODY_DEADLINE}; {token_reports.STORE_SECONDS} s to store it",
        adds=f"tenants, models and backends of {token_records.MAX_TEXT} characters",
    ),
    _report(
        f"POST {remote_write.PATH}",
        payer="token for any node",
        bytes=_mib(MAX_BODY_BYTES),
        inflated_bytes=_mib(MAX_INFLATED_BYTES),
        records=f"series and samples {MAX_SAMPLES:,}",
        rate=_rates("remote_write_samples_per_second"),
        adds="any node and accelerator",
    ),
    _report(
        f"POST {runs.PROGRESS_PATH}",
        bytes=BODY,
        records="one",
        age=NONE,
        rate=f"{limits.PROGRESS_SAMPLES} of {_rates('node_samples_per_second')}",
        in_progress=NONE,
        deadline=HEAD_DEADLINE,
        adds="counters of a run that holds a GPU of the node",
    ),
)


def _open(way_in: str, query: str = NONE) -> Admission:
    """A route without a token."""
    return Admission(
        way_in=way_in,
        payer="address",
        bytes=BODY,
        inflated_bytes=NONE,
        records=NONE,
        age=NONE,
        rate=NONE,
        in_progress=f"`max_connections` ({DEFAULTS.max_connections:,})",
        deadline=HEAD_DEADLINE,
        query=query,
        adds=NONE,
    )


PROBES = f"{limits.OPERATION_THREADS} threads of their own"
OPERATION = (
    _open("GET /healthz"),
    replace(_open("GET /readyz", "three statements"), in_progress=PROBES),
    replace(_open("GET /metrics", "three statements"), in_progress=PROBES),
    _open("GET /docs"),
    _open("GET /assets/{name}"),
    _open("GET /favicon.ico"),
    _open("GET /openapi.json"),
)
SIGNED = tuple(
    replace(
        _open(f"{method} {path}", "a few rows by key"),
        payer="the link, which works once",
        adds=NONE if method == "GET" else "an acknowledgment",
    )
    for path in (links.PATH, links.NOTIFICATION_PATH)
    for method in ("GET", "POST")
)


def _read(way_in: str, query: str, **bounds_of_it: str) -> Admission:
    """A route that answers readers from the ledger."""
    return replace(
        _open(way_in, query),
        payer=READER,
        in_progress=READING,
        deadline=READ_DEADLINE,
        **bounds_of_it,
    )


LINES = f"at most {MOST_LINES_IN_MEMORY:,} lines, one answer of more than {LARGE_LINES:,} at a time"
PAGES = tuple(
    _read(f"GET {path}", query)
    for path, query in {
        "/": f"the period asked for, by default a month, {LINES}",
        "/spend": f"the period asked for, at most {MOST_DAYS:,} days, by default a month, {LINES}",
        "/statements": f"a month, {LINES}",
        "/statements/{level}": "which months have charges",
        "/statements/{level}/{month}": f"a month, {LINES}",
        "/statements/{level}/{owner:name}/{month}": f"a month, {LINES}",
        "/idle": "current findings",
        "/anomalies": "current findings",
        "/jobs": f"the period asked for, by default a month, {LINES}",
        "/jobs/{job:name}": "a job",
        "/models": "the period asked for, by default a month, a line a tenant, model and day",
        "/queues": f"the period asked for, by default a month; {queue_page.SHOWN} rows of a list",
        "/demand": (
            f"weeks of all pools, once an hour; {MOST_POOLS} are forecast; the free GPUs of"
            f" {FREE_DAYS} days, and of the mornings of {MORNING_DAYS[WEEKEND]}"
        ),
        "/trust": f"the period asked for, by default a month, {LINES}",
        "/fleet": "an hour of every accelerator",
        "/fleet/gpu/{gpu:name}": f"one GPU, at most {MOST_RECEIPT_DAYS} days",
        "/pools/{pool:name}": "weeks of one pool",
    }.items()
)
STREAMS = (
    replace(
        _read(
            f"GET {LIVE}",
            f"one statement every {live.LOOK_SECONDS:g} s of a worker for all streams, and none"
            " without any",
        ),
        payer="token; without tokens, or with that of a file, the address",
        in_progress=(
            f"{live.MOST_OF_READER} streams of a payer and {live.MOST_STREAMS} of all in a worker,"
            " then 429 or 503"
        ),
        deadline=(
            f"{live.LIFE_SECONDS:g} s, {live.SEND_SECONDS:g} s to receive an event; ends when the"
            " reader disconnects, its token ends or the collector stops"
        ),
    ),
)
DAYS = f"at most {MAX_DAYS} days"
PAGED = f"at most {MAX_ROWS:,} rows an answer"
ANSWERS = tuple(
    _read(f"GET {path}", query)
    for path, query in {
        "/v1/chargeback": f"the period asked for, {LINES}",
        "/v1/accelerators": f"{DAYS}, {PAGED}",
        "/v1/nodes": PAGED,
        "/v1/budgets": "budgets in force",
        "/v1/idle": PAGED,
        "/v1/anomalies": PAGED,
        "/v1/recommendations": PAGED,
        "/v1/runs": f"the period asked for, at most {runs.MAX_LISTED} rows an answer",
        "/v1/inference": f"the period asked for, {PAGED}",
        "/v1/queues": f"the period asked for, {PAGED}",
        "/v1/queues/quotas": f"the period asked for, {PAGED}",
        "/v1/queues/evictions": f"the period asked for, {PAGED}",
        "/v1/series": f"at most {MAX_STEPS:,} steps",
        "/v1/samples": (
            f"{samples.MAX_ACCELERATORS} accelerators, {samples.MAX_ACCELERATOR_DAYS} of their"
            f" days, {samples.MAX_POINTS:,} instants"
        ),
        "/v1/forecast": f"weeks of one pool or of all; {MOST_POOLS} are forecast",
        "/v1/forecast/history": "stored forecasts",
        "/v1/scaling/{pool:name}": "weeks of one pool",
        "/v1/disputes": PAGED,
        "/v1/disputes/{number}": "one dispute with its evidence",
        "/v1/audit": PAGED,
    }.items()
)
DECISIONS = (
    _read(
        "POST /v1/disputes",
        f"{DAYS}, at most {MOST_LINES:,} lines",
        adds=f"{MOST_OPEN} undecided disputes of an organization or team, each of other lines",
    ),
    _read(
        "POST /v1/disputes/{number}/answers",
        "one dispute",
        adds=f"{MOST_ENTRIES} messages of a dispute",
    ),
    _read("POST /v1/disputes/{number}/preview", "the contested days"),
    _read("POST /v1/disputes/{number}/resolution", "the contested days", adds="a decision, once"),
)
ADMISSIONS = (*REPORTS, *OPERATION, *SIGNED, *PAGES, *STREAMS, *ANSWERS, *DECISIONS)
