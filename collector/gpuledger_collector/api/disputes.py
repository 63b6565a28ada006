"""/v1/disputes: readers contest lines that they see and follow what becomes of them; finance
decides.

The steps are those of `gpuledger disputes`. Rating is a job: after an acceptance `rated` is false
until it has run. A viewer sees the disputes of its own subtree, and does not learn that others
exist.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gpuledger_collector.accounting.contested_lines import Contest
from gpuledger_collector.accounting.dispute_moves import Decided
from gpuledger_collector.accounting.disputes import (
    MAX_WORDS,
    BadStep,
    NoDispute,
    Remedy,
    Reversal,
    words_of,
)
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Calendar
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
from gpuledger_collector.export.disputes import (
    as_object,
    move_object,
    record_object,
    reversal_object,
)
from gpuledger_collector.services import disputes
from gpuledger_collector.services.billing_calendar import calendar_of, read_calendar
from gpuledger_collector.services.dispute_preview import Effect, preview_acceptance
from gpuledger_collector.services.disputes import Resolution

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

    def acceptance(self) -> Remedy | Reversal:
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
        return self.acceptance()


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
        # Filtered before the page is cut: a shorter page must not reveal that others have disputes.
        rows = disputes.list_disputes(context.database, principal, everything=everything)
        newer = sorted((row for row in rows if row.id > int(after or 0)), key=lambda row: row.id)
        answer = paginate([as_object(row) for row in newer], limit, "id")
        return {**answer, "next": None if answer["next"] is None else str(answer["next"])}

    @routes.get("/{number}")
    def show(number: Number, principal: Principal = reader) -> dict[str, Any]:
        """A dispute with its evidence, whether its seal holds, and what the owner pays for the time
        now.
        """
        return record_object(disputes.read_record(context.database, number, principal))


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
            period = calendar_of(connection).days_named(days)
            contest = Contest(owner, period, opening.accelerator, opening.workload, opening.line)
            return as_object(
                disputes.open_dispute(
                    connection, contest, opening.reason, principal.name, context.now_ms
                )
            )

    @routes.post("/{number}/answers")
    def answer(number: Number, reply: Reply, principal: Principal = reader) -> dict[str, Any]:
        """Add a note: a viewer for the owner, any other reader as the answer to it."""
        return as_object(
            disputes.answer_dispute(
                context.database,
                number,
                reply.note,
                principal.name,
                context.now_ms,
                from_owner=principal.owner is not None,
                viewer=principal,
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
        effect, is_rated = preview_acceptance(
            context.database, number, outcome.acceptance(), context.now_ms
        )
        return {**effect_object(effect, read_calendar(context.database)), "rated": is_rated}

    @routes.post("/{number}/resolution")
    def resolve(number: Number, decision: Decision, principal: Principal = fleet) -> dict[str, Any]:
        """Decide a dispute, once: for finance and admin.

        Returns how many days are rated again for it.
        """
        dispute, days = disputes.resolve_dispute(
            context.database,
            Resolution(number, decision.remedy(), decision.note, principal.name, context.now_ms),
        )
        return {**as_object(dispute), "days_to_rate": days}


def effect_object(effect: Effect, calendar: Calendar) -> dict[str, Any]:
    """What an acceptance changes, as JSON."""
    nothing: dict[str, Any] = {"moves": [], "destination_cost_micro": {}, "reversals": []}
    if isinstance(effect, Decided):
        return nothing | {
            "moves": [move_object(move, calendar) for move in effect.moves],
            "destination_cost_micro": effect.gain,
        }
    return nothing | {"reversals": [reversal_object(share, calendar) for share in effect]}
