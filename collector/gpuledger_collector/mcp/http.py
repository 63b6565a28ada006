"""POST /mcp: the streamable HTTP transport behind the collector's own tokens.

Stateless: every request carries its token and is answered with one JSON document, by whichever
replica gets it, for clients of either protocol era. Hosts and origins are checked against a list,
because a page that rebinds its name to a loopback address could otherwise read a collector that
needs no token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from gpuledger_collector.mcp import server
from gpuledger_collector.mcp.ledger import Reader
from gpuledger_collector.mcp.server import Source
from gpuledger_collector.mcp.stdio import MAX_LINE_BYTES

PATH = "/mcp"
MAX_BODY_BYTES = MAX_LINE_BYTES
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
READER = "gpuledger.reader"
"""Key in the scope of a request, under which a tool finds who asks."""


class Endpoint:
    """The ASGI endpoint.

    `authenticate` returns who asks or raises starlette's HTTPException; it may block.

    `turn` waits for the turn of who asks, and raises starlette's HTTPException where that takes too
    long.
    """

    path = PATH

    def __init__(
        self,
        source: Source,
        authenticate: Callable[[Request], Reader],
        hosts: Sequence[str],
        turn: Callable[[Reader, Request], AbstractAsyncContextManager[None]] = lambda *_: (
            nullcontext()
        ),
    ) -> None:
        self._authenticate, self._turn = authenticate, turn
        self._server = server.create(source)
        self._server.streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            stateless_http=True,
            max_request_body_size=MAX_BODY_BYTES,
            transport_security=allow_hosts(hosts),
        )

    @asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        """Serve while the block runs. The SDK allows it once."""
        async with self._server.session_manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        reader = scope[READER] = await anyio.to_thread.run_sync(self._authenticate, request)
        async with self._turn(reader, request):
            await self._server.session_manager.handle_request(scope, receive, send)


def reader_of(request: Request | None) -> Reader:
    """Who asks, as the endpoint has authenticated it."""
    assert request is not None
    reader: Reader = request.scope[READER]
    return reader


def allow_hosts(hosts: Sequence[str]) -> TransportSecuritySettings:
    """Loopback names with any port, and these hosts (`name` or `name:port`), as Host and as Origin."""
    names = [*(f"{name}:*" for name in LOOPBACK), *LOOPBACK, *hosts]
    origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in names]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=names, allowed_origins=origins
    )


def hosts_of(public_url: str, names: str) -> list[str]:
    """Hosts by which assistants reach the collector: that of `public_url`, and those of a list with
    commas.
    """
    given = [urlsplit(public_url).netloc.rpartition("@")[2], *names.split(",")]
    return list(dict.fromkeys(host for text in given if (host := text.strip())))
