"""The inference CSV: `start,end,model,tenant,input_tokens,cached_tokens,output_tokens`, a row for
what a tenant was answered between two instants, a request or the sum of several.

Optional: backend, requests, id, claim. A row without an id is told by its times, model, tenant,
backend and claim. An empty tenant is a key without a team; `claim` true: the tenant is what the
caller says, not what the gateway has checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

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
    Instant,
    Instants,
    Text,
    end_after,
    one_of,
    refusal,
    whole,
)
from gpuledger_collector.config.model import Row

FILE = "file"
"""The gateway of a file that names none."""
MAX_NAME = 500
"""Characters of a model, a tenant, a backend or an id."""


def _require_short(text: str) -> str:
    if len(text) > MAX_NAME:
        raise refusal("too_long", f"has {len(text)} characters; at most {MAX_NAME} are kept")
    return text


ShortText = Annotated[Text, AfterValidator(_require_short)]
TokenCount = Annotated[int, whole(0, MAX_TOKENS, "tokens")]
_TRUST = {"true": CLAIM, "false": AUTHENTICATED}
"""Who said the tenant, by the column `claim`."""


class _Answered(Row):
    start_ms: Instant = Field(alias="start")
    end_ms: Annotated[Instant, end_after("start_ms", "start", or_at=True)] = Field(alias="end")
    model: ShortText
    tenant: ShortText = ""
    input_tokens: TokenCount
    cached_tokens: TokenCount
    output_tokens: TokenCount
    backend: ShortText = ""
    requests: Annotated[int, whole(0, MAX_TOKENS)] = 0
    id: ShortText = ""
    claim: Annotated[str, one_of(_TRUST)] = ""

    blank_columns = ("tenant",)

    @field_validator("cached_tokens")
    @classmethod
    def _part_of_input(cls, cached: int, info: ValidationInfo) -> int:
        given = info.data.get("input_tokens")
        if given is not None and cached > given:
            raise refusal(
                "order", f"{cached} are more than the {given} input tokens they belong to"
            )
        return cached


@dataclass
class TokenFile(Parsed[TokenRecord]):
    """The records of a file, and the place of each by its id."""

    places: dict[str, str] = field(default_factory=dict)


def read_inference(
    path: Path,
    gateway: str = FILE,
    trust: str = AUTHENTICATED,
    instants: Instants = DECLARED,
    on_line: OnRow = tell_nobody,
) -> TokenFile:
    """Every record of the file, and the problems of all bad rows.

    `trust`: of rows that say nothing of a claim.
    """
    parsed = TokenFile()
    for record in _read(path, parsed, gateway, trust, instants, on_line):
        parsed.rows.append(record)
    return parsed


def _read(
    path: Path,
    parsed: TokenFile,
    gateway: str,
    trust: str,
    instants: Instants,
    on_line: OnRow,
) -> Iterator[TokenRecord]:
    seen: dict[str, TokenRecord] = {}
    for place, row in read_rows(path, _Answered, parsed, instants, on_line):
        record = TokenRecord(
            Asker(gateway, row.tenant, row.model, row.backend, _TRUST.get(row.claim, trust)),
            row.id or _own_id(row),
            row.start_ms,
            row.end_ms,
            Tokens(row.input_tokens, row.cached_tokens, row.output_tokens, row.requests),
        )
        if problem := record_problem(record):
            parsed.problems.append(Problem("bad_record", place.source, problem))
        elif seen.setdefault(record.source_id, record) is record:
            parsed.places[record.source_id] = place.source
            yield record
        else:
            key = "id" if row.id else "start"
            message = (
                "stands twice in this file; give every row an id of its own, or add them up"
                if not row.id
                else f"{row.id} stands twice in this file"
            )
            parsed.problems.append(Problem("double", f"{place.source}:{key}", message))


def _own_id(row: _Answered) -> str:
    """What tells a row without an id from others: a digest, since a tenant may be a person."""
    words = [str(row.start_ms), str(row.end_ms), row.model, row.tenant, row.backend]
    if row.claim == "true":
        words.append(CLAIM)
    return hashlib.sha256("\x1f".join(words).encode()).hexdigest()
