"""The HTTP application: agents' batches, metrics, health."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuledger_collector import __version__
from gpuledger_collector.api import (
    audit,
    batches,
    disputes,
    findings,
    handbook,
    pages,
    pool_page,
    reads,
    recommendations,
    remote_write,
    runs,
)
from gpuledger_collector.api.intake import Intake
from gpuledger_collector.api.limits import BodyLimit
from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.api.queue import Queue
from gpuledger_common.wire import Answer, Batch


def create(
    intake: Intake,
    remote: remote_write.RemoteIntake,
    metrics: Metrics,
    readiness_problems: Callable[[], str | None],
    ledger: reads.Reads,
    leaving: Callable[[], bool] = lambda: False,
    note: Callable[[], str | None] = lambda: None,
) -> FastAPI:
    """The app. `readiness_problems` says in a sentence what keeps this collector from serving, or None; it may block.

    `note`: what does not, and needs a cure all the same.

    `leaving`: whether this collector stops soon. It serves on, and /readyz sends new requests elsewhere.
    """
    endpoint = batches.create_endpoint(intake)
    app = Application(
        endpoint,
        title="GPU Ledger collector",
        version=__version__,
        description="A second-exact ledger of who held, used and wasted every GPU of a fleet, and what it cost.",
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(NoNul)
    app.add_middleware(BodyLimit, exempt={"/v1/batches", "/v1/queue", "/api/v1/write"})
    app.include_router(batches.router(endpoint))
    app.include_router(remote_write.router(remote))
    app.include_router(reads.router(ledger))
    app.include_router(findings.router(ledger))
    app.include_router(recommendations.router(ledger))
    app.include_router(runs.router(ledger, ledger.ledger.connect))
    app.include_router(audit.router(ledger))
    app.include_router(disputes.router(ledger))
    app.include_router(pages.router(ledger))
    app.include_router(pool_page.router(ledger))
    app.include_router(handbook.router(lambda: describe(app)))

    _operation(app, metrics, readiness_problems, leaving, note)

    @app.exception_handler(RequestValidationError)
    async def not_valid(_request: Request, error: RequestValidationError) -> Response:
        """What is wrong with a request, without what it said: that need be neither a number nor a text of JSON."""
        told = [{"loc": one["loc"], "msg": one["msg"], "type": one["type"]} for one in error.errors()]
        return Response(json.dumps({"detail": told}), 422, media_type="application/json")

    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    return app


def _operation(
    app: FastAPI,
    metrics: Metrics,
    readiness_problems: Callable[[], str | None],
    leaving: Callable[[], bool],
    note: Callable[[], str | None],
) -> None:
    """What an orchestrator and a Prometheus ask."""

    @app.get("/healthz", tags=["operation"])
    async def healthz() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["operation"], responses={503: {"description": "Not ready, with the reason."}})
    def readyz(response: Response) -> dict[str, str]:
        """Batches can be committed: the database is reachable and migrated, takes writes and has room, and this
        collector stays. `note` tells what needs a cure before that changes.
        """
        reason = "this collector is stopping" if leaving() else readiness_problems()
        if not leaving():
            metrics.database_up.set(reason is None)
        if reason is None:
            needed = note()
            return {"status": "ready"} if needed is None else {"status": "ready", "note": needed}
        response.status_code = 503
        response.headers["Retry-After"] = str(batches.RETRY_AFTER_SECONDS)
        return {"status": "not ready", "reason": reason}

    @app.get("/metrics", tags=["operation"], response_class=Response)
    def exposition() -> Response:
        """The collector's own metrics for Prometheus."""
        return Response(generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


GUARDED = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
"""Of an answer that is no page, and so has no policy of its own."""


def guarded(send: Send) -> Send:
    """What sends an answer with headers that keep it out of foreign frames and let nobody guess its type."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            own = any(name.lower() == POLICY[0] for name, _ in headers)
            message = {**message, "headers": [*headers, *GUARDED, *([] if own else [POLICY])]}
        await send(message)

    return sent


class Application(FastAPI):
    """FastAPI, but agents' batches go past its layers, which cost more than to decode and judge a batch.

    What those layers would do to a batch its endpoint does itself: it bounds the body, and answers every exception.
    """

    def __init__(self, batch: ASGIApp, **given: Any) -> None:
        super().__init__(**given)
        self._batch = batch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The answer to one request."""
        if scope["type"] == "http":
            send = guarded(send)
        if scope["type"] == "http" and scope["path"] == batches.PATH and scope["method"] == "POST":
            await self._batch(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class NoNul:
    """Refuses a path or a query with a NUL: no text of the ledger holds one, and Postgres takes none."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The answer of the app behind, or 422."""
        if scope["type"] == "http" and ("\0" in scope["path"] or b"%00" in scope["query_string"]):
            await JSONResponse({"detail": "a path or a query holds no NUL"}, 422)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def describe(app: FastAPI) -> dict[str, Any]:
    """OpenAPI with the JSON form of the wire's structs, which FastAPI cannot see by itself."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _, components = msgspec.json.schema_components(
            [Batch, Answer, Queue], ref_template="#/components/schemas/{name}"
        )
        schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
        app.openapi_schema = schema
    return app.openapi_schema
