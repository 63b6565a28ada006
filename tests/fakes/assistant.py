"""An assistant: the SDK's own client before a server of this process, an address or a command."""

import contextlib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.mcp import server
from gpuledger_collector.storage.database import Database

ERAS = ("auto", "legacy")
"""The protocol of 2026-07-28 and those with a handshake."""


@dataclass(frozen=True)
class Reply:
    """An answer of a tool."""

    is_error: bool
    text: str
    content: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.content["rows"]

    @property
    def totals(self) -> list[dict[str, Any]]:
        return self.content["totals"]


@dataclass(frozen=True)
class Remote:
    """`/mcp` of a collector."""

    url: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Assistant:
    """Asks a server in this process, a collector, or a command on standard streams."""

    target: Any
    era: str = "auto"

    def ask(self, tool: str, **arguments: Any) -> Reply:
        """One call of a tool."""

        async def call(client: Client) -> Reply:
            result = await client.call_tool(tool, arguments)
            text = "".join(part.text for part in result.content)
            return Reply(bool(result.is_error), text, result.structured_content or {})

        return anyio.run(self._with, call)

    def tools(self) -> list[dict[str, Any]]:
        """What the server offers, as on the wire."""

        async def call(client: Client) -> list[dict[str, Any]]:
            listed = await client.list_tools()
            return [
                tool.model_dump(mode="json", by_alias=True, exclude_none=True)
                for tool in listed.tools
            ]

        return anyio.run(self._with, call)

    def instructions(self) -> str:
        """What the server says of itself."""

        async def call(client: Client) -> str:
            return client.instructions or ""

        return anyio.run(self._with, call)

    async def _with(self, call: Any) -> Any:
        async with contextlib.AsyncExitStack() as stack:
            target = self.target
            if isinstance(target, Remote):
                http = await stack.enter_async_context(
                    httpx2.AsyncClient(headers=dict(target.headers))
                )
                target = streamable_http_client(target.url, http_client=http)
            elif isinstance(target, StdioServerParameters):
                target = stdio_client(target)
            client = await stack.enter_async_context(Client(target, mode=self.era))
            return await call(client)


def over(
    dsn: str,
    now_ms: int,
    owner: Mapping[str, str] | None = None,
    url: str = "https://ledger.example",
) -> Assistant:
    """An assistant over a database in this process, for a finance reader or the viewer of an owner."""
    return _over(dsn, now_ms, None if owner is None else tuple(sorted(owner.items())), url)


@functools.lru_cache(maxsize=8)
def _over(dsn: str, now_ms: int, owner: tuple[tuple[str, str], ...] | None, url: str) -> Assistant:
    """Describing the tools to the SDK takes longer than most of their answers."""
    reader = Principal(
        "finance" if owner is None else "viewer",
        "tester",
        owner=None if owner is None else dict(owner),
    )
    return Assistant(
        server.create(server.Source(Database(dsn), lambda: now_ms, lambda _: reader, url))
    )


def dumped(reply: Reply) -> str:
    """All that an answer says."""
    return reply.text + json.dumps(reply.content)
