"""GET /v1/recommendations: what to do about waste, what it would have saved, what it did, and what was not judged."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.api.auth.principal import Principal, visible
from gpuledger_collector.api.reads import REFUSALS, After, Limit, Reads, guarded, may_read, page
from gpuledger_collector.storage.access.row_level_security import as_viewer
from gpuledger_collector.storage.findings.recommendations import last_run, listed

STATES = ("open", "accepted", "rejected", "done", "expired")
State = Annotated[str, Query(description=f"Which, separated by commas: {', '.join(STATES)}.")]
KEPT = (
    "id",
    "key",
    "kind",
    "subject",
    "team",
    "owner",
    "advice",
    "state",
    "currency",
    "freed_gpu_ns",
    "price_ids",
    "evidence",
    "decided_by",
    "reason",
    "realised_micro",
    "realised",
)
INSTANTS = ("start_ms", "end_ms", "made_ms", "expires_ms", "decided_ms", "realised_until_ms")


def router(reads: Reads) -> APIRouter:
    """The route, bound to a ledger."""
    made = APIRouter(prefix="/v1", tags=["findings"], responses=REFUSALS)

    reader = may_read(reads.keys)

    @made.get("/recommendations")
    def recommendations(
        state: State = "open,accepted", limit: Limit = 100, after: After = "", who: Principal = reader
    ) -> dict[str, Any]:
        """Savings of the observed window as low, expected and high: cash, freed capacity and energy apart, by key.

        `joint` is all open advice followed at once: the items are not to be added up. It and `not_evaluated` are about
        the whole fleet, and left out for a token that sees one owner's part.
        """
        return guarded(lambda: recommendations_of(reads, state, limit, after, who))

    return made


def recommendations_of(reads: Reads, state: str, limit: int, after: str, who: Principal) -> dict[str, Any]:
    """One page of recommendations as the job last made them. Raises ValueError for a state that is none."""
    states = [name.strip() for name in state.split(",")]
    if unknown := [name for name in states if name not in STATES]:
        raise ValueError(f"state: {unknown[0]!r} is none of {', '.join(STATES)}")
    with reads.ledger.transaction() as connection:
        with as_viewer(connection, who.owner):
            rows = visible(listed(connection, states), who)
        run = last_run(connection)
    items = sorted((item_of(row) for row in rows if row["key"] > after), key=lambda item: str(item["key"]))
    told = {**page(items, limit, "key"), "looked_until": None if run is None else format_instant(run["made_ms"])}
    if run is not None and who.owner is None:
        told |= {"joint": run["joint"], "not_evaluated": run["not_evaluated"]}
    return told


def item_of(row: dict[str, Any]) -> dict[str, Any]:
    """A recommendation as JSON: instants in RFC 3339, money as integers of micro-units, null where it is unknown."""
    instants = {name.removesuffix("_ms"): None if row[name] is None else format_instant(row[name]) for name in INSTANTS}
    amounts = {
        f"{what}_micro": {which: row[f"{what}_{which}_micro"] for which in ("low", "expected", "high")}
        for what in ("cash", "capacity", "energy")
    }
    return {**{name: row[name] for name in KEPT}, **instants, **amounts}
