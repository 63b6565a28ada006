"""The part of `gpuledger start` that reads the past of a fleet from a Prometheus."""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuledger_collector import wiring
from gpuledger_collector.accounting.attribution import Rule
from gpuledger_collector.accounting.ledger_rows import OtherSource
from gpuledger_collector.accounting.period import Period, format_instant
from gpuledger_collector.accounting.placement import DEFAULT_POOL
from gpuledger_collector.cli.common import UNAVAILABLE, refuse
from gpuledger_collector.cli.output import table_text, terminal_width
from gpuledger_collector.cli.progress import bar, busy
from gpuledger_collector.cli.session import Session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.report import key_column
from gpuledger_collector.ingest.remote_write.history import History, Known, Past, read_known
from gpuledger_collector.ingest.remote_write.prometheus_api import (
    BadAddress,
    NoAnswer,
    PrometheusApi,
)
from gpuledger_collector.ingest.remote_write.series import SeriesCache, SeriesReader
from gpuledger_collector.services.first_start import declare_first_rules, require_not_imported
from gpuledger_collector.settings import Settings, read_secret
from gpuledger_common.plurals import plural

DEFAULT_DAYS = 30
EXAMPLES = 3
"""Values of a label that are shown beside what it means."""
SETTLING_MS = 30_000
"""Scrapes of the last seconds may not be stored yet."""
_API_PATH = re.compile(r"/api/v1(?:/.*)?$")
MEANINGS = {
    "Hostname": "node",
    "hostname": "node",
    "UUID": "GPU",
    "gpu_uuid": "GPU",
    "modelName": "gpu_model",
    "GPU_I_PROFILE": "MIG profile",
    "exported_namespace": "tag:namespace, the team",
    "namespace": "tag:namespace, the team",
    "exported_pod": "workload_id",
    "pod": "workload_id",
    "hpc_job": "workload_id",
    "org": "tag:org",
    "team": "tag:team",
    "project": "tag:project",
    "experiment": "tag:experiment",
    "run": "tag:run",
}
"""Labels that are shown, and what they mean; of a pair the first that the series have."""
NAMESPACE_RULES = (
    Rule(None, "the namespace is the team", 1, {"namespace": "*"}, {"team": "{namespace}"}),
    Rule(None, "unless a label names the team", 2, {"team": "*"}, {"team": "{team}"}),
)
"""Who pays, until somebody declares it: without them every pod would be unattributed."""


_NO_SERIES, _LOOK_BACK_MS = 'up{job="gpuledger asks whether anybody answers"}', 60_000


def is_address(source: str) -> bool:
    """Whether the argument is the address of a Prometheus, and no file."""
    return "://" in source


def open_api(address: str, token_file: Path | None, ca_file: Path | None) -> PrometheusApi:
    """The API at an address; refuses files that cannot be used."""
    token = "" if token_file is None else read_secret(token_file, "--token-file")
    try:
        context = None if ca_file is None else ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        refuse(f"--ca-file: {ca_file} holds no certificate")
    # People paste the address of a query.
    return PrometheusApi(_API_PATH.sub("", address), token, context)


def require_answer(api: PrometheusApi, now_ms: int) -> None:
    """Refuse an address at which no Prometheus answers, or which wants a token: before anything is
    started for it.
    """
    with _refusing(), busy(f"asking {api.name}"):
        api.series(_NO_SERIES, Period(now_ms - _LOOK_BACK_MS, now_ms))


@contextmanager
def _refusing() -> Iterator[None]:
    """End the command with a sentence where the Prometheus gives no answer."""
    try:
        yield
    except BadAddress as error:
        refuse(str(error))
    except NoAnswer as error:
        refuse(str(error), UNAVAILABLE)


def look(api: PrometheusApi, period: Period, reader: SeriesReader) -> Known:
    """What the Prometheus knows of GPUs in a period, shown; refuses one that knows none."""
    with _refusing(), busy(f"asking {api.name}"):
        known = read_known(api, period, reader)
    for reason in known.refused:
        say(f"{api.name}: a series {reason}", error=True)
    if not known.series:
        since = format_instant(period.start_ms)[:10]
        names = "DCGM_FI_DEV_GPU_UTIL and others"
        refuse(
            f"{api.name} has no series of GPUs ({names}) since {since}: does it scrape an exporter"
            " that is known?"
        )
    _show(api, known)
    return known


def _show(api: PrometheusApi, known: Known) -> None:
    nodes = {series.accelerator.node for _, series in known.series}
    accelerators = {series.accelerator.accelerator.uuid for _, series in known.series}
    holders = {
        (series.workload.kind, series.workload.id)
        for _, series in known.series
        if series.workload is not None
    }
    counts = [
        plural(len(accelerators), "GPU"),
        plural(len(nodes), "node"),
        plural(len(holders), "workload"),
    ]
    say(f"{api.name}: {', '.join(counts)} by the labels of their exporters")
    rows = []
    shown: set[str] = set()
    for label, meaning in MEANINGS.items():
        values = sorted({labels[label] for labels, _ in known.series if labels.get(label)})
        if values and meaning not in shown:
            shown.add(meaning)
            more = f" and {len(values) - EXAMPLES} more" if len(values) > EXAMPLES else ""
            rows.append(
                {"label": label, "means": meaning, "values": ", ".join(values[:EXAMPLES]) + more}
            )
    columns = [key_column("label"), key_column("means"), key_column("values")]
    sys.stdout.write(table_text(columns, rows, terminal_width()))


def refuse_imported(session: Session, known: Known, period: Period) -> None:
    """Refuse GPUs whose usage a file brought for another or no pool: it would be billed twice."""
    places = [series.accelerator for _, series in known.series]
    nodes = sorted({place.node for place in places})
    pools = sorted({place.accelerator.pool or DEFAULT_POOL for place in places})
    try:
        require_not_imported(session.database, period, nodes, pools)
    except OtherSource as error:
        refuse(str(error))


def declare_teams(session: Session, known: Known, now_ms: int) -> None:
    """Make the namespace of a pod its team, in a ledger that has no rules yet."""
    if not any(
        series.workload is not None and series.workload.tags.get("namespace")
        for _, series in known.series
    ):
        return
    if declare_first_rules(session.database, NAMESPACE_RULES, now_ms):
        team = "a pod's team is its label `team`, else its namespace"
        say(f"rules: {team}; [[rule]] tables of `gpuledger apply` replace them")


def read_past(
    session: Session, settings: Settings, api: PrometheusApi, period: Period, now_ms: int
) -> Past:
    """Bring the usage of a period into the ledger; refuses an address that stops answering."""
    history = History(api, wiring.metering(settings), SeriesCache(wiring.series_reader(settings)))
    try:
        with bar(f"reading {api.name}") as on_range:
            past = history.read(session.database, period, now_ms, on_range)
    except BadAddress as error:
        refuse(str(error))
    except NoAnswer as error:
        refuse(f"{error}; what was read stays, and the same command goes on", UNAVAILABLE)
    if past.first_ms is None or past.last_ms is None:
        refuse(
            f"{api.name} has no samples of GPUs in a whole five minutes yet; try again in a while"
        )
    return past


def summary(past: Past) -> str:
    """The sentence about what was read."""
    first, last = (
        format_instant((at_ms or 0) // 1000 * 1000) for at_ms in (past.first_ms, past.last_ms)
    )
    read = (
        f"usage: {past.samples} samples of {plural(len(past.accelerators), 'GPU')} from {first} to"
        f" {last}"
    )
    return (
        f"{read}; what came since, and what it missed, is (unobserved) in the bill until it is read"
    )


def refuse_options(given: Sequence[str]) -> None:
    """Refuse options of files."""
    if given:
        refuse(
            f"{given[0]} is about a file; a Prometheus takes --rate, --currency, --days,"
            " --token-file and --ca-file"
        )
