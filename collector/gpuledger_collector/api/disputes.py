"""/v1/disputes: whoever sees an owner's lines may contest them and follow what becomes of it; finance decides.

The steps are those of `gpuledger disputes`, from the same code. Rating is a job: after an acceptance `rated` is false
until it has run. A viewer sees the disputes of its own subtree, and of no other one even that they exist.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gpuledger_collector.accounting.disputes import MAX_WORDS, RESOLVED, STATES, BadStep, Dispute, Remedy, words_of
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.reads import REFUSALS, After, Limit, Reads, denials, guarded, may_read, page, period_of
from gpuledger_collector.export.disputes import as_object, move_object
from gpuledger_collector.services.dispute_preview import preview_decision
from gpuledger_collector.storage.access.row_level_security import as_viewer
from gpuledger_collector.storage.billing import disputes
from gpuledger_collector.storage.billing.disputes import Contest, NoDispute
from gpuledger_collector.storage.ledger import zones

Number = Annotated[int, Path(ge=1, lt=2**62, description="Number of the dispute.")]
Words = Annotated[str, Field(min_length=1, max_length=MAX_WORDS)]
Name = Annotated[str, Field(min_length=1, max_length=400), AfterValidator(lambda text: words_of(text, "name"))]
Level = Literal["org", "team", "project", "experiment", "run", "user"]
Answer = TypeVar("Answer")
STEPS: dict[int | str, dict[str, Any]] = {
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


class Saying(BaseModel):
    """Something said in a dispute."""

    model_config = ConfigDict(extra="forbid")
    note: Words


class Outcome(BaseModel):
    """Of an accepted dispute: `to` names who pays for the time (empty: nobody known), or `unavailable` says that the
    accelerator could not be used."""

    model_config = ConfigDict(extra="forbid")
    to: dict[Level, Name] | None = None
    unavailable: bool = False

    def accepted(self) -> Remedy:
        """What is done with the time. Raises ValueError."""
        if (self.to is None) != self.unavailable:
            raise ValueError("an acceptance says who bears the time: either `to`, or `unavailable`")
        return Remedy(None if self.to is None else levels_of(self.to))


class Decision(Outcome):
    """The end of a dispute."""

    note: Words
    accept: bool

    def remedy(self) -> Remedy | None:
        """What is done with the time. Raises ValueError."""
        if not self.accept:
            if self.to is not None or self.unavailable:
                raise ValueError("a rejection changes nothing: `to` and `unavailable` go with accept")
            return None
        return self.accepted()


def levels_of(given: dict[Level, str]) -> dict[str, str]:
    """The levels of an owner from the top down."""
    return {str(level): value for level, value in sorted(given.items(), key=lambda item: LEVELS.index(item[0]))}


class Route(APIRoute):
    """A route whose refusal of a body says what is wrong without repeating the body, which need be no valid text."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, its refusals in our form."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except RequestValidationError as error:
                told = [f"{'.'.join(str(part) for part in one['loc'][1:])}: {one['msg']}" for one in error.errors()]
                sentence = "; ".join(told).encode("ascii", "backslashreplace").decode()
                raise HTTPException(422, sentence) from error

        return handle


def router(reads: Reads) -> APIRouter:
    """The routes, bound to a ledger."""
    made = APIRouter(prefix="/v1/disputes", tags=["disputes"], responses=STEPS, route_class=Route)
    reader = may_read(reads.keys)

    @made.get("")
    def listed(
        everything: Annotated[bool, Query(alias="all", description="Resolved ones too.")] = False,
        limit: Limit = 100,
        after: After = "",
        who: Principal = reader,
    ) -> dict[str, Any]:
        """Disputes that wait for an answer or a decision, by number."""
        return guarded(lambda: listed_of(reads, everything, limit, after, who))

    @made.get("/{number}")
    def shown(number: Number, who: Principal = reader) -> dict[str, Any]:
        """A dispute with its evidence, whether that is as it was sealed, and what the owner bears of the time now."""
        return guarded(lambda: shown_of(reads, number, who))

    @made.post("", status_code=201)
    def opened(opening: Opening, who: Principal = reader) -> dict[str, Any]:
        """Contest lines; the evidence is attached and sealed as it stands."""
        return stepped(lambda: opened_of(reads, opening, who))

    @made.post("/{number}/answers")
    def answered(number: Number, saying: Saying, who: Principal = reader) -> dict[str, Any]:
        """Say something: a viewer for the owner, anybody else as the answer to it."""
        return stepped(lambda: answered_of(reads, number, saying, who))

    @made.post("/{number}/preview")
    def previewed(number: Number, outcome: Outcome, who: Principal = reader) -> dict[str, Any]:
        """What an acceptance would move, by day, owner and currency: for finance and admin. Changes nothing.

        It is exact for what is rated; `rated` says whether evidence or changes of the days still wait for that.
        """
        with denials():
            who.require_fleet()
        return stepped(lambda: previewed_of(reads, number, outcome))

    @made.post("/{number}/resolution")
    def resolved(number: Number, decision: Decision, who: Principal = reader) -> dict[str, Any]:
        """Decide a dispute, once: for finance and admin."""
        with denials():
            who.require_fleet()
        return stepped(lambda: resolved_of(reads, number, decision, who))

    return made


def stepped(work: Callable[[], Answer]) -> Answer:
    """The answer of a step; one that is not possible is 404 or 409."""
    try:
        return guarded(work)
    except NoDispute as error:
        raise HTTPException(404, str(error)) from error
    except BadStep as error:
        raise HTTPException(409, str(error)) from error


def listed_of(reads: Reads, everything: bool, limit: int, after: str, who: Principal) -> dict[str, Any]:
    """One page of disputes that this reader may see."""
    if after and not after.isdecimal():
        raise ValueError("after: is not the `next` of an answer")
    states = [state for state in STATES if everything or state not in RESOLVED]
    with reads.ledger.transaction() as connection, as_viewer(connection, who.owner):
        found = [one for one in disputes.listed(connection, states) if who.sees(one.owner)]
    first = int(after or 0)
    items = [as_object(one) for one in sorted(found, key=lambda one: one.id) if one.id > first]
    told = page(items, limit, "id")
    return {**told, "next": None if told["next"] is None else str(told["next"])}


def shown_of(reads: Reads, number: int, who: Principal) -> dict[str, Any]:
    """One dispute with its evidence."""
    with reads.ledger.transaction() as connection:
        try:
            with as_viewer(connection, who.owner):
                one, sealed = seen(disputes.read(connection, number), who), disputes.evidence(connection, number)
        except NoDispute as error:
            raise HTTPException(404, str(error)) from error
        billed, rated = disputes.billed_now(connection, one)
        return {
            **as_object(one),
            "seal_holds": disputes.seal_holds(connection, one),
            "billed_now": billed,
            "rated": rated,
            "evidence": json.loads(sealed),
        }


def opened_of(reads: Reads, opening: Opening, who: Principal) -> dict[str, Any]:
    """A new dispute. What a viewer contests must be of its own subtree."""
    owner = levels_of(opening.owner)
    if not who.sees(owner):
        raise HTTPException(403, "this token sees another owner's part: contest your own lines")
    asked = period_of(opening.start, opening.end)
    with reads.ledger.transaction() as connection:
        period = zones.in_zone(connection, asked)
        contest = Contest(owner, period, opening.accelerator, opening.workload, opening.line)
        return as_object(disputes.open_dispute(connection, contest, opening.reason, who.name, reads.now_ms))


def answered_of(reads: Reads, number: int, saying: Saying, who: Principal) -> dict[str, Any]:
    """The dispute after something was said."""
    with reads.ledger.transaction() as connection:
        with as_viewer(connection, who.owner):
            seen(disputes.read(connection, number), who)
        from_owner = who.owner is not None
        return as_object(
            disputes.answer(connection, number, saying.note, who.name, reads.now_ms, from_owner=from_owner)
        )


def previewed_of(reads: Reads, number: int, outcome: Outcome) -> dict[str, Any]:
    """The moves of an acceptance, as rating would make them now."""
    remedy = outcome.accepted()
    with reads.ledger.transaction(read_only=True) as connection:
        moves = preview_decision(connection, disputes.proposed(connection, number, remedy), reads.now_ms)
        _, rated = disputes.billed_now(connection, disputes.read(connection, number))
        return {"moves": [move_object(move, zones.calendar(connection)) for move in moves], "rated": rated}


def resolved_of(reads: Reads, number: int, decision: Decision, who: Principal) -> dict[str, Any]:
    """The dispute after its decision, and how many days are rated again for it."""
    remedy = decision.remedy()
    with reads.ledger.transaction() as connection:
        made, days = disputes.resolve(connection, number, remedy, decision.note, who.name, reads.now_ms)
    return {**as_object(made), "days_to_rate": days}


def seen(one: Dispute, who: Principal) -> Dispute:
    """The dispute. Raises NoDispute for one of an owner that the reader does not see."""
    if not who.sees(one.owner):
        raise NoDispute(f"there is no dispute {one.id}")
    return one
