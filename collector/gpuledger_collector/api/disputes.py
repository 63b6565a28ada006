"""/v1/disputes: readers contest lines that they see and follow what becomes of them; finance
decides.

The steps are those of `gpuledger disputes`. Rating is a job: after an acceptance `rated` is false
until it has run. A viewer sees the disputes of its own subtree, and does not learn that others
exist.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gpuledger_collector.accounting.disputes import (
    MAX_WORDS,
    RESOLVED,
    STATES,
    BadStep,
    Dispute,
    Remedy,
    Reversal,
    words_of,
)
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import (
    REFUSALS,
    After,
    Limit,
    ReadContext,
    ReadRoute,
    paginate,
    parse_days,
    require_reader,
)
from gpuledger_collector.export.disputes import as_object, move_object, reversal_object
from gpuledger_collector.services.dispute_preview import preview_decision, preview_reversals
from gpuledger_collector.storage.billing import disputes
from gpuledger_collector.storage.billing.disputes import Contest, NoDispute
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.row_level_security import as_viewer

Number = Annotated[int, Path(ge=1, lt=2**62, description="Number of the dispute.")]
Words = Annotated[str, Field(min_length=1, max_length=MAX_WORDS)]
Name = Annotated[
    str, Field(min_length=1, max_length=400), AfterValidator(lambda text: words_of(text, "name"))
]
Level = Literal["org", "team", "project", "experiment", "run", "user"]
ANSWERS: dict[int | str, dict[str, Any]] = {
    **REFUSALS,
    404: {"description": "There is no such dispute, or it is not this reader's."},
    409: {"description": "The dispute is resolved already."},
}


class Opening(BaseModel):
    """What is contested, and why."""

    model_config = ConfigDict(extra="forbid")
    owner: dict[Level, Name]
    start: Annotated[str, Field(alias="from", max_length=40)]
    end: Annotated[str, Field(alias="to", max_length=40)]
    reason: Words
    accelerator: Name | None = None
    workload: Name | None = None
    line: Name | None = None


class Reply(BaseModel):
    """A note in a dispute."""

    model_config = ConfigDict(extra="forbid")
    note: Words


class Outcome(BaseModel):
    """The effect of an acceptance: `to` names who pays for the time (empty: unattributed);
    `unavailable` declares that the accelerator could not be used; `reverse` takes contested
    adjustments back by entries of the opposite amounts.
    """

    model_config = ConfigDict(extra="forbid")
    to: dict[Level, Name] | None = None
    unavailable: bool = False
    reverse: bool = False

    def accepted(self) -> Remedy | Reversal:
        """What happens to the time, or to the adjustments. Raises ValueError."""
        if (self.to is not None) + self.unavailable + self.reverse != 1:
            raise ValueError(
                "an acceptance states who pays for the time: either `to`, or `unavailable`; of"
                " adjustments `reverse`"
            )
        if self.reverse:
            return Reversal()
        return Remedy(None if self.to is None else sort_levels(self.to))


class Decision(Outcome):
    """The end of a dispute."""

    note: Words
    accept: bool

    def remedy(self) -> Remedy | Reversal | None:
        """What happens to the time, or to the adjustments. Raises ValueError."""
        if not self.accept:
            if self.to is not None or self.unavailable or self.reverse:
                raise ValueError(
                    "a rejection changes nothing: `to`, `unavailable` and `reverse` go with accept"
                )
            return None
        return self.accepted()


def sort_levels(given: dict[Level, str]) -> dict[str, str]:
    """Sort the levels of an owner from the top down."""
    return {
        str(level): value
        for level, value in sorted(given.items(), key=lambda item: LEVELS.index(item[0]))
    }


class DisputeRoute(ReadRoute):
    """A route of disputes: impossible steps are 404 or 409; an invalid body is refused without
    being repeated.
    """

    def translate(self, error: Exception) -> HTTPException | None:
        """The HTTP answer to an error."""
        if isinstance(error, RequestValidationError):
            # The body need not be valid text, so only where and why it is invalid is repeated, in
            # ASCII.
            reasons = [
                f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in error.errors()
            ]
            return HTTPException(
                422, "; ".join(reasons).encode("ascii", "backslashreplace").decode()
            )
        if isinstance(error, NoDispute):
            return HTTPException(404, str(error))
        if isinstance(error, BadStep):
            return HTTPException(409, str(error))
        return super().translate(error)


def router(context: ReadContext) -> APIRouter:
    """The routes."""
    routes = APIRouter(
        prefix="/v1/disputes", tags=["disputes"], responses=ANSWERS, route_class=DisputeRoute
    )
    _add_reading_routes(routes, context)
    _add_party_routes(routes, context)
    _add_finance_routes(routes, context)
    return routes


def _add_reading_routes(routes: APIRouter, context: ReadContext) -> None:
    reader = require_reader(context.keys)

    @routes.get("")
    def list_disputes(
        everything: Annotated[bool, Query(alias="all", description="Resolved ones too.")] = False,
        limit: Limit = 100,
        after: After = "",
        principal: Principal = reader,
    ) -> dict[str, Any]:
        """Disputes that wait for an answer or a decision, by number."""
        if after and not after.isdecimal():
            raise ValueError("after: is not the `next` of an answer")
        states = [state for state in STATES if everything or state not in RESOLVED]
        with context.connection(principal) as connection:
            # Filtered before the page is cut: a shorter page must not reveal that others have
            # disputes.
            rows = [row for row in disputes.listed(connection, states) if principal.sees(row.owner)]
        newer = sorted((row for row in rows if row.id > int(after or 0)), key=lambda row: row.id)
        answer = paginate([as_object(row) for row in newer], limit, "id")
        return {**answer, "next": None if answer["next"] is None else str(answer["next"])}

    @routes.get("/{number}")
    def show(number: Number, principal: Principal = reader) -> dict[str, Any]:
        """A dispute with its evidence, whether its seal holds, and what the owner pays for the time
        now.
        """
        with context.database.transaction(read_only=True) as connection:
            with as_viewer(connection, principal.owner):
                dispute = visible_dispute(disputes.read(connection, number), principal)
                evidence = disputes.evidence(connection, number)
            billed, rated = disputes.billed_now(connection, dispute)
            return {
                **as_object(dispute),
                "seal_holds": disputes.seal_holds(connection, dispute),
                "billed_now": billed,
                "rated": rated,
                "evidence": json.loads(evidence),
            }


def _add_party_routes(routes: APIRouter, context: ReadContext) -> None:
    """Steps of the owner and of those who answer."""
    reader = require_reader(context.keys)

    @routes.post("", status_code=201)
    def open_dispute(opening: Opening, principal: Principal = reader) -> dict[str, Any]:
        """Contest lines; the current evidence is attached and sealed."""
        owner = sort_levels(opening.owner)
        if not principal.sees(owner):
            raise HTTPException(403, "this token sees another owner's part: contest your own lines")
        days = parse_days(opening.start, opening.end)
        with context.database.transaction() as connection:
            period = zones.in_zone(connection, days)
            contest = Contest(owner, period, opening.accelerator, opening.workload, opening.line)
            return as_object(
                disputes.open_dispute(
                    connection, contest, opening.reason, principal.name, context.now_ms
                )
            )

    @routes.post("/{number}/answers")
    def answer(number: Number, reply: Reply, principal: Principal = reader) -> dict[str, Any]:
        """Add a note: a viewer for the owner, any other reader as the answer to it."""
        from_owner = principal.owner is not None
        with context.database.transaction() as connection:
            with as_viewer(connection, principal.owner):
                visible_dispute(disputes.read(connection, number), principal)
            return as_object(
                disputes.answer(
                    connection,
                    number,
                    reply.note,
                    principal.name,
                    context.now_ms,
                    from_owner=from_owner,
                )
            )


def _add_finance_routes(routes: APIRouter, context: ReadContext) -> None:
    fleet = require_reader(context.keys, fleet=True)

    @routes.post("/{number}/preview")
    def preview(number: Number, outcome: Outcome, principal: Principal = fleet) -> dict[str, Any]:  # noqa: ARG001
        """What an acceptance would move, by day, owner and currency: for finance and admin.

        Changes nothing.

        A move without GPU-time is a day whose volume price changes. `destination_cost_micro` is
        what the destination pays more, at its own price. It is exact for what is rated; `rated`
        says whether rating of the contested days is complete. `reversals` are the amounts that
        `reverse` books.
        """
        remedy = outcome.accepted()
        with context.database.transaction(read_only=True) as connection:
            calendar = zones.calendar(connection)
            if isinstance(remedy, Reversal):
                shares = preview_reversals(
                    connection, disputes.proposed_reversals(connection, number)
                )
                effect: dict[str, Any] = {
                    "reversals": [reversal_object(share, calendar) for share in shares]
                }
            else:
                decided = preview_decision(
                    connection, disputes.proposed(connection, number, remedy), context.now_ms
                )
                effect = {
                    "moves": [move_object(move, calendar) for move in decided.moves],
                    "destination_cost_micro": decided.gain,
                }
            _, rated = disputes.billed_now(connection, disputes.read(connection, number))
            nothing: dict[str, Any] = {"moves": [], "destination_cost_micro": {}, "reversals": []}
            return nothing | effect | {"rated": rated}

    @routes.post("/{number}/resolution")
    def resolve(number: Number, decision: Decision, principal: Principal = fleet) -> dict[str, Any]:
        """Decide a dispute, once: for finance and admin.

        Returns how many days are rated again for it.
        """
        remedy = decision.remedy()
        with context.database.transaction() as connection:
            dispute, days = disputes.resolve(
                connection, number, remedy, decision.note, principal.name, context.now_ms
            )
        return {**as_object(dispute), "days_to_rate": days}


def visible_dispute(dispute: Dispute, principal: Principal) -> Dispute:
    """The dispute. Raises NoDispute where the reader does not see its owner."""
    if not principal.sees(dispute.owner):
        # The same answer as for a number that does not exist: a viewer must not learn of others'
        # disputes.
        raise NoDispute(f"there is no dispute {dispute.id}")
    return dispute
