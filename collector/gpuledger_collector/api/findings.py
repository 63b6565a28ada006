"""GET /v1/idle and /v1/anomalies: what a person should see, as the jobs last found it, with amounts in micro-units."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from gpuledger_collector.accounting.period import DAY_MS, format_instant
from gpuledger_collector.api.auth.principal import Principal, visible
from gpuledger_collector.api.reads import REFUSALS, After, Limit, Reads, guarded, may_read, page
from gpuledger_collector.storage.access.row_level_security import as_viewer
from gpuledger_collector.storage.findings.findings import named, progress

Days = Annotated[int, Query(ge=1, le=400, description="How many days back, from now.")]
Open = Annotated[bool, Query(description="Only what goes on now.")]
INSTANTS = ("since_ms", "opened_ms", "until_ms", "resolved_ms")
KEPT = (
    "key",
    "state",
    "subject",
    "team",
    "owner",
    "model",
    "gpu_index",
    "workload",
    "workload_name",
    "user_name",
    "confidence",
    "currency",
    "cost_micro",
    "per_day_micro",
)


def router(reads: Reads) -> APIRouter:
    """The routes, bound to a ledger."""
    made = APIRouter(prefix="/v1", tags=["findings"], responses=REFUSALS)

    reader = may_read(reads.keys)

    @made.get("/idle")
    def idle(
        days: Days = 7, open_only: Open = False, limit: Limit = 100, after: After = "", who: Principal = reader
    ) -> dict[str, Any]:
        """Idle accelerators: state, owner, since when, confidence, cost so far and per day, by key."""
        return guarded(lambda: findings_of(reads, "idle", days, open_only, limit, after, who))

    @made.get("/anomalies")
    def anomalies(
        days: Days = 30, open_only: Open = False, limit: Limit = 100, after: After = "", who: Principal = reader
    ) -> dict[str, Any]:
        """Episodes of spending that stood out, with price, volume and mix against the same hours before, by key."""
        return guarded(lambda: findings_of(reads, "anomaly", days, open_only, limit, after, who))

    return made


def findings_of(
    reads: Reads, kind: Literal["idle", "anomaly"], days: int, open_only: bool, limit: int, after: str, who: Principal
) -> dict[str, Any]:
    """One page of findings, and up to when everything was looked at (None: never yet)."""
    now_ms = reads.now_ms
    with reads.ledger.transaction() as connection:
        with as_viewer(connection, who.owner):
            rows = visible(named(connection, kind, now_ms - days * DAY_MS, now_ms + 1), who)
        looked = progress(connection, kind)
    items = [item_of(row) for row in rows if not open_only or row["resolved_ms"] is None]
    ordered = sorted((item for item in items if item["key"] > after), key=lambda item: item["key"])
    return {**page(ordered, limit, "key"), "looked_until": None if looked is None else format_instant(looked)}


def item_of(row: dict[str, Any]) -> dict[str, Any]:
    """A finding as JSON: instants in RFC 3339, integers for money, what was wasted as one sum."""
    instants = {name.removesuffix("_ms"): None if row[name] is None else format_instant(row[name]) for name in INSTANTS}
    evidence = {name: value for name, value in row["evidence"].items() if name != "wasted_gpu_ns"}
    wasted = row["evidence"].get("wasted_gpu_ns")
    if wasted is not None:
        evidence["wasted_gpu_ns"] = sum(wasted.values())
    return {**{name: row[name] for name in KEPT}, **instants, "evidence": evidence}
