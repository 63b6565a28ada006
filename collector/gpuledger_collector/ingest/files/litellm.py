"""LiteLLM's spend logs as CSV: rows of its table `LiteLLM_SpendLogs`, one for each attempt.

Only the columns of `COLUMNS` are read: no prompts, no answers, no addresses of callers, no keys. A
row that LiteLLM answered from its own cache (`cache_hit`) moved no GPU and is left out.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PlainValidator, field_validator

from gpuledger_collector.accounting.import_progress import OnRow, tell_nobody
from gpuledger_collector.accounting.inference import (
    AUTHENTICATED,
    CLAIM,
    MAX_TOKENS,
    Asker,
    TokenRecord,
    Tokens,
    record_problem,
)
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.csv_rows import Parsed, read_rows
from gpuledger_collector.config.fields import (
    DECLARED,
    Instants,
    end_after,
    read_instant,
    read_text,
    whole,
)
from gpuledger_collector.config.model import Record, Row
from gpuledger_collector.ingest.files.inference import ShortText

LITELLM = "litellm"
"""The gateway, where the command names none: that of its metrics page too."""
COLUMNS = (
    "request_id",
    "startTime",
    "endTime",
    "model",
    "model_group",
    "api_base",
    "prompt_tokens",
    "completion_tokens",
    "cache_hit",
)
"""Columns that are read, beside that of the tenant."""
CACHED = "cached_tokens"
"""Of a file's columns, or the number of the database's metadata, that says how much of a prompt the
server had in its cache.
"""


class TenantColumn(enum.StrEnum):
    """The column that says who asked; `user` and `end_user` may name persons."""

    team_id = "team_id"
    organization_id = "organization_id"
    user = "user"
    end_user = "end_user"

    @property
    def trust(self) -> str:
        """Who set it: `end_user` is the `user` of the request's body."""
        return CLAIM if self is TenantColumn.end_user else AUTHENTICATED


def _utc(value: object) -> object:
    """The text of an instant with its zone: LiteLLM stores UTC without one."""
    text = read_text(value)
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if at.tzinfo is not None else at.replace(tzinfo=dt.UTC).isoformat()


UtcInstant = Annotated[int, PlainValidator(read_instant), BeforeValidator(_utc)]
TokenCount = Annotated[int, whole(0, MAX_TOKENS, "tokens")]


class SpendLog(Row):
    """A row of the table, or of a file of it."""

    request_id: ShortText
    start_ms: UtcInstant = Field(alias="startTime")
    end_ms: Annotated[UtcInstant, end_after("start_ms", "startTime", or_at=True)] = Field(
        alias="endTime"
    )
    model: ShortText = ""
    model_group: ShortText = ""
    api_base: ShortText = ""
    prompt_tokens: TokenCount
    completion_tokens: TokenCount
    cached_tokens: TokenCount = 0
    cache_hit: ShortText = ""
    team_id: ShortText = ""
    organization_id: ShortText = ""
    user: ShortText = ""
    end_user: ShortText = ""

    blank_columns: ClassVar[Sequence[str]] = ("model", "cache_hit")

    @field_validator("cached_tokens", mode="before")
    @classmethod
    def _know_none(cls, text: object) -> object:
        """No details: the server did not say what it had in its cache."""
        return text or 0


@dataclass
class SpendLogs(Parsed[TokenRecord]):
    """The records of spend logs, and how many rows moved no GPU."""

    from_cache: int = 0
    ids: set[str] = field(default_factory=set)


def add_row(
    logs: SpendLogs, record: Record, gateway: str, tenant: TenantColumn, instants: Instants
) -> None:
    """Add a row to the records, or what is wrong with it to the problems."""
    row = SpendLog.read(record, logs.problems, instants)
    if row is not None:
        add_log(logs, record.source, row, gateway, tenant)


def add_log(
    logs: SpendLogs, source: str, row: SpendLog, gateway: str, tenant: TenantColumn
) -> None:
    """Add a checked row to the records, unless LiteLLM answered it itself."""
    if row.cache_hit.lower() == "true":
        logs.from_cache += 1
        return
    asker = Asker(
        gateway,
        getattr(row, tenant.value),
        row.model or row.model_group,
        row.api_base,
        tenant.trust,
    )
    tokens = Tokens(row.prompt_tokens, row.cached_tokens, row.completion_tokens, 1)
    record = TokenRecord(asker, row.request_id, row.start_ms, row.end_ms, tokens)
    if problem := record_problem(record):
        logs.problems.append(Problem("bad_record", source, problem))
    elif record.source_id in logs.ids:
        message = f"{record.source_id} stands twice: every attempt has a request_id of its own"
        logs.problems.append(Problem("double", f"{source}:request_id", message))
    else:
        logs.ids.add(record.source_id)
        logs.rows.append(record)


def _file_row(tenant: TenantColumn) -> type[SpendLog]:
    """A row of a file: its header must name the column of tenants, or all would be nobody's."""

    class FileRow(SpendLog):
        blank_columns = (*SpendLog.blank_columns, tenant.value)

    return FileRow


def read_spend_logs(
    path: Path,
    gateway: str = LITELLM,
    tenant: TenantColumn = TenantColumn.team_id,
    instants: Instants = DECLARED,
    on_line: OnRow = tell_nobody,
) -> SpendLogs:
    """Every record of a CSV of the table, and the problems of all bad rows."""
    logs = SpendLogs()
    for record, row in read_rows(path, _file_row(tenant), logs, instants, on_line):
        add_log(logs, record.source, row, gateway, tenant)
    return logs


def cells_of(columns: Mapping[str, Any]) -> dict[str, str]:
    """The cells of a row of the database as a file has them; null is empty."""
    return {name: "" if value is None else str(value) for name, value in columns.items()}
