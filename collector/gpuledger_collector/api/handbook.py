"""GET /docs: the API for people, rendered here from its OpenAPI description; nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Response

from gpuledger_collector.api.pages import page
from gpuledger_collector.export import html


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, in words."""

    method: str
    path: str
    text: str
    parameters: tuple[tuple[str, str, str], ...]
    """Name, where and of what type it is, what it says."""
    body: str
    answers: tuple[tuple[str, str], ...]


def router(describe: Callable[[], dict[str, Any]]) -> APIRouter:
    """The page, bound to the description."""
    made = APIRouter(include_in_schema=False)

    @made.get("/docs")
    def docs() -> Response:
        """Every operation by subject."""
        schema = describe()
        groups: dict[str, list[Operation]] = {}
        for tag, operation in operations(schema):
            groups.setdefault(tag, []).append(operation)
        return page(html.render("api.html", version=schema["info"]["version"], groups=groups, policy=html.policy()))

    return made


def operations(schema: Mapping[str, Any]) -> Iterator[tuple[str, Operation]]:
    """Every operation of an OpenAPI description with its first tag."""
    for path, methods in schema["paths"].items():
        for method, told in methods.items():
            yield (
                next(iter(told.get("tags", ())), "other"),
                Operation(
                    method.upper(),
                    path,
                    told.get("description") or told.get("summary", ""),
                    tuple((one["name"], placed(one), one.get("description", "")) for one in told.get("parameters", ())),
                    ", ".join(told.get("requestBody", {}).get("content", ())),
                    tuple((code, answer["description"]) for code, answer in told.get("responses", {}).items()),
                ),
            )


def placed(parameter: Mapping[str, Any]) -> str:
    """`query, string`, or `path, integer, needed`."""
    schema = parameter.get("schema", {})
    kinds = [one.get("type", "") for one in (schema, *schema.get("anyOf", ()))]
    kind = " or ".join(name for name in kinds if name and name != "null")
    said = [parameter["in"], kind, "needed" if parameter.get("required") else ""]
    return ", ".join(word for word in said if word)
