"""Tokens by tenant as they are posted: decoded, checked and stored.

A body is one gateway's records, of requests or of sums of several. One bad record refuses all of
them, with its place and the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuledger_collector.accounting.inference import (
    AUTHENTICATED,
    CLAIM,
    Asker,
    TokenRecord,
    Tokens,
    record_problem,
    unknown_model,
)
from gpuledger_collector.accounting.period import DAY_MS, parse_instant
from gpuledger_collector.ingest.batches import bounds
from gpuledger_collector.ingest.batches.decode import Refused
from gpuledger_collector.storage.billing.inference import find_unknown_models
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger.token_counters import gateways_read
from gpuledger_collector.storage.ledger.token_usage import StoredTokens, store_token_usage

MAX_RECORDS = 20_000
"""Records of one body."""
MAX_TEXT = 500
FUTURE_MS = 600_000
"""How far ahead of our clock a request may end."""
MAX_GATEWAY = 100
"""Characters of a gateway's name."""


class PostedTokens(msgspec.Struct):
    """What a tenant was answered; instants in unix seconds, or RFC 3339 with a zone.

    `id` tells the record from others of its gateway: the same again changes nothing. `claim`: the
    tenant is what the caller says, not what the gateway has checked.
    """

    id: str
    start: float | str
    end: float | str
    model: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    tenant: str = ""
    backend: str = ""
    requests: int = 0
    claim: bool = False


class InferenceReport(msgspec.Struct):
    """The records of a gateway."""

    gateway: str
    records: list[PostedTokens]


def is_gateway_name(name: str) -> bool:
    """Whether a text may name a gateway."""
    return bool(name.strip()) and len(name) <= MAX_GATEWAY and name.isprintable()


def decode_report(body: bytes, now_ms: int, oldest_ms: int) -> list[TokenRecord]:
    """The records in a body, which may be as old as `oldest_ms`. Raises Refused."""
    try:
        # Counted before they become objects.
        bounds.check_list(body, "records", MAX_RECORDS)
        report = msgspec.json.decode(body, type=InferenceReport)
    except bounds.TooLarge as error:
        raise Refused(413, str(error)) from error
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise Refused(400, f"the body is no report of tokens: {error}") from error
    if not is_gateway_name(report.gateway):
        raise Refused(400, f"gateway: a name of 1 to {MAX_GATEWAY} printable characters is needed")
    records = []
    for place, posted in enumerate(report.records):
        record = _record(report.gateway, posted, place)
        if problem := _refusal(record, now_ms, oldest_ms):
            raise Refused(400, f"records[{place}]: {problem}")
        records.append(record)
    return records


def _record(gateway: str, posted: PostedTokens, place: int) -> TokenRecord:
    trust = CLAIM if posted.claim else AUTHENTICATED
    return TokenRecord(
        Asker(gateway, posted.tenant, posted.model, posted.backend, trust),
        posted.id,
        _instant(posted.start, f"records[{place}].start"),
        _instant(posted.end, f"records[{place}].end"),
        Tokens(posted.input_tokens, posted.cached_tokens, posted.output_tokens, posted.requests),
    )


def _instant(value: float | str, place: str) -> int:
    try:
        return parse_instant(value) if isinstance(value, str) else round(value * 1000)
    except (ValueError, OverflowError) as error:
        raise Refused(400, f"{place}: {error}") from error


def _refusal(record: TokenRecord, now_ms: int, oldest_ms: int) -> str | None:
    """Why a record is refused; None when it is fine."""
    asker = record.asker
    for name, text in (
        ("id", record.source_id),
        ("model", asker.model),
        ("tenant", asker.tenant),
        ("backend", asker.backend),
    ):
        if len(text) > MAX_TEXT or "\0" in text:
            return f"{name}: a text of at most {MAX_TEXT} characters without NUL is needed"
    if not asker.model:
        return "model: is empty"
    if record.start_ms < oldest_ms:
        days = (now_ms - oldest_ms) // DAY_MS
        return (
            f"start: is over {days} days old (max_evidence_age_days); gpuledger import inference"
            " takes older ones"
        )
    if record.end_ms > now_ms + FUTURE_MS:
        return "end: lies more than 10 minutes ahead"
    return record_problem(record)


def store_records(database: Database, records: Sequence[TokenRecord]) -> StoredTokens:
    """Store records in one transaction; what is known changes nothing.

    Raises Refused where servers are declared, and none of them answers a record's model, and where
    the gateway's metrics page was read in their time.
    """
    with database.transaction() as connection:
        if paged := gateways_read(connection, records):
            raise Refused(
                400,
                f"gateway: a metrics page of {paged[0]} was read in the time of these records too,"
                " so tokens would count twice",
            )
        if unknown := find_unknown_models(connection, records):
            place, model = records.index(unknown[0]), unknown[0].asker.model
            raise Refused(400, f"records[{place}].model: {unknown_model(model)}")
        return store_token_usage(connection, records)
