"""What the ledger should hold of records of gateways, computed in one go."""

from collections import defaultdict
from collections.abc import Iterable

from gpuledger_collector.accounting.inference import (
    Asker,
    TokenHour,
    TokenRecord,
    Tokens,
    spread_record,
)


def fold_records(records: Iterable[TokenRecord]) -> list[TokenHour]:
    """Add records up by asker and hour, in order.

    Each record counts once: of two contents of one id the greater one.
    """
    by_id: dict[tuple[str, str], TokenRecord] = {}
    for record in records:
        key = record.asker.gateway, record.source_id
        known = by_id.get(key)
        by_id[key] = record if known is None else max(record, known, key=lambda each: each.rank)
    hours: dict[tuple[Asker, int], Tokens] = defaultdict(Tokens)
    for record in by_id.values():
        for hour_ms, tokens in spread_record(record):
            hours[record.asker, hour_ms] += tokens
    return [
        TokenHour(asker, hour_ms, tokens)
        for (asker, hour_ms), tokens in sorted(hours.items())
        if tokens
    ]
