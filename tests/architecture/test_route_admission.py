"""Every way in over HTTP has a row of what it admits, and no row is left over."""

import re

import anyio
import pytest
from fastapi import APIRouter

import gpuledger_collector.api.admission as routes
import gpuledger_collector.mcp.admission as assistants
from gpuledger_collector import wiring
from gpuledger_collector.api.context import ReadRoute
from gpuledger_collector.api.page_routes import PageRoute
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_common.admission import BOUNDS


@pytest.fixture
def app(tmp_path):
    """The application with all its options."""
    (tmp_path / "secret").write_text("a secret that signs the links of mails\n")
    settings = Settings(
        data_dir=tmp_path,
        mcp=True,
        public_url="https://gpuledger.example.com",
        link_secret_file=tmp_path / "secret",
        scaling_gauge_delay_seconds=600,
    )
    return wiring.collector(settings, Database("postgresql://nobody@127.0.0.1:1/none")).app


def operations(app):
    """Method and path of every route; HEAD is a GET.

    What has no methods (a mount, a websocket) cannot be walked.
    """
    return {
        f"{method} {route.path}"
        for route in leaves(app.routes)
        for method in route.methods
        if method != "HEAD"
    }


def leaves(found):
    """Routes, also those of routers that the installed version of FastAPI keeps as routers."""
    for route in found:
        if hasattr(route, "original_router"):
            yield from leaves(route.original_router.routes)
        else:
            yield route


def answer():
    """What a route that was just added answers."""


def rows():
    """The rows of routes, those of assistants among them."""
    return (*routes.ADMISSIONS, *assistants.ROUTES)


def test_every_route_and_method_has_a_row(app):
    """One that is added without a row fails here, and so does a row of a route that is gone."""
    names = [row.way_in for row in rows()]
    assert len(names) == len(set(names))
    assert set(names) == operations(app)


def test_the_walk_sees_a_new_route(app):
    """On the application, on a router, and another method on a known path; a mount is refused as a
    whole.
    """
    before, router = operations(app), APIRouter(prefix="/v2")
    app.add_api_route("/v2/alone", answer, methods=["PUT"])
    app.add_api_route("/v1/nodes", answer, methods=["DELETE"])
    router.add_api_route("/inside", answer)
    app.include_router(router)
    assert operations(app) - before == {"PUT /v2/alone", "DELETE /v1/nodes", "GET /v2/inside"}
    app.mount("/v3", APIRouter())
    with pytest.raises(AttributeError):
        operations(app)


def ask(app, method, path):
    """Status and headers of the answer to a request from this machine."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"evil.example")],
        "client": ("127.0.0.1", 40_000),
        "server": ("127.0.0.1", 8440),
        "state": {},
    }
    anyio.run(app, scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


def test_a_slash_too_many_is_no_address(app):
    """On every route: a redirect to the path without it would go to the host of the caller's
    choice, and from https to http.
    """
    paths = {operation.partition(" ")[2] for operation in operations(app)}
    # A name may be empty, or end with a slash: such an address asks for it.
    of_names = tuple(path[: path.index("{")] for path in paths if ":name}" in path)
    for operation in sorted(operations(app)):
        method, path = operation.split(" ")
        known = re.sub(r"{\w+(:\w+)?}", "7", path)
        for wrong in {f"{known}/", f"/{known}", known.rstrip("/")} - {known, ""}:
            status, headers = ask(app, method, wrong)
            assert b"location" not in headers, (operation, wrong)
            assert status == 404 or wrong.startswith(of_names), (operation, wrong)


def unlimited(app):
    """Routes whose row promises the limits of readers, and that do not answer within them."""
    promised = {row.way_in for row in routes.ADMISSIONS if row.in_progress == routes.READING}
    return {
        f"{method} {route.path}"
        for route in leaves(app.routes)
        for method in route.methods
        if f"{method} {route.path}" in promised and not isinstance(route, ReadRoute | PageRoute)
    }


def test_routes_of_readers_have_their_limits(app):
    """A row that promises what the route does not do is found, too."""
    assert unlimited(app) == set()
    app.add_api_route("/v1/nodes", answer)
    assert unlimited(app) == {"GET /v1/nodes"}


def test_every_row_has_a_payer_and_bounds():
    """Each bound is a text; a payer, a deadline and what is in progress are never without meaning."""
    for row in rows():
        assert all(getattr(row, bound) for bound in BOUNDS), row.way_in
        assert "-" not in (row.payer, row.deadline), row.way_in
        assert row.in_progress != "-" or row.bytes != "-", row.way_in
