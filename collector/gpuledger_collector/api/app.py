"""The HTTP application: its routes, security headers, and the shortcut for agents' batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from gpuledger_collector import __version__
from gpuledger_collector.api import (
    assets,
    audit,
    batches,
    capacity,
    disputes,
    findings,
    fleet_map_page,
    fleet_pages,
    handbook,
    inference,
    ledger,
    list_pages,
    live,
    model_page,
    page_routes,
    pages,
    pool_page,
    queue,
    queue_page,
    recommendations,
    remote_write,
    runs,
    samples,
    scheduler_queues,
    series,
    spend_page,
    token_reports,
)
from gpuledger_collector.api.context import RETRY_AFTER_SECONDS, ReadContext
from gpuledger_collector.api.intake import Intake
from gpuledger_collector.api.limits import OPERATION_THREADS, BodyLimit
from gpuledger_collector.api.live import HEAD_ONLY, LiveHub
from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.api.page_routes import HourlyCache
from gpuledger_collector.api.reader_limits import ReaderLimits
from gpuledger_collector.ingest.queue_readings import Queue
from gpuledger_collector.ingest.token_records import InferenceReport
from gpuledger_collector.services.forecasts import forecast_outlook
from gpuledger_common.wire import Answer, Batch


def create(
    intake: Intake,
    remote: remote_write.RemoteIntake,
    metrics: Metrics,
    readiness_problem: Callable[[], str | None],
    context: ReadContext,
    readers: ReaderLimits,
    hub: LiveHub,
    is_leaving: Callable[[], bool] = lambda: False,
    note: Callable[[], str | None] = lambda: None,
    lifespan: Lifespan[Any] | None = None,
    workers: Callable[[], str] | None = None,
) -> FastAPI:
    """Create the application.

    `readiness_problem` returns what prevents serving, in a sentence; it may block. `note` returns
    what does not prevent it but needs attention. `readers` admits questions of readers, `hub` tells
    open pages what changes.
    `is_leaving` returns whether the collector stops soon: it still serves, while /readyz sends new
    requests elsewhere. `lifespan` is entered while the application serves. `workers` returns how
    many processes of this collector serve; None: it is one process.
    """
    endpoints = {
        batches.PATH: batches.create_endpoint(intake),
        remote_write.PATH: remote_write.create_endpoint(remote),
    }
    app = Application(
        endpoints,
        title="GPU Ledger collector",
        version=__version__,
        description=(
            "A second-exact ledger of who held, used and wasted every GPU of a fleet, and what it"
            " cost."
        ),
        docs_url=None,
        redoc_url=None,
        # A redirect to the path without its slash would name the host that the caller named.
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.reader_limits = readers
    app.state.keys = context.keys
    app.state.live_hub = hub
    app.add_middleware(NoNul)
    # These bound their bodies themselves, with limits of their own.
    app.add_middleware(BodyLimit, exempt={*endpoints, queue.PATH, token_reports.PATH})
    app.include_router(batches.router(endpoints[batches.PATH]))
    app.include_router(remote_write.router(endpoints[remote_write.PATH]))
    app.include_router(queue.router(intake, context.database))
    app.include_router(token_reports.router(intake, context.database))
    app.include_router(runs.progress_router(context, intake))
    for module in (
        ledger,
        capacity,
        findings,
        recommendations,
        runs,
        inference,
        audit,
        disputes,
        list_pages,
        scheduler_queues,
        model_page,
        queue_page,
        pool_page,
        spend_page,
        fleet_map_page,
    ):
        app.include_router(module.router(context))
    outlook = HourlyCache(lambda: forecast_outlook(context.database, context.now_ms))
    app.include_router(pages.router(context, outlook))
    app.include_router(fleet_pages.router(context, outlook))
    app.include_router(handbook.router(lambda: describe(app), context.keys))
    app.include_router(assets.router())
    app.include_router(live.router(context, hub))
    app.include_router(series.router(context))
    app.include_router(samples.router(context))
    _add_operation_routes(app, metrics, readiness_problem, is_leaving, note, workers)
    _add_refusals(app)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    return app


def _add_refusals(app: FastAPI) -> None:
    """Answers for invalid requests and unknown addresses."""

    @app.exception_handler(RequestValidationError)
    async def refuse_invalid(_request: Request, error: RequestValidationError) -> Response:
        """Say what is wrong with a request without repeating its values, which need not be valid
        JSON text.
        """
        reasons = [
            {"loc": item["loc"], "msg": item["msg"], "type": item["type"]}
            for item in error.errors()
        ]
        return Response(json.dumps({"detail": reasons}), 422, media_type="application/json")

    @app.exception_handler(404)
    async def refuse_unknown(request: Request, error: Exception) -> Response:
        """Answer for an address that no route has: a page to a browser, JSON to a program."""
        path = request.url.path
        detail = getattr(error, "detail", "Not Found")
        if detail != "Not Found":  # a route's own answer
            return JSONResponse({"detail": detail}, 404, getattr(error, "headers", None))
        sentence = f"There is nothing at {path}."
        if path.startswith(PROGRAMS) or "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"detail": f"{sentence} /docs lists what there is."}, 404)
        return await page_routes.refuse(request, 404, sentence)


DATABASE_CHECK_S = 5.0
"""How long a scrape waits for the database, well below Prometheus' own limit of 10 s."""


def _add_operation_routes(
    app: FastAPI,
    metrics: Metrics,
    readiness_problem: Callable[[], str | None],
    is_leaving: Callable[[], bool],
    note: Callable[[], str | None],
    workers: Callable[[], str] | None,
) -> None:
    """Routes for an orchestrator and for Prometheus."""
    # Threads of their own: readers may have taken the others.
    threads = anyio.CapacityLimiter(OPERATION_THREADS)

    def serving() -> dict[str, str]:
        """How many workers serve, where there are several."""
        return {} if workers is None else {"workers": workers()}

    @app.get("/healthz", tags=["operation"])
    async def healthz() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok", **serving()}

    @app.get(
        "/readyz",
        tags=["operation"],
        responses={503: {"description": "Not ready, with the reason."}},
    )
    async def readyz(response: Response) -> dict[str, str]:
        """Batches can be committed: the database is reachable, migrated, writable and has room, and
        this collector is not stopping. `note` names what needs attention before that changes.
        """
        return await anyio.to_thread.run_sync(readiness, response, limiter=threads)

    def readiness(response: Response) -> dict[str, str]:
        reason = "this collector is stopping" if is_leaving() else readiness_problem()
        # A collector that is stopping says nothing about the database.
        if not is_leaving():
            metrics.database_up.set(reason is None)
        if reason is None:
            attention = note()
            return {
                "status": "ready",
                **serving(),
                **({} if attention is None else {"note": attention}),
            }
        response.status_code = 503
        response.headers["Retry-After"] = RETRY_AFTER_SECONDS
        return {"status": "not ready", **serving(), "reason": reason}

    @app.get("/metrics", tags=["operation"], response_class=Response)
    async def exposition() -> Response:
        """The collector's own metrics for Prometheus; the database is checked as for /readyz."""
        # Where no orchestrator asks /readyz, nobody else would ever say that the database is up.
        if not is_leaving():
            problem: str | None = "no answer"
            with anyio.move_on_after(DATABASE_CHECK_S):
                problem = await anyio.to_thread.run_sync(
                    readiness_problem, limiter=threads, abandon_on_cancel=True
                )
            metrics.database_up.set(problem is None)
        text = await anyio.to_thread.run_sync(generate_latest, metrics.registry, limiter=threads)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


PROGRAMS = ("/v1/", "/api/")
"""Where programs ask, which want JSON whatever they accept."""
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
"""For answers that are not pages: those have a policy of their own."""


def with_security_headers(send: Send) -> Send:
    """Add headers that keep an answer out of foreign frames and prevent guessing its type."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            # Pages allow their own styles and images; a second policy would only forbid them again.
            has_policy = any(name.lower() == POLICY[0] for name, _ in headers)
            policy = [] if has_policy else [POLICY]
            message = {**message, "headers": [*headers, *SECURITY_HEADERS, *policy]}
        await send(message)

    return send_with_headers


def without_body(send: Send) -> Send:
    """Send an answer's head, and of its body nothing."""

    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_head


class Application(FastAPI):
    """FastAPI with a shortcut for reports: its layers cost more than decoding and validating a
    batch.

    The endpoints of reports do themselves what those layers would: they bound the body and answer
    every exception.
    """

    def __init__(self, report_endpoints: Mapping[str, ASGIApp], **settings: Any) -> None:
        super().__init__(**settings)
        self._report_endpoints = report_endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        endpoint = None
        if scope["type"] == "http":
            send = with_security_headers(send)
            if scope["method"] == "HEAD":
                # Whatever answers a GET answers a HEAD, with the same headers.
                scope = {**scope, "method": "GET", HEAD_ONLY: True}
                send = without_body(send)
            endpoint = (
                self._report_endpoints.get(scope["path"]) if scope["method"] == "POST" else None
            )
        await (endpoint or super().__call__)(scope, receive, send)


class NoNul:
    """Refuses paths and queries with a NUL, which Postgres cannot store in a text."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward to the app, or answer 422."""
        if scope["type"] == "http" and ("\0" in scope["path"] or b"%00" in scope["query_string"]):
            await JSONResponse({"detail": "paths and queries must not contain NUL"}, 422)(
                scope, receive, send
            )
            return
        await self.app(scope, receive, send)


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description with the schemas of msgspec structs, which FastAPI does not know."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _, components = msgspec.json.schema_components(
            [Batch, Answer, Queue, InferenceReport], ref_template="#/components/schemas/{name}"
        )
        schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
        app.openapi_schema = schema
    return app.openapi_schema
