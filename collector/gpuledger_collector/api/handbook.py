"""GET /docs: the API for people, rendered here from its OpenAPI description; nothing is loaded from
elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from gpuledger_collector.api.auth.keys import Keys
from gpuledger_collector.api.page_routes import bare_site, page
from gpuledger_collector.export import html
from gpuledger_collector.export.site import ANOMALIES, DEMAND, DOCS, FLEET, IDLE, JOBS, SPEND

PAGES = {
    "GET /v1/chargeback": "/statements",
    "GET /v1/budgets": "/#budgets",
    "GET /v1/idle": IDLE,
    "GET /v1/anomalies": ANOMALIES,
    "GET /v1/runs": JOBS,
    "GET /v1/series": SPEND,
    "GET /v1/accelerators": FLEET,
    "GET /v1/nodes": FLEET,
    "GET /v1/forecast": DEMAND,
    "GET /v1/forecast/history": DEMAND,
    "GET /v1/scaling/{pool}": DEMAND,
}
"""Pages that show people what an operation answers programs."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, in words."""

    method: str
    path: str
    text: str
    parameters: tuple[tuple[str, str, str], ...]
    """Name, place and type, description."""
    body: str
    answers: tuple[tuple[str, str], ...]

    @property
    def anchor(self) -> str:
        """Its place on the page: `get-v1-nodes`."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.method} {self.path}".casefold()).strip("-")

    @property
    def page(self) -> str:
        """The page with the same answer, for people; empty: there is none."""
        return PAGES.get(f"{self.method} {self.path}", "")


def router(describe: Callable[[], dict[str, Any]], keys: Keys) -> APIRouter:
    """The page; everybody may read it, and its header is that of its reader."""
    routes = APIRouter(include_in_schema=False)

    @routes.get(DOCS)
    def docs(request: Request) -> Response:
        """Every operation by subject."""
        schema = describe()
        groups: dict[str, list[Operation]] = {}
        for tag, operation in operations(schema):
            groups.setdefault(tag, []).append(operation)
        site = bare_site(keys, request)
        version = schema["info"]["version"]
        reachable = {link.path for link in site.links}
        text = html.render(
            "api.html", site=site, version=version, groups=groups, reachable=reachable
        )
        return page(text, site=site)

    return routes


def operations(schema: Mapping[str, Any]) -> Iterator[tuple[str, Operation]]:
    """Every operation of an OpenAPI description with its first tag."""
    for path, methods in schema["paths"].items():
        for method, described in methods.items():
            yield (
                next(iter(described.get("tags", ())), "other"),
                Operation(
                    method.upper(),
                    path,
                    " ".join(
                        (described.get("description") or described.get("summary", "")).split()
                    ),
                    tuple(
                        (
                            parameter["name"],
                            place_and_type(parameter),
                            parameter.get("description", ""),
                        )
                        for parameter in described.get("parameters", ())
                    ),
                    ", ".join(described.get("requestBody", {}).get("content", ())),
                    tuple(
                        (code, answer["description"])
                        for code, answer in described.get("responses", {}).items()
                    ),
                ),
            )


def place_and_type(parameter: Mapping[str, Any]) -> str:
    """`query, string`, or `path, integer, required`."""
    schema = parameter.get("schema", {})
    types = [variant.get("type", "") for variant in (schema, *schema.get("anyOf", ()))]
    kind = " or ".join(name for name in types if name and name != "null")
    words = [parameter["in"], kind, "required" if parameter.get("required") else ""]
    return ", ".join(word for word in words if word)
