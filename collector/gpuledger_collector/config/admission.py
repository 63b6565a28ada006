"""What the commands and settings admit of files, and what the server admits of each database role."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_collector.config import bounded_process, files, workbook_process
from gpuledger_collector.insight.series import MAX_STEPS
from gpuledger_collector.storage.access import reader_watch, readers
from gpuledger_collector.storage.server import embedded
from gpuledger_common.admission import NONE, Admission
from gpuledger_common.bounded_file import (
    MAX_DOTS,
    MAX_SECRET_BYTES,
    MAX_TOML_BYTES,
    MAX_TOML_PARTS,
)
from gpuledger_common.profiles import fetch, lines, page

_MIB = 1024 * 1024
_CONTENT = f"{files.MAX_FILE_BYTES // _MIB} MiB"
_ROWS = f"{files.MAX_RECORDS:,} rows"
_LEDGER = "the ledger, by the rules that it imports"


def _file(
    way_in: str, max_bytes: str, inflated: str, records: str, adds: str, deadline: str = NONE
) -> Admission:
    """The row of a file: whoever runs the command pays, and nothing else waits for it."""
    return Admission(
        way_in=way_in,
        payer="file",
        bytes=max_bytes,
        inflated_bytes=inflated,
        records=records,
        age=NONE,
        rate=NONE,
        in_progress="one a command",
        deadline=deadline,
        query=NONE,
        adds=adds,
    )


_ROW = (
    f"rows of {files.MAX_ROW_CHARACTERS // _MIB} Mi characters, {files.MAX_COLUMNS:,} columns,"
    f" {files.MAX_PROBLEMS:,} mistakes"
)
_PROCESS = (
    f"its reader has {bounded_process.MAX_MEMORY_BYTES // _MIB} MiB of memory and"
    f" {bounded_process.MAX_CPU_SECONDS} s of CPU"
)
_TABLE = _file(
    "table of jobs or devices (CSV, sacct, .gz, .xlsx)",
    _CONTENT,
    f"{_CONTENT}; of a workbook {workbook_process.MAX_INFLATED_BYTES // _MIB} MiB, and {_PROCESS}",
    f"{_ROWS} of about {files.ROW_MEMORY_BYTES} bytes in memory; {_ROW}",
    _LEDGER,
    "linear in the file",
)
_SAMPLES = _file(
    "samples (CSV, JSON lines, .gz)",
    _CONTENT,
    _CONTENT,
    f"{_ROWS}, {_ROWS} of samples in them; {_ROW}",
    _LEDGER,
    "linear in the file",
)
_BILL = _file(
    "bill of a provider (FOCUS, CSV, .gz, Parquet)",
    _CONTENT,
    f"{_CONTENT}; of Parquet, as text, and {_PROCESS}",
    f"{_ROWS}; {_ROW}",
    _LEDGER,
    "linear in the file",
)
_SERIES = _file(
    "series of a forecast, anomaly or backtest (CSV, .gz)",
    _CONTENT,
    _CONTENT,
    f"{_ROWS}, {files.MAX_CELLS:,} cells, {MAX_STEPS:,} steps of all series",
    "nothing",
    "linear in the file, before methods are asked",
)
_SHARES = _file(
    "shares that sacctmgr or kubectl printed (.gz)",
    _CONTENT,
    _CONTENT,
    f"{_ROWS}, {files.MAX_ACCOUNTS:,} accounts, {files.MAX_ACCOUNT_DEPTH} above each other;"
    f" {files.MAX_JSON_VALUES:,} values of JSON",
    "shares of a pool",
    "linear in the file",
)
_FOCUS = _file(
    "FOCUS file to check",
    f"lines and rows of {files.MAX_ROW_CHARACTERS // _MIB} Mi characters",
    NONE,
    f"{_ROWS}, {files.MAX_COLUMNS:,} columns, {files.MAX_PROBLEMS:,} violations shown;"
    f" {files.MAX_REMEMBERED_BYTES // _MIB} MiB of what rows are compared with",
    "nothing",
    "linear in the file",
)
_TOML = _file(
    "table, template, profile or settings (TOML)",
    f"{MAX_TOML_BYTES // _MIB} MiB",
    NONE,
    f"{MAX_TOML_PARTS:,} keys and values, {MAX_DOTS:,} dots a line",
    _LEDGER,
)
_SECRET = _file("secret", f"{MAX_SECRET_BYTES // _MIB} MiB", NONE, NONE, "nothing")
_CERTIFICATE = _file("certificate or key, which OpenSSL reads", "the disk", NONE, NONE, "nothing")
_PAGE = _file(
    "page of `profiles check`",
    f"{fetch.MAX_PAGE_BYTES // _MIB} MiB",
    "0: compressed answers are refused",
    f"{lines.MAX_LINES} samples, {page.MAX_DEVICES} accelerators",
    "nothing",
    f"{fetch.TIMEOUT_S:g} s",
)
_BACKUP = _file(
    "backup, which pg_restore reads, or a folder of them, which is compared with its manifests",
    "the disk",
    "the disk",
    NONE,
    "a whole ledger, into an empty one",
)

FILES: Mapping[str, Admission] = {
    "anomalies series": _SERIES,
    "apply file": _TOML,
    "db grant-reader password_file": _SECRET,
    "db restore file": _BACKUP,
    "export erp template": _TOML,
    "focus check path": _FOCUS,
    "forecast series": _SERIES,
    "import bill file": _BILL,
    "import inference file": _TABLE,
    "import inventory file": _TABLE,
    "import litellm database": _SECRET,
    "import litellm file": _TABLE,
    "import prices file": _TABLE,
    "import queue file": _TABLE,
    "import sacct file": _TABLE,
    "import samples file": _SAMPLES,
    "import shares file": _SHARES,
    "import usage file": _TABLE,
    "mcp token_file": _SECRET,
    "profiles check page": _PAGE,
    "profiles check profile": _TOML,
    "scale backtest file": _SERIES,
    "start ca_file": _CERTIFICATE,
    "start source": _TABLE,
    "start token_file": _SECRET,
    "what-if prices": _TABLE,
}
"""The row of each parameter of a command that names a file to read; `--config` of all is `_TOML`.
"""
SETTINGS: Mapping[str, Admission] = {
    "agent_token_file": _SECRET,
    "dsn_file": _SECRET,
    "hooks_file": _TOML,
    "kubernetes_ca_file": _CERTIFICATE,
    "kubernetes_token_file": _SECRET,
    "link_secret_file": _SECRET,
    "mail_ca_file": _CERTIFICATE,
    "mail_password_file": _SECRET,
    "mcp_token_file": _SECRET,
    "exporter_profiles": _TOML,
    "reader_token_file": _SECRET,
    "tls_certificate_file": _CERTIFICATE,
    "tls_key_file": _CERTIFICATE,
}
"""The row of each setting that names a file to read."""


def _role(way_in: str, payer: str, in_progress: str, deadline: str, query: str) -> Admission:
    """The row of a database role."""
    return Admission(
        way_in=way_in,
        payer=payer,
        bytes=NONE,
        inflated_bytes=NONE,
        records=NONE,
        age=NONE,
        rate=NONE,
        in_progress=in_progress,
        deadline=deadline,
        query=query,
        adds="nothing: it cannot write",
    )


_READER_QUERY = (
    f"{readers.STATEMENT_TIMEOUT}, which it may lift up to {reader_watch.TRANSACTION_SECONDS} s; "
    f"{readers.TEMP_FILE_LIMIT} of temporary files a session and parallel worker, of which all"
    f" sessions of the embedded server have {embedded.WORKER_PROCESSES}:"
    f" {readers.TEMP_FILE_MB * (readers.CONNECTIONS + embedded.WORKER_PROCESSES):,} MB"
)
_READER_DEADLINE = (
    f"transaction {reader_watch.TRANSACTION_SECONDS} s, idle {reader_watch.IDLE_SECONDS} s"
)
_SESSIONS = f"{readers.CONNECTIONS} sessions"
_UNBOUNDED = "no limit of temporary files: rating sorts what the ledger holds"
ROLES: Mapping[str, tuple[Admission, ...]] = {
    "readers": (
        _role("role of all dashboards", "role", _SESSIONS, _READER_DEADLINE, _READER_QUERY),
        _role("role of one owner's dashboards", "role", _SESSIONS, _READER_DEADLINE, _READER_QUERY),
    ),
    "row_level_security": (
        _role(
            "role of a viewer's request (gpuledger_viewer)",
            "reader",
            "no login",
            "of its request",
            "600 s",
        ),
    ),
    "embedded_roles": (
        Admission(
            way_in="owner of the embedded ledger (gpuledger)",
            payer="the collector",
            bytes=NONE,
            inflated_bytes=NONE,
            records=NONE,
            age=NONE,
            rate=NONE,
            in_progress="half of 60 sessions are reserved for it",
            deadline=NONE,
            query=f"600 s; {_UNBOUNDED}",
            adds="the ledger",
        ),
        Admission(
            way_in="connection to the embedded Postgres that has not logged in",
            payer="all of the machine",
            bytes="10,000 bytes to begin, 64 KiB a message",
            inflated_bytes=NONE,
            records=NONE,
            age=NONE,
            rate=NONE,
            in_progress=f"{embedded.OPTIONS['max_connections']} sessions, reserved ones among them",
            deadline=f"{embedded.LOGIN_SECONDS} s to log in",
            query=NONE,
            adds="nothing",
        ),
    ),
}
"""The rows of the roles that a module of storage creates."""

ADMISSIONS: tuple[Admission, ...] = tuple(
    dict.fromkeys(
        (*FILES.values(), *SETTINGS.values(), *(row for rows in ROLES.values() for row in rows))
    )
)
